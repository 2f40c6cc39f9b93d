"""Indices that are built by workers, and committed once, as the methods of `Table` do it.

    small: one worker has all of it                                    one job, of several indices if need be
    large: pieces, each of some fragments  ->  joined by one worker    two jobs
    BTREE: pieces, in order  ->  ranges of values  ->  one file        three jobs

No row and no page comes to the driver: workers hand on what is theirs through the store, and tell where it is, with a
few hundred values of which the driver makes the cuts between ranges. When somebody was in the way, pieces of fragments
that are as they were stand. What a worker does is in `index_segments.py`; why it is done so, in
`004-single-worker-segment-merge.md`.
"""

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa
from pyroaring import BitMap

from lance_core import validation
from lance_core.dml import index_definition as in_one_process
from lance_core.dml.index_definition import IndexRequest
from lance_core.errors import Corrupt, InvalidInput, NotFound, RetryableConflict, StorageError
from lance_core.format import naming
from lance_core.format.fragment import Fragment
from lance_core.format.fragment_reuse import reuse_entry
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.operations import CreateIndex
from lance_core.index import btree_runs, build, registry
from lance_core.index.coverage import Coverage
from lance_core.index.external_sort import choose_splitters
from lance_core.index.ordering import concat_arrays, ordering
from lance_core.index.statistics import RowCounts
from lance_core.maintenance import index_maintenance
from lance_core.maintenance.index_maintenance import IndexWork, Merge
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.storage import tree_operations
from lance_core.table.committed import Committed
from lance_core.tasks import index_segments
from lance_core.tasks.driver import (
    TASKS_PER_SLOT,
    TableRef,
    WriteOptions,
    over_partitions,
    partitions_for_reading,
    run_change,
)
from lance_core.tasks.index_segments import (
    BuildPartialSegment,
    BuildSegment,
    ConcatenateRanges,
    ExistingSegments,
    MergePartialSegments,
    SegmentBuild,
    WriteValueRange,
)
from lance_core.tasks.partial_results import PartialResults
from lance_core.tasks.partitioning import LocalRunner, Runner
from lance_core.tasks.partitioning import PartitionFunction as Doing
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot

SINGLE_WORKER_ROWS_MAX = 1 << 22
"""So few are read, sorted and written by one worker in about the time that several jobs take to start and to meet."""
RANGE_ROWS = 1 << 22
DRIVER_MERGE_BYTES_MAX = 4 * 1024**2
"""Of pieces that the driver joins itself: a job would take longer."""
_BOUNDARY_SAMPLES = 2048
"""About so many values tell the driver where ranges can be cut."""


class BuildScope(enum.Enum):
    """Which fragments a new segment is of."""

    ALL = "all"
    UNCOVERED = "uncovered"
    """Those that the index does not cover yet. Segments that are there stay, but for those that have to be written
    anew since a compaction moved their rows."""
    NEEDED = "needed"
    """All of them where the index is not there, or is of another kind, or was built with other params than are asked
    for now; else those that it does not cover yet, together with small segments that are there."""


def check_params(asked: IndexRequest) -> None:
    """What is wrong with it whatever the table is."""
    registry.by_name(asked.kind).parse_options(asked.params)


def build_index(
    table: TableRef, request: IndexRequest, only: str, *, options: WriteOptions, runner: Runner
) -> Committed:
    chosen = validation.check_choice(BuildScope, only, "only")
    if chosen is not BuildScope.ALL and request.replace:
        raise InvalidInput(
            f"replace=True builds an index of all fragments anew, and only={chosen.value!r} builds on; say one"
        )
    builder = _Builder(runner)

    def plan(base: Snapshot) -> CreateIndex | None:
        whole = _all(base, request if chosen is BuildScope.ALL else dataclasses.replace(request, replace=True))
        anew = chosen is BuildScope.NEEDED and whole.removed and _is_another(base, request, whole)
        if chosen is BuildScope.ALL or not whole.removed or anew:
            return builder.done(base, [whole], also_of_nothing=True)
        if chosen is BuildScope.NEEDED:
            return builder.done(
                base, list(index_maintenance.plan_work(base, Coverage(base), [whole.spec.name], Merge.SMALL))
            )
        return builder.done(base, _uncovered(base, request, whole))

    try:
        return run_change(table, options, "create_index", plan, operation=CreateIndex.name)
    finally:
        builder.discard()


