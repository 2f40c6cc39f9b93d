"""Zones, the stretches of a fragment that two kinds describe instead of rows; and the NULLs that they know besides.

A zone is a span of physical rows, from its first live row to its last: what lies between was deleted before. Of the
zones of a segment that is there, those stay whose fragments have their rows where they were; none can follow rows to
another place. What a zone says of its values is not known here (`zonemap.py`, `bloomfilter.py`).
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
"""Of each sort of what is wrong."""
_NULLS = "null_bitmap"
_PLACES = ("fragment_id", "zone_start", "zone_length")
PLACE_FIELDS = tuple(pa.field(name, pa.uint64(), nullable=False) for name in _PLACES)

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Zone:
    """One that is being built, with its live rows."""

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
    """So many live rows a zone, fewer at the end of a fragment. The rows of a fragment come together and ascending.
    `batch_whole_zones`: whole zones that are in one batch come as one."""
    held: list[pa.RecordBatch] = []
    count, fragment = 0, -1
    for batch in rows:
        for upper, part in _by_fragment(batch):
            if held and upper != fragment:
                yield _zone(held)
                held, count = [], 0
            fragment = upper
            whole = part.num_rows // rows_per_zone * rows_per_zone
            if batch_whole_zones and not held and whole:
                yield _zone([part.slice(0, whole)])
                part = part.slice(whole)
            while part.num_rows:
                taken = part.slice(0, rows_per_zone - count)
                part = part.slice(taken.num_rows)
                held.append(taken)
                count += taken.num_rows
                if count == rows_per_zone:
                    yield _zone(held)
                    held, count = [], 0
    if held:
        yield _zone(held)


def _by_fragment(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    if not batch.num_rows:
        return
    rows = batch[ROW].to_numpy(zero_copy_only=False)
    if rows[0] >> np.uint64(HALF_BITS) == rows[-1] >> np.uint64(HALF_BITS):  # most batches are of one
        yield int(rows[0]) >> HALF_BITS, batch
        return
    upper = rows >> np.uint64(HALF_BITS)
    starts = [0, *(np.flatnonzero(upper[1:] != upper[:-1]) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        yield int(upper[start]), batch.slice(start, end - start)


def _zone(parts: Sequence[pa.RecordBatch]) -> Zone:
    batch = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
    addresses = batch[ROW].to_numpy(zero_copy_only=False)
    span = int(addresses[-1]) - int(addresses[0]) + 1
    assert len(addresses) <= span <= LOWER_HALF + 1, "rows of a zone come in the order of a scan"
    return Zone(batch[VALUE], addresses)


@dataclass(slots=True)
class Nulls:
    """The rows without a value, as they are found; not known at all once a part did not know its own."""

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


def read_nulls(file: FileReader, rows_under: RowsUnder, *, path: str, beyond: bool = False) -> RowSet | None:
    """None where the file does not say. `keep_impossible_rows`: also rows that cannot be there."""
    said = file.metadata.get(_NULLS)
    if said is None:
        return None
    if not (said.isascii() and said.isdecimal() and int(said)):
        raise Corrupt(f"{said!r} is no number of a buffer", path=path, field=_NULLS)
    return RowSet.decode(file.read_buffer(int(said)), rows_under, path=path, keep_impossible_rows=beyond)


@dataclass(frozen=True, slots=True)
class Zones:
    """Those of a segment that is open, in the order of its file, without rows that cannot be there."""

    fragment: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    unknown_rows: RowSet
    """All rows of the fragments that the segment claims and has no zone of: nobody knows what is in them."""

    @classmethod
    def of(cls, table: pa.Table, segment: Segment, *, path: str) -> "Zones":
        fragment, start, length = (_numbers(table, name, path=path) for name in _PLACES)
        distinct, of_zone = np.unique(fragment, return_inverse=True)
        rows = {int(each): segment.rows_under(int(each)) for each in distinct if each <= LOWER_HALF}
        most = np.array([rows.get(int(each), 0) for each in distinct], dtype=np.uint64)[of_zone]
        start = np.minimum(start, most)
        end = start + np.minimum(length, most - start)
        claimed = segment.metadata.covers or BitMap()
        unknown = {each: segment.rows_under(each) for each in claimed if each not in rows}
        return cls(
            np.minimum(fragment, LOWER_HALF).astype(np.int64),
            start.astype(np.int64),
            end.astype(np.int64),
            RowSet.full(unknown),
        )

    def matched_rows(self, where: Mask) -> MatchedRows:
        return MatchedRows(self.rows_where(where) | self.unknown_rows, Certainty.AT_MOST)

    def rows_where(self, where: Mask) -> RowSet:
        """Of the zones where it is true."""
        chosen = np.flatnonzero(where & (self.end > self.start))
        fragment, start, end = self.fragment[chosen], self.start[chosen], self.end[chosen]
        if not len(chosen):
            return RowSet()
        # Zones that follow one another are one stretch.
        begins = np.ones(len(chosen), dtype=np.bool_)
        begins[1:] = (fragment[1:] != fragment[:-1]) | (start[1:] != end[:-1])
        first = np.flatnonzero(begins)
        last = np.append(first[1:] - 1, len(chosen) - 1)
        parts: dict[int, BitMap] = {}
        for high, low, after in zip(fragment[first].tolist(), start[first].tolist(), end[last].tolist(), strict=True):
            parts.setdefault(high, BitMap()).add_range(low, after)
        return RowSet(parts if (fragment[1:] >= fragment[:-1]).all() else dict(sorted(parts.items())))

    @property
    def count(self) -> int:
        return len(self.fragment)


def unmoved_zones(table: pa.Table, moves: RowRemap, *, path: str) -> Mask:
    """Which zones have their rows where they were. A fragment is moved whole or not at all."""
    fragment, start, _ = (_numbers(table, name, path=path) for name in _PLACES)
    if (np.maximum(fragment, start) > LOWER_HALF).any():
        raise Corrupt("a zone begins where no row can be", path=path, field="zone_start")
    was = (fragment << np.uint64(HALF_BITS)) | start
    now, there = moves.remap(was)
    stays: Mask = there & (now == was)
    return stays


def fragments_of(table: pa.Table, where: Mask) -> BitMap:
    return BitMap(np.unique(table["fragment_id"].to_numpy()[where]).tolist())


def examine_zones(table: pa.Table, nulls: RowSet | None, null_rows: Numbers | None) -> tuple[RowSet, list[str]]:
    """All rows of the zones, and what is wrong with those. `null_rows`: how many each zone says that it has."""
    fragment, start, length = (table[name].combine_chunks().fill_null(0).to_numpy() for name in _PLACES)
    wrong = [f"{table[name].null_count} of its zones have no {name}" for name in _PLACES if table[name].null_count]
    most = np.uint64(LOWER_HALF + 1)
    possible = (fragment < most) & (start < most) & (length > 0) & (length <= most - np.minimum(start, most))
    wrong += [
        f"zone {at} has {int(length[at]):,} rows from {int(start[at]):,} on, of fragment {int(fragment[at])}"
        for at in np.flatnonzero(~possible)[:PROBLEMS_SHOWN_MAX]
    ]
    places = [each[possible].astype(np.int64) for each in (fragment, start, start + length)]
    order = np.lexsort((places[1], places[0]))
    fragment, start, end = (each[order] for each in places)
    meet = np.flatnonzero((fragment[1:] == fragment[:-1]) & (start[1:] < end[:-1]))
    wrong += [f"two zones share row {start[at + 1]:,} of fragment {fragment[at]}" for at in meet[:PROBLEMS_SHOWN_MAX]]
    rows = Zones(fragment, start, end, RowSet()).rows_where(np.ones(len(fragment), dtype=np.bool_))
    if nulls is not None:
        outside = [
            f"row {row & LOWER_HALF:,} of fragment {row >> HALF_BITS}" for row in itertools.islice(nulls - rows, 1)
        ]
        wrong += [f"{each} is NULL, and in no zone" for each in outside]
        if null_rows is not None and not outside and int(null_rows.sum()) != len(nulls):
            wrong.append(f"its zones have {int(null_rows.sum()):,} NULLs, of which it lists {len(nulls):,}")
    return rows, wrong


def zone_schema(before: Sequence[pa.Field], after: Sequence[pa.Field] = ()) -> pa.Schema:
    return pa.schema([*before, *PLACE_FIELDS, *after])


def check_columns(file: FileReader, wanted: Mapping[str, pa.DataType], *, path: str) -> None:
    for name, arrow in wanted.items():
        if name not in file.schema.names:
            raise Corrupt("the column is missing", path=path, field=name)
        if file.schema.field(name).type != arrow:
            raise Corrupt(f"is {file.schema.field(name).type} where {arrow} belongs", path=path, field=name)
    if file.row_count > ZONES_MAX:
        raise Corrupt(f"has {file.row_count:,} zones", path=path, field="zone_start")


def _numbers(table: pa.Table, name: str, *, path: str) -> Numbers:
    column = table[name]
    if column.null_count:
        raise Corrupt("a value is missing", path=path, field=name)
    found: Numbers = column.to_numpy()
    return found
