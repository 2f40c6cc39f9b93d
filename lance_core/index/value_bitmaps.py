"""Value bitmaps: read and write `bitmap_page_lookup.lance`, which stores for each key the set of rows that have it.

    builder = BitmapBuilder(order)      builder.add(values, rows)      builder.write(sink)
    sets = ValueBitmaps.of(segment)     sets.union(sets.positions_within(span))

BITMAP and LABEL_LIST store their rows in this form: the keys of BITMAP are the values of a column, those of
LABEL_LIST the elements of lists. The meaning of a key is up to these index types, and so is NULL, which has a set
like any key. Opening a segment reads its keys; a search reads only the sets that it needs.
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
_BUFFERED_ROWS_MAX, _BUFFERED_BYTES_MAX = 1 << 22, 1 << 28
_BATCH_KEYS_MAX, _BATCH_BYTES_MAX = 2048, 1 << 28
_SETS_PER_READ = 512
_CACHED_SETS_MAX = 64


@dataclass(slots=True)
class BitmapBuilder:
    """Sets of rows by key. Added rows are buffered until there are millions, so that no Python code runs per row."""

    order: Ordering
    _values: list[pa.Array] = field(default_factory=list)
    _rows: list[Ids] = field(default_factory=list)
    _buffered_rows: int = 0
    _buffered_bytes: int = 0
    _slots: dict[Key, int] = field(default_factory=dict)
    _keys: list[pa.Array] = field(default_factory=list)
    """Keys of the slots, in slot order."""
    _sets: list[list[RowSet]] = field(default_factory=list)
    """Sets of rows by slot."""
    _null: list[RowSet] = field(default_factory=list)

    def add(self, values: pa.Array, rows: Ids) -> None:
        """Add rows with their values."""
        if values.null_count:
            valid = values.is_valid().to_numpy(zero_copy_only=False)
            self._null.append(RowSet.of(rows[~valid]))
            values, rows = values.drop_null(), rows[valid]
        if (
            self._buffered_rows + len(values) > _BUFFERED_ROWS_MAX
            or self._buffered_bytes + values.nbytes > _BUFFERED_BYTES_MAX
        ):
            self._flush()
        if len(values):
            self._values.append(values)
            self._rows.append(rows)
            self._buffered_rows += len(values)
            self._buffered_bytes += values.nbytes

    def add_sets(self, keys: pa.Array, sets: Sequence[RowSet]) -> None:
        """Add sets of rows by key, such as those of another segment."""
        valid = keys.is_valid().to_numpy(zero_copy_only=False)
        self._null += [rows for rows, is_key in zip(sets, valid, strict=True) if not is_key]
        key_sets = [rows for rows, is_key in zip(sets, valid, strict=True) if is_key]
        for slot, rows in zip(self._slots_of(keys.drop_null()), key_sets, strict=True):
            self._sets[slot].append(rows)

    def write(self, sink: SegmentSink, attachments: Mapping[str, bytes] | None = None) -> None:
        """Write the file with NULL first and then keys ascending; a key without rows is left out. Each of
        `attachments` becomes a buffer of the file whose number is recorded under its name."""
        self._flush()
        schema = pa.schema([pa.field(_KEYS, self.order.type), pa.field(_SETS, pa.binary())])
        writer = sink.create(FILE, schema)
        count = 0
        for keys, sets in self._encoded_batches():
            writer.write(pa.RecordBatch.from_arrays([keys, pa.array(sets, pa.binary())], schema=schema))
            count += len(sets)
        writer.add_metadata(_STATS, json.dumps({"num_bitmaps": count}))
        for name, data in (attachments or {}).items():
            writer.add_metadata(name, str(writer.add_buffer(data)))
        writer.finish()

    def _flush(self) -> None:
        """Move the buffered rows into the sets. Sorted by key and row, the rows of each key are one run."""
        if not self._buffered_rows:
            return
        encoded = self.order.hashable(concat_arrays(self._values, self.order.type)).dictionary_encode()
        slots = self._slots_of(encoded.dictionary.view(self.order.type))
        codes, rows = encoded.indices.to_numpy(), np.concatenate(self._rows)
        self._values, self._rows, self._buffered_rows, self._buffered_bytes = [], [], 0, 0
        for high, selected in _by_upper_half(rows):
            key_and_row = (codes[selected].astype(np.uint64) << np.uint64(HALF_BITS)) | (
                rows[selected] & np.uint64(LOWER_HALF)
            )
            key_and_row.sort()
            slot_of_row = (key_and_row >> np.uint64(HALF_BITS)).astype(np.int32)
            ends = [*(np.flatnonzero(slot_of_row[1:] != slot_of_row[:-1]) + 1).tolist(), len(key_and_row)]
            lower = key_and_row.astype(np.uint32)
            for start, end in zip([0, *ends], ends, strict=False):
                self._sets[slots[slot_of_row[start]]].append(RowSet({high: bitmap_of(lower[start:end])}))

    def _slots_of(self, keys: pa.Array) -> list[int]:
        """Return the slot of each key, and add slots for new keys."""
        slots, new = [], []
        for position, key in enumerate(self.order.keys(keys)):
            slot = self._slots.get(key)
            if slot is None:
                slot = self._slots[key] = len(self._sets)
                if slot == INDEX_KEYS.maximum:
                    raise InvalidInput(
                        f"there are more than {slot:,} distinct values, and an index with a set of rows for each of "
                        f"them would take too much memory; build a BTREE index, or raise {INDEX_KEYS.variable} in the "
                        "environment if there is enough memory"
                    )
                self._sets.append([])
                new.append(position)
            slots.append(slot)
        if new:
            self._keys.append(keys.take(pa.array(new)))
        return slots

    def _encoded_batches(self) -> Iterator[tuple[pa.Array, list[bytes]]]:
        """Yield keys and encoded sets in the order of the file, in batches of limited size."""
        if null := RowSet.union(self._null):
            yield pa.nulls(1, self.order.type), [null.encode()]
        keys = concat_arrays(self._keys, self.order.type)
        slots = self.order.argsort(keys)
        batch_slots: list[int] = []
        sets: list[bytes] = []
        size = 0
        for slot in slots.tolist():
            if not (rows := RowSet.union(self._sets[slot])):
                continue
            data = rows.encode()
            if sets and (len(sets) == _BATCH_KEYS_MAX or size + len(data) > _BATCH_BYTES_MAX):
                yield keys.take(pa.array(batch_slots)), sets
                batch_slots, sets, size = [], [], 0
            batch_slots.append(slot)
            sets.append(data)
            size += len(data)
        if sets:
            yield keys.take(pa.array(batch_slots)), sets


def _by_upper_half(rows: Ids) -> Iterator[tuple[int, Positions | slice]]:
    """Yield the positions of the rows with each upper half of their number."""
    upper = (rows >> np.uint64(HALF_BITS)).astype(np.uint32)
    by_upper = None if (upper[1:] >= upper[:-1]).all() else np.argsort(upper, kind="stable")
    if by_upper is not None:
        upper = upper[by_upper]
    ends = [*(np.flatnonzero(upper[1:] != upper[:-1]) + 1).tolist(), len(rows)]
    for start, end in zip([0, *ends], ends, strict=False):
        yield int(upper[start]), slice(start, end) if by_upper is None else by_upper[start:end]


@dataclass(frozen=True, slots=True)
class ValueBitmaps:
    """Sets of rows of one segment. The keys are held in memory; the sets are read when needed."""

    order: Ordering
    keys: Sequence[Key]
    """Ascending, without NULL."""
    _null: Positions
    """File rows that hold the set of NULL."""
    _rows: Positions
    """File row of each key."""
    _file: FileReader
    _segment: Segment
    _cache: SegmentPages[RowSet] = field(default_factory=SegmentPages)

    @classmethod
    def of(cls, segment: Segment) -> "ValueBitmaps":
        file = segment.files.open(FILE)
        INDEX_KEYS.check(file.row_count, path=_path(segment))
        order = _ordering_of(file, segment)
        column = read_all_rows(file, [_KEYS]).column(_KEYS)
        keys = concat_arrays(column.chunks, order.type)
        valid = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
        rows = valid[order.argsort(keys.drop_null())]
        null = np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False))
        return cls(order, order.keys(keys.take(pa.array(rows))), null, rows, file, segment)

    def positions_within(self, span: Span) -> range:
        """Return the positions of the keys within a span."""
        find_start = bisect_right if span.excludes_low else bisect_left
        find_end = bisect_left if span.excludes_high else bisect_right
        start = 0 if span.low is None else find_start(self.keys, span.low)
        return range(start, len(self.keys) if span.high is None else find_end(self.keys, span.high))

    def positions_of(self, key: Key) -> range:
        """Return the position of a key; an empty range if it does not exist."""
        return self.positions_within(Span(key, key))

    def null_rows(self) -> RowSet:
        """Return the rows that are NULL."""
        return self._union(self._null)

    def union(self, positions: Iterable[int]) -> RowSet:
        """Return the union of the sets at some positions of keys."""
        return self._union(self._rows[np.unique(np.fromiter(positions, np.int64))])

    def _union(self, rows: Positions) -> RowSet:
        """Return the union of the sets in some rows of the file. A union of few sets goes through the page cache."""
        if len(rows) > _CACHED_SETS_MAX:
            combined = RowSet()
            for start in range(0, len(rows), _SETS_PER_READ):
                sets = self._read(np.sort(rows)[start : start + _SETS_PER_READ])
                combined = RowSet.union([combined, *(row_set for row_set, _ in sets)])
            return combined
        cached = [(row, self._cache.get(row)) for row in rows.tolist()]
        missing = sorted(row for row, row_set in cached if row_set is None)
        row_sets = [row_set for _, row_set in cached if row_set is not None]
        for row, (row_set, size) in zip(missing, self._read(np.array(missing, np.int64)), strict=True):
            self._cache.put(row, row_set, size)
            row_sets.append(row_set)
        return RowSet.union(row_sets)

    def _read(self, rows: Positions) -> Iterator[tuple[RowSet, int]]:
        """Yield the sets in ascending rows of the file, each with its encoded size in bytes."""
        if len(rows):
            for batch in self._file.take([_SETS], rows):
                yield from _decode_sets(batch.column(0), self._segment)

    def attached_set(self, name: str) -> RowSet | None:
        """Return the set in the buffer that is recorded under this name; `None` if there is none."""
        return _attached_set(self._file, self._segment, name)


def read_attached_set(segment: Segment, name: str, *, keep_impossible_rows: bool = False) -> RowSet | None:
    """Return the set in the buffer that is recorded under this name, and `None` if there is none. With
    `keep_impossible_rows`, rows that cannot exist are retained."""
    return _attached_set(segment.files.open(FILE), segment, name, keep_impossible_rows=keep_impossible_rows)


def _attached_set(
    file: FileReader, segment: Segment, name: str, *, keep_impossible_rows: bool = False
) -> RowSet | None:
    number = file.metadata.get(name)
    if number is None:
        return None
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise _corrupt(segment, f"has {name}={number[:40]!r}, which is not the number of a buffer")
    return RowSet.decode(
        file.read_buffer(int(number)),
        segment.rows_under,
        path=_path(segment),
        keep_impossible_rows=keep_impossible_rows,
    )


def read_all_sets(
    segment: Segment, arrow: pa.DataType, *, keep_impossible_rows: bool = False
) -> Iterator[tuple[pa.Array, list[RowSet]]]:
    """Yield all keys with their sets, from the whole file. With `keep_impossible_rows`, rows that cannot exist are
    retained."""
    file = segment.files.open(FILE)
    key_type = _ordering_of(file, segment).type
    if key_type != arrow:
        raise _corrupt(segment, f"has keys of type {key_type}; the column is {arrow}")
    for start in range(0, file.row_count, _SETS_PER_READ):
        for batch in file.read([_KEYS, _SETS], start, min(_SETS_PER_READ, file.row_count - start)):
            sets = _decode_sets(batch.column(1), segment, keep_impossible_rows=keep_impossible_rows)
            yield batch.column(0), [row_set for row_set, _ in sets]


def examine_bitmaps(segment: Segment, arrow: pa.DataType, *, attachment: str | None = None) -> SegmentExamination:
    """Read the whole file and report contradictions. Without an `attachment`, each row must have exactly one key."""
    order = ordering(arrow)
    listed, row_count, nulls, keys = RowSet(), 0, 0, list[Key]()
    for keys_read, sets in read_all_sets(segment, arrow, keep_impossible_rows=True):
        listed = RowSet.union([listed, *sets])
        row_count += sum(map(len, sets))
        nulls += keys_read.null_count
        keys += order.keys(keys_read.drop_null())
    problems = []
    if nulls > 1 or len(set(keys)) < len(keys):
        problems.append(f"{FILE} has {len(keys) - len(set(keys)) + max(nulls - 1, 0)} keys more than once")
    if attachment is None:
        if len(listed) < row_count:
            problems.append(f"{FILE} has {row_count - len(listed)} rows under more than one key")
        return SegmentExamination(listed, lists_every_row=True, problems=tuple(problems))
    attached = read_attached_set(segment, attachment, keep_impossible_rows=True) or RowSet()
    if both := attached & listed:
        problems.append(f"{FILE} has {len(both)} rows both under a key and in {attachment}")
    return SegmentExamination(listed | attached, lists_every_row=False, problems=tuple(problems))


def _decode_sets(
    column: pa.Array, segment: Segment, *, keep_impossible_rows: bool = False
) -> Iterator[tuple[RowSet, int]]:
    path = _path(segment)
    if column.null_count:
        raise _corrupt(segment, "has a key without a set of rows")
    for data in column:
        encoded = data.as_buffer()
        yield (
            RowSet.decode(encoded, segment.rows_under, path=path, keep_impossible_rows=keep_impossible_rows),
            encoded.size,
        )


def _ordering_of(file: FileReader, segment: Segment) -> Ordering:
    schema = file.schema
    if schema.names != [_KEYS, _SETS] or schema.field(_SETS).type not in (pa.binary(), pa.large_binary()):
        shown = ", ".join(f"{each.name}: {each.type}" for each in schema)[:200]
        raise _corrupt(segment, f"has columns {shown} instead of {_KEYS} and {_SETS}: binary")
    arrow = schema.field(_KEYS).type
    if not is_ordered(arrow):
        raise _corrupt(segment, f"has keys of type {arrow}, which is not ordered")
    return ordering(arrow)


def _path(segment: Segment) -> str:
    return f"{segment.metadata.qualified_path}/{FILE}"


def _corrupt(segment: Segment, what: str) -> Corrupt:
    return Corrupt(what, path=_path(segment), field="keys")
