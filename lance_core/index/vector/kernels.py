"""Kernels: rank the partitions of a segment for queries, and the rows of loaded partitions.

    PartitionRanker    distances of centroids
    CodeLists          rows of loaded partitions: `InvertedLists` here, `RabitLists` and `GraphLists` in their modules

Distances are those of Lance. The codes of scalar quantization are compared with the code of the query for l2 and
cosine, and with the query itself for dot. Vectors of cosine indices are normalized, so that half of their squared l2
distance is the cosine distance: pylance returns the squared l2 distance of such codes, which is twice as large.
"""

import threading
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lance_core.index.vector.faiss_library import faiss
from lance_core.index.vector.model import Model
from lance_core.index.vector.quantizers import (
    Array,
    Codes,
    FlatCodes,
    Ints,
    ProductCodes,
    Quantizer,
    ScalarCodes,
    Vectors,
    normalized,
)
from lance_core.scan.vector_search import Floats, Metric

_PRECOMPUTED_BYTES_MAX = 32 << 20


class PartitionRanker:
    """Distances between queries and the centroids of a model."""

    def __init__(self, model: Model) -> None:
        library = faiss()
        self._metric = model.metric
        centroids = model.float_centroids
        is_dot = model.metric is Metric.DOT
        self._index = (library.IndexFlatIP if is_dot else library.IndexFlatL2)(centroids.shape[1])
        self._index.add(centroids)

    def queries(self, vectors: npt.NDArray[np.float64]) -> Vectors:
        """Return the queries as they are compared with centroids."""
        if self._metric is Metric.HAMMING:
            return np.unpackbits(vectors.astype(np.uint8), axis=1).astype(np.float32)
        directed = normalized(vectors) if self._metric is Metric.COSINE else vectors
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(directed, dtype=np.float32)

    def rank(self, queries: Vectors) -> tuple[Vectors, Ints]:
        """Return the distances and the numbers of all partitions for each query, nearest first. For dot, distances are
        products, and the largest comes first."""
        distances, numbers = self._index.search(queries, self._index.ntotal)
        return distances, numbers


class CodeLists(Protocol):
    """Rows of the loaded partitions of one segment, ready to be searched."""

    @property
    def size(self) -> int:
        """Bytes in memory."""

    def add(self, partition: int, ordinal: int, codes: Codes) -> None:
        """Add the rows of a partition, which start at an ordinal, with the columns of their codes that a search reads,
        as the file stores them."""

    def nearest(
        self, queries: Vectors, probes: tuple[Vectors, Ints], k: int, allowed: Any, ef: int | None
    ) -> tuple[Floats, Ints]:
        """Return the distances and ordinals of the nearest `k` rows of the probed partitions for each query, as
        `PartitionRanker` returns these; an ordinal is -1 where there are fewer. `allowed` is a bitmap of ordinals as
        bytes, or `None` for all. `ef` is the number of candidates of a search that follows graphs."""


