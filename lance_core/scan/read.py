"""Doing a scan: a plan's fragments in pieces, pieces into batches, by a few threads, in order.

A piece is so many rows that a few of them fit in memory; of small fragments several are read in one turn. Where there
is a condition, its columns are read first. What else is wanted is then read for the rows that match alone if they are
few, else of the whole piece, and not at all if there are none.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.data.read import FragmentReader, LiveRows, OpenFragment, load_deletions, rows_without_columns
from lance_core.expressions import METADATA_COLUMNS
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest
from lance_core.format.schema import TableSchema
from lance_core.location import Location
from lance_core.scan.parallel import THREADS, in_order
from lance_core.scan.plan import ScanPlan, ScanTask, plan_columns
from lance_core.scan.row_columns import ROW_COLUMNS, RowFacts

_LATE_SHARE = 50
"""The rest of a row is picked by its number where at most one row in so many matches. Measured on 16 columns of mixed
types: picking 1 % takes half as long as reading all, picking 10 % twice as long."""
_TURN_ROWS = 65_536
_TURN_PIECES = 16

Offsets = npt.NDArray[np.int64]
"""Physical rows of a fragment, ascending."""


class LiveFragment:
    """A fragment, and what all pieces of it need once."""

    def __init__(self, location: Location, manifest: Manifest, fragment: Fragment) -> None:
        self._location = location
        self.fragment = fragment
        self.facts = RowFacts(manifest, fragment, path=manifest_path(location, manifest))
        self._deletions: tuple[DeletionVector | None] | None = None
        self._open: dict[FragmentReader, OpenFragment] = {}

    def opened(self, reader: FragmentReader) -> OpenFragment:
        """Twice, where two threads come at once, which does no harm."""
        if reader not in self._open:
            self._open[reader] = reader.open(self.fragment)
        return self._open[reader]

    @property
    def deletions(self) -> DeletionVector | None:
        if self._deletions is None:
            self._deletions = (load_deletions(self._location.store, self.fragment),)
        return self._deletions[0]

    def physical(self, live: int) -> int:
        """Where the live row of this number is; the end of the fragment for the number after the last."""
        rows, deleted = self.fragment.physical_rows, self.deletions
        if not deleted or live >= rows - len(deleted):
            return min(live, rows) if not deleted else rows
        return int(deleted.physical(np.array([live]))[0])


@dataclass(frozen=True, slots=True)
class Piece:
    """Physical rows of a fragment, read in one go."""

    of: LiveFragment
    start: int
    count: int


def scan(location: Location, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
    """Rows in order. Where only some matching ones are wanted, nobody reads ahead."""
    threads = 1 if plan.predicate is not None and plan.limit is not None else THREADS
    turns = in_order(Reading(location, plan).batches, _turns(location, plan), threads=threads)
    rows = (batch for turn in turns for batch in turn if batch.num_rows)
    return rows if plan.predicate is None else window(rows, plan.offset, plan.limit)


def count(location: Location, plan: ScanPlan) -> int:
    """Rows that match; nothing but the predicate's columns is read."""
    return sum(in_order(Reading(location, plan).matches, _turns(location, plan)))


