"""Distributed index build: workers build indices, and the driver commits them once, as the methods of `Table` do.

    small index   one worker builds all of it                                        one job, also for several indices
    large index   partial segments over some fragments each -> merged by one worker  two jobs
    BTREE         sorted partial segments -> ranges of values -> one file            three jobs
    INVERTED      pieces of fragments -> ranges of terms -> partitions               `text_build.py`
    vectors       sample -> model -> codes of fragments -> partitions                `vector_build.py`

No row and no page passes through the driver. Workers exchange their output through the store and return its location,
with a few hundred values from which the driver chooses the boundaries of ranges. After a conflict, partial segments of
unchanged fragments are reused. `index_segments.py` has the tasks of workers; `001-single-worker-segment-merge.md` gives
the reasons.
"""

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import pyarrow as pa
from pyroaring import BitMap

from lance_core import validation
from lance_core.dml import index_definition
from lance_core.dml.index_definition import IndexRequest
from lance_core.errors import Corrupt, InvalidInput, NotFound, RetryableConflict, StorageError
from lance_core.format import naming
from lance_core.format.fragment import Fragment
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.operations import CreateIndex
from lance_core.index import btree_runs, build, registry
from lance_core.index.coverage import Coverage
from lance_core.index.external_sort import choose_splitters
from lance_core.index.ordering import concat_arrays, ordering
from lance_core.index.statistics import RowCounts
from lance_core.index.vector.vector_type import VectorIndexType
from lance_core.maintenance import index_maintenance
from lance_core.maintenance.index_maintenance import IndexWork, Merge
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.storage import tree_operations
from lance_core.table.base import Committed
from lance_core.tasks.driver import (
    TASKS_PER_SLOT,
    TableRef,
    WriteOptions,
    partition_count,
    run_change,
    run_over_partitions,
)
from lance_core.tasks.indices import index_segments, vector_build
from lance_core.tasks.indices.index_segments import (
    BuildPartialSegment,
    BuildSegment,
    ConcatenateRanges,
    MergePartialSegments,
    SegmentBuild,
    WriteValueRange,
)
from lance_core.tasks.indices.text_build import TextBuild
from lance_core.tasks.indices.vector_build import VectorBuild
from lance_core.tasks.partial_results import PartialResults
from lance_core.tasks.partitioning import LocalRunner, PartitionFunction, Runner
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot

SINGLE_WORKER_ROWS_MAX = 1 << 22
"""Rows up to which one worker builds an index. It reads, sorts and writes them in about the time that several jobs
take to start and to finish."""
SINGLE_WORKER_TEXTS_MAX = 1 << 17
"""The same for texts, whose analysis takes longer."""
RANGE_ROWS = 1 << 22
DRIVER_MERGE_BYTES_MAX = 4 * 1024**2
"""Size of segments up to which the driver itself merges them, since a job would take longer."""
BOUNDARY_SAMPLES = 2048
"""Approximate number of sampled values from which the driver chooses range boundaries."""


class BuildScope(enum.Enum):
    """Fragments that a new segment covers."""

    ALL = "all"
    UNCOVERED = "uncovered"
    """Fragments that the index does not cover yet. Existing segments stay, except those that must be rewritten
    because a compaction has moved their rows."""
    NEEDED = "needed"
    """All fragments if the index is missing, has another type, or was built with other parameters than requested.
    Otherwise those that it does not cover yet, together with small existing segments."""


def check_params(request: IndexRequest) -> None:
    """Raise if the parameters are invalid, whatever the table is."""
    registry.by_name(request.kind).parse_options(request.params)