class InvertedLists:
    """Lists of codes that faiss scans: vectors, scalar and product quantization."""

    def __init__(self, model: Model) -> None:
        self._model, self._quantizer = model, model.quantizer
        self._compares_products = model.compares_products
        self._index = self._lists = self._new_index(model.float_centroids)
        """Index that is searched, and the index that holds the lists."""
        self._rows = 0
        self._probed = 0
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        return self._rows * (int(self._index.code_size) + 16)

    def add(self, partition: int, ordinal: int, codes: Codes) -> None:
        rows = rows_of_codes(self._quantizer, self._model.metric, codes)
        add_to_list(self._lists, partition, ordinal, rows)
        self._rows += len(rows)

    def nearest(
        self, queries: Vectors, probes: tuple[Vectors, Ints], k: int, allowed: Any, ef: int | None
    ) -> tuple[Floats, Ints]:
        library = faiss()
        distances, numbers = probes
        self._precompute(numbers.size)
        parameters = library.SearchParametersIVF(nprobe=numbers.shape[1])
        if allowed is not None:
            parameters.sel = library.IDSelectorBitmap(allowed)
        # `swig_ptr` holds no reference, so each array has a name until the call has returned.
        compared = np.ascontiguousarray(self._code_queries(queries))
        probed, centroid_distances = np.ascontiguousarray(numbers), np.ascontiguousarray(distances)
        raw = np.empty((len(compared), k), dtype=np.float32)
        ordinals = np.empty((len(compared), k), dtype=np.int64)
        self._index.search_preassigned_c(  # its Python form takes no parameters
            len(compared),
            library.swig_ptr(compared),
            k,
            library.swig_ptr(probed),
            library.swig_ptr(centroid_distances),
            library.swig_ptr(raw),
            library.swig_ptr(ordinals),
            False,
            parameters,
        )
        return self._distances(raw, queries), ordinals

    def _new_index(self, centroids: Vectors) -> Any:
        """Return an index without vectors."""
        library, quantizer = faiss(), self._quantizer
        count, dimension = centroids.shape
        coarse = library.IndexFlatL2(dimension)
        metric = library.METRIC_INNER_PRODUCT if self._compares_products else library.METRIC_L2
        if self._compares_products and isinstance(quantizer, ScalarCodes):
            return new_byte_products(dimension, count)
        if self._model.metric is Metric.HAMMING or isinstance(quantizer, ScalarCodes):
            kind = library.ScalarQuantizer.QT_8bit_direct
            index = library.IndexIVFScalarQuantizer(coarse, dimension, count, kind, metric, False)
        elif isinstance(quantizer, FlatCodes):
            index = library.IndexIVFFlat(coarse, dimension, count, metric)
        else:
            assert isinstance(quantizer, ProductCodes)
            coarse.add(centroids)  # the codes are those of residuals
            sub_vectors, bits = quantizer.num_sub_vectors, quantizer.num_bits
            index = library.IndexIVFPQ(coarse, dimension, count, sub_vectors, bits, metric)
            index.by_residual = quantizer.is_residual
            library.copy_array_to_vector(quantizer.codebook.ravel(), index.pq.centroids)
        index.is_trained = True
        return index

    def _precompute(self, probed: int) -> None:
        """Compute the products of all centroids with the codebook, once as many partitions were searched as there are.
        A few searches take less time without them."""
        quantizer, count = self._quantizer, self._lists.nlist
        if not isinstance(quantizer, ProductCodes) or not quantizer.is_residual or self._index is not self._lists:
            return
        if count * quantizer.num_sub_vectors * 4 << quantizer.num_bits > _PRECOMPUTED_BYTES_MAX:
            return
        with self._lock:  # other threads search the index meanwhile, so that another one takes its place
            self._probed += probed
            if self._probed < count or self._index is not self._lists:
                return
            index = self._new_index(self._model.float_centroids)
            index.replace_invlists(self._lists.invlists, False)
            index.precompute_table()
            self._index = index

    def _code_queries(self, queries: Vectors) -> Vectors:
        """Return the queries as they are compared with codes."""
        return code_queries(self._quantizer, self._model.metric, queries)

    def _distances(self, raw: Vectors, queries: Vectors) -> npt.NDArray[np.float64]:
        """Return the distances of Lance for what faiss returned for the queries."""
        return lance_distances(self._model, raw, queries, are_products=self._compares_products)


def new_byte_products(dimension: int, count: int) -> Any:
    """Return an index of faiss over lists of bytes, which are compared by their products with queries. It is not the
    "direct" one for bytes, which rounds queries to bytes if the dimension is a multiple of 32."""
    library = faiss()
    kind, metric = library.ScalarQuantizer.QT_8bit_uniform, library.METRIC_INNER_PRODUCT
    index = library.IndexIVFScalarQuantizer(library.IndexFlatL2(dimension), dimension, count, kind, metric, False)
    library.copy_array_to_vector(np.array([-0.5, 255], dtype=np.float32), index.sq.trained)  # a code is its number
    index.is_trained = True
    return index


def code_queries(quantizer: Quantizer, metric: Metric, queries: Vectors) -> Vectors:
    """Return the queries as they are compared with the codes of a quantizer."""
    if not isinstance(quantizer, ScalarCodes):
        return queries
    if metric is Metric.DOT:
        return np.ascontiguousarray(queries * np.float32(quantizer.scale))
    return np.ascontiguousarray(quantizer.quantize(queries), dtype=np.float32)


def lance_distances(model: Model, raw: Vectors, queries: Vectors, *, are_products: bool) -> npt.NDArray[np.float64]:
    """Return the distances of Lance for the distances or products of faiss."""
    values, quantizer = raw.astype(np.float64), model.quantizer
    if are_products:
        if isinstance(quantizer, ScalarCodes):
            values = values + quantizer.start * queries.astype(np.float64).sum(axis=1)[:, None]
        return 1 - values
    if isinstance(quantizer, ScalarCodes):
        values = values * quantizer.scale**2
    return values / 2 if model.metric is Metric.COSINE else values


def rows_of_codes(quantizer: Quantizer, metric: Metric, stored: Codes) -> npt.NDArray[np.uint8]:
    """Return the stored codes of a partition, row by row, as faiss expects them."""
    codes: Array = quantizer.unpack(stored)[0]
    if metric is Metric.HAMMING:
        return np.unpackbits(np.ascontiguousarray(codes, dtype=np.uint8), axis=1)
    if isinstance(quantizer, FlatCodes):
        return np.ascontiguousarray(codes, dtype=np.float32).view(np.uint8)
    return np.ascontiguousarray(codes, dtype=np.uint8)


def add_to_list(index: Any, partition: int, ordinal: int, rows: npt.NDArray[np.uint8]) -> None:
    """Add rows to a list of an index of faiss; their ids are consecutive ordinals."""
    library, ordinals = faiss(), np.arange(ordinal, ordinal + len(rows), dtype=np.int64)
    index.invlists.add_entries(partition, len(rows), library.swig_ptr(ordinals), library.swig_ptr(rows))
