"""Encoding of rows: the vectors of a batch, their partitions, and their codes under a model.

    rows -> `read_vectors` -> `VectorBatch` -> `encode` -> `EncodedRows`

Each batch is encoded by itself, so that workers can share the rows of a table.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.format.row_sets import Ids
from lance_core.index.index_type import ROW, VALUE
from lance_core.index.vector.faiss_library import faiss, one_thread
from lance_core.index.vector.model import Model
from lance_core.index.vector.quantizers import Array, AssignedVectors, Codes, Ints, Vectors, blocks_of, normalized
from lance_core.scan.vector_columns import flatten_vectors
from lance_core.scan.vector_search import Metric

LENGTH_MAX = 1e15
"""Length of a vector up to which sums of squares do not overflow single precision, in which vectors are clustered."""
_BATCH_BYTES = 4 << 20
_NO_ROWS: Ids = np.empty(0, dtype=np.uint64)


Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class VectorBatch:
    """Vectors that have a distance, with their row numbers."""

    vectors: Array
    """Values in the type of the column; normalized for cosine."""
    rows: Ids
    left_out: Ids = field(default_factory=_NO_ROWS.copy)
    """Rows whose vectors are infinite or too long for single precision, but have a distance."""

    @classmethod
    def concat(cls, parts: "Sequence[VectorBatch]") -> "VectorBatch":
        if not parts:
            return cls(np.empty((0, 1), dtype=np.float32), np.empty(0, dtype=np.uint64))
        return cls(np.concatenate([each.vectors for each in parts]), np.concatenate([each.rows for each in parts]))

    def floats(self, metric: Metric) -> Vectors:
        """Return the vectors as they are clustered: bits for hamming."""
        values = np.unpackbits(self.vectors.astype(np.uint8), axis=1) if metric is Metric.HAMMING else self.vectors
        return np.ascontiguousarray(values, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Codes of some rows with the partition of each."""

    partitions: Ints
    rows: Ids
    codes: Codes
    loss: float = 0.0
    """Sum of the losses of the rows: squared distances from their centroids, or cosine distances for dot."""
    left_out: Ids = field(default_factory=_NO_ROWS.copy)
    """Rows that have no code, and that a search compares exactly."""

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self.partitions.nbytes + self.rows.nbytes + sum(each.nbytes for each in self.codes)


def read_vectors(rows: Iterable[pa.RecordBatch], metric: Metric) -> Iterator[VectorBatch]:
    """Yield the vectors of rows, without nulls, NaN and, for cosine, vectors of length zero. Vectors that are infinite
    or too long are left out."""
    for batch in rows:
        column, owners = flatten_vectors(batch[VALUE])
        numbers = batch[ROW].to_numpy()
        numbers = numbers if owners is None else numbers[owners]
        values = column.flatten()
        flat = values.to_numpy(zero_copy_only=False)
        if values.null_count:
            flat = np.where(np.asarray(values.is_valid()), flat, 0).astype(column.type.value_type.to_pandas_dtype())
        vectors = flat.reshape(len(column), column.type.list_size)
        if metric is Metric.HAMMING:
            yield VectorBatch(vectors, numbers)
            continue
        usable, is_left_out = _usable_vectors(vectors, metric)
        if usable.all():
            left_out = _NO_ROWS
        else:
            vectors, numbers, left_out = vectors[usable], numbers[usable], numbers[is_left_out]
        if metric is Metric.COSINE:
            vectors = _normalized(vectors)
        yield VectorBatch(vectors, numbers, left_out)


def _usable_vectors(vectors: Array, metric: Metric) -> tuple[Mask, Mask]:
    """Return masks of the vectors that can be encoded, and of those that cannot but have a distance."""
    squares = np.empty(len(vectors))
    with np.errstate(invalid="ignore", over="ignore"):
        for rows in blocks_of(vectors):
            doubles = vectors[rows].astype(np.float64)
            np.einsum("ij,ij->i", doubles, doubles, out=squares[rows])
        if metric is Metric.COSINE:
            usable = np.isfinite(squares) & (squares > 0)
            return usable, np.isinf(squares)
        usable = squares < LENGTH_MAX**2
        return usable, ~usable & ~np.isnan(squares)


def _normalized(vectors: Array) -> Array:
    result = np.empty_like(vectors)
    for rows in blocks_of(vectors):
        result[rows] = normalized(vectors[rows].astype(np.float64))
    return result


def encode(batch: VectorBatch, model: Model) -> EncodedRows:
    """Return the partition and the codes of each vector."""
    floats = batch.floats(model.metric)
    centroids = model.float_centroids
    with one_thread():
        partitions, losses = assign_with_losses(floats, centroids, model.metric)
    vectors = AssignedVectors(batch.vectors, floats, partitions, centroids, model.metric)
    codes = model.quantizer.encode(vectors)
    return EncodedRows(partitions, batch.rows, codes, float(losses.sum(dtype=np.float64)), batch.left_out)


def _slices(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches of at most `_BATCH_BYTES`, or one row: encoding takes several times the memory of its vectors."""
    for batch in rows:
        step = max(1, batch.num_rows * _BATCH_BYTES // max(1, batch.nbytes))
        yield from (batch.slice(start, step) for start in range(0, batch.num_rows, step))


def encode_rows(rows: Iterable[pa.RecordBatch], model: Model) -> Iterator[EncodedRows]:
    """Yield the codes of rows, batch by batch."""
    for batch in read_vectors(_slices(rows), model.metric):
        if len(batch.rows) or len(batch.left_out):
            yield encode(batch, model)


def assign(vectors: Vectors, centroids: Vectors, metric: Metric) -> Ints:
    """Return the number of the nearest centroid of each vector, by the distance by which a search ranks centroids."""
    return assign_with_losses(vectors, centroids, metric)[0]


def assign_with_losses(vectors: Vectors, centroids: Vectors, metric: Metric) -> tuple[Ints, Vectors]:
    """Return the same numbers, and the loss of each vector."""
    library = faiss()
    index = (library.IndexFlatIP if metric is Metric.DOT else library.IndexFlatL2)(vectors.shape[1])
    index.add(np.ascontiguousarray(centroids, dtype=np.float32))
    distances, nearest = index.search(vectors, 1)
    losses: Vectors = distances[:, 0]
    if metric is Metric.DOT:
        lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
        losses = 1 - losses / np.maximum(lengths, np.finfo(np.float32).tiny)
    return nearest[:, 0], losses