def rows_of(
    location: Location, manifest: Manifest, fragment: Fragment, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """A fragment's live rows with these columns, in this order, those that every table has besides included. Blobs come
    as they are, for whoever writes them again."""
    plan = plan_columns(manifest, columns, describe_blobs=False)
    whole = Piece(LiveFragment(location, manifest, fragment), 0, fragment.physical_rows)
    return Reading(location, plan).live(whole)


def manifest_path(location: Location, manifest: Manifest) -> str:
    """Fit for messages."""
    return f"{location.uri}/{manifest.path}"


class _Placed(Protocol):
    """Rows that know where they are; asked only where somebody wants to know."""

    @property
    def count(self) -> int: ...

    @property
    def offsets(self) -> Offsets: ...


@dataclass(frozen=True, slots=True)
class _Hits:
    count: int
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class _Masked:
    rows: LiveRows
    mask: pa.BooleanArray

    @property
    def count(self) -> int:
        return int(self.mask.true_count)

    @property
    def offsets(self) -> Offsets:
        offsets: Offsets = self.rows.offsets[np.asarray(self.mask)]
        return offsets


class Reading:
    """What all pieces of a scan, or of a take, share. Used by several threads."""

    def __init__(self, location: Location, plan: ScanPlan) -> None:
        path, schema = manifest_path(location, plan.manifest), plan.table
        self._plan = plan
        self._schema = plan.schema

        def reader(wanted: TableSchema) -> FragmentReader:
            describe = plan.describe_blobs
            return FragmentReader(location.store, location.codec, schema, wanted, path=path, describe_blobs=describe)

        self._first, self._then = reader(plan.first), reader(plan.then)
        self._held_first = frozenset(plan.first.arrow.names)
        self._comes_as_read = self._first.arrow.equals(self._schema) and all(
            len(each.path) == 1 for each in plan.output
        )

    def batches(self, pieces: Sequence[Piece]) -> list[pa.RecordBatch]:
        if self._plan.predicate is None:
            return [batch for piece in pieces for batch in self.live(piece)]
        return [batch for piece in pieces for batch in self._matching(piece)]

    def matches(self, pieces: Sequence[Piece]) -> int:
        return sum(mask.true_count for piece in pieces for _rows, mask in self._masked(piece))

    def live(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        for rows in self._read(self._first, piece):
            if self._comes_as_read:
                yield rows.batch
            else:
                yield self._shown(piece.of, (rows.batch,), rows)

    def picked(self, of: LiveFragment, offsets: Offsets) -> pa.RecordBatch:
        """These rows, deleted or not."""
        batch = of.opened(self._first).take(offsets)
        return batch if self._comes_as_read else self._shown(of, (batch,), _Hits(len(offsets), offsets))

    def _read(self, reader: FragmentReader, piece: Piece) -> Iterator[LiveRows]:
        return piece.of.opened(reader).live(piece.of.deletions, piece.start, piece.count)

    def _masked(self, piece: Piece) -> Iterator[tuple[LiveRows, pa.BooleanArray]]:
        predicate = self._plan.predicate
        assert predicate is not None
        facts = [name for name in predicate.columns if name in ROW_COLUMNS]
        for rows in self._read(self._first, piece):
            batch = rows.batch
            if facts:
                batch = _with_facts(batch, piece.of.facts, facts, rows.offsets)
            yield rows, predicate.mask(batch)

    def _matching(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        found = [(rows, mask, mask.true_count) for rows, mask in self._masked(piece)]
        matches = sum(count for *_, count in found)
        if not matches:
            return
        if self._plan.then.fields and matches * _LATE_SHARE <= piece.count:
            hits = [(rows, mask) for rows, mask, count in found if count]
            offsets = np.concatenate([rows.offsets[np.asarray(mask)] for rows, mask in hits])
            first = _joined([_kept(rows.batch, mask) for rows, mask in hits])
            picked = piece.of.opened(self._then).take(offsets)
            yield self._shown(piece.of, (first, picked), _Hits(len(offsets), offsets))
            return
        others: Iterable[LiveRows | None] = [None] * len(found)
        if self._plan.then.fields:
            others = self._read(self._then, piece)
        for (rows, mask, count), other in zip(found, others, strict=True):
            if not count:
                continue
            parts = [rows.batch] if other is None else [rows.batch, other.batch]
            if count == rows.batch.num_rows:
                yield self._shown(piece.of, parts, rows)
            else:
                parts = [_kept(part, mask) for part in parts]
                yield self._shown(piece.of, parts, _Masked(rows, mask))

    def _shown(self, of: LiveFragment, parts: Sequence[pa.RecordBatch], rows: "_Placed") -> pa.RecordBatch:
        """What is asked for of these rows; `parts` are what was read first and then."""
        arrays = []
        for column in self._plan.output:
            if column.is_stored:
                arrays.append(column.of(parts[0 if column.path[0] in self._held_first else 1]))
            else:
                arrays.append(pa.array(of.facts.of(column.name, rows.offsets)))
        if not arrays:
            return rows_without_columns(rows.count)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _turns(location: Location, plan: ScanPlan) -> Iterator[list[Piece]]:
    turn: list[Piece] = []
    rows = 0
    for task in plan.tasks:
        for piece in _pieces(location, plan, task):
            turn.append(piece)
            rows += piece.count
            if rows >= _TURN_ROWS or len(turn) == _TURN_PIECES:
                yield turn
                turn, rows = [], 0
    if turn:
        yield turn


def _pieces(location: Location, plan: ScanPlan, task: ScanTask) -> Iterator[Piece]:
    of = LiveFragment(location, plan.manifest, task.fragment)
    start, stop = 0, task.fragment.physical_rows
    if not task.is_whole:
        start = of.physical(task.skip)
        stop = stop if task.take is None else of.physical(task.skip + task.take)
    step = plan.piece_rows(task.fragment)
    if not stop:  # a fragment that says it is empty: its files must agree
        yield Piece(of, 0, 0)
    for begin in range(start, stop, step):
        yield Piece(of, begin, min(step, stop - begin))


def _with_facts(batch: pa.RecordBatch, facts: RowFacts, names: Sequence[str], offsets: Offsets) -> pa.RecordBatch:
    arrays = [*batch.columns, *(pa.array(facts.of(name, offsets)) for name in names)]
    fields = [*batch.schema, *(METADATA_COLUMNS.field(name) for name in names)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _kept(batch: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    return batch.filter(mask) if batch.num_columns else rows_without_columns(mask.true_count)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 or not batches[0].num_columns else pa.concat_batches(batches)


def window(batches: Iterable[pa.RecordBatch], skip: int, take: int | None) -> Iterator[pa.RecordBatch]:
    """Rows `skip` to `skip + take` of a stream; it is read no further than that."""
    if take == 0:
        return
    for batch in batches:
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        wanted = batch.slice(skip, take)
        skip = 0
        if wanted.num_rows:
            yield wanted
        if take is not None:
            take -= wanted.num_rows
            if take == 0:
                return
