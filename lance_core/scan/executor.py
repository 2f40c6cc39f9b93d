"""Scan executor: runs a scan plan. Threads read morsels of the fragments concurrently; batches come in row order.

A morsel is so small that several of them fit in memory; morsels of small fragments share one unit of work.
`row_reader.py` describes how the rows of a morsel are read. If an index already selected the rows that can match, only
those are read. Start with `scan`.
"""

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

import numpy as np
import pyarrow as pa

from lance_core.datafiles.blob_view import descriptor_schema
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest
from lance_core.scan.morsels import LiveFragment, Morsel, morsel_groups
from lance_core.scan.parallel import map_in_order, threads_of
from lance_core.scan.plan import MORSEL_BYTES, ScanPlan, ScanTask, plan_columns
from lance_core.scan.reader_cache import ReaderCache
from lance_core.scan.row_reader import RowReader
from lance_core.scan.selection import Offsets
from lance_core.storage.local import LocalStore
from lance_core.versions.location import Location

Result = TypeVar("Result")
_BYTES_IN_FLIGHT_MAX = 128 << 20
"""Bytes of data files that a scan of an object store reads ahead."""

_FEW_THREADS, _MORSELS_AHEAD = 2, 4
"""Threads of a scan that is bounded by `bytes_ahead`, and the number of morsels into which these bytes are divided."""


