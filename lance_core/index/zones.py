"""Zones: ranges of rows of a fragment, which zone maps and Bloom filters summarize, and the NULLs in them.

A zone spans physical rows from its first live row to its last one; rows in between were deleted before. When an
existing segment is merged, the zones of fragments whose rows have moved are dropped, since a zone cannot follow rows.
`zonemap.py` and `bloomfilter.py` define what is stored about the values of a zone.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_core.datafiles.codec import FileReader, FileWriter
from lance_core.errors import Corrupt
from lance_core.format.row_sets import HALF_BITS, LOWER_HALF, Ids, RowSet, RowsUnder, bitmap_of
from lance_core.index.index_type import ROW, VALUE, Certainty, MatchedRows, RowRemap, Segment

ROWS_PER_ZONE = 8192
ZONES_MAX = 1 << 24
PROBLEMS_SHOWN_MAX = 3
"""Maximum number of problems of one category that are reported."""
_NULLS = "null_bitmap"
_LOCATION_COLUMNS = ("fragment_id", "zone_start", "zone_length")
LOCATION_FIELDS = tuple(pa.field(name, pa.uint64(), nullable=False) for name in _LOCATION_COLUMNS)

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Zone:
    """Zone that is being built, with its live rows."""

    values: pa.Array
    addresses: Ids

    @property
    def fragment(self) -> int:
        return int(self.addresses[0]) >> HALF_BITS

    @property
    def start(self) -> int:
        return int(self.addresses[0]) & LOWER_HALF

    @property
    def length(self) -> int:
        return int(self.addresses[-1] - self.addresses[0]) + 1


def split_into_zones(
    rows: Iterable[pa.RecordBatch], rows_per_zone: int, *, batch_whole_zones: bool = False
) -> Iterator[Zone]:
    """Yield zones of `rows_per_zone` live rows; the last zone of a fragment may have fewer.

    The rows of a fragment must come consecutively and ascending. With `batch_whole_zones`, whole zones within one
    batch come as one `Zone`.
    """
    pending: list[pa.RecordBatch] = []
    count, current_fragment = 0, -1
    for batch in rows:
        for fragment_of_part, part in _split_by_fragment(batch):
            if pending and fragment_of_part != current_fragment:
                yield _make_zone(pending)
                pending, count = [], 0
            current_fragment = fragment_of_part
            whole_rows = part.num_rows // rows_per_zone * rows_per_zone
            if batch_whole_zones and not pending and whole_rows:
                yield _make_zone([part.slice(0, whole_rows)])
                part = part.slice(whole_rows)
            while part.num_rows:
                piece = part.slice(0, rows_per_zone - count)
                part = part.slice(piece.num_rows)
                pending.append(piece)
                count += piece.num_rows
                if count == rows_per_zone:
                    yield _make_zone(pending)
                    pending, count = [], 0
    if pending:
        yield _make_zone(pending)


def _split_by_fragment(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    if not batch.num_rows:
        return
    rows = batch[ROW].to_numpy(zero_copy_only=False)
    if rows[0] >> np.uint64(HALF_BITS) == rows[-1] >> np.uint64(HALF_BITS):  # Most batches are of one fragment.
        yield int(rows[0]) >> HALF_BITS, batch
        return
    fragments = rows >> np.uint64(HALF_BITS)
    starts = [0, *(np.flatnonzero(fragments[1:] != fragments[:-1]) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        yield int(fragments[start]), batch.slice(start, end - start)


def _make_zone(parts: Sequence[pa.RecordBatch]) -> Zone:
    batch = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
    addresses = batch[ROW].to_numpy(zero_copy_only=False)
    span = int(addresses[-1]) - int(addresses[0]) + 1
    assert len(addresses) <= span <= LOWER_HALF + 1, "rows of a zone come in the order of a scan"
    return Zone(batch[VALUE], addresses)


@dataclass(slots=True)
class Nulls:
    """Rows that are NULL, collected while zones are written. The set becomes unknown once a merged segment did not
    record its own."""

    parts: dict[int, BitMap] = field(default_factory=dict)
    is_known: bool = True

    def add_zone(self, zone: Zone) -> None:
        if zone.values.null_count:
            missing = zone.addresses[zone.values.is_null().to_numpy(zero_copy_only=False)]
            lower = (missing & np.uint64(LOWER_HALF)).astype(np.uint32)
            self.parts.setdefault(zone.fragment, BitMap()).update(bitmap_of(lower))

    def add_rows(self, rows: RowSet) -> None:
        for fragment, part in rows.parts.items():
            self.parts.setdefault(fragment, BitMap()).update(part)

    def write(self, file: FileWriter) -> None:
        if self.is_known:
            parts = {fragment: self.parts[fragment] for fragment in sorted(self.parts)}
            file.add_metadata(_NULLS, str(file.add_buffer(RowSet(parts).encode())))


def read_nulls(
    file: FileReader, rows_under: RowsUnder, *, path: str, keep_impossible_rows: bool = False
) -> RowSet | None:
    """Return the rows that are NULL, or `None` if the file does not record them. With `keep_impossible_rows`, rows
    that cannot exist are retained."""
    buffer = file.metadata.get(_NULLS)
    if buffer is None:
        return None
    if not (buffer.isascii() and buffer.isdecimal() and int(buffer)):
        raise Corrupt(f"{buffer!r} is not the number of a buffer", path=path, field=_NULLS)
    return RowSet.decode(
        file.read_buffer(int(buffer)), rows_under, path=path, keep_impossible_rows=keep_impossible_rows
    )


@dataclass(frozen=True, slots=True)
class Zones:
    """Zones of an open segment in the order of its file, without rows that cannot exist."""

    fragment: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    unknown_rows: RowSet
    """All rows of fragments that the segment claims without a zone: nothing is known about their values."""

    @classmethod
    def of(cls, table: pa.Table, segment: Segment, *, path: str) -> "Zones":
        fragment, start, length = (_location_column(table, name, path=path) for name in _LOCATION_COLUMNS)
        distinct, of_zone = np.unique(fragment, return_inverse=True)
        rows = {int(id): segment.rows_under(int(id)) for id in distinct if id <= LOWER_HALF}
        rows_max = np.array([rows.get(int(id), 0) for id in distinct], dtype=np.uint64)[of_zone]
        start = np.minimum(start, rows_max)
        end = start + np.minimum(length, rows_max - start)
        claimed = segment.metadata.covers or BitMap()
        unknown = {id: segment.rows_under(id) for id in claimed if id not in rows}
        return cls(
            np.minimum(fragment, LOWER_HALF).astype(np.int64),
            start.astype(np.int64),
            end.astype(np.int64),
            RowSet.full(unknown),
        )

    def matched_rows(self, where: Mask) -> MatchedRows:
        """Return the rows of the zones where the mask is true, as a superset of the matching rows."""
        return MatchedRows(self.rows_where(where) | self.unknown_rows, Certainty.AT_MOST)

    def rows_where(self, where: Mask) -> RowSet:
        """Return the rows of the zones where the mask is true."""
        positions = np.flatnonzero(where & (self.end > self.start))
        fragment, start, end = self.fragment[positions], self.start[positions], self.end[positions]
        if not len(positions):
            return RowSet()
        # Adjacent zones are one range.
        begins = np.ones(len(positions), dtype=np.bool_)
        begins[1:] = (fragment[1:] != fragment[:-1]) | (start[1:] != end[:-1])
        first = np.flatnonzero(begins)
        last = np.append(first[1:] - 1, len(positions) - 1)
        parts: dict[int, BitMap] = {}
        for high, low, after in zip(fragment[first].tolist(), start[first].tolist(), end[last].tolist(), strict=True):
            parts.setdefault(high, BitMap()).add_range(low, after)
        return RowSet(parts if (fragment[1:] >= fragment[:-1]).all() else dict(sorted(parts.items())))

    @property
    def count(self) -> int:
        return len(self.fragment)


def unmoved_zones(table: pa.Table, moves: RowRemap, *, path: str) -> Mask:
    """Return a mask of the zones whose rows have not moved. A fragment moves as a whole or not at all."""
    fragment, start, _ = (_location_column(table, name, path=path) for name in _LOCATION_COLUMNS)
    if (np.maximum(fragment, start) > LOWER_HALF).any():
        raise Corrupt("a zone begins at an address that no row can have", path=path, field="zone_start")
    addresses = (fragment << np.uint64(HALF_BITS)) | start
    current, retained = moves.remap(addresses)
    is_unmoved: Mask = retained & (current == addresses)
    return is_unmoved


def fragments_of(table: pa.Table, where: Mask) -> BitMap:
    """Return the fragments of the zones where the mask is true."""
    return BitMap(np.unique(table["fragment_id"].to_numpy()[where]).tolist())


def examine_zones(table: pa.Table, nulls: RowSet | None, null_rows: Numbers | None) -> tuple[RowSet, list[str]]:
    """Return all rows of the zones, and contradictions among them. `null_rows` is the number of NULLs that each zone
    records."""
    fragment, start, length = (table[name].combine_chunks().fill_null(0).to_numpy() for name in _LOCATION_COLUMNS)
    problems = [
        f"{table[name].null_count} of its zones have no {name}" for name in _LOCATION_COLUMNS if table[name].null_count
    ]
    end_max = np.uint64(LOWER_HALF + 1)
    possible = (
        (fragment < end_max) & (start < end_max) & (length > 0) & (length <= end_max - np.minimum(start, end_max))
    )
    problems += [
        f"zone {at} has {int(length[at]):,} rows from {int(start[at]):,} on, of fragment {int(fragment[at])}"
        for at in np.flatnonzero(~possible)[:PROBLEMS_SHOWN_MAX]
    ]
    locations = [column[possible].astype(np.int64) for column in (fragment, start, start + length)]
    order = np.lexsort((locations[1], locations[0]))
    fragment, start, end = (column[order] for column in locations)
    overlapping = np.flatnonzero((fragment[1:] == fragment[:-1]) & (start[1:] < end[:-1]))
    problems += [
        f"two zones share row {start[at + 1]:,} of fragment {fragment[at]}" for at in overlapping[:PROBLEMS_SHOWN_MAX]
    ]
    rows = Zones(fragment, start, end, RowSet()).rows_where(np.ones(len(fragment), dtype=np.bool_))
    if nulls is not None:
        outside = [
            f"row {row & LOWER_HALF:,} of fragment {row >> HALF_BITS}" for row in itertools.islice(nulls - rows, 1)
        ]
        problems += [f"{row} is NULL and in no zone" for row in outside]
        if null_rows is not None and not outside and int(null_rows.sum()) != len(nulls):
            problems.append(f"its zones record {int(null_rows.sum()):,} NULLs, and it lists {len(nulls):,}")
    return rows, problems


def zone_schema(before: Sequence[pa.Field], after: Sequence[pa.Field] = ()) -> pa.Schema:
    """Return the schema of a file of zones with columns before and after the location of a zone."""
    return pa.schema([*before, *LOCATION_FIELDS, *after])


def check_columns(file: FileReader, expected: Mapping[str, pa.DataType], *, path: str) -> None:
    """Raise `Corrupt` if the file lacks a column, if a column has another type, or if the file has too many zones."""
    for name, arrow in expected.items():
        if name not in file.schema.names:
            raise Corrupt("the column is missing", path=path, field=name)
        if file.schema.field(name).type != arrow:
            raise Corrupt(f"has type {file.schema.field(name).type} instead of {arrow}", path=path, field=name)
    if file.row_count > ZONES_MAX:
        raise Corrupt(f"has {file.row_count:,} zones; at most {ZONES_MAX:,} are allowed", path=path, field="zone_start")


def _location_column(table: pa.Table, name: str, *, path: str) -> Numbers:
    column = table[name]
    if column.null_count:
        raise Corrupt("a value is missing", path=path, field=name)
    numbers: Numbers = column.to_numpy()
    return numbers
