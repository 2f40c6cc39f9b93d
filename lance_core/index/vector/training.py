"""Training: centroids by k-means, codebooks of product quantization and bounds of scalar quantization, from a sample
of the vectors.

    `plan_training` -> number of vectors to draw -> `draw_sample` -> `train` -> `Model`, a value that can be pickled
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.index.vector.encoding import VectorBatch, assign, assign_with_losses, read_vectors
from lance_core.index.vector.faiss_library import faiss, one_thread
from lance_core.index.vector.model import Model
from lance_core.index.vector.options import ITERATIONS, VectorOptions
from lance_core.index.vector.quantizers import (
    Array,
    FlatCodes,
    ProductCodes,
    Quantizer,
    ScalarCodes,
    Vectors,
    residuals_of,
)
from lance_core.index.vector.rabit import new_rabit_codes
from lance_core.progress import report
from lance_core.scan.vector_columns import is_multivector, vector_field
from lance_core.scan.vector_search import Metric, resolve_metric

_SEED = 42
_LARGE_TRAINING = 2 * 10**12
"""Operations of a k-means from which it is a large training. They take about half a minute of one core."""
_LARGE_TRAINING_GAIN_MIN = 0.0002
"""Share of the loss that an iteration of a large training gains at least; one that gains less is the last."""
_CODEBOOK_GAIN_MIN = 0.0001
"""Share of the loss that an iteration of the k-means of a codebook gains at least; one that gains less is the last."""
_LEFT_OUT_SHARE = 20
"""A sample that exceeds the required size by at most one vector in this many is truncated instead of sampled."""
_PARTITION_ROWS = {"IVF_FLAT": 4096, "IVF_RQ": 4096, "IVF_PQ": 8192, "IVF_SQ": 8192}
_GRAPH_PARTITION_ROWS = 1 << 20
"""Rows of a partition on average unless the caller chooses a number, as in pylance."""
_PQ_SAMPLE_RATE = 256
_DEFAULT_BITS = {"PQ": 8, "RQ": 5}


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Target of a training: the kind, the metric and the number of partitions, and the size of its sample."""

    kind: str
    metric: Metric
    options: VectorOptions
    partitions: int
    sample_size: int
    total: int
    """Rows from which the sample is drawn."""

    @property
    def compression(self) -> str:
        return self.kind.rpartition("_")[2]

    @property
    def iterations(self) -> int:
        """Largest number of iterations of the k-means."""
        return self.options.max_iters or ITERATIONS

    def gain_min(self, dimension: int) -> float:
        """Return the minimum share of the loss that an iteration gains; one that gains less is the last."""
        is_large = self.operations_of_iteration(dimension) * ITERATIONS > _LARGE_TRAINING
        return _LARGE_TRAINING_GAIN_MIN if is_large and self.options.max_iters is None else 0.0

    def operations_of_iteration(self, dimension: int) -> int:
        """Return the number of multiplications and additions of an iteration of the k-means."""
        return 2 * self.partitions * max(1, self.options.sample_rate) * self.partitions * dimension

    @property
    def vectors_min(self) -> int:
        """Minimum number of vectors that training needs."""
        return 1 << self.options.bits if self.compression == "PQ" else 1