def scan(location: Location, plan: ScanPlan, *, bytes_ahead: int | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a plan in row order. A plan with a filter and a limit is read without read-ahead. Closing
    the generator ends its threads.

    A caller that processes rows more slowly than a disk reads them passes `bytes_ahead`. Few threads then read small
    morsels of local files, at most `bytes_ahead` bytes ahead of the caller. Decoded morsels take two or three times as
    much memory, and each thread reuses some of it for its next morsel."""
    stops_early = plan.predicate is not None and plan.limit is not None
    executor = _MorselExecutor(location, plan, bytes_ahead)
    results_in_order = (
        map_in_order(executor.batches, executor.groups(), threads=1) if stops_early else executor.map(executor.batches)
    )
    with closing(results_in_order) as results:
        rows = (batch for result in results for batch in result if batch.num_rows)
        yield from rows if plan.predicate is None else slice_batches(rows, plan.offset, plan.limit)


def count_matches(location: Location, plan: ScanPlan) -> int:
    """Count the rows that match. Only the columns of the filter are read, and nothing of rows that an index
    answers exactly."""
    answered = [task for task in plan.tasks if task.selection is not None and task.selection.residual is None]
    remaining = tuple(task for task in plan.tasks if task.selection is None or task.selection.residual is not None)
    rest_plan = replace(plan, tasks=remaining)
    executor = _MorselExecutor(location, rest_plan)
    matched = sum(executor.map(executor.count_matches))
    return matched + sum(map_in_order(lambda task: _count_selected(location, plan.manifest, task), answered))


def matching_rows(location: Location, plan: ScanPlan) -> Iterator[tuple[Fragment, Offsets]]:
    """Yield the fragments that have matching rows, in order, each with the offsets of those rows."""
    executor = _MorselExecutor(location, plan)
    with closing(executor.map(executor.matching_offsets)) as results:
        matches = (each for result in results for each in result if len(each[1]))
        for _, parts in itertools.groupby(matches, key=lambda each: each[0].id):
            (fragment, offsets), *more = parts
            yield fragment, np.concatenate([offsets, *(each for _, each in more)]) if more else offsets


def scan_fragments(
    location: Location, manifest: Manifest, fragments: Sequence[Fragment], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the live rows of fragments in order, with these columns, which may include system columns.

    Blobs are returned as values, for a caller that rewrites the rows. Their size is unknown before they are read, so
    such columns are read without read-ahead.
    """
    plan = plan_columns(manifest, columns, describe_blobs=False)
    if descriptor_schema(manifest.schema).equals(manifest.schema.arrow):
        return scan(location, replace(plan, tasks=tuple(map(ScanTask, fragments))))
    reader = RowReader(location, plan)
    morsels = (Morsel(LiveFragment(location, manifest, each), 0, each.physical_rows) for each in fragments)
    return (batch for morsel in morsels for batch in reader.live_batches(morsel))


class _MorselExecutor:
    """Executes a plan on groups of morsels: reads whole morsels, or picks the rows that an index selected."""

    def __init__(self, location: Location, plan: ScanPlan, bytes_ahead: int | None = None) -> None:
        self._location, self._plan = location, plan
        self._bytes_ahead = bytes_ahead if isinstance(location.own_store, LocalStore) else None
        self._cache = ReaderCache.of(location, plan.manifest) if any(task.selection for task in plan.tasks) else None

    def groups(self) -> Iterator[list[Morsel]]:
        size = MORSEL_BYTES if self._bytes_ahead is None else self._bytes_ahead // _MORSELS_AHEAD
        opened = self._cache.fragment if self._cache else None
        return morsel_groups(self._location, self._plan, opened, morsel_bytes=size)

    def map(self, work: Callable[[Sequence[Morsel]], Result]) -> Generator[Result, None, None]:
        """Yield the results of all groups in order. A local disk keeps a few threads busy; an object store answers many
        requests at the same time, as long as their results fit in memory."""
        store = self._location.own_store
        if self._bytes_ahead is not None:
            return map_in_order(
                work, self.groups(), threads=_FEW_THREADS, size_of=_byte_count, size_max=self._bytes_ahead
            )
        size_max = 0 if isinstance(store, LocalStore) else _BYTES_IN_FLIGHT_MAX
        return map_in_order(work, self.groups(), threads=threads_of(store), size_of=_byte_count, size_max=size_max)

    @cached_property
    def _whole_reader(self) -> RowReader:
        return RowReader(self._location, self._plan)

    def batches(self, morsels: Sequence[Morsel]) -> list[pa.RecordBatch]:
        rows_max = None if self._plan.limit is None else self._plan.offset + self._plan.limit
        batches: list[pa.RecordBatch] = []
        for picks, group in itertools.groupby(morsels, key=lambda morsel: morsel.picked is not None):
            if picks:
                batches += (
                    batch for morsel in group for batch in self._reader_for(morsel).pick_matching(morsel, rows_max)
                )
            else:
                batches += self._whole_reader.batches(list(group))
        return batches

    def count_matches(self, morsels: Sequence[Morsel]) -> int:
        count = 0
        for picks, group in itertools.groupby(morsels, key=lambda morsel: morsel.picked is not None):
            if picks:
                count += sum(len(self._reader_for(morsel).pick_matching_offsets(morsel)) for morsel in group)
            else:
                count += self._whole_reader.count_matches(list(group))
        return count

    def matching_offsets(self, morsels: Sequence[Morsel]) -> list[tuple[Fragment, Offsets]]:
        matches: list[tuple[Fragment, Offsets]] = []
        for picks, group in itertools.groupby(morsels, key=lambda morsel: morsel.picked is not None):
            if picks:
                matches += (
                    (morsel.source.fragment, self._reader_for(morsel).pick_matching_offsets(morsel)) for morsel in group
                )
            else:
                matches += self._whole_reader.matching_offsets(list(group))
        return matches

    def _reader_for(self, morsel: Morsel) -> RowReader:
        assert morsel.picked is not None
        assert self._cache is not None
        return self._cache.row_reader(self._plan, morsel.picked.residual)


def _byte_count(morsels: Sequence[Morsel]) -> int:
    return sum(morsel.byte_count for morsel in morsels)


def _count_selected(location: Location, manifest: Manifest, task: ScanTask) -> int:
    assert task.selection is not None
    if task.fragment.deletion_file is None:
        return len(task.selection.rows)
    return len(task.selection.live_offsets(ReaderCache.of(location, manifest).fragment(task.fragment).deletions))


def split_batches(batches: Iterable[pa.RecordBatch], rows_max: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a stream in batches of at most `rows_max` rows."""
    for batch in batches:
        for start in range(0, batch.num_rows, rows_max):
            yield batch.slice(start, rows_max)


def slice_batches(batches: Iterable[pa.RecordBatch], skip: int, take: int | None) -> Iterator[pa.RecordBatch]:
    """Yield rows `skip` to `skip + take` of a stream. The stream is read no further than that."""
    if take == 0:
        return
    for batch in batches:
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        part = batch.slice(skip, take)
        skip = 0
        if part.num_rows:
            yield part
        if take is not None:
            take -= part.num_rows
            if take == 0:
                return
