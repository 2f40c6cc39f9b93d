"""BLOOMFILTER index: stores a split-block Bloom filter of the values of each zone, and the rows that are NULL.

A search excludes zones in which a value cannot occur; for NULL it returns exact rows. Filters take four bytes a row
or more. The filters of a segment are cached if all of them fit (`page_cache.py`), else each search reads them again.
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
    SegmentBuild,
    SegmentExamination,
)
from lance_core.index.page_cache import CACHE_BYTES_MAX, SegmentPages
from lance_core.index.segment_files import SegmentSink, read_all_rows
from lance_core.index.supported_types import is_bytes, is_number, is_plain, is_temporal, is_text
from lance_core.index.zones import ROWS_PER_ZONE, Mask, Nulls, Zone, Zones, read_nulls, split_into_zones

_BATCH_BYTES_MAX = 256 << 20
_FILE = "bloomfilter.lance"
_ITEMS, _PROBABILITY = "number_of_items", "probability"
_METADATA_KEYS = {_ITEMS: "bloomfilter_item", _PROBABILITY: "bloomfilter_probability"}
_DEFAULT_PROBABILITY = 0.00057
_ITEMS_MAX = 1 << 20
_PROBABILITY_MIN = 1e-6
_VALUES_MAX = 1000
"""A zone hardly ever excludes every one of more values, and each takes time to check."""
_SATURATED_BLOCK_ITEMS = 512
"""Number of items at which a block has hardly a bit that is not set."""
_WORDS = 8
_BITS = 32
_BLOCK_BYTES = _WORDS * _BITS // 8
_SALTS = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], dtype=np.uint32
)
_ZONES_PER_BATCH = 256
_FIELDS_AFTER_LOCATION = (
    pa.field("has_null", pa.bool_(), nullable=False),
    pa.field("bloom_filter_data", pa.binary(), nullable=False),
)
_SCHEMA = zones.zone_schema([], _FIELDS_AFTER_LOCATION)

_Words = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class BloomFilterOptions:
    """Options of a BLOOMFILTER index."""

    number_of_items: int = ROWS_PER_ZONE
    probability: float = _DEFAULT_PROBABILITY

    @property
    def block_count(self) -> int:
        """Least power of two of blocks with which the filter, filled with `number_of_items` values, has at most this
        probability of a false positive."""
        blocks = 1 << (self.number_of_items // _SATURATED_BLOCK_ITEMS).bit_length()
        while _false_positive_rate(self.number_of_items / blocks) > self.probability:
            blocks *= 2
        return blocks


class BloomFilter:
    name = "BLOOMFILTER"
    type_url = "/lance.index.pb.BloomFilterIndexDetails"
    max_readable_version = 0
    written_version = 0
    supported_types = "numbers except half floats, dates and times, text, and binary values of any length"

    def supports(self, column: pa.Field) -> bool:
        arrow = column.type
        is_supported = is_number(arrow) or is_temporal(arrow) or is_text(arrow) or is_bytes(arrow)
        return is_plain(column) and is_supported and not (pa.types.is_float16(arrow) or pa.types.is_duration(arrow))

    def parse_options(self, parameters: Mapping[str, object]) -> IndexOptions:
        if unknown := sorted(parameters.keys() - {_ITEMS, _PROBABILITY}):
            raise InvalidInput(f"{self.name} has no option {unknown[0]!r}; it has {_ITEMS} and {_PROBABILITY}")
        items = parameters.get(_ITEMS, ROWS_PER_ZONE)
        probability = parameters.get(_PROBABILITY, _DEFAULT_PROBABILITY)
        if type(items) is not int or not 0 < items <= _ITEMS_MAX:
            raise InvalidInput(f"{_ITEMS}={items!r} must be a whole number of rows per zone, from 1 to {_ITEMS_MAX:,}")
        if not isinstance(probability, float) or not _PROBABILITY_MIN <= probability <= 0.5:
            raise InvalidInput(
                f"{_PROBABILITY}={probability!r}: the false-positive probability of a zone's filter must be from "
                f"{_PROBABILITY_MIN} to 0.5"
            )
        return BloomFilterOptions(items, probability)

    def options_of(self, segment: Segment) -> IndexOptions:
        """Return the recorded options, and the defaults if these are missing or invalid: existing filters do not depend
        on them."""
        metadata = segment.files.open(_FILE).metadata
        try:
            items, probability = int(metadata[_METADATA_KEYS[_ITEMS]]), float(metadata[_METADATA_KEYS[_PROBABILITY]])
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

    def write(self, sink: SegmentSink, build: SegmentBuild) -> bytes:
        options = build.options
        assert isinstance(options, BloomFilterOptions)
        nulls = Nulls()
        file = sink.create(_FILE, _SCHEMA)
        for merge_input in build.inputs:
            _copy_unmoved_zones(merge_input, file, nulls)
        for batch in _encode_zones(split_into_zones(build.rows, options.number_of_items), options.block_count, nulls):
            file.write(batch)
        nulls.write(file)
        file.add_metadata(_METADATA_KEYS[_ITEMS], str(options.number_of_items))
        file.add_metadata(_METADATA_KEYS[_PROBABILITY], str(options.probability))
        file.finish()
        return b""

    def open(self, segment: Segment, column: pa.Field) -> "BloomFilterSearcher":
        opened = _OpenFilter.of(segment)
        return BloomFilterSearcher(opened, Zones.of(opened.zones, segment, path=opened.path))

    def examine(self, segment: Segment, column: pa.Field) -> SegmentExamination:
        opened = _OpenFilter.of(segment, keep_impossible_rows=True)
        rows, problems = zones.examine_zones(opened.zones, opened.nulls, None)
        try:
            for _ in opened.read():
                pass
        except Corrupt as error:
            problems.append(error.what)
        if opened.nulls is not None and not problems:
            has_null = opened.zones["has_null"].to_numpy()
            existing = BitMap(high for high in opened.nulls.parts if segment.rows_under(high))
            recorded = Zones.of(opened.zones, segment, path=opened.path).rows_where(has_null)
            unrecorded = opened.nulls.in_fragments(existing) - recorded
            if unrecorded.parts:
                problems.append(f"its zones do not record {len(unrecorded):,} NULLs that it lists")
        return SegmentExamination(rows, lists_every_row=True, problems=tuple(problems))


BLOOMFILTER = BloomFilter()


@dataclass(frozen=True, slots=True)
class _OpenFilter:
    """Open file of a segment, without the filters themselves."""

    file: FileReader
    path: str
    zones: pa.Table
    """All columns except the filters."""
    nulls: RowSet | None

    @classmethod
    def of(cls, segment: Segment, *, keep_impossible_rows: bool = False) -> "_OpenFilter":
        path = f"{segment.metadata.qualified_path}/{_FILE}"
        file = segment.files.open(_FILE)
        zones.check_columns(file, {expected.name: expected.type for expected in _SCHEMA}, path=path)
        table = read_all_rows(file, _SCHEMA.names[:-1])
        return cls(
            file,
            path,
            table,
            read_nulls(file, segment.rows_under, path=path, keep_impossible_rows=keep_impossible_rows),
        )

    def read(self) -> Iterator["_Filters"]:
        """Yield the filters of all zones; filters of equal size come together."""
        count = 0
        for batch in self.file.read([_SCHEMA.names[-1]], 0, self.file.row_count) if self.file.row_count else ():
            column = batch.column(0)
            lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
            if ((lengths % _BLOCK_BYTES != 0) | (lengths == 0)).any():
                first_bad = int(np.flatnonzero((lengths % _BLOCK_BYTES != 0) | (lengths == 0))[0])
                raise Corrupt(
                    f"the filter of zone {count + first_bad} has {lengths[first_bad]:,} bytes, which is not a multiple "
                    f"of {_BLOCK_BYTES}",
                    path=self.path,
                    field=_SCHEMA.names[-1],
                )
            for length in np.unique(lengths).tolist():
                of_length = np.flatnonzero(lengths == length)
                chosen = column if len(of_length) == len(column) else column.take(pa.array(of_length))
                yield _Filters(count + of_length, _as_words(chosen, length))
            count += batch.num_rows


@dataclass(frozen=True, slots=True)
class _Filters:
    """Filters of equal size, with their zones."""

    zones: npt.NDArray[np.int64]
    words: _Words
    """Words by zone, block and word in the block."""

    def may_contain(self, hashes: Hashes) -> Mask:
        """Return which zones may contain a value with one of these hashes."""
        found = np.zeros(len(self.zones), dtype=np.bool_)
        blocks, bits = _locate_bits(hashes, self.words.shape[1])
        for block, bits_of_hash in zip(blocks.tolist(), bits, strict=True):
            found |= ((self.words[:, block, :] & bits_of_hash) == bits_of_hash).all(axis=1)
        return found


class BloomFilterSearcher:
    """Searcher for one segment of a BLOOMFILTER index."""

    def __init__(self, opened: _OpenFilter, zones: Zones) -> None:
        self._opened = opened
        self._zones = zones
        self._cache: SegmentPages[tuple[_Filters, ...]] = SegmentPages()
        self._exceeds_cache = False

    def search(self, leaf: Leaf) -> MatchedRows | None:
        match leaf:
            case IsNull():
                return self._null_rows()
            case Comparison(op=Op.EQ, value=value):
                return self._zones_with_any([value])
            case In(values=values) if len(values) <= _VALUES_MAX:
                return self._zones_with_any(values)
        return None

    def _zones_with_any(self, values: Sequence[pa.Scalar]) -> MatchedRows:
        hashes = _hashes_to_probe(pa.array(values, values[0].type)) if values else np.empty(0, dtype=np.uint64)
        mask = np.zeros(self._zones.count, dtype=np.bool_)
        if hashes is None:
            mask[:] = True
        else:
            for filters in self._filters():
                mask[filters.zones] = filters.may_contain(hashes)
        return self._zones.matched_rows(mask)

    def _null_rows(self) -> MatchedRows:
        nulls = self._opened.nulls
        if nulls is None:
            return self._zones.matched_rows(self._opened.zones["has_null"].to_numpy())
        if self._zones.unknown_rows.parts:
            return MatchedRows(nulls | self._zones.unknown_rows, Certainty.AT_MOST)
        return MatchedRows(nulls, Certainty.EXACT)

    def _filters(self) -> Iterable[_Filters]:
        if self._exceeds_cache:
            return self._opened.read()
        cached = self._cache.get(0)
        return self._read_and_cache() if cached is None else cached

    def _read_and_cache(self) -> Iterator[_Filters]:
        read_filters: list[_Filters] = []
        size = 0
        for filters in self._opened.read():
            size += filters.words.nbytes
            if size <= CACHE_BYTES_MAX:
                read_filters.append(filters)
            else:
                read_filters.clear()
            yield filters
        self._exceeds_cache = size > CACHE_BYTES_MAX
        if not self._exceeds_cache:
            self._cache.put(0, tuple(read_filters), size)


def _copy_unmoved_zones(merge_input: MergeInput, file: FileWriter, nulls: Nulls) -> None:
    """Copy the zones of an existing segment whose rows did not move."""
    opened = _OpenFilter.of(merge_input.segment)
    is_unmoved = zones.unmoved_zones(opened.zones, merge_input.row_remap, path=opened.path)
    if opened.nulls is None:
        nulls.is_known &= not (opened.zones["has_null"].to_numpy() & is_unmoved).any()
    else:
        nulls.add_rows(opened.nulls.in_fragments(zones.fragments_of(opened.zones, is_unmoved)))
    for start in range(0, len(is_unmoved), _ZONES_PER_BATCH):
        selected = is_unmoved[start : start + _ZONES_PER_BATCH]
        if selected.any():
            for batch in opened.file.read(_SCHEMA.names, start, len(selected)):
                in_batch, selected = selected[: batch.num_rows], selected[batch.num_rows :]
                file.write(pa.RecordBatch.from_arrays(batch.filter(pa.array(in_batch)).columns, schema=_SCHEMA))


def _encode_zones(new_zones: Iterable[Zone], blocks: int, nulls: Nulls) -> Iterator[pa.RecordBatch]:
    """Yield the records of new zones, and add their NULLs to `nulls`."""
    zones_per_batch = max(1, min(_ZONES_PER_BATCH, _BATCH_BYTES_MAX // (blocks * _BLOCK_BYTES * 4)))
    records: list[tuple[int, int, int, bool, bytes]] = []
    for zone in new_zones:
        nulls.add_zone(zone)
        filter_bytes = _build_filter(_hashes_to_insert(zone.values), blocks)
        records.append((zone.fragment, zone.start, zone.length, bool(zone.values.null_count), filter_bytes))
        if len(records) == zones_per_batch:
            yield _batch(records)
            records = []
    if records:
        yield _batch(records)


def _batch(records: Sequence[tuple[int, int, int, bool, bytes]]) -> pa.RecordBatch:
    columns = zip(*records, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _build_filter(hashes: Hashes, blocks: int) -> bytes:
    """Return a filter of the hashes. Setting one byte per bit and packing them is faster than setting bits."""
    bits = np.zeros(blocks * _WORDS * _BITS, dtype=np.uint8)
    first = _block_numbers(hashes, blocks) * (_WORDS * _BITS)
    low = hashes.astype(np.uint32)
    for number, salt in enumerate(_SALTS):
        bits[first + ((low * salt) >> np.uint32(27)) + number * _BITS] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def _locate_bits(hashes: Hashes, blocks: int) -> tuple[npt.NDArray[np.int64], _Words]:
    """Return the block of each hash, and its bit in every word of that block."""
    shifts: _Words = (hashes.astype(np.uint32)[:, np.newaxis] * _SALTS) >> np.uint32(27)
    return _block_numbers(hashes, blocks), np.left_shift(np.uint32(1), shifts)


def _block_numbers(hashes: Hashes, blocks: int) -> npt.NDArray[np.int64]:
    return (((hashes >> np.uint64(32)) * np.uint64(blocks)) >> np.uint64(32)).astype(np.int64)


def _as_words(column: pa.Array, length: int) -> _Words:
    offsets = np.frombuffer(column.buffers()[1], np.int32, 1, column.offset * 4)
    data = np.frombuffer(column.buffers()[2], "<u4", len(column) * length // 4, int(offsets[0]))
    return data.reshape(len(column), length // _BLOCK_BYTES, _WORDS)


def _hashes_to_insert(values: pa.Array) -> Hashes:
    """Return the hashes of the values. If one is a zero, both zeros are inserted: filters treat them as equal, and
    some readers look for only one."""
    values = values.drop_null()
    hashes = _hash_values(values)
    if pa.types.is_floating(values.type) and (values.to_numpy() == 0).any():
        hashes = np.concatenate([hashes, _hash_values(pa.array([0.0, -0.0], values.type))])
    return hashes


def _hashes_to_probe(values: pa.Array) -> Hashes | None:
    """Return the hashes of all values that may stand for the requested ones. `None` if that is not possible: NaN has
    many bit patterns."""
    if pa.types.is_floating(values.type):
        numbers = values.to_numpy()
        if np.isnan(numbers).any():
            return None
        if (numbers == 0).any():
            values = pa.concat_arrays([values, pa.array([0.0, -0.0], values.type)])
    return np.unique(_hash_values(values))


def _hash_values(values: pa.Array) -> Hashes:
    """Return the hash of each value's bytes, in the width of the type. No value may be NULL."""
    if is_text(values.type) or is_bytes(values.type):
        return xxh64_of_each(values)
    width = values.type.bit_width // 8
    data = np.frombuffer(values.buffers()[1], np.uint8, len(values) * width, values.offset * width)
    return xxh64(data.reshape(len(values), width))


def _false_positive_rate(mean_items: float) -> float:
    """Return how often a block reports a value that it does not contain, on average over blocks with more and fewer
    items than the mean."""
    probability = math.exp(-mean_items)
    total = 0.0
    for items in range(int(mean_items + 12 * math.sqrt(mean_items) + 24)):
        total += probability * (1 - (1 - 1 / _BITS) ** items) ** _WORDS
        probability *= mean_items / (items + 1)
    return total