def plan_training(kind: str, column: pa.Field, options: VectorOptions, total: int) -> TrainingPlan:
    """Return the plan for a column of `total` vectors. Raise `InvalidInput` if the options do not fit the column."""
    vector = vector_field(column).type
    metric = resolve_metric(options.metric and options.metric.value, vector.value_type, column.name)
    if is_multivector(column.type) and metric is not Metric.COSINE:
        raise InvalidInput(
            f"column {column.name!r} has lists of vectors, which an index compares by cosine only: pass "
            'metric="cosine"; a search without an index has other metrics, too'
        )
    checked = _check_options(options, kind, vector.list_size)
    compression = kind.rpartition("_")[2]
    target = options.target_partition_size or _PARTITION_ROWS.get(kind, _GRAPH_PARTITION_ROWS)
    partitions = options.num_partitions or max(1, total // target)
    wanted = partitions * options.sample_rate
    if compression == "PQ":
        wanted = max(wanted, _PQ_SAMPLE_RATE << checked.bits)
    return TrainingPlan(kind, metric, checked, partitions, wanted, total)


def draw_sample(rows: Iterable[pa.RecordBatch], plan: TrainingPlan, total: int) -> VectorBatch:
    """Return about as many vectors as the plan needs, drawn with a fixed seed. `total` is an upper bound of the number
    of rows."""
    draw, share = np.random.default_rng(_SEED), plan.sample_size / max(1, total)
    # Within six standard deviations of the expected number, which a draw exceeds once in a billion times.
    size_max = total if share >= 1 else min(total, plan.sample_size + 6 * math.isqrt(plan.sample_size))
    sample, size = VectorBatch.concat(()), 0
    for batch in read_vectors(rows, plan.metric):
        chosen = slice(None) if share >= 1 else np.flatnonzero(draw.random(len(batch.rows)) < share)[: size_max - size]
        vectors = batch.vectors[chosen]
        if not len(sample.rows):
            shape = (size_max, vectors.shape[1])
            sample = VectorBatch(np.empty(shape, dtype=vectors.dtype), np.empty(size_max, dtype=np.uint64))
        part = slice(size, size + len(vectors))
        sample.vectors[part], sample.rows[part] = vectors, batch.rows[chosen]
        size = part.stop
    return VectorBatch(sample.vectors[:size], sample.rows[:size])


def train(sample: VectorBatch, plan: TrainingPlan) -> Model:
    """Return a model that is trained on a sample of the vectors."""
    step = "train the model"
    report(step, 0, 2, "stages")
    model = train_centroids(sample, plan)
    report(step, 1, 2, "stages")
    model = train_quantizer(model, sample, plan)
    report(step, 2, 2, "stages")
    return model


def train_centroids(sample: VectorBatch, plan: TrainingPlan) -> Model:
    """Return a model that has centroids, and stores the vectors themselves."""
    floats = sample.floats(plan.metric)
    assert len(floats)
    with one_thread():
        centroids, loss = _cluster(floats, plan)
    stored: Array = centroids.astype(sample.vectors.dtype)
    if plan.metric is Metric.HAMMING:
        stored = np.packbits(centroids > 0.5, axis=1)
    return Model(plan.kind, plan.metric, stored, FlatCodes(plan.metric is Metric.HAMMING), loss)


def train_quantizer(model: Model, sample: VectorBatch, plan: TrainingPlan) -> Model:
    """Return the model with the quantizer of the plan, and the loss of the sample."""
    floats = sample.floats(plan.metric)
    with one_thread():
        losses = assign_with_losses(floats, model.float_centroids, plan.metric)[1]
        model = replace(model, mean_loss=float(losses.mean(dtype=np.float64)), trained_rows=plan.total)
        return replace(model, quantizer=_train_quantizer(floats, model, plan))


def _check_options(options: VectorOptions, kind: str, dimension: int) -> VectorOptions:
    """Return the options with the number of bits and sub-vectors, which have to divide the dimension."""
    compression = kind.rpartition("_")[2]
    if compression in _DEFAULT_BITS and options.num_bits is None:
        options = replace(options, num_bits=_DEFAULT_BITS[compression])
    if compression == "RQ" and dimension % 8:
        raise InvalidInput(f"an {kind} index needs vectors whose dimension is a multiple of 8, and it is {dimension}")
    return _with_sub_vectors(options, dimension) if compression == "PQ" else options


def _with_sub_vectors(options: VectorOptions, dimension: int) -> VectorOptions:
    sub_vectors = options.num_sub_vectors
    if sub_vectors is None:
        width = next((width for width in (16, 8) if dimension % width == 0), None)
        if width is None:
            raise InvalidInput(f"num_sub_vectors is required, since the dimension {dimension} is not a multiple of 8")
        sub_vectors = dimension // width
    if dimension % sub_vectors or sub_vectors * options.bits % 8:
        raise InvalidInput(
            f"num_sub_vectors={sub_vectors} must divide the dimension {dimension}, and be even if num_bits is 4"
        )
    return replace(options, num_sub_vectors=sub_vectors)


def _train_quantizer(floats: Vectors, model: Model, plan: TrainingPlan) -> Quantizer:
    match plan.compression:
        case "SQ":
            return ScalarCodes(float(floats.min()), float(floats.max()))
        case "PQ":
            return _train_codebook(floats, model, plan.options)
        case "RQ":
            return new_rabit_codes(model.dimension, plan.options.bits, model.metric, _SEED)
    return model.quantizer


def _cluster(vectors: Vectors, plan: TrainingPlan) -> tuple[Vectors, float]:
    """Return centroids and the loss. For dot, centroids have length 1: a search ranks them by their product with the
    query, and would prefer long ones."""
    partitions = min(plan.partitions, len(vectors))
    vectors = _draw_sample(vectors, partitions * max(1, plan.options.sample_rate))  # faiss would copy them
    clustering = faiss().Kmeans(
        vectors.shape[1],
        partitions,
        niter=plan.iterations,
        seed=_SEED,
        max_points_per_centroid=max(1, plan.options.sample_rate),
        min_points_per_centroid=1,
        spherical=plan.metric is Metric.DOT,
    )
    clustering.cp.early_stop_threshold = plan.gain_min(vectors.shape[1])
    clustering.train(vectors)
    return clustering.centroids.reshape(partitions, -1), float(clustering.obj[-1])


def _train_codebook(vectors: Vectors, model: Model, options: VectorOptions) -> Quantizer:
    library, is_residual = faiss(), model.metric is not Metric.DOT
    dimension, sub_vectors = vectors.shape[1], options.num_sub_vectors
    assert sub_vectors is not None
    vectors = _draw_sample(vectors, _PQ_SAMPLE_RATE << options.bits)
    centroids = model.float_centroids
    partitions = assign(vectors, centroids, model.metric) if is_residual else None
    width = dimension // sub_vectors
    codebook = np.empty((sub_vectors, 1 << options.bits, width), dtype=np.float32)
    for number in range(sub_vectors):  # faiss would copy the residuals of all sub-vectors
        part = np.ascontiguousarray(vectors[:, number * width : (number + 1) * width])
        if partitions is not None:
            part = residuals_of(part, centroids[:, number * width : (number + 1) * width], partitions)
        quantizer = library.ProductQuantizer(width, 1, options.bits)
        quantizer.cp.niter, quantizer.cp.min_points_per_centroid = options.max_iters or ITERATIONS, 1
        quantizer.cp.early_stop_threshold = 0.0 if options.max_iters else _CODEBOOK_GAIN_MIN
        quantizer.train(part)
        codebook[number] = library.vector_to_array(quantizer.centroids).reshape(-1, width)
    rounded = codebook.astype(model.centroids.dtype).astype(np.float32)  # as it is read back
    return ProductCodes(options.bits, rounded, is_residual)


def _draw_sample(vectors: Vectors, count: int) -> Vectors:
    """Return at most `count` of the vectors, which are a sample already. If this omits few of them, return the first
    ones without a copy."""
    if len(vectors) * _LEFT_OUT_SHARE <= count * (_LEFT_OUT_SHARE + 1):
        return vectors[:count]
    chosen = np.random.default_rng(_SEED).choice(len(vectors), count, replace=False)
    return vectors[np.sort(chosen)]
