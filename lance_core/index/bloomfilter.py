"""BLOOMFILTER: for each zone the hashes of its values, in a split-block Bloom filter; and which rows have no value. It
tells zones in which a value cannot be; that a row is NULL it knows exactly.

Filters take four bytes a row and more. Those of a segment are kept where there is room for all of them
(`page_cache.py`), else they are read again for each search.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.datafiles.codec import FileReader, FileWriter
from lance_core.errors import Corrupt, InvalidInput
from lance_core.expressions.tree import Comparison, In, IsNull, Op
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.row_sets import RowSet
from lance_core.format.xxh64 import Hashes, xxh64, xxh64_of_each
from lance_core.index import zones
from lance_core.index.index_type import (
    Certainty,
    IndexOptions,
    Leaf,
    MatchedRows,
    MergeInput,
    Segment,
    SegmentExamination,
)
from lance_core.index.page_cache import CACHE_BYTES_MAX, SegmentPages
from lance_core.index.segment_files import SegmentSink, read_all_rows
from lance_core.index.supported_types import is_bytes, is_number, is_plain, is_temporal, is_text
from lance_core.index.zones import ROWS_PER_ZONE, Mask, Nulls, Zone, Zones, read_nulls, split_into_zones

_WRITTEN_BYTES = 256 << 20
_FILE = "bloomfilter.lance"
_ITEMS, _PROBABILITY = "number_of_items", "probability"
_NOTED = {_ITEMS: "bloomfilter_item", _PROBABILITY: "bloomfilter_probability"}
_USUAL_PROBABILITY = 0.00057
_ITEMS_MAX = 1 << 20
_PROBABILITY_MIN = 1e-6
_VALUES_MAX = 1000
"""More than so many are hardly ever all missing from a zone, and looking for each takes long."""
_FULL = 512
"""So many values in a block leave no bit of it unset."""
_WORDS = 8
_BITS = 32
_BLOCK_BYTES = _WORDS * _BITS // 8
_SALTS = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], dtype=np.uint32
)
_ZONES_A_BATCH = 256
_AFTER = (pa.field("has_null", pa.bool_(), nullable=False), pa.field("bloom_filter_data", pa.binary(), nullable=False))
_SCHEMA = zones.zone_schema([], _AFTER)

_Words = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class BloomFilterOptions:
    number_of_items: int = ROWS_PER_ZONE
    probability: float = _USUAL_PROBABILITY

    @property
    def block_count(self) -> int:
        """The fewest, in powers of two, with which so many values are believed to be there wrongly as seldom."""
        blocks = 1 << (self.number_of_items // _FULL).bit_length()
        while _mistaken(self.number_of_items / blocks) > self.probability:
            blocks *= 2
        return blocks


class BloomFilter:
    name = "BLOOMFILTER"
    type_url = "/lance.index.pb.BloomFilterIndexDetails"
    max_readable_version = 0
    supported_types = "numbers but half floats, dates and times, text, and binary values of any length"

    def written_version(self, *, stable_row_ids: bool) -> int:
        return 0

    def supports(self, column: pa.Field) -> bool:
        arrow = column.type
        one_of = is_number(arrow) or is_temporal(arrow) or is_text(arrow) or is_bytes(arrow)
        return is_plain(column) and one_of and not (pa.types.is_float16(arrow) or pa.types.is_duration(arrow))

    def parse_options(self, given: Mapping[str, object]) -> IndexOptions:
        if unknown := sorted(given.keys() - {_ITEMS, _PROBABILITY}):
            raise InvalidInput(f"{self.name} has no option {unknown[0]!r}; it has {_ITEMS} and {_PROBABILITY}")
        items, probability = given.get(_ITEMS, ROWS_PER_ZONE), given.get(_PROBABILITY, _USUAL_PROBABILITY)
        if type(items) is not int or not 0 < items <= _ITEMS_MAX:
            raise InvalidInput(f"{_ITEMS}={items!r}: it is a whole number of rows a zone, from 1 to {_ITEMS_MAX:,}")
        if not isinstance(probability, float) or not _PROBABILITY_MIN <= probability <= 0.5:
            raise InvalidInput(
                f"{_PROBABILITY}={probability!r}: it says how often a zone may be looked at in vain, from "
                f"{_PROBABILITY_MIN} to 0.5"
            )
        return BloomFilterOptions(items, probability)

    def options_of(self, segment: Segment) -> IndexOptions:
        """What cannot be one is as if nothing were said: it decides nothing about what is there."""
        notes = segment.files.open(_FILE).metadata
        try:
            items, probability = int(notes[_NOTED[_ITEMS]]), float(notes[_NOTED[_PROBABILITY]])
            return self.parse_options({_ITEMS: items, _PROBABILITY: probability})
        except (KeyError, ValueError):
            return BloomFilterOptions()

    def answers(self, leaf: Leaf, metadata: IndexMetadata) -> Certainty | None:
        match leaf:
            case IsNull():
                return Certainty.EXACT
            case In(values=values) if len(values) > _VALUES_MAX:
                return None
            case Comparison(op=Op.EQ) | In():
                return Certainty.AT_MOST
        return None

    def write(
        self,
        files: SegmentSink,
        column: pa.Field,
        rows: Iterable[pa.RecordBatch],
        parts: Sequence[MergeInput],
        options: IndexOptions,
    ) -> bytes:
        assert isinstance(options, BloomFilterOptions)
        nulls = Nulls()
        file = files.create(_FILE, _SCHEMA)
        for part in parts:
            _keep(part, file, nulls)
        for batch in _described(split_into_zones(rows, options.number_of_items), options.block_count, nulls):
            file.write(batch)
        nulls.write(file)
        file.add_metadata(_NOTED[_ITEMS], str(options.number_of_items))
        file.add_metadata(_NOTED[_PROBABILITY], str(options.probability))
        file.finish()
        return b""

    def open(self, segment: Segment, column: pa.Field) -> "BloomFilterSearcher":
        opened = _OpenFilter.of(segment)
        return BloomFilterSearcher(opened, Zones.of(opened.zones, segment, path=opened.path))

    def examine(self, segment: Segment, column: pa.Field) -> SegmentExamination:
        opened = _OpenFilter.of(segment, beyond=True)
        rows, problems = zones.examine_zones(opened.zones, opened.nulls, None)
        try:
            for _ in opened.read():
                pass
        except Corrupt as error:
            problems.append(error.what)
        if opened.nulls is not None and not problems:
            has_null = opened.zones["has_null"].to_numpy()
            there = BitMap(high for high in opened.nulls.parts if segment.rows_under(high))
            silent = opened.nulls.in_fragments(there) - Zones.of(opened.zones, segment, path=opened.path).rows_where(
                has_null
            )
            if silent.parts:
                problems.append(f"its zones know nothing of {len(silent):,} NULLs that it lists")
        return SegmentExamination(rows, lists_every_row=True, problems=tuple(problems))


BLOOMFILTER = BloomFilter()


@dataclass(frozen=True, slots=True)
class _OpenFilter:
    file: FileReader
    path: str
    zones: pa.Table
    """All but the filters."""
    nulls: RowSet | None

    @classmethod
    def of(cls, segment: Segment, *, beyond: bool = False) -> "_OpenFilter":
        path = f"{segment.metadata.qualified_path}/{_FILE}"
        file = segment.files.open(_FILE)
        zones.check_columns(file, {each.name: each.type for each in _SCHEMA}, path=path)
        table = read_all_rows(file, _SCHEMA.names[:-1])
        return cls(file, path, table, read_nulls(file, segment.rows_under, path=path, beyond=beyond))

    def read(self) -> Iterator["_Filters"]:
        """Zone by zone, those together that have as many bytes."""
        count = 0
        for batch in self.file.read([_SCHEMA.names[-1]], 0, self.file.row_count) if self.file.row_count else ():
            column = batch.column(0)
            lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
            if ((lengths % _BLOCK_BYTES != 0) | (lengths == 0)).any():
                at = int(np.flatnonzero((lengths % _BLOCK_BYTES != 0) | (lengths == 0))[0])
                raise Corrupt(
                    f"the filter of zone {count + at} has {lengths[at]:,} bytes, which are no blocks of {_BLOCK_BYTES}",
                    path=self.path,
                    field=_SCHEMA.names[-1],
                )
            for length in np.unique(lengths).tolist():
                some = np.flatnonzero(lengths == length)
                chosen = column if len(some) == len(column) else column.take(pa.array(some))
                yield _Filters(count + some, _as_words(chosen, length))
            count += batch.num_rows


@dataclass(frozen=True, slots=True)
class _Filters:
    """Of zones whose filters have one size."""

    zones: npt.NDArray[np.int64]
    words: _Words
    """By zone, block and word."""

    def may_have(self, hashes: Hashes) -> Mask:
        """Which zones may have one of these."""
        found = np.zeros(len(self.zones), dtype=np.bool_)
        block, bits = _places(hashes, self.words.shape[1])
        for at, wanted in zip(block.tolist(), bits, strict=True):
            found |= ((self.words[:, at, :] & wanted) == wanted).all(axis=1)
        return found


class BloomFilterSearcher:
    def __init__(self, opened: _OpenFilter, zones: Zones) -> None:
        self._opened = opened
        self._zones = zones
        self._kept: SegmentPages[tuple[_Filters, ...]] = SegmentPages()
        self._too_many = False

    def search(self, leaf: Leaf) -> MatchedRows | None:
        match leaf:
            case IsNull():
                return self._without_value()
            case Comparison(op=Op.EQ, value=value):
                return self._one_of([value])
            case In(values=values) if len(values) <= _VALUES_MAX:
                return self._one_of(values)
        return None

    def _one_of(self, values: Sequence[pa.Scalar]) -> MatchedRows:
        hashes = _wanted(pa.array(values, values[0].type)) if values else np.empty(0, dtype=np.uint64)
        where = np.zeros(self._zones.count, dtype=np.bool_)
        if hashes is None:
            where[:] = True
        else:
            for filters in self._filters():
                where[filters.zones] = filters.may_have(hashes)
        return self._zones.matched_rows(where)

    def _without_value(self) -> MatchedRows:
        nulls = self._opened.nulls
        if nulls is None:
            return self._zones.matched_rows(self._opened.zones["has_null"].to_numpy())
        if self._zones.unknown_rows.parts:
            return MatchedRows(nulls | self._zones.unknown_rows, Certainty.AT_MOST)
        return MatchedRows(nulls, Certainty.EXACT)

    def _filters(self) -> Iterable[_Filters]:
        if self._too_many:
            return self._opened.read()
        kept = self._kept.get(0)
        return self._keeping() if kept is None else kept

    def _keeping(self) -> Iterator[_Filters]:
        kept: list[_Filters] = []
        size = 0
        for filters in self._opened.read():
            size += filters.words.nbytes
            if size <= CACHE_BYTES_MAX:
                kept.append(filters)
            else:
                kept.clear()
            yield filters
        self._too_many = size > CACHE_BYTES_MAX
        if not self._too_many:
            self._kept.put(0, tuple(kept), size)


def _keep(part: MergeInput, file: FileWriter, nulls: Nulls) -> None:
    """The zones of a segment whose rows are where they were."""
    opened = _OpenFilter.of(part.segment)
    where = zones.unmoved_zones(opened.zones, part.row_remap, path=opened.path)
    if opened.nulls is None:
        nulls.is_known &= not (opened.zones["has_null"].to_numpy() & where).any()
    else:
        nulls.add_rows(opened.nulls.in_fragments(zones.fragments_of(opened.zones, where)))
    for start in range(0, len(where), _ZONES_A_BATCH):
        chosen = where[start : start + _ZONES_A_BATCH]
        if chosen.any():
            for batch in opened.file.read(_SCHEMA.names, start, len(chosen)):
                here, chosen = chosen[: batch.num_rows], chosen[batch.num_rows :]
                file.write(pa.RecordBatch.from_arrays(batch.filter(pa.array(here)).columns, schema=_SCHEMA))


def _described(found: Iterable[Zone], blocks: int, nulls: Nulls) -> Iterator[pa.RecordBatch]:
    """The rows of new zones, whose NULLs are noted besides."""
    at_once = max(1, min(_ZONES_A_BATCH, _WRITTEN_BYTES // (blocks * _BLOCK_BYTES * 4)))
    lines: list[tuple[int, int, int, bool, bytes]] = []
    for zone in found:
        nulls.add_zone(zone)
        filled = _filter(_inserted(zone.values), blocks)
        lines.append((zone.fragment, zone.start, zone.length, bool(zone.values.null_count), filled))
        if len(lines) == at_once:
            yield _batch(lines)
            lines = []
    if lines:
        yield _batch(lines)


def _batch(lines: Sequence[tuple[int, int, int, bool, bytes]]) -> pa.RecordBatch:
    columns = zip(*lines, strict=True)
    arrays = [pa.array(column, each.type) for column, each in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _filter(hashes: Hashes, blocks: int) -> bytes:
    """A byte for each bit is set faster than bits are, and packed in no time."""
    bits = np.zeros(blocks * _WORDS * _BITS, dtype=np.uint8)
    first = _blocks(hashes, blocks) * (_WORDS * _BITS)
    low = hashes.astype(np.uint32)
    for number, salt in enumerate(_SALTS):
        bits[first + ((low * salt) >> np.uint32(27)) + number * _BITS] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def _places(hashes: Hashes, blocks: int) -> tuple[npt.NDArray[np.int64], _Words]:
    """The block of each, and its bit in every word of that."""
    shifts: _Words = (hashes.astype(np.uint32)[:, np.newaxis] * _SALTS) >> np.uint32(27)
    return _blocks(hashes, blocks), np.left_shift(np.uint32(1), shifts)


def _blocks(hashes: Hashes, blocks: int) -> npt.NDArray[np.int64]:
    return (((hashes >> np.uint64(32)) * np.uint64(blocks)) >> np.uint64(32)).astype(np.int64)


def _as_words(column: pa.Array, length: int) -> _Words:
    offsets = np.frombuffer(column.buffers()[1], np.int32, 1, column.offset * 4)
    data = np.frombuffer(column.buffers()[2], "<u4", len(column) * length // 4, int(offsets[0]))
    return data.reshape(len(column), length // _BLOCK_BYTES, _WORDS)


def _inserted(values: pa.Array) -> Hashes:
    """Of both zeros where there is one: filters take them for equal, and some readers look for one alone."""
    values = values.drop_null()
    hashes = _hashes(values)
    if pa.types.is_floating(values.type) and (values.to_numpy() == 0).any():
        hashes = np.concatenate([hashes, _hashes(pa.array([0.0, -0.0], values.type))])
    return hashes


def _wanted(values: pa.Array) -> Hashes | None:
    """Of what may be there in their place; None where that cannot be told: NaN has many forms."""
    if pa.types.is_floating(values.type):
        numbers = values.to_numpy()
        if np.isnan(numbers).any():
            return None
        if (numbers == 0).any():
            values = pa.concat_arrays([values, pa.array([0.0, -0.0], values.type)])
    return np.unique(_hashes(values))


def _hashes(values: pa.Array) -> Hashes:
    """Of plain bytes, as wide as the type is. None is NULL."""
    if is_text(values.type) or is_bytes(values.type):
        return xxh64_of_each(values)
    width = values.type.bit_width // 8
    data = np.frombuffer(values.buffers()[1], np.uint8, len(values) * width, values.offset * width)
    return xxh64(data.reshape(len(values), width))


def _mistaken(items_a_block: float) -> float:
    """How often a value is believed to be there, of which a block has none: blocks have more and fewer than usual."""
    likely = math.exp(-items_a_block)
    total = 0.0
    for items in range(int(items_a_block + 12 * math.sqrt(items_a_block) + 24)):
        total += likely * (1 - (1 - 1 / _BITS) ** items) ** _WORDS
        likely *= items_a_block / (items + 1)
    return total