def optimize_indices(
    table: TableRef, names: Sequence[str] | None, merge: str, *, options: WriteOptions, runner: Runner
) -> Committed:
    """As `Table.optimize_indices`."""
    wanted = None if names is None else validation.check_names(names, "names")
    merging = Merge.of(merge)
    builder = _Builder(runner)
    fresh: list[IndexMetadata] = []

    def plan(base: Snapshot) -> CreateIndex | None:
        operation = builder.done(base, list(index_maintenance.plan_work(base, Coverage(base), wanted, merging)))
        fresh[:] = operation.new if operation else ()
        return operation

    try:
        done = run_change(table, options, "optimize_indices", plan, operation=CreateIndex.name)
    finally:
        builder.discard()
    then = dataclasses.replace(options, intent=None)
    try:
        trimmed = run_change(
            table,
            then,
            "optimize_indices",
            lambda base: index_maintenance.trim_reuse_index(base, fresh, runtime=SYSTEM_RUNTIME),
            operation=CreateIndex.name,
        )
    except RetryableConflict:
        return done  # the next one drops them
    if not trimmed.attempts:
        return done
    return done.followed_by(trimmed)


def _all(base: Snapshot, asked: IndexRequest) -> IndexWork:
    """What is wrong with what was asked for is told here, before a task runs."""
    wanted, removed = in_one_process.planned(base, asked)
    fragments = in_one_process.chosen(base, asked.fragments)
    return IndexWork(wanted, (), fragments, BitMap(fragment.id for fragment in fragments), removed)


def _is_another(base: Snapshot, asked: IndexRequest, there: IndexWork) -> bool:
    """Whether the index that is there is not the one that is asked for. What nobody here knows is left to whoever made
    it."""
    coverage = Coverage(base)
    known = [each for each in coverage.by_name[there.spec.name] if each.kind is not None]
    if any(each.kind is not there.spec.kind for each in known):
        return True
    try:
        return bool(asked.params) and any(
            there.spec.kind.options_of(coverage.segment_of(each.metadata)) != there.spec.options for each in known[:1]
        )
    except (Corrupt, NotFound):
        return True


def _uncovered(base: Snapshot, asked: IndexRequest, there: IndexWork) -> list[IndexWork]:
    wanted, uri, coverage = there.spec, base.location.uri, Coverage(base)
    known = [each for each in coverage.by_name[wanted.name] if each.kind is not None]
    if any(each.kind is not wanted.kind for each in known):
        raise InvalidInput(
            f"{uri}: index {wanted.name!r} is {in_one_process.described(base.manifest.schema, there.removed)}, and a "
            f"{wanted.kind.name} cannot be built on to it; leave its kind as it is, or build it anew with replace=True"
        )
    options = [wanted.kind.options_of(coverage.segment_of(each.metadata)) for each in known[:1]]
    if asked.params and any(each != wanted.options for each in options):
        raise InvalidInput(
            f"{uri}: index {wanted.name!r} was built with {options[0]}, and is built on with the same; leave "
            f"{', '.join(sorted(asked.params))} out, or build it anew with replace=True"
        )
    return list(index_maintenance.plan_work(base, coverage, [wanted.name], Merge.NONE))


