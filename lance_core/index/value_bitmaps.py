"""`bitmap_page_lookup.lance`: for each key, the set of the rows that have it. Two kinds keep their rows so: BITMAP,
whose keys are the values of a column, and LABEL_LIST, whose keys are the elements of lists.

    gathered = Gathered(order)      gathered.add(values, rows)      gathered.write(files)
    sets = KeySets.of(segment)      sets.union(sets.within(span))   reads the keys once, and the sets that are asked for

What a key means is the kinds' business, and so is NULL, which has a set like any key.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from lance_core.datafiles.codec import FileReader
from lance_core.errors import Corrupt, InvalidInput
from lance_core.format.row_sets import HALF_BITS, LOWER_HALF, Ids, RowSet, bitmap_of
from lance_core.index.index_type import Segment, SegmentExamination
from lance_core.index.ordering import Key, Ordering, Positions, Span, concat_arrays, ordering
from lance_core.index.page_cache import SegmentPages
from lance_core.index.segment_files import SegmentSink, read_all_rows
from lance_core.index.supported_types import is_ordered
from lance_core.limits import INDEX_KEYS

FILE = "bitmap_page_lookup.lance"
_KEYS, _SETS = "keys", "bitmaps"
_STATS = "lance:index_stats"
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 1 << 22, 1 << 28
_KEYS_WRITTEN, _BYTES_WRITTEN = 2048, 1 << 28
_SETS_READ = 512
_FEW_SETS = 64


@dataclass(slots=True)
class BitmapBuilder:
    """Rows by key. Those that are added wait until there are millions, so that nothing is done for each of them."""

    order: Ordering
    _values: list[pa.Array] = field(default_factory=list)
    _rows: list[Ids] = field(default_factory=list)
    _waiting: int = 0
    _size: int = 0
    _slots: dict[Key, int] = field(default_factory=dict)
    _keys: list[pa.Array] = field(default_factory=list)
    """Those of the slots, in their order."""
    _sets: list[list[RowSet]] = field(default_factory=list)
    """By slot."""
    _null: list[RowSet] = field(default_factory=list)

    def add(self, values: pa.Array, rows: Ids) -> None:
        if values.null_count:
            valid = values.is_valid().to_numpy(zero_copy_only=False)
            self._null.append(RowSet.of(rows[~valid]))
            values, rows = values.drop_null(), rows[valid]
        if self._waiting + len(values) > _ROWS_AT_ONCE or self._size + values.nbytes > _BYTES_AT_ONCE:
            self._settle()
        if len(values):
            self._values.append(values)
            self._rows.append(rows)
            self._waiting += len(values)
            self._size += values.nbytes

    def add_sets(self, keys: pa.Array, sets: Sequence[RowSet]) -> None:
        valid = keys.is_valid().to_numpy(zero_copy_only=False)
        self._null += [rows for rows, is_key in zip(sets, valid, strict=True) if not is_key]
        of_keys = [rows for rows, is_key in zip(sets, valid, strict=True) if is_key]
        for slot, rows in zip(self._slots_of(keys.drop_null()), of_keys, strict=True):
            self._sets[slot].append(rows)

    def write(self, files: SegmentSink, beside: Mapping[str, bytes] | None = None) -> None:
        """Keys ascending, NULL first; one that no row has any more is left out. `attached_set` goes into buffers, noted under
        their names."""
        self._settle()
        schema = pa.schema([pa.field(_KEYS, self.order.type), pa.field(_SETS, pa.binary())])
        writer = files.create(FILE, schema)
        count = 0
        for keys, sets in self._encoded():
            writer.write(pa.RecordBatch.from_arrays([keys, pa.array(sets, pa.binary())], schema=schema))
            count += len(sets)
        writer.add_metadata(_STATS, json.dumps({"num_bitmaps": count}))
        for name, data in (beside or {}).items():
            writer.add_metadata(name, str(writer.add_buffer(data)))
        writer.finish()

    def _settle(self) -> None:
        """One row after the other of each key is a run once they are sorted by both."""
        if not self._waiting:
            return
        encoded = self.order.hashable(concat_arrays(self._values, self.order.type)).dictionary_encode()
        slots = self._slots_of(encoded.dictionary.view(self.order.type))
        codes, rows = encoded.indices.to_numpy(), np.concatenate(self._rows)
        self._values, self._rows, self._waiting, self._size = [], [], 0, 0
        for high, some in _by_upper_half(rows):
            both = (codes[some].astype(np.uint64) << np.uint64(HALF_BITS)) | (rows[some] & np.uint64(LOWER_HALF))
            both.sort()
            of_rows = (both >> np.uint64(HALF_BITS)).astype(np.int32)
            ends = [*(np.flatnonzero(of_rows[1:] != of_rows[:-1]) + 1).tolist(), len(both)]
            lower = both.astype(np.uint32)
            for start, end in zip([0, *ends], ends, strict=False):
                self._sets[slots[of_rows[start]]].append(RowSet({high: bitmap_of(lower[start:end])}))

    def _slots_of(self, keys: pa.Array) -> list[int]:
        """New ones for keys that are new."""
        found, new = [], []
        for position, key in enumerate(self.order.keys(keys)):
            slot = self._slots.get(key)
            if slot is None:
                slot = self._slots[key] = len(self._sets)
                if slot == INDEX_KEYS.maximum:
                    raise InvalidInput(
                        f"there are more than {slot:,} different values, and an index with a set of rows for each "
                        f"would take too much memory; build a BTREE index, or set {INDEX_KEYS.variable} in the "
                        "environment where there is the memory"
                    )
                self._sets.append([])
                new.append(position)
            found.append(slot)
        if new:
            self._keys.append(keys.take(pa.array(new)))
        return found

    def _encoded(self) -> Iterator[tuple[pa.Array, list[bytes]]]:
        if null := RowSet.union(self._null):
            yield pa.nulls(1, self.order.type), [null.encode()]
        keys = concat_arrays(self._keys, self.order.type)
        slots = self.order.argsort(keys)
        chosen: list[int] = []
        sets: list[bytes] = []
        size = 0
        for slot in slots.tolist():
            if not (rows := RowSet.union(self._sets[slot])):
                continue
            data = rows.encode()
            if sets and (len(sets) == _KEYS_WRITTEN or size + len(data) > _BYTES_WRITTEN):
                yield keys.take(pa.array(chosen)), sets
                chosen, sets, size = [], [], 0
            chosen.append(slot)
            sets.append(data)
            size += len(data)
        if sets:
            yield keys.take(pa.array(chosen)), sets


def _by_upper_half(rows: Ids) -> Iterator[tuple[int, Positions | slice]]:
    upper = (rows >> np.uint64(HALF_BITS)).astype(np.uint32)
    by_upper = None if (upper[1:] >= upper[:-1]).all() else np.argsort(upper, kind="stable")
    if by_upper is not None:
        upper = upper[by_upper]
    ends = [*(np.flatnonzero(upper[1:] != upper[:-1]) + 1).tolist(), len(rows)]
    for start, end in zip([0, *ends], ends, strict=False):
        yield int(upper[start]), slice(start, end) if by_upper is None else by_upper[start:end]


@dataclass(frozen=True, slots=True)
class ValueBitmaps:
    """Those of a segment. The keys are kept, the sets are not."""

    order: Ordering
    keys: Sequence[Key]
    """Ascending, without NULL."""
    _null: Positions
    """Which row of the file is that of NULL."""
    _rows: Positions
    """And of each key."""
    _file: FileReader
    _segment: Segment
    _kept: SegmentPages[RowSet] = field(default_factory=SegmentPages)

    @classmethod
    def of(cls, segment: Segment) -> "ValueBitmaps":
        file = segment.files.open(FILE)
        INDEX_KEYS.check(file.row_count, path=_path(segment))
        order = _order_of(file, segment)
        column = read_all_rows(file, [_KEYS]).column(_KEYS)
        keys = concat_arrays(column.chunks, order.type)
        valid = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
        rows = valid[order.argsort(keys.drop_null())]
        null = np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False))
        return cls(order, order.keys(keys.take(pa.array(rows))), null, rows, file, segment)

    def positions_within(self, span: Span) -> range:
        """Which of the keys are."""
        find_start = bisect_right if span.excludes_low else bisect_left
        find_end = bisect_left if span.excludes_high else bisect_right
        start = 0 if span.low is None else find_start(self.keys, span.low)
        return range(start, len(self.keys) if span.high is None else find_end(self.keys, span.high))

    def positions_of(self, key: Key) -> range:
        return self.positions_within(Span(key, key))

    def null_rows(self) -> RowSet:
        return self._union(self._null)

    def union(self, keys: Iterable[int]) -> RowSet:
        """Of the sets of some keys."""
        return self._union(self._rows[np.unique(np.fromiter(keys, np.int64))])

    def _union(self, rows: Positions) -> RowSet:
        """A few sets are kept, for whoever asks for them again."""
        if len(rows) > _FEW_SETS:
            found = RowSet()
            for start in range(0, len(rows), _SETS_READ):
                some = self._read(np.sort(rows)[start : start + _SETS_READ])
                found = RowSet.union([found, *(each for each, _ in some)])
            return found
        kept = [(row, self._kept.get(row)) for row in rows.tolist()]
        missing = sorted(row for row, found in kept if found is None)
        several = [found for _, found in kept if found is not None]
        for row, (read, size) in zip(missing, self._read(np.array(missing, np.int64)), strict=True):
            self._kept.put(row, read, size)
            several.append(read)
        return RowSet.union(several)

    def _read(self, rows: Positions) -> Iterator[tuple[RowSet, int]]:
        """Of ascending rows of the file, with the bytes that each takes."""
        if len(rows):
            for batch in self._file.take([_SETS], rows):
                yield from _decoded(batch.column(0), self._segment)

    def attached_set(self, name: str) -> RowSet | None:
        """What was put into a buffer under this name."""
        return _beside(self._file, self._segment, name)


def read_attached_set(segment: Segment, name: str, *, beyond: bool = False) -> RowSet | None:
    return _beside(segment.files.open(FILE), segment, name, beyond=beyond)


def _beside(file: FileReader, segment: Segment, name: str, *, beyond: bool = False) -> RowSet | None:
    number = file.metadata.get(name)
    if number is None:
        return None
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise _corrupt(segment, f"has {name}={number[:40]!r}, which is no number of a buffer")
    return RowSet.decode(
        file.read_buffer(int(number)), segment.rows_under, path=_path(segment), keep_impossible_rows=beyond
    )


def read_all_sets(
    segment: Segment, arrow: pa.DataType, *, beyond: bool = False
) -> Iterator[tuple[pa.Array, list[RowSet]]]:
    """All keys, with their sets: for those who read the file from end to end. `keep_impossible_rows`: with rows that cannot be."""
    file = segment.files.open(FILE)
    found = _order_of(file, segment).type
    if found != arrow:
        raise _corrupt(segment, f"has keys of the type {found}; the column has {arrow}")
    for start in range(0, file.row_count, _SETS_READ):
        for batch in file.read([_KEYS, _SETS], start, min(_SETS_READ, file.row_count - start)):
            yield batch.column(0), [found for found, _ in _decoded(batch.column(1), segment, beyond=beyond)]


def examine_bitmaps(segment: Segment, arrow: pa.DataType, *, beside: str | None = None) -> SegmentExamination:
    """Where nothing is kept beside the keys, each row has one key."""
    order = ordering(arrow)
    found, rows, nulls, keys = RowSet(), 0, 0, list[Key]()
    for some, sets in read_all_sets(segment, arrow, beyond=True):
        found = RowSet.union([found, *sets])
        rows += sum(map(len, sets))
        nulls += some.null_count
        keys += order.keys(some.drop_null())
    problems = []
    if nulls > 1 or len(set(keys)) < len(keys):
        problems.append(f"{FILE} has {len(keys) - len(set(keys)) + max(nulls - 1, 0)} keys more than once")
    if beside is None:
        if len(found) < rows:
            problems.append(f"{FILE} has {rows - len(found)} rows under more than one key")
        return SegmentExamination(found, lists_every_row=True, problems=tuple(problems))
    kept = read_attached_set(segment, beside, beyond=True) or RowSet()
    if both := kept & found:
        problems.append(f"{FILE} has {len(both)} rows both under a key and among {beside}")
    return SegmentExamination(found | kept, lists_every_row=False, problems=tuple(problems))


def _decoded(column: pa.Array, segment: Segment, *, beyond: bool = False) -> Iterator[tuple[RowSet, int]]:
    path = _path(segment)
    if column.null_count:
        raise _corrupt(segment, "has a key without a set of rows")
    for data in column:
        encoded = data.as_buffer()
        yield RowSet.decode(encoded, segment.rows_under, path=path, keep_impossible_rows=beyond), encoded.size


def _order_of(file: FileReader, segment: Segment) -> Ordering:
    schema = file.schema
    if schema.names != [_KEYS, _SETS] or schema.field(_SETS).type not in (pa.binary(), pa.large_binary()):
        shown = ", ".join(f"{each.name}: {each.type}" for each in schema)[:200]
        raise _corrupt(segment, f"has columns {shown} instead of {_KEYS} and {_SETS}: binary")
    arrow = schema.field(_KEYS).type
    if not is_ordered(arrow):
        raise _corrupt(segment, f"has keys of the type {arrow}, which have no order")
    return ordering(arrow)


def _path(segment: Segment) -> str:
    return f"{segment.metadata.qualified_path}/{FILE}"


def _corrupt(segment: Segment, what: str) -> Corrupt:
    return Corrupt(what, path=_path(segment), field="keys")