def build_index(
    table: TableRef, request: IndexRequest, only: str, *, options: WriteOptions, runner: Runner
) -> Committed:
    """Build or extend an index as one version. `only` is a value of `BuildScope`."""
    scope = validation.check_choice(BuildScope, only, "only")
    if scope is not BuildScope.ALL and request.replace:
        raise InvalidInput(
            f"replace=True rebuilds an index over all fragments, and only={scope.value!r} extends it; give one of them"
        )
    builder = _IndexBuilder(runner, options.intent)

    def plan(base: Snapshot) -> CreateIndex | None:
        full_build = _plan_full_build(
            base, request if scope is BuildScope.ALL else dataclasses.replace(request, replace=True)
        )
        must_rebuild = (
            scope is BuildScope.NEEDED and full_build.removed and _differs_from_request(base, request, full_build)
        )
        if scope is BuildScope.ALL or not full_build.removed or must_rebuild:
            operation = builder.plan_operation(base, [full_build], allow_empty=True)
            for segment in operation.new if operation else ():
                index_definition.warn_not_built(base, segment)
            return operation
        if scope is BuildScope.NEEDED:
            return builder.plan_operation(
                base, list(index_maintenance.plan_work(base, Coverage(base), [full_build.spec.name], Merge.SMALL))
            )
        return builder.plan_operation(base, _plan_uncovered(base, request, full_build))

    with builder.temporary_segments():
        return run_change(table, options, "create_index", plan, operation=CreateIndex.name)


def optimize_indices(
    table: TableRef, names: Sequence[str] | None, merge: str, *, options: WriteOptions, runner: Runner
) -> Committed:
    """Merge and extend indices, as `Table.optimize_indices` does."""
    checked_names = None if names is None else validation.check_names(names, "names")
    merge_mode = Merge.of(merge)
    builder = _IndexBuilder(runner, options.intent)
    new_segments: list[IndexMetadata] = []

    def plan(base: Snapshot) -> CreateIndex | None:
        operation = builder.plan_operation(
            base, list(index_maintenance.plan_work(base, Coverage(base), checked_names, merge_mode))
        )
        new_segments[:] = operation.new if operation else ()
        return operation

    with builder.temporary_segments():
        committed = run_change(table, options, "optimize_indices", plan, operation=CreateIndex.name)
    trim_options = dataclasses.replace(options, intent=None)
    try:
        trimmed = run_change(
            table,
            trim_options,
            "optimize_indices",
            lambda base: index_maintenance.trim_reuse_index(base, new_segments, runtime=SYSTEM_RUNTIME),
            operation=CreateIndex.name,
        )
    except RetryableConflict:
        return committed  # the next call trims the fragment reuse index
    if not trimmed.attempts:
        return committed
    return committed.followed_by(trimmed)


def _plan_full_build(base: Snapshot, request: IndexRequest) -> IndexWork:
    """Plan an index of all requested fragments. Reports an invalid request before a task runs."""
    spec, removed = index_definition.plan_index(base, request)
    fragments = index_definition.select_fragments(base, request.fragments)
    return IndexWork(spec, (), fragments, BitMap(fragment.id for fragment in fragments), removed)


def _differs_from_request(base: Snapshot, request: IndexRequest, full_build: IndexWork) -> bool:
    """Return whether the existing index has another type or other parameters than requested. Segments of unknown
    types do not count."""
    coverage = Coverage(base)
    known_segments = [segment for segment in coverage.by_name[full_build.spec.name] if segment.kind is not None]
    if any(segment.kind is not full_build.spec.kind for segment in known_segments):
        return True
    try:
        return bool(request.params) and any(
            full_build.spec.kind.options_of(coverage.segment_of(segment.metadata)) != full_build.spec.options
            for segment in known_segments[:1]
        )
    except (Corrupt, NotFound):
        return True


def _plan_uncovered(base: Snapshot, request: IndexRequest, full_build: IndexWork) -> list[IndexWork]:
    """Plan segments for the fragments that the index does not cover. Raises if the request contradicts the existing
    index."""
    spec, uri, coverage = full_build.spec, base.location.uri, Coverage(base)
    known_segments = [segment for segment in coverage.by_name[spec.name] if segment.kind is not None]
    if any(segment.kind is not spec.kind for segment in known_segments):
        raise InvalidInput(
            f"{uri}: index {spec.name!r} is "
            f"{index_definition.describe_segments(base.manifest.schema, full_build.removed)}, and a {spec.kind.name} "
            "segment cannot be added to it; keep its type, or rebuild it with replace=True"
        )
    options = [spec.kind.options_of(coverage.segment_of(segment.metadata)) for segment in known_segments[:1]]
    if request.params and any(existing != spec.options for existing in options):
        raise InvalidInput(
            f"{uri}: index {spec.name!r} was built with {options[0]}, and new segments use the same; leave out "
            f"{', '.join(sorted(request.params))}, or rebuild it with replace=True"
        )
    return list(index_maintenance.plan_work(base, coverage, [spec.name], Merge.NONE))


