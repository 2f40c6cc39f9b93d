"""Training and encoding: centroids by k-means, codebooks of product quantization, bounds of scalar quantization, and
the codes of vectors under a model."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.format.row_sets import Ids
from lance_core.index.index_type import ROW, VALUE, IndexOptions
from lance_core.index.vector.kernels import faiss, normalized
from lance_core.index.vector.model import Codes, Model, Quantizer, Vectors
from lance_core.scan.vector_search import Metric

_SEED = 42
_ITERATIONS = 50
"""Iterations of k-means unless the caller sets `max_iters`, as in pylance."""
_FLAT_PARTITION_ROWS, _CODE_PARTITION_ROWS = 4096, 8192
_PQ_SAMPLE_RATE = 256

Array = npt.NDArray[np.generic]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class VectorOptions:
    """Options of a vector index, with pylance's names. An option that is `None` equals any value: a segment does not
    record which options its builder left out."""

    metric: Metric | None = None
    num_partitions: int | None = None
    num_sub_vectors: int | None = None
    num_bits: int = 8
    max_iters: int | None = None
    sample_rate: int = 256
    target_partition_size: int | None = None
    model: Model | None = field(default=None, repr=False)
    """Model of an existing segment, which new segments of its index take: their codes can then be merged."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, VectorOptions):
            return NotImplemented
        pairs = ((getattr(self, each.name), getattr(other, each.name)) for each in fields(self) if each.name != "model")
        return all(mine is None or theirs is None or mine == theirs for mine, theirs in pairs)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def of(cls, options: IndexOptions) -> "VectorOptions":
        assert isinstance(options, cls)
        return options


@dataclass(frozen=True, slots=True)
class VectorBatch:
    """Vectors that have a distance, with their row numbers."""

    vectors: Array
    """Values in the type of the column; normalized for cosine."""
    rows: Ids

    def floats(self, metric: Metric) -> Vectors:
        """Return the vectors as they are clustered: bits for hamming."""
        values = np.unpackbits(self.vectors.astype(np.uint8), axis=1) if metric is Metric.HAMMING else self.vectors
        return np.ascontiguousarray(values, dtype=np.float32)


def read_vectors(rows: Iterable[pa.RecordBatch], metric: Metric) -> Iterator[VectorBatch]:
    """Yield the vectors of rows; nulls, NaN, infinities and, for cosine, vectors of length zero are left out."""
    for batch in rows:
        column, numbers = batch[VALUE], batch[ROW].to_numpy()
        if column.null_count:
            is_valid = np.asarray(column.is_valid())
            column, numbers = column.drop_null(), numbers[is_valid]
        values = column.flatten()
        flat = values.to_numpy(zero_copy_only=False)
        if values.null_count:
            flat = np.where(np.asarray(values.is_valid()), flat, 0).astype(column.type.value_type.to_pandas_dtype())
        vectors = flat.reshape(len(column), column.type.list_size)
        if metric is Metric.COSINE:
            vectors = normalized(vectors.astype(np.float64)).astype(vectors.dtype)
        if metric is not Metric.HAMMING:
            is_finite = np.isfinite(vectors).all(axis=1)
            if not is_finite.all():
                vectors, numbers = vectors[is_finite], numbers[is_finite]
        yield VectorBatch(vectors, numbers)


