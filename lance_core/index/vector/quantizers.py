"""Quantizers: encodings of vectors as codes, their columns in the storage file of a segment, and their descriptions
there.

    FlatCodes       the vectors themselves
    ScalarCodes     each number as a byte between two bounds
    ProductCodes    for each sub-vector the number of the nearest centroid of a codebook

Codes are a tuple of arrays, one for each column of the storage file after the row number, with a row for each vector.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.format.vector_index import encode_tensor
from lance_core.index.vector.faiss_library import faiss, one_thread
from lance_core.scan.vector_search import Metric

Array = npt.NDArray[np.generic]
Ints = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]
Codes: TypeAlias = tuple[Array, ...]
_BLOCK_NUMBERS = 1 << 15


def blocks_of(vectors: npt.NDArray[np.generic]) -> Iterator[slice]:
    """Yield ranges of rows whose numbers stay in the processor cache in double precision."""
    step = max(1, _BLOCK_NUMBERS // max(1, vectors.shape[1]))
    return (slice(start, start + step) for start in range(0, len(vectors), step))


def normalized(vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Return the vectors divided by their lengths; NaN for vectors of length zero."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return np.asarray(vectors / lengths)


@dataclass(frozen=True, slots=True)
class AssignedVectors:
    """Vectors that are encoded, with the partition of each."""

    stored: Array
    """Vectors in the number type of the column; normalized for cosine."""
    floats: Vectors
    """Vectors as they are clustered; bits for hamming."""
    partitions: Ints
    centroids: Vectors
    """Centroids of all partitions."""
    metric: Metric

    @property
    def residuals(self) -> Vectors:
        """Differences between the vectors and their centroids."""
        return residuals_of(self.floats, self.centroids, self.partitions)


def residuals_of(vectors: Vectors, centroids: Vectors, partitions: Ints) -> Vectors:
    """Return the differences between the vectors and the centroids of their partitions."""
    result = np.empty_like(vectors)
    for rows in blocks_of(vectors):  # the centroids of all rows would take as much memory as the vectors
        np.subtract(vectors[rows], centroids[partitions[rows]], out=result[rows])
    return result


class Quantizer(Protocol):
    """Encoding of the vectors of a segment."""

    @property
    def compression(self) -> str:
        """Name of the encoding in the type of an index, such as PQ in IVF_PQ."""

    def columns(self, dimension: int, element: pa.DataType) -> tuple[pa.Field, ...]:
        """Return the columns of the codes in the storage file."""

    def encode(self, vectors: AssignedVectors) -> Codes:
        """Return the codes of vectors."""

    def pack(self, codes: Codes) -> Codes:
        """Return the codes of one partition in the order in which the file stores them."""

    def unpack(self, codes: Codes) -> Codes:
        """Return the codes of one partition row by row."""

    def describe(
        self, dimension: int, dtype: np.dtype[np.generic], add_buffer: Callable[[bytes], int]
    ) -> Mapping[str, Any]:
        """Return the description in the metadata of the storage file. `dtype` is that of the centroids."""

    def has_same_parameters(self, other: "Quantizer") -> bool:
        """Return whether codes of one quantizer are codes of the other."""


@dataclass(frozen=True, slots=True)
class FlatCodes:
    """Vectors without an encoding."""

    compression = "FLAT"
    is_nullable: bool = False

    def columns(self, dimension: int, element: pa.DataType) -> tuple[pa.Field, ...]:
        return (pa.field("flat", pa.list_(pa.field("item", element), dimension), nullable=self.is_nullable),)

    def encode(self, vectors: AssignedVectors) -> Codes:
        return (vectors.stored,)

    def pack(self, codes: Codes) -> Codes:
        return codes

    def unpack(self, codes: Codes) -> Codes:
        return codes

    def describe(
        self, dimension: int, dtype: np.dtype[np.generic], add_buffer: Callable[[bytes], int]
    ) -> Mapping[str, Any]:
        return {"dim": dimension}

    def has_same_parameters(self, other: Quantizer) -> bool:
        return isinstance(other, FlatCodes)


@dataclass(frozen=True, slots=True)
class ScalarCodes:
    """Scalar quantization: a byte for each number, on a scale between two bounds."""

    compression = "SQ"
    start: float
    end: float

    @property
    def scale(self) -> float:
        """Distance between two neighbouring codes."""
        return (self.end - self.start) / 255

    def columns(self, dimension: int, element: pa.DataType) -> tuple[pa.Field, ...]:
        return (pa.field("__sq_code", pa.list_(pa.field("item", pa.uint8()), dimension)),)

    def quantize(self, vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """Return the codes of vectors, as numbers."""
        width = (self.end - self.start) or 1.0
        levels = vectors.astype(np.float64)
        levels -= self.start
        levels *= 255 / width
        return np.clip(np.floor(levels, out=levels), 0, 255, out=levels)

    def encode(self, vectors: AssignedVectors) -> Codes:
        codes = np.empty(vectors.floats.shape, dtype=np.uint8)
        for rows in blocks_of(vectors.floats):
            codes[rows] = self.quantize(vectors.floats[rows])
        return (codes,)

    def pack(self, codes: Codes) -> Codes:
        return codes

    def unpack(self, codes: Codes) -> Codes:
        return codes

    def describe(
        self, dimension: int, dtype: np.dtype[np.generic], add_buffer: Callable[[bytes], int]
    ) -> Mapping[str, Any]:
        return {"dim": dimension, "num_bits": 8, "bounds": {"start": self.start, "end": self.end}}

    def has_same_parameters(self, other: Quantizer) -> bool:
        return self == other


@dataclass(frozen=True, slots=True, eq=False)
class ProductCodes:
    """Product quantization: the number of the nearest centroid for each sub-vector."""

    compression = "PQ"
    num_bits: int
    codebook: Vectors
    """Centroids by sub-vector and code."""
    is_residual: bool
    """True if the codes are those of the differences between vectors and their centroids."""
    is_transposed: bool = True
    """True if the file stores the codes of a partition column by column."""

    @property
    def num_sub_vectors(self) -> int:
        return len(self.codebook)

    def columns(self, dimension: int, element: pa.DataType) -> tuple[pa.Field, ...]:
        width = self.num_sub_vectors * self.num_bits // 8
        return (pa.field("__pq_code", pa.list_(pa.field("item", pa.uint8()), width)),)

    def encode(self, vectors: AssignedVectors) -> Codes:
        library = faiss()
        values = vectors.residuals if self.is_residual else vectors.floats
        encoder = library.ProductQuantizer(values.shape[1], self.num_sub_vectors, self.num_bits)
        library.copy_array_to_vector(self.codebook.ravel(), encoder.centroids)
        with one_thread():
            return (encoder.compute_codes(np.ascontiguousarray(values)),)

    def decode(self, rows: npt.NDArray[np.uint8]) -> Vectors:
        """Return the vectors of codes."""
        library = faiss()
        decoder = library.ProductQuantizer(self.codebook.size >> self.num_bits, self.num_sub_vectors, self.num_bits)
        library.copy_array_to_vector(self.codebook.ravel(), decoder.centroids)
        vectors: Vectors = decoder.decode(rows)
        return vectors

    def pack(self, codes: Codes) -> Codes:
        (rows,) = codes
        return (np.ascontiguousarray(rows.T).reshape(rows.shape),) if self.is_transposed else codes

    def unpack(self, codes: Codes) -> Codes:
        (rows,) = codes
        count, width = rows.shape
        return (rows.reshape(width, count).T,) if self.is_transposed else codes

    def describe(
        self, dimension: int, dtype: np.dtype[np.generic], add_buffer: Callable[[bytes], int]
    ) -> Mapping[str, Any]:
        flat = self.codebook.reshape(1 << self.num_bits, dimension)
        return {
            "codebook_position": add_buffer(encode_tensor(flat.astype(dtype))),
            "nbits": self.num_bits,
            "num_sub_vectors": self.num_sub_vectors,
            "dimension": dimension,
            "codebook_tensor": [],
            "transposed": self.is_transposed,
        }

    def has_same_parameters(self, other: Quantizer) -> bool:
        return (
            isinstance(other, ProductCodes)
            and (self.num_bits, self.is_residual) == (other.num_bits, other.is_residual)
            and np.array_equal(self.codebook, other.codebook)
        )