class _Builder:
    """Of one change, on the driver: what it has done it keeps from plan to plan."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._pieces: dict[str, tuple[BuildPartialSegment, PartialResults]] = {}
        self._for_now: dict[bytes, Location] = {}
        """Segments that nobody needs afterwards."""

    def done(self, base: Snapshot, works: Sequence[IndexWork], *, also_of_nothing: bool = False) -> CreateIndex | None:
        """`also_of_nothing`: an index is built where there are no rows, too."""
        small: list[IndexWork] = []
        large: list[IndexWork] = []
        rows = RowCounts(base.manifest)
        for work in works:
            if work.covers or also_of_nothing:
                (small if self._is_small(work, rows) else large).append(work)
        new = self._alone(base, small) if small else []
        new += [self._spread(base, _readable(base, work), rows(work.covers)) for work in large]
        removed = tuple(index for work in works for index in work.removed)
        return CreateIndex(tuple(new), removed) if new or removed else None

    def discard(self) -> None:
        for segment, location in self._for_now.items():
            with suppress(StorageError):  # a cleanup will find it
                tree_operations.remove_tree(
                    location.own_store, f"{naming.INDICES}/{IndexMetadata.decode(segment).uuid}"
                )
        self._for_now.clear()

    def _alone(self, base: Snapshot, works: Sequence[IndexWork]) -> list[IndexMetadata]:
        orders = tuple(_order(base, work) for work in works)
        read = tuple(BitMap(fragment.id for fragment in work.fragments).serialize() for work in works)
        parts = tuple(_encoded(base.manifest.fragments if work.merged else work.fragments) for work in works)
        results = over_partitions(base, parts, BuildSegment(orders, read), self._runner)
        return [IndexMetadata.decode(results[number][0]) for number in range(len(works))]

    def _is_small(self, work: IndexWork, rows: RowCounts) -> bool:
        cannot_be_cut = len(work.fragments) < 2 and not work.merged
        return cannot_be_cut or rows(work.covers) <= SINGLE_WORKER_ROWS_MAX

    def _spread(self, base: Snapshot, work: IndexWork, rows: int) -> IndexMetadata:
        results = self._of_fragments(base, work, rows)
        pieces = tuple(found[0] for _, found in sorted(results.items()))
        self._remember(base, pieces)
        order, everything = _order(base, work), _encoded(base.manifest.fragments)
        if not index_segments.is_sorted_type(work.spec):
            sizes = (file.size for each in (*map(IndexMetadata.decode, pieces), *_merged(work)) for file in each.files)
            runner = LocalRunner() if sum(sizes) <= DRIVER_MERGE_BYTES_MAX else self._runner
            return _one(base, everything, MergePartialSegments(order, pieces), runner)
        cuts = self._cuts(base, work, rows, [index_segments.decode_values(found[1]) for found in results.values()])
        parts = (everything if work.merged else (),) * (len(cuts) + 1)
        written = over_partitions(
            base, parts, WriteValueRange(order, pieces, index_segments.encode_values(cuts)), self._runner
        )
        ranges = tuple(found for _, (found,) in sorted(written.items()))
        if len(ranges) == 1:
            return IndexMetadata.decode(ranges[0])
        self._remember(base, ranges)
        return _one(base, (), ConcatenateRanges(order, ranges), self._runner)

    def _of_fragments(self, base: Snapshot, work: IndexWork, rows: int) -> Mapping[int, list[bytes]]:
        """As far as it was not done for a version before."""
        name, fragments = work.spec.name, work.fragments
        asked, kept = self._pieces.get(name, (None, PartialResults()))
        if asked is None or asked.spec != work.spec:
            asked = BuildPartialSegment(work.spec, max(1, rows // _BOUNDARY_SAMPLES))
        self._pieces[name] = asked, kept
        return kept.over_fragments(
            base, fragments, partitions_for_reading(fragments, self._runner.slots), asked, self._runner
        )

    def _cuts(self, base: Snapshot, work: IndexWork, rows: int, of_pieces: Sequence[pa.Array]) -> pa.Array:
        every, coverage = self._pieces[work.spec.name][0].sample_every, Coverage(base)
        cuts = [*of_pieces, *(btree_runs.range_cuts(coverage.segment_of(each), every) for each in _merged(work))]
        order = ordering(build.arrow_of(base.manifest.schema, work.spec.chain).type)
        slots = self._runner.slots
        return choose_splitters(
            order, concat_arrays(cuts, order.type), max(slots, min(slots * TASKS_PER_SLOT, rows // RANGE_ROWS))
        )

    def _remember(self, base: Snapshot, made: Iterable[bytes]) -> None:
        self._for_now |= dict.fromkeys(made, base.location)


def _readable(base: Snapshot, work: IndexWork) -> IndexWork:
    """With the rows of fragments in place of segments whose files are missing or cut short."""
    coverage = Coverage(base)
    lost = BitMap()
    for each in work.merged:
        try:
            for name in each.metadata.file_names:
                coverage.segment_of(each.metadata).files.open(name)
        except build.UNREADABLE_ERRORS:
            lost |= each.covered
    if not lost:
        return work
    read = lost | BitMap(fragment.id for fragment in work.fragments)
    return dataclasses.replace(
        work,
        merged=tuple(each for each in work.merged if each.covered.isdisjoint(lost)),
        fragments=tuple(fragment for fragment in base.manifest.fragments if fragment.id in read),
    )


def _one(base: Snapshot, fragments: tuple[bytes, ...], doing: Doing, runner: Runner) -> IndexMetadata:
    ((made,),) = over_partitions(base, (fragments,), doing, runner).values()
    return IndexMetadata.decode(made)


def _order(base: Snapshot, work: IndexWork) -> SegmentBuild:
    there = ExistingSegments()
    if work.merged:
        notes = reuse_entry(base.manifest.indices)
        indices = [*_merged(work), *([] if notes is None else [notes])]
        there = ExistingSegments(
            frozenset(each.uuid.bytes for each in _merged(work)), tuple(each.encode() for each in indices)
        )
    return SegmentBuild(work.spec, work.covers.serialize(), there)


def _merged(work: IndexWork) -> list[IndexMetadata]:
    return [each.metadata for each in work.merged]


def _encoded(fragments: Iterable[Fragment]) -> tuple[bytes, ...]:
    return tuple(fragment.encode() for fragment in fragments)


__all__ = ["IndexRequest", "build_index", "check_params", "optimize_indices"]