def train(rows: Iterable[pa.RecordBatch], kind: str, metric: Metric, options: VectorOptions, *, total: int) -> Model:
    """Return a model that is trained on a sample of the rows. `total` is an upper bound of their number."""
    compression = kind.rpartition("_")[2]
    target = options.target_partition_size or (_FLAT_PARTITION_ROWS if compression == "FLAT" else _CODE_PARTITION_ROWS)
    partitions = options.num_partitions or max(1, total // target)
    wanted = partitions * options.sample_rate
    if compression == "PQ":
        wanted = max(wanted, _PQ_SAMPLE_RATE << options.num_bits)
    sample = _sample(rows, metric, wanted / max(1, total))
    floats = sample.floats(metric)
    if len(floats) < max(1, (1 << options.num_bits) if compression == "PQ" else 1):
        needed = f"at least {1 << options.num_bits} vectors" if compression == "PQ" else "vectors"
        raise InvalidInput(
            f"an {kind} index needs {needed} to be trained, and the rows have {len(floats)}; create it when the table "
            "has more rows, searches compare every vector until then"
        )
    with _one_thread():
        return _train_on(sample, floats, partitions, kind, metric, options)


def _train_on(
    sample: VectorBatch, floats: Vectors, partitions: int, kind: str, metric: Metric, options: VectorOptions
) -> Model:
    compression = kind.rpartition("_")[2]
    centroids, loss = _cluster(floats, min(partitions, len(floats)), metric, options)
    if metric is Metric.HAMMING:
        stored: Array = np.packbits(centroids > 0.5, axis=1)
    else:
        stored = centroids.astype(sample.vectors.dtype)
    quantizer = Quantizer("FLAT")
    if compression == "SQ":
        quantizer = Quantizer("SQ", 8, start=float(floats.min()), end=float(floats.max()))
    elif compression == "PQ":
        residuals = floats
        if metric is not Metric.DOT:
            residuals = floats - stored.astype(np.float32)[_assign(floats, stored, metric)]
        quantizer = _train_codebook(residuals, options, stored.dtype)
    return Model(kind, metric, stored, quantizer, loss)


def encode(batch: VectorBatch, model: Model) -> tuple[Ints, Array]:
    """Return the partition and the code of each vector."""
    floats = batch.floats(model.metric)
    centroids = model.centroids
    if model.metric is Metric.HAMMING:
        centroids = np.unpackbits(centroids.astype(np.uint8), axis=1)
    with _one_thread():
        partitions = _assign(floats, centroids, model.metric)
    match model.quantizer.compression:
        case "FLAT":
            return partitions, batch.vectors
        case "SQ":
            return partitions, model.quantizer.quantize(floats).astype(np.uint8)
    if model.encodes_residuals:
        floats = floats - centroids.astype(np.float32)[partitions]
    return partitions, _product_codes(model.quantizer, floats)


def _sample(rows: Iterable[pa.RecordBatch], metric: Metric, share: float) -> VectorBatch:
    """Return about this share of the vectors, drawn with a fixed seed."""
    draw = np.random.default_rng(_SEED)
    parts = []
    for batch in read_vectors(rows, metric):
        chosen = slice(None) if share >= 1 else draw.random(len(batch.rows)) < share
        parts.append(VectorBatch(np.array(batch.vectors[chosen]), batch.rows[chosen]))
    if not parts:
        return VectorBatch(np.empty((0, 1), dtype=np.float32), np.empty(0, dtype=np.uint64))
    return VectorBatch(np.concatenate([each.vectors for each in parts]), np.concatenate([each.rows for each in parts]))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let faiss use one thread: where cores are shared, its threads wait for each other in a busy loop, and training
    takes ten times as long."""
    library = faiss()
    threads = library.omp_get_max_threads()
    library.omp_set_num_threads(1)
    try:
        yield
    finally:
        library.omp_set_num_threads(threads)


def _cluster(vectors: Vectors, partitions: int, metric: Metric, options: VectorOptions) -> tuple[Vectors, float]:
    """Return centroids and the loss. For dot, centroids have length 1: a search ranks them by their product with the
    query, and would prefer long ones."""
    library = faiss()
    clustering = library.Kmeans(
        vectors.shape[1],
        partitions,
        niter=options.max_iters or _ITERATIONS,
        seed=_SEED,
        max_points_per_centroid=max(1, options.sample_rate),
        min_points_per_centroid=1,
        spherical=metric is Metric.DOT,
    )
    clustering.train(vectors)
    return clustering.centroids.reshape(partitions, -1), float(clustering.obj[-1])


def _assign(vectors: Vectors, centroids: Array, metric: Metric) -> Ints:
    """Return the number of the nearest centroid of each vector, by the distance by which a search ranks centroids."""
    library = faiss()
    index = (library.IndexFlatIP if metric is Metric.DOT else library.IndexFlatL2)(vectors.shape[1])
    index.add(np.ascontiguousarray(centroids, dtype=np.float32))
    nearest: Ints = index.search(vectors, 1)[1][:, 0]
    return nearest


def _train_codebook(vectors: Vectors, options: VectorOptions, stored: np.dtype[np.generic]) -> Quantizer:
    library = faiss()
    dimension, sub_vectors = vectors.shape[1], options.num_sub_vectors
    assert sub_vectors is not None
    draw = np.random.default_rng(_SEED)
    wanted = _PQ_SAMPLE_RATE << options.num_bits
    if len(vectors) > wanted:
        vectors = vectors[np.sort(draw.choice(len(vectors), wanted, replace=False))]
    quantizer = library.ProductQuantizer(dimension, sub_vectors, options.num_bits)
    quantizer.cp.niter, quantizer.cp.min_points_per_centroid = options.max_iters or _ITERATIONS, 1
    quantizer.train(np.ascontiguousarray(vectors))
    codebook = library.vector_to_array(quantizer.centroids).reshape(sub_vectors, -1, dimension // sub_vectors)
    rounded = codebook.astype(stored).astype(np.float32)  # as it is read back
    return Quantizer("PQ", options.num_bits, sub_vectors, rounded, is_transposed=True)


def _product_codes(quantizer: Quantizer, vectors: Vectors) -> Codes:
    library = faiss()
    assert quantizer.codebook is not None
    encoder = library.ProductQuantizer(vectors.shape[1], quantizer.num_sub_vectors, quantizer.num_bits)
    library.copy_array_to_vector(quantizer.codebook.ravel(), encoder.centroids)
    with _one_thread():
        codes: Codes = encoder.compute_codes(np.ascontiguousarray(vectors))
    return codes
