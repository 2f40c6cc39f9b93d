"""Distributed build of a vector segment: workers share the rows, then the partitions.

    sample    workers draw rows by address                          pieces
    train     the driver clusters the sample; above `DRIVER_TRAINING_OPERATIONS` it finds coarse clusters only, and
              workers find the centroids of each                    model, as a segment that workers read
    encode    workers assign and encode whole fragments             pieces, sorted by partition
    merge     workers write ranges of partitions of all pieces, if there is much to write or a graph to build
    join      one worker writes the segment

With a progress directory, an interrupted build continues with the model and the pieces that are complete
(`coordination/progress.py`). `002-distributed-vector-builds.md` gives the reasons. Start with `VectorBuild.build`.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from pyroaring import BitMap

from lance_core.coordination import progress
from lance_core.coordination.leases import Lease, acquire, release
from lance_core.coordination.progress import RecordedSegment
from lance_core.errors import Corrupt, NotFound, StorageError
from lance_core.format import naming
from lance_core.format.index_metadata import IndexMetadata
from lance_core.index import build
from lance_core.index.build import IndexSpec
from lance_core.index.coverage import Coverage
from lance_core.index.statistics import RowCounts
from lance_core.index.vector.build import code_bytes_of
from lance_core.index.vector.encoding import VectorBatch
from lance_core.index.vector.model import Model, open_segment_files, read_model
from lance_core.index.vector.options import VectorOptions
from lance_core.index.vector.training import TrainingPlan, plan_training, train, train_quantizer
from lance_core.maintenance.index_maintenance import IndexWork
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.scan.vector_columns import vector_field
from lance_core.storage import tree_operations
from lance_core.storage.store import Store
from lance_core.tasks.driver import TASKS_PER_SLOT, run_over_fragments, run_over_partitions
from lance_core.tasks.indices import vector_tasks
from lance_core.tasks.indices.index_segments import ExistingSegments, SegmentBuild
from lance_core.tasks.indices.vector_tasks import EncodeFragments, MergeRange, TrainCentroids, WriteSample
from lance_core.tasks.partial_results import PartialResults
from lance_core.tasks.partitioning import LocalRunner, Runner, partition_fragments
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot

ONE_WORKER_VALUES_MAX = 1 << 23
"""Numbers in the vectors of an index that one worker builds: their assignment takes less time than the jobs."""
PIECE_VALUES = 1 << 28
"""Numbers in the vectors of a piece. A worker encodes them in some ten seconds."""
DRIVER_TRAINING_OPERATIONS = 5 * 10**12
"""Operations of a training by the driver, about a minute of one core."""
DRIVER_MERGE_BYTES_MAX = 16 << 20
"""Bytes of codes that the driver merges itself, since a job would take longer."""
RANGE_BYTES = 256 << 20
ONE_RANGE_BYTES_MAX = 4 * RANGE_BYTES
"""Bytes of codes without graphs that one worker merges."""
_SAMPLE_PIECES_MAX = 64


@dataclass(slots=True)
class VectorBuild:
    """Jobs that build a segment of one vector index. The driver keeps it across replans."""

    runner: Runner
    key: str | None
    """Key of the progress records; `None` for a build that is not resumed."""
    directory: str | None = None
    _model: bytes | None = None
    _pieces: PartialResults = field(default_factory=PartialResults)
    _temporary: dict[bytes, Location] = field(default_factory=dict)
    """Encoded metadata of segments that are deleted when the change ends."""
    _resumable: dict[bytes, Location] = field(default_factory=dict)
    """Encoded metadata of segments that are recorded, and deleted when the change is committed."""
    _lease: tuple[Store, str] | None = None

    def build(self, base: Snapshot, work: IndexWork) -> IndexMetadata:
        """Build the segment. Its files are complete, and nothing is committed. An index with too few vectors is only
        defined."""
        work = _with_one_model(base, work)
        options = VectorOptions.of(work.spec.options)
        work = replace(work, spec=replace(work.spec, options=replace(options, model=None)))
        if self.key is not None and self.directory is None:
            self._resume(base, work.spec)
        model = self._ensure_model(base, work, options.model)
        if model is None:
            return vector_tasks.write_definition(base, work.spec, _training_plan(base, work)[0])
        pieces = self._encode(base, work)
        return self._merge(base, work, model, pieces)

    def discard(self, *, is_committed: bool) -> None:
        """Delete the temporary segments. Recorded ones stay for another attempt, unless the change is committed."""
        segments = {**self._temporary, **(self._resumable if is_committed or self.directory is None else {})}
        for segment, location in segments.items():
            with suppress(StorageError):  # cleanup removes orphan files
                path = f"{naming.INDICES}/{IndexMetadata.decode(segment).uuid}"
                tree_operations.remove_tree(location.own_store, path)
                if is_committed and self.directory is not None:
                    progress.remove_records(location.own_store, self.directory)
        self._temporary.clear()
        self._resumable.clear()
        if self._lease is not None:
            release(*self._lease)
            self._lease = None

    def _resume(self, base: Snapshot, spec: IndexSpec) -> None:
        """Claim the key, and load the model and the pieces that an earlier attempt has recorded."""
        assert self.key is not None
        store = base.location.own_store
        self.directory = progress.directory_of(self.key)
        progress.claim(store, self.key, {"index": spec.name, "column": spec.path, "kind": spec.kind.name})
        recorded = [
            each for each in progress.completed_segments(store, self.directory) if each.segment.name == spec.name
        ]
        if not recorded:
            return
        files = tuple(each.segment.qualified_path for each in recorded)
        self._lease = store, acquire(store, Lease("resuming build_index", files=files), SYSTEM_RUNTIME)
        complete = [each for each in recorded if _is_complete(store, each)]
        self._resumable |= dict.fromkeys((each.segment.encode() for each in recorded), base.location)
        models = [each.segment.encode() for each in complete if not each.fragments]
        if not models:
            return
        self._model = models[0]
        pieces = {each.fragments: [each.segment.encode()] for each in complete if each.fragments}
        self._pieces.restore(base, pieces, self._encoding_task(spec))

    def _ensure_model(self, base: Snapshot, work: IndexWork, existing: Model | None) -> Model | None:
        """Return the model of the segment, which is stored for the workers: that of existing segments, that of an
        earlier plan, or a new one; `None` if there are too few vectors to train one."""
        if self._model is not None:
            with suppress(NotFound, StorageError, Corrupt):
                stored = vector_tasks.load_model(base, self._model)
                if existing is None or existing.has_same_parameters(stored):
                    return stored
        model = existing if existing is not None else self._train(base, work)
        if model is None:
            return None
        segment = vector_tasks.write_model_segment(base, work.spec, model)
        self._model = segment.encode()
        self._track(base, [self._model], is_recorded=self.directory is not None)
        if self.directory is not None:
            progress.record_segment(base.location.own_store, self.directory, RecordedSegment(segment, ()))
        return vector_tasks.load_model(base, self._model)

    def _train(self, base: Snapshot, work: IndexWork) -> Model | None:
        plan, size = _training_plan(base, work)
        if _training_operations(plan, size) > DRIVER_TRAINING_OPERATIONS:
            return self._train_in_tasks(base, work, plan, plan.total)
        sample = self._draw(base, work, plan, plan.total)
        return train(sample, plan) if len(sample.rows) >= plan.vectors_min else None

    def _train_in_tasks(self, base: Snapshot, work: IndexWork, plan: TrainingPlan, total: int) -> Model | None:
        """Train coarse clusters on the driver, and the centroids of each of them in tasks."""
        clusters = max(2, round(plan.partitions**0.5))
        coarse_plan = plan_training(
            work.spec.kind.name,
            build.arrow_of(base.manifest.schema, work.spec.chain),
            replace(VectorOptions.of(work.spec.options), num_partitions=clusters),
            total,
        )
        sample = self._draw(base, work, coarse_plan, total)
        if len(sample.rows) < plan.vectors_min:
            return None
        trained = train(sample, replace(coarse_plan, kind="IVF_FLAT"))
        coarse = vector_tasks.write_model_segment(base, work.spec, trained).encode()
        task = WriteSample(work.spec, plan, plan.sample_size / max(1, total), coarse)
        samples = _results(run_over_fragments(base, work.fragments, task, self.runner))
        self._track(base, [coarse, *samples])
        ranges = _split(len(trained.centroids), self.runner.slots * TASKS_PER_SLOT)
        training = TrainCentroids(work.spec, plan, coarse, samples, ranges)
        parts = _results(run_over_partitions(base, ((),) * len(ranges), training, self.runner))
        self._track(base, parts)
        models = [vector_tasks.load_model(base, part) for part in parts]
        centroids = np.concatenate([each.centroids for each in models])
        model = replace(trained, kind=plan.kind, centroids=centroids, loss=sum(each.loss or 0.0 for each in models))
        return train_quantizer(model, sample, plan)

    def _draw(self, base: Snapshot, work: IndexWork, plan: TrainingPlan, total: int) -> VectorBatch:
        """Return a sample, which workers draw and the driver reads from the store: all vectors, if nearly all of them
        are null."""
        share = plan.sample_size / max(1, total)
        sample = self._draw_share(base, work, plan, share)
        return sample if len(sample.rows) >= plan.vectors_min or share >= 1 else self._draw_share(base, work, plan, 1.0)

    def _draw_share(self, base: Snapshot, work: IndexWork, plan: TrainingPlan, share: float) -> VectorBatch:
        task = WriteSample(work.spec, plan, share)
        partitions = partition_fragments(work.fragments, min(self.runner.slots, _SAMPLE_PIECES_MAX))
        samples = _results(run_over_partitions(base, partitions, task, self.runner))
        self._track(base, samples)
        column = build.arrow_of(base.manifest.schema, work.spec.chain)
        cluster = vector_tasks.single_cluster(column, plan.metric)
        return vector_tasks.vectors_of(vector_tasks.read_pieces(base, samples, cluster), range(1))

    def _encode(self, base: Snapshot, work: IndexWork) -> tuple[bytes, ...]:
        """Encode the fragments that no earlier plan or attempt has encoded."""
        rows = sum(fragment.physical_rows for fragment in work.fragments)
        rows = vector_tasks.count_vectors(base, work.spec.chain, rows)
        size = vector_field(build.arrow_of(base.manifest.schema, work.spec.chain)).type.list_size
        slots = self.runner.slots
        count = max(slots, min(slots * TASKS_PER_SLOT, rows * size // PIECE_VALUES))
        task = self._encoding_task(work.spec)
        pieces = _results(self._pieces.over_fragments(base, work.fragments, count, task, self.runner))
        self._track(base, pieces, is_recorded=self.directory is not None)
        return pieces

    def _merge(self, base: Snapshot, work: IndexWork, model: Model, pieces: tuple[bytes, ...]) -> IndexMetadata:
        """Merge the pieces and the existing segments into one segment."""
        assert self._model is not None
        column = build.arrow_of(base.manifest.schema, work.spec.chain)
        vectors = vector_tasks.count_vectors(base, work.spec.chain, RowCounts(base.manifest)(work.covers))
        size = vectors * code_bytes_of(model, column)
        target, all_partitions = SegmentBuild.of(base, work), range(len(model.centroids))
        if "HNSW" in work.spec.kind.name:
            count = max(self.runner.slots * TASKS_PER_SLOT, size // RANGE_BYTES)
        else:
            count = 1 if size <= ONE_RANGE_BYTES_MAX else max(self.runner.slots, size // RANGE_BYTES)
        ranges = _split(len(all_partitions), count)
        fragments = vector_tasks.encode_fragments(base.manifest.fragments) if work.merged else ()
        task = MergeRange(target, self._model, pieces, (), ranges)
        runner = LocalRunner() if len(ranges) == 1 and size <= DRIVER_MERGE_BYTES_MAX else self.runner
        written = _results(run_over_partitions(base, (fragments,) * len(ranges), task, runner))
        if len(ranges) == 1:
            return IndexMetadata.decode(written[0])
        self._track(base, written)
        join = MergeRange(replace(target, existing=ExistingSegments()), self._model, (), written, (all_partitions,))
        (joined,) = _results(run_over_partitions(base, ((),), join, self.runner))
        return IndexMetadata.decode(joined)

    def _encoding_task(self, spec: IndexSpec) -> EncodeFragments:
        assert self._model is not None
        return EncodeFragments(spec, self._model, self.directory)

    def _track(self, base: Snapshot, segments: Iterable[bytes], *, is_recorded: bool = False) -> None:
        (self._resumable if is_recorded else self._temporary).update(dict.fromkeys(segments, base.location))


def is_work_of_one_worker(base: Snapshot, work: IndexWork, rows: int) -> bool:
    """Return whether one worker builds the segment in less time than several jobs take."""
    size = int(vector_field(build.arrow_of(base.manifest.schema, work.spec.chain)).type.list_size)
    return vector_tasks.count_vectors(base, work.spec.chain, rows) * size <= ONE_WORKER_VALUES_MAX


def _with_one_model(base: Snapshot, work: IndexWork) -> IndexWork:
    """Return the work with rows of fragments in place of segments whose model has other parameters."""
    model = VectorOptions.of(work.spec.options).model
    if not work.merged:
        return work
    coverage, incompatible = Coverage(base), BitMap()
    for segment in work.merged:
        path, files = segment.metadata.qualified_path, coverage.segment_of(segment.metadata).files
        own = read_model(*open_segment_files(files, path=path), path=path).model
        if model is None or not model.has_same_parameters(own):
            incompatible |= segment.covered
    if not incompatible:
        return work
    fragments_read = incompatible | BitMap(fragment.id for fragment in work.fragments)
    return replace(
        work,
        merged=tuple(segment for segment in work.merged if segment.covered.isdisjoint(incompatible)),
        fragments=tuple(fragment for fragment in base.manifest.fragments if fragment.id in fragments_read),
    )


def _training_plan(base: Snapshot, work: IndexWork) -> tuple[TrainingPlan, int]:
    """Return the plan of the training, and the dimension of the vectors."""
    column = build.arrow_of(base.manifest.schema, work.spec.chain)
    rows = RowCounts(base.manifest, live=True)(BitMap(fragment.id for fragment in work.fragments))
    total = vector_tasks.count_vectors(base, work.spec.chain, rows)
    plan = plan_training(work.spec.kind.name, column, VectorOptions.of(work.spec.options), total)
    return plan, vector_field(column).type.list_size


def _training_operations(plan: TrainingPlan, dimension: int) -> int:
    return plan.iterations * plan.operations_of_iteration(dimension)


def _is_complete(store: Store, recorded: RecordedSegment) -> bool:
    """Return whether all files of a segment exist with their recorded sizes."""
    for file in recorded.segment.files:
        details = store.head(f"{recorded.segment.qualified_path}/{file.path}")
        if details is None or details.size != file.size:
            return False
    return True


def _split(count: int, ranges_max: int) -> tuple[range, ...]:
    """Return neighbouring ranges of about equal size.

    >>> _split(5, 2), _split(2, 8)
    ((range(0, 2), range(2, 5)), (range(0, 1), range(1, 2)))
    """
    ranges = max(1, min(count, ranges_max))
    cuts = [count * number // ranges for number in range(ranges + 1)]
    return tuple(range(start, stop) for start, stop in itertools.pairwise(cuts))


def _results(results: Mapping[int, Sequence[bytes]]) -> tuple[bytes, ...]:
    return tuple(encoded[0] for _, encoded in sorted(results.items()))
