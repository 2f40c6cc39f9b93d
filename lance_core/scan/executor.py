"""Doing a scan: a plan's fragments in pieces, pieces into batches, by a few threads, in order.

A piece is so many rows that a few of them fit in memory; of small fragments several are read in one turn. How the rows
of one are read is told in `row_reader.py`. Where it is known before which rows can match, the others are not read.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from lance_core.datafiles.blob_view import described
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest
from lance_core.scan.morsels import LiveFragment, Morsel, morsel_groups
from lance_core.scan.parallel import THREADS, in_order
from lance_core.scan.plan import ScanPlan, ScanTask, plan_columns
from lance_core.scan.reader_cache import ReaderCache
from lance_core.scan.row_reader import RowReader
from lance_core.scan.selection import Offsets
from lance_core.versions.location import Location


def scan(location: Location, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
    """Rows in order. Where only some matching ones are wanted, nobody reads ahead. Closing it ends its threads."""
    threads = 1 if plan.predicate is not None and plan.limit is not None else THREADS
    turn = _Turn(location, plan)
    with closing(in_order(turn.batches, turn.all(), threads=threads)) as results:
        rows = (batch for result in results for batch in result if batch.num_rows)
        yield from rows if plan.predicate is None else window(rows, plan.offset, plan.limit)


def count(location: Location, plan: ScanPlan) -> int:
    """Rows that match; nothing but the predicate's columns is read, and of those that are known nothing."""
    known = [task for task in plan.tasks if task.chosen is not None and task.chosen.residual is None]
    unknown = tuple(task for task in plan.tasks if task.chosen is None or task.chosen.residual is not None)
    rest = replace(plan, tasks=unknown)
    turn = _Turn(location, rest)
    looked_at = sum(in_order(turn.matches, turn.all()))
    return looked_at + sum(in_order(lambda task: _known(location, plan.manifest, task), known))


def matching_rows(location: Location, plan: ScanPlan) -> Iterator[tuple[Fragment, Offsets]]:
    """The fragments that have rows which match, in order, each with them."""
    turn = _Turn(location, plan)
    with closing(in_order(turn.offsets, turn.all())) as results:
        found = (each for result in results for each in result if len(each[1]))
        for _, parts in itertools.groupby(found, key=lambda each: each[0].id):
            (fragment, offsets), *more = parts
            yield fragment, np.concatenate([offsets, *(each for _, each in more)]) if more else offsets


def rows_of(
    location: Location, manifest: Manifest, fragments: Sequence[Fragment], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The live rows of fragments, in order, with these columns, those that every table has besides included. Blobs come
    as they are, for whoever writes them again: how large they are is not known, so that nobody reads ahead then."""
    plan = plan_columns(manifest, columns, describe_blobs=False)
    if described(manifest.schema).equals(manifest.schema.arrow):
        return scan(location, replace(plan, tasks=tuple(map(ScanTask, fragments))))
    reading = RowReader(location, plan)
    whole = (Morsel(LiveFragment(location, manifest, each), 0, each.physical_rows) for each in fragments)
    return (batch for piece in whole for batch in reading.live(piece))


class _Turn:
    """Pieces that are read in one go, some as they are, of some only picked rows."""

    def __init__(self, location: Location, plan: ScanPlan) -> None:
        self._location, self._plan = location, plan
        self._warm = ReaderCache.of(location, plan.manifest) if any(task.chosen for task in plan.tasks) else None

    def all(self) -> Iterator[list[Morsel]]:
        return morsel_groups(self._location, self._plan, self._warm.fragment if self._warm else None)

    @cached_property
    def _whole(self) -> RowReader:
        return RowReader(self._location, self._plan)

    def batches(self, pieces: Sequence[Morsel]) -> list[pa.RecordBatch]:
        most = None if self._plan.limit is None else self._plan.offset + self._plan.limit
        found: list[pa.RecordBatch] = []
        for picks, group in itertools.groupby(pieces, key=lambda piece: piece.picked is not None):
            if picks:
                found += (batch for piece in group for batch in self._looking(piece).picked_of(piece, most))
            else:
                found += self._whole.batches(list(group))
        return found

    def matches(self, pieces: Sequence[Morsel]) -> int:
        return sum(len(offsets) for _, offsets in self.offsets(pieces))

    def offsets(self, pieces: Sequence[Morsel]) -> list[tuple[Fragment, Offsets]]:
        found: list[tuple[Fragment, Offsets]] = []
        for picks, group in itertools.groupby(pieces, key=lambda piece: piece.picked is not None):
            if picks:
                found += ((piece.of.fragment, self._looking(piece).picked_offsets(piece)) for piece in group)
            else:
                found += self._whole.offsets(list(group))
        return found

    def _looking(self, piece: Morsel) -> RowReader:
        assert piece.picked is not None
        assert self._warm is not None
        return self._warm.reading(self._plan, piece.picked.residual)


def _known(location: Location, manifest: Manifest, task: ScanTask) -> int:
    assert task.chosen is not None
    if task.fragment.deletion_file is None:
        return len(task.chosen.rows)
    return len(task.chosen.live(ReaderCache.of(location, manifest).fragment(task.fragment).deletions))


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