class _IndexBuilder:
    """Runs the jobs of one change on the driver. It keeps its results across replans."""

    def __init__(self, runner: Runner, intent: str | None) -> None:
        self._runner, self._intent = runner, intent
        self._vector_builds: dict[str, VectorBuild] = {}
        self._text_builds: dict[str, TextBuild] = {}
        self._partial_segments: dict[str, tuple[BuildPartialSegment, PartialResults]] = {}
        self._temporary: dict[bytes, Location] = {}
        """Encoded metadata of segments that are deleted when the change ends."""

    def plan_operation(
        self, base: Snapshot, works: Sequence[IndexWork], *, allow_empty: bool = False
    ) -> CreateIndex | None:
        """Build the indices and return the operation that adds them; `None` if nothing changes. `allow_empty` builds
        an index of a table without rows, too."""
        small: list[IndexWork] = []
        large: list[IndexWork] = []
        rows = RowCounts(base.manifest)
        for work in works:
            if work.covers or allow_empty:
                (small if self._is_small(base, work, rows) else large).append(work)
        new = self._build_small(base, small) if small else []
        new += [self._build_large(base, _without_unreadable_segments(base, work), rows(work.covers)) for work in large]
        built = list(zip([*small, *large], new, strict=True))
        unchanged = [work for work, segment in built if index_maintenance.is_still_unbuilt(work, segment)]
        new = [segment for work, segment in built if work not in unchanged]
        removed = tuple(index for work in works if work not in unchanged for index in work.removed)
        return CreateIndex(tuple(new), removed) if new or removed else None

    @contextmanager
    def temporary_segments(self) -> Iterator[None]:
        """Delete the temporary segments when the change is committed or has failed."""
        is_committed = False
        try:
            yield
            is_committed = True
        finally:
            self._discard()
            for vectors in self._vector_builds.values():
                vectors.discard(is_committed=is_committed)

    def _discard(self) -> None:
        for segment, location in self._temporary.items():
            with suppress(StorageError):  # cleanup removes orphan files
                tree_operations.remove_tree(
                    location.own_store, f"{naming.INDICES}/{IndexMetadata.decode(segment).uuid}"
                )
        self._temporary.clear()

    def _build_small(self, base: Snapshot, works: Sequence[IndexWork]) -> list[IndexMetadata]:
        targets = tuple(SegmentBuild.of(base, work) for work in works)
        fragments_read = tuple(BitMap(fragment.id for fragment in work.fragments).serialize() for work in works)
        partitions = tuple(
            _encode_fragments(base.manifest.fragments if work.merged else work.fragments) for work in works
        )
        results = run_over_partitions(base, partitions, BuildSegment(targets, fragments_read), self._runner)
        return [IndexMetadata.decode(results[number][0]) for number in range(len(works))]

    def _is_small(self, base: Snapshot, work: IndexWork, rows: RowCounts) -> bool:
        is_indivisible = len(work.fragments) < 2 and not work.merged
        if work.spec.kind is registry.by_name("INVERTED"):
            return is_indivisible or rows(work.covers) <= SINGLE_WORKER_TEXTS_MAX
        if isinstance(work.spec.kind, VectorIndexType):
            return is_indivisible or vector_build.is_work_of_one_worker(base, work, rows(work.covers))
        return is_indivisible or rows(work.covers) <= SINGLE_WORKER_ROWS_MAX

    def _build_large(self, base: Snapshot, work: IndexWork, rows: int) -> IndexMetadata:
        """Build an index in several jobs."""
        if isinstance(work.spec.kind, VectorIndexType):
            key = None if self._intent is None else f"build_index {self._intent} {work.spec.name}"
            vectors = self._vector_builds.setdefault(work.spec.name, VectorBuild(self._runner, key))
            return vectors.build(base, work)
        if work.spec.kind is registry.by_name("INVERTED"):
            texts = self._text_builds.setdefault(work.spec.name, TextBuild(self._runner, self._track_temporary))
            return texts.build(base, work)
        results = self._build_partial_segments(base, work, rows)
        partial_segments = tuple(encoded[0] for _, encoded in sorted(results.items()))
        self._track_temporary(base, partial_segments)
        target, all_fragments = SegmentBuild.of(base, work), _encode_fragments(base.manifest.fragments)
        if not index_segments.is_sorted_type(work.spec):
            sizes = (
                file.size
                for segment in (*map(IndexMetadata.decode, partial_segments), *_merged_metadata(work))
                for file in segment.files
            )
            runner = LocalRunner() if sum(sizes) <= DRIVER_MERGE_BYTES_MAX else self._runner
            return _build_one(base, all_fragments, MergePartialSegments(target, partial_segments), runner)
        boundaries = self._choose_boundaries(
            base, work, rows, [index_segments.decode_values(encoded[1]) for encoded in results.values()]
        )
        partitions = (all_fragments if work.merged else (),) * (len(boundaries) + 1)
        written = run_over_partitions(
            base,
            partitions,
            WriteValueRange(target, partial_segments, index_segments.encode_values(boundaries)),
            self._runner,
        )
        ranges = tuple(encoded for _, (encoded,) in sorted(written.items()))
        if len(ranges) == 1:
            return IndexMetadata.decode(ranges[0])
        self._track_temporary(base, ranges)
        return _build_one(base, (), ConcatenateRanges(target, ranges), self._runner)

    def _build_partial_segments(self, base: Snapshot, work: IndexWork, rows: int) -> Mapping[int, list[bytes]]:
        """Build the partial segments that no earlier plan has built."""
        name, fragments = work.spec.name, work.fragments
        task, cache = self._partial_segments.get(name, (None, PartialResults()))
        if task is None or task.spec != work.spec:
            task = BuildPartialSegment(work.spec, max(1, rows // BOUNDARY_SAMPLES))
        self._partial_segments[name] = task, cache
        pieces = partition_count(fragments, self._runner.slots)
        return cache.over_fragments(base, fragments, pieces, task, self._runner)

    def _choose_boundaries(
        self, base: Snapshot, work: IndexWork, rows: int, partial_samples: Sequence[pa.Array]
    ) -> pa.Array:
        """Choose the boundaries between ranges from samples of all segments."""
        sample_every, coverage = self._partial_segments[work.spec.name][0].sample_every, Coverage(base)
        samples = [
            *partial_samples,
            *(btree_runs.range_cuts(coverage.segment_of(segment), sample_every) for segment in _merged_metadata(work)),
        ]
        order = ordering(build.arrow_of(base.manifest.schema, work.spec.chain).type)
        slots = self._runner.slots
        return choose_splitters(
            order, concat_arrays(samples, order.type), max(slots, min(slots * TASKS_PER_SLOT, rows // RANGE_ROWS))
        )

    def _track_temporary(self, base: Snapshot, segments: Iterable[bytes]) -> None:
        self._temporary |= dict.fromkeys(segments, base.location)


def _without_unreadable_segments(base: Snapshot, work: IndexWork) -> IndexWork:
    """Return the work with rows of fragments in place of segments whose files are missing or truncated."""
    coverage = Coverage(base)
    unreadable = BitMap()
    for segment in work.merged:
        try:
            for name in segment.metadata.file_names:
                coverage.segment_of(segment.metadata).files.open(name)
        except build.UNREADABLE_ERRORS:
            unreadable |= segment.covered
    if not unreadable:
        return work
    fragments_read = unreadable | BitMap(fragment.id for fragment in work.fragments)
    return dataclasses.replace(
        work,
        merged=tuple(segment for segment in work.merged if segment.covered.isdisjoint(unreadable)),
        fragments=tuple(fragment for fragment in base.manifest.fragments if fragment.id in fragments_read),
    )


def _build_one(
    base: Snapshot, fragments: tuple[bytes, ...], function: PartitionFunction, runner: Runner
) -> IndexMetadata:
    ((encoded,),) = run_over_partitions(base, (fragments,), function, runner).values()
    return IndexMetadata.decode(encoded)


def _merged_metadata(work: IndexWork) -> list[IndexMetadata]:
    return [segment.metadata for segment in work.merged]


def _encode_fragments(fragments: Iterable[Fragment]) -> tuple[bytes, ...]:
    return tuple(fragment.encode() for fragment in fragments)


__all__ = ["IndexRequest", "build_index", "check_params", "optimize_indices"]
