"""Kernels: builds faiss indices from a model and translates queries and distances between Lance and faiss.

Distances are those of Lance. The codes of scalar quantization are compared with the code of the query for l2 and
cosine, and with the query itself for dot. Vectors of cosine indices are normalized, so that half of their squared l2
distance is the cosine distance: pylance returns the squared l2 distance of such codes, which is twice as large.

A forked process searches with one thread: OpenMP would wait for the threads of the parent.
"""

import os
import sys
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from lance_core.index.vector.model import Codes, Model, Vectors
from lance_core.scan.vector_search import Metric
from lance_core.storage.optional_packages import import_package

_PRECOMPUTED_BYTES_MAX = 32 << 20


def faiss() -> ModuleType:
    """Return the library, or raise `MissingDependency`."""
    return import_package("faiss", extra="search", needed_for="a vector index")


def normalized(vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Return the vectors divided by their lengths; NaN for vectors of length zero."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return np.asarray(vectors / lengths)


class Kernel:
    """Functions of one model."""

    def __init__(self, model: Model) -> None:
        self._faiss = faiss()
        self._model = model
        self._quantizer = model.quantizer
        self._compares_products = model.metric is Metric.DOT or (
            model.metric is Metric.COSINE and model.quantizer.compression == "FLAT"
        )
        centroids = model.centroids
        if model.metric is Metric.HAMMING:
            centroids = np.unpackbits(centroids.astype(np.uint8), axis=1)
        self.centroids: Vectors = np.ascontiguousarray(centroids, dtype=np.float32)

    @property
    def code_bytes(self) -> int:
        """Size of a code in memory."""
        return int(self.new_index().code_size)

    def coarse_index(self) -> Any:
        """Return the index over the centroids, which ranks partitions."""
        dimension = self.centroids.shape[1]
        is_dot = self._model.metric is Metric.DOT
        coarse = (self._faiss.IndexFlatIP if is_dot else self._faiss.IndexFlatL2)(dimension)
        coarse.add(self.centroids)
        return coarse

    def new_index(self) -> Any:
        """Return an index without vectors."""
        library, coarse = self._faiss, self.coarse_index()
        count, dimension = self.centroids.shape
        metric = library.METRIC_INNER_PRODUCT if self._compares_products else library.METRIC_L2
        if self._model.metric is Metric.HAMMING or self._quantizer.compression == "SQ":
            kind = library.ScalarQuantizer.QT_8bit_direct
            index = library.IndexIVFScalarQuantizer(coarse, dimension, count, kind, metric, False)
        elif self._quantizer.compression == "FLAT":
            index = library.IndexIVFFlat(coarse, dimension, count, metric)
        else:
            sub_vectors, bits = self._quantizer.num_sub_vectors, self._quantizer.num_bits
            index = library.IndexIVFPQ(coarse, dimension, count, sub_vectors, bits, metric)
            index.by_residual = self._model.encodes_residuals
            assert self._quantizer.codebook is not None
            library.copy_array_to_vector(self._quantizer.codebook.ravel(), index.pq.centroids)
            if index.by_residual and count * sub_vectors * 4 << bits <= _PRECOMPUTED_BYTES_MAX:
                index.precompute_table()
        index.is_trained = True
        return index

    def stored_codes(self, codes: npt.NDArray[np.generic]) -> Codes:
        """Return the codes of a partition, row by row, as faiss expects them."""
        if self._model.metric is Metric.HAMMING:
            return np.unpackbits(np.ascontiguousarray(codes, dtype=np.uint8), axis=1)
        if self._quantizer.compression == "FLAT":
            return np.ascontiguousarray(codes, dtype=np.float32).view(np.uint8)
        if self._quantizer.is_transposed:
            rows, width = codes.shape
            codes = codes.reshape(width, rows).T
        return np.ascontiguousarray(codes, dtype=np.uint8)

    def coarse_queries(self, queries: npt.NDArray[np.float64]) -> Vectors:
        """Return the queries as they are compared with centroids."""
        if self._model.metric is Metric.HAMMING:
            return np.unpackbits(queries.astype(np.uint8), axis=1).astype(np.float32)
        directed = normalized(queries) if self._model.metric is Metric.COSINE else queries
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(directed, dtype=np.float32)

    def code_queries(self, coarse: Vectors) -> Vectors:
        """Return the queries as they are compared with codes."""
        if self._quantizer.compression != "SQ":
            return coarse
        if self._model.metric is Metric.DOT:
            return np.ascontiguousarray(coarse * np.float32(self._quantizer.scale))
        return np.ascontiguousarray(self._quantizer.quantize(coarse), dtype=np.float32)

    def distances(self, raw: Vectors, coarse: Vectors) -> npt.NDArray[np.float64]:
        """Return the distances of Lance for what faiss returned for the queries."""
        values = raw.astype(np.float64)
        if self._compares_products:
            if self._quantizer.compression == "SQ":
                values = values + self._quantizer.start * coarse.astype(np.float64).sum(axis=1)[:, None]
            return 1 - values
        if self._quantizer.compression == "SQ":
            values = values * self._quantizer.scale**2
        return values / 2 if self._model.metric is Metric.COSINE else values


def _use_one_thread() -> None:
    set_threads = getattr(sys.modules.get("faiss"), "omp_set_num_threads", None)
    if set_threads is not None:
        set_threads(1)


os.register_at_fork(after_in_child=_use_one_thread)
