"""Lists of partitions with graphs: a search follows the graph of each probed partition.

A partition is scanned instead where that takes less time than following its graph, because it is small or because few
of its rows are allowed, and where its graph leads to fewer rows than there are.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from lance_core.index.vector.faiss_library import faiss
from lance_core.index.vector.graph import StoredGraphs, fill_graph, new_graph_index
from lance_core.index.vector.kernels import code_queries, lance_distances, rows_of_codes
from lance_core.index.vector.model import Model
from lance_core.index.vector.quantizers import Codes, Ints, ProductCodes, Vectors
from lance_core.scan.vector_search import Floats, Metric

GRAPH_ROWS_MIN = 4096
"""Rows of a partition from which its graph is followed."""
_ALLOWED_SHARE_MIN = 0.1
"""Share of the rows of a partition that must be allowed for its graph to be followed."""
EF_MIN = 64
"""Candidates that a search of a graph keeps unless the caller chooses a number."""


class GraphLists:
    """Rows of the loaded partitions of a segment with graphs."""

    def __init__(self, model: Model, graphs: StoredGraphs) -> None:
        self._model, self._graphs = model, graphs
        self._centroids = model.float_centroids
        self._indices: dict[int, tuple[Any, int, int]] = {}
        """Index of faiss of each partition, with its first ordinal and the number of its rows."""
        self._size = 0

    @property
    def size(self) -> int:
        return self._size

    def add(self, partition: int, ordinal: int, codes: Codes) -> None:
        graph = self._graphs.read(partition)
        index = new_graph_index(self._model, graph.widest_m)
        rows = rows_of_codes(self._model.quantizer, self._model.metric, codes)
        index.storage.add_sa_codes(rows)
        fill_graph(index, graph)
        self._indices[partition] = index, ordinal, len(rows)
        self._size += rows.nbytes + 8 * len(graph.ids) * graph.widest_m

    def nearest(
        self, queries: Vectors, probes: tuple[Vectors, Ints], k: int, allowed: Any, ef: int | None
    ) -> tuple[Floats, Ints]:
        found = np.full((len(queries), k), np.inf), np.full((len(queries), k), -1, dtype=np.int64)
        probed = probes[1]
        for partition in np.unique(probed).tolist():
            if partition in self._indices:
                asking = np.flatnonzero((probed == partition).any(axis=1))
                self._search_partition(partition, queries, asking, k, allowed, ef, found)
        return found

    def _search_partition(
        self,
        partition: int,
        queries: Vectors,
        asking: Ints,
        k: int,
        allowed: Any,
        ef: int | None,
        found: tuple[Floats, Ints],
    ) -> None:
        """Add the nearest rows of one partition to what has been found for the queries that ask for it."""
        index, first, rows = self._indices[partition]
        mask = None if allowed is None else _bits(allowed, first, rows)
        usable = rows if mask is None else int(np.count_nonzero(mask))
        if not usable:
            return
        compared = self._compared(queries[asking], partition)
        count = min(k, usable)
        raw, local = self._search(index, compared, count, mask, usable, ef)
        values = self._distances(raw, queries[asking])
        ordinals = np.where(local >= 0, local + first, -1)
        distances = np.concatenate([found[0][asking], np.where(local >= 0, values, np.inf)], axis=1)
        candidates = np.concatenate([found[1][asking], ordinals], axis=1)
        order = np.argsort(distances, axis=1, kind="stable")[:, :k]
        found[0][asking] = np.take_along_axis(distances, order, axis=1)
        found[1][asking] = np.take_along_axis(candidates, order, axis=1)

    def _search(
        self, index: Any, queries: Vectors, k: int, mask: npt.NDArray[np.uint8] | None, usable: int, ef: int | None
    ) -> tuple[Vectors, Ints]:
        library = faiss()
        bitmap = None if mask is None else np.packbits(mask, bitorder="little")
        selector = None if bitmap is None else library.IDSelectorBitmap(bitmap)
        is_scanned = index.ntotal < GRAPH_ROWS_MIN or usable < _ALLOWED_SHARE_MIN * index.ntotal or 2 * k > index.ntotal
        if not is_scanned:
            width = max(k, ef if ef is not None else max(EF_MIN, k + k // 2))
            parameters = library.SearchParametersHNSW(efSearch=width, sel=selector)
            raw, local = index.search(queries, k, params=parameters)
            if (local >= 0).all():
                return raw, local
        if mask is not None and isinstance(self._model.quantizer, ProductCodes):
            return _scan_product_codes(library.downcast_index(index.storage), queries, k, mask)
        parameters = None if selector is None else library.SearchParameters(sel=selector)
        raw, local = index.storage.search(queries, k, params=parameters)
        return raw, local

    def _compared(self, queries: Vectors, partition: int) -> Vectors:
        """Return the queries as they are compared with the codes of a partition."""
        quantizer, metric = self._model.quantizer, self._model.metric
        if isinstance(quantizer, ProductCodes) and quantizer.is_residual:
            return np.ascontiguousarray(queries - self._centroids[partition])
        if metric is Metric.DOT:
            return queries
        return code_queries(quantizer, metric, queries)

    def _distances(self, raw: Vectors, queries: Vectors) -> Floats:
        if self._model.compares_products:
            return np.asarray(1 - raw.astype(np.float64))
        return lance_distances(self._model, raw, queries, are_products=False)


def _scan_product_codes(storage: Any, queries: Vectors, k: int, mask: npt.NDArray[np.uint8]) -> tuple[Vectors, Ints]:
    """Compare all codes that a mask allows. faiss takes no selector for them, so they are copied."""
    library, allowed = faiss(), np.flatnonzero(mask)
    codes = library.vector_to_array(storage.codes).reshape(len(mask), -1)
    chosen = library.IndexPQ(storage.d, storage.pq.M, storage.pq.nbits, storage.metric_type)
    library.copy_array_to_vector(library.vector_to_array(storage.pq.centroids), chosen.pq.centroids)
    chosen.is_trained = True
    chosen.add_sa_codes(np.ascontiguousarray(codes[allowed]))
    raw, local = chosen.search(queries, k)
    return raw, np.where(local >= 0, allowed[local], -1)


def _bits(bitmap: npt.NDArray[np.uint8], first: int, count: int) -> npt.NDArray[np.uint8]:
    """Return some bits of a bitmap, one in each byte."""
    part = bitmap[first // 8 : (first + count + 7) // 8]
    return np.unpackbits(part, bitorder="little")[first % 8 : first % 8 + count]


__all__ = ["GraphLists"]
