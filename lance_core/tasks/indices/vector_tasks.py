"""Vector index tasks: workers draw samples, train clusters of centroids, encode fragments and merge partitions.

    WriteSample       vectors of some fragments, sorted by coarse centroid       a piece, see `index/vector/build.py`
    TrainCentroids    centroids of some coarse clusters                          a segment that has the centroids alone
    EncodeFragments   codes of some fragments, sorted by partition               a piece
    MergeRange        a range of partitions of all pieces and existing segments  a segment

Vectors, centroids and codes travel through the store of the table, and a task returns the encoded metadata of the
segment that it wrote. `vector_build.py` divides the work among the tasks; read it first.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.coordination import progress
from lance_core.coordination.progress import RecordedSegment
from lance_core.datafiles.fragment_reader import load_deletions
from lance_core.format import field_paths
from lance_core.format.field_paths import FieldPath
from lance_core.format.fragment import Fragment
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.row_sets import HALF_BITS
from lance_core.index import build
from lance_core.index.build import IndexSpec, SegmentWriter
from lance_core.index.coverage import Coverage
from lance_core.index.index_type import ROW, VALUE
from lance_core.index.vector.build import (
    details_of_definition,
    merge_partitions,
    with_options,
    write_model,
    write_piece,
)
from lance_core.index.vector.encoding import VectorBatch
from lance_core.index.vector.model import Model, open_segment_files, read_model
from lance_core.index.vector.options import VectorOptions
from lance_core.index.vector.partitions import StoredPartitions
from lance_core.index.vector.quantizers import FlatCodes, Ints
from lance_core.index.vector.segment_statistics import VectorStatistics
from lance_core.index.vector.training import TrainingPlan, train_centroids
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.scan.take import By, take
from lance_core.scan.vector_columns import is_multivector, vector_field
from lance_core.scan.vector_search import Metric
from lance_core.storage.lru_cache import LruCache
from lance_core.tasks.indices.index_segments import SegmentBuild, fresh_segments, without_fsync
from lance_core.versions.snapshot import Snapshot

_SEED = 42
_SCANNED_SHARE = 1 / 16
"""Share of the rows above which a sample is read by a scan: random reads of more rows take longer."""
_models: "LruCache[UUID, Model]" = LruCache(4)


@dataclass(frozen=True, slots=True)
class WriteSample:
    """Writes a share of the vectors of some fragments, sorted by the nearest coarse centroid."""

    spec: IndexSpec
    plan: TrainingPlan
    share: float
    coarse: bytes | None = None
    """Segment of a model with the coarse centroids; `None` for a single cluster."""

    def __call__(self, partition: Snapshot, _number: int) -> Iterator[bytes]:
        rows = draw_rows(partition, self.spec.chain, self.share)
        model = None if self.coarse is None else load_model(partition, self.coarse)
        yield _write(
            without_fsync(partition),
            self.spec,
            lambda sink, column, _: write_piece(
                sink, column, rows, single_cluster(column, self.plan.metric) if model is None else model
            ),
        ).encode()


@dataclass(frozen=True, slots=True)
class TrainCentroids:
    """Trains the centroids of a range of coarse clusters. Each cluster gets centroids in proportion to its vectors."""

    spec: IndexSpec
    plan: TrainingPlan
    coarse: bytes
    samples: tuple[bytes, ...]
    ranges: tuple[range, ...]

    def __call__(self, partition: Snapshot, number: int) -> Iterator[bytes]:
        coarse = load_model(partition, self.coarse)
        pieces = read_pieces(partition, self.samples, coarse)
        lengths = np.sum([piece.stored.partitions.lengths for piece in pieces], axis=0)
        counts = share_centroids(self.plan.partitions, lengths)
        parts, loss = [], 0.0
        for cluster in self.ranges[number]:
            if counts[cluster]:
                plan = replace(self.plan, kind="IVF_FLAT", partitions=int(counts[cluster]))
                trained = train_centroids(vectors_of(pieces, range(cluster, cluster + 1)), plan)
                parts.append(trained.centroids)
                loss += trained.loss or 0.0
        centroids = np.concatenate(parts) if parts else coarse.centroids[:0]
        model = replace(coarse, centroids=centroids, loss=loss)
        yield write_model_segment(without_fsync(partition), self.spec, model).encode()


@dataclass(frozen=True, slots=True)
class EncodeFragments:
    """Writes the codes of some fragments, and records them with the progress of the build if it has a directory."""

    spec: IndexSpec
    model: bytes
    directory: str | None

    def __call__(self, partition: Snapshot, _number: int) -> Iterator[bytes]:
        model, fragments = load_model(partition, self.model), tuple(partition.manifest.fragments)
        segment = _write(
            partition if self.directory is not None else without_fsync(partition),
            self.spec,
            lambda sink, column, by_address: write_piece(
                sink, column, build.read_values(partition, self.spec.chain, fragments, addresses=by_address), model
            ),
            covers=BitMap(fragment.id for fragment in fragments),
        )
        if self.directory is not None:
            recorded = RecordedSegment(segment, encode_fragments(fragments))
            progress.record_segment(partition.location.own_store, self.directory, recorded)
        yield segment.encode()


@dataclass(frozen=True, slots=True)
class MergeRange:
    """Writes a range of partitions of all pieces and segments as one segment. The partition number is that of the
    range; a single range is the whole index. The snapshot has all fragments of the version if the target merges
    existing segments."""

    target: SegmentBuild
    model: bytes
    pieces: tuple[bytes, ...]
    segments: tuple[bytes, ...]
    ranges: tuple[range, ...]

    def __call__(self, partition: Snapshot, number: int) -> Iterator[bytes]:
        spec = self.target.spec
        model = with_options(load_model(partition, self.model), spec.kind.name, VectorOptions.of(spec.options))
        segments = [*self.target.existing.merge_inputs(partition), *fresh_segments(partition, self.segments)]
        pieces = fresh_segments(partition, self.pieces)
        yield _write(
            partition if len(self.ranges) == 1 else without_fsync(partition),
            spec,
            lambda sink, column, _: merge_partitions(
                sink, column, pieces, model, self.ranges[number], segments=segments
            ),
            covers=BitMap.deserialize(self.target.covers),
        ).encode()


def write_model_segment(base: Snapshot, spec: IndexSpec, model: Model) -> IndexMetadata:
    """Write a model for the workers, as a segment that no version references."""
    return _write(base, spec, lambda sink, column, _: write_model(sink, column, model))


def write_definition(base: Snapshot, spec: IndexSpec, plan: TrainingPlan) -> IndexMetadata:
    """Return an index that has too few vectors to be built."""
    return _write(base, spec, lambda _sink, _column, _by_address: details_of_definition(plan))


def load_model(base: Snapshot, segment: bytes) -> Model:
    """Return the model of a segment. The tasks of a worker share it."""
    metadata = IndexMetadata.decode(segment)

    def read() -> Model:
        files = Coverage(base).segment_of(metadata).files
        stored = read_model(*open_segment_files(files, path=metadata.qualified_path), path=metadata.qualified_path)
        return VectorStatistics.of(metadata).complete(stored.model)

    return _models.get_or_create(metadata.uuid, read)


def read_pieces(base: Snapshot, pieces: Sequence[bytes], model: Model) -> list[StoredPartitions]:
    return [StoredPartitions.of_piece(each, model) for each in fresh_segments(base, pieces)]


def vectors_of(pieces: Sequence[StoredPartitions], clusters: range) -> VectorBatch:
    """Return the vectors of some clusters of all samples."""
    parts = [part for piece in pieces for part in piece.read(clusters) if len(part.rows)]
    return VectorBatch.concat([VectorBatch(part.codes[0], part.rows) for part in parts])


def single_cluster(column: pa.Field, metric: Metric) -> Model:
    """Return a model that puts all vectors into one partition, without compression."""
    vector = vector_field(column).type
    centroid = np.zeros((1, vector.list_size), dtype=vector.value_type.to_pandas_dtype())
    return Model("IVF_FLAT", metric, centroid, FlatCodes(metric is Metric.HAMMING))


def count_vectors(base: Snapshot, chain: FieldPath, rows: int) -> int:
    """Return the number of vectors of some rows: for lists of vectors an estimate from the first rows of the table."""
    if not is_multivector(build.arrow_of(base.manifest.schema, chain).type):
        return rows
    for batch in build.read_values(base, chain, base.manifest.fragments, addresses=True):
        if batch.num_rows:
            vectors: int = len(batch[VALUE].flatten())
            estimate: int = math.ceil(rows * vectors / batch.num_rows)
            return estimate
    return rows


def share_centroids(count: int, sizes: Ints) -> Ints:
    """Return how many of `count` centroids each cluster gets: in proportion to its size, and at most its size.

    >>> share_centroids(10, np.array([50, 0, 30, 21])).tolist()
    [5, 0, 3, 2]
    """
    total = int(sizes.sum())
    if not total:
        return np.zeros(len(sizes), dtype=np.int64)
    exact = sizes * (min(count, total) / total)
    shares = np.floor(exact).astype(np.int64)
    remaining = min(count, total) - int(shares.sum())
    shares[np.argsort(shares - exact, kind="stable")[:remaining]] += 1
    capped: Ints = np.minimum(shares, sizes)
    return capped


def draw_rows(base: Snapshot, chain: FieldPath, share: float) -> Iterator[pa.RecordBatch]:
    """Yield about a share of the live rows, drawn with a fixed seed, as `VALUE` and `ROW`. A small share is read by
    row address."""
    for fragment in base.manifest.fragments:
        draw = np.random.default_rng([_SEED, fragment.id])
        if share < _SCANNED_SHARE:
            yield from _take_rows(base, chain, fragment, draw, share)
            continue
        for batch in build.read_values(base, chain, [fragment], addresses=True):
            yield batch if share >= 1 else batch.filter(pa.array(draw.random(batch.num_rows) < share))


def encode_fragments(fragments: Sequence[Fragment]) -> tuple[bytes, ...]:
    return tuple(fragment.encode() for fragment in fragments)


def _take_rows(
    base: Snapshot, chain: FieldPath, fragment: Fragment, draw: np.random.Generator, share: float
) -> Iterator[pa.RecordBatch]:
    rows = fragment.physical_rows
    offsets = np.sort(draw.choice(rows, min(rows, math.ceil(rows * share)), replace=False))
    deletions = load_deletions(base.location.store, fragment)
    if deletions is not None:
        offsets = np.setdiff1d(offsets, deletions.offsets, assume_unique=True)
    addresses = (np.uint64(fragment.id) << np.uint64(HALF_BITS)) | offsets.astype(np.uint64)
    table = take(base.location, base.manifest, addresses, [field_paths.format_path(chain)], by=By.ROW_ADDRESS)
    for batch in pa.table([table.column(0), addresses], names=[VALUE, ROW]).combine_chunks().to_batches():
        yield batch.filter(pc.is_valid(batch.column(0)))


def _write(base: Snapshot, spec: IndexSpec, write: SegmentWriter, *, covers: BitMap | None = None) -> IndexMetadata:
    covered = BitMap() if covers is None else covers
    return build.write_segment(base, spec, write, covers=covered, runtime=SYSTEM_RUNTIME)
