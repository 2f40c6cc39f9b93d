"""Lists of RaBitQ codes: faiss computes the products of a query with all codes of the probed partitions, and the
factors of each row turn them into distances."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from lance_core.index.vector.faiss_library import faiss
from lance_core.index.vector.kernels import add_to_list, new_byte_products
from lance_core.index.vector.model import Model
from lance_core.index.vector.quantizers import Codes, Ints, Vectors
from lance_core.index.vector.rabit import RabitCodes
from lance_core.scan.vector_search import Floats, Metric

_EVERY_PRODUCT = -3e38
_QUERIES_AT_A_TIME = 64
PRODUCTS_MAX = 1 << 15
"""Products that are held at a time, unless a partition has more. Memory for many more of them is mapped anew for each
search, which takes longer than the products."""
_BOUND_ROWS = 4096


class RabitLists:
    """Rows of the loaded partitions of a segment with RaBitQ codes."""

    def __init__(self, model: Model, rows: int) -> None:
        assert isinstance(model.quantizer, RabitCodes)
        self._quantizer, self._metric = model.quantizer, model.metric
        count = len(model.centroids)
        self._index = new_byte_products(self._quantizer.query_size, count)
        self._summands = np.empty(rows, dtype=np.float32)
        self._scales = np.empty(rows, dtype=np.float32)
        self._partitions = np.empty(rows, dtype=np.int32)
        self._places: list[slice] = [slice(0, 0)] * count
        """Ordinals of each loaded partition."""
        self._rows, self._count = 0, count

    @property
    def size(self) -> int:
        return self._rows * (int(self._index.code_size) + 16) + 12 * len(self._scales)

    def add(self, partition: int, ordinal: int, codes: Codes) -> None:
        unpacked = self._quantizer.unpack(codes)
        numbers = self._quantizer.numbers(unpacked)
        place = slice(ordinal, ordinal + len(numbers))
        self._summands[place], self._scales[place] = self._quantizer.factors(unpacked)
        self._partitions[place] = partition
        self._places[partition] = place
        add_to_list(self._index, partition, ordinal, np.ascontiguousarray(numbers))
        self._rows += len(numbers)

    def nearest(
        self, queries: Vectors, probes: tuple[Vectors, Ints], k: int, allowed: Any, ef: int | None
    ) -> tuple[Floats, Ints]:
        distances, ordinals = np.full((len(queries), k), np.inf), np.full((len(queries), k), -1, dtype=np.int64)
        rotated = np.ascontiguousarray(queries @ self._quantizer.rotation)
        rows_each = max(1, self._rows // max(1, self._count))
        width = max(1, min(probes[1].shape[1], PRODUCTS_MAX // rows_each))
        step = max(1, min(_QUERIES_AT_A_TIME, PRODUCTS_MAX // (rows_each * width)))
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            for first in range(0, probes[1].shape[1], width):
                probed = probes[0][part, first : first + width], probes[1][part, first : first + width]
                self._add_nearest(rotated[part], probed, allowed, (distances[part], ordinals[part]))
        return (distances / 2 if self._metric is Metric.COSINE else distances), ordinals

    def _add_nearest(
        self, rotated: Vectors, probes: tuple[Vectors, Ints], allowed: Any, nearest: tuple[Floats, Ints]
    ) -> None:
        """Add the rows of some partitions to the nearest of each query so far."""
        k = nearest[1].shape[1]
        for number, (products, rows) in enumerate(self._products(rotated, probes, allowed)):
            products -= np.float32(self._quantizer.offset * float(rotated[number].sum(dtype=np.float64)))
            if allowed is None:
                estimates = self._estimates_of_all(products, probes[0][number], probes[1][number])
            else:
                estimates = self._estimates(products, rows, probes[0][number], probes[1][number])
            known = int(np.count_nonzero(nearest[1][number] >= 0))
            if known == k:
                candidates = np.flatnonzero(estimates <= nearest[0][number, -1])
                estimates, rows = estimates[candidates], rows[candidates]
            if known:
                estimates = np.concatenate([nearest[0][number, :known].astype(np.float32), estimates])
                rows = np.concatenate([nearest[1][number, :known], rows])
            estimates, rows = _smallest(estimates, rows, k)
            nearest[0][number, : len(rows)], nearest[1][number, : len(rows)] = estimates, rows

    def _products(self, rotated: Vectors, probes: tuple[Vectors, Ints], allowed: Any) -> Iterator[tuple[Vectors, Ints]]:
        """Yield the products of each query with the codes of its partitions, and their ordinals, partition by
        partition in the order of the probes. Both are valid until the next are requested."""
        library = faiss()
        parameters = library.SearchParametersIVF(nprobe=probes[1].shape[1])
        if allowed is not None:
            parameters.sel = library.IDSelectorBitmap(allowed)
        # `swig_ptr` holds no reference, so each array has a name until the call has returned.
        compared = self._quantizer.expanded(rotated)
        probed, ignored = np.ascontiguousarray(probes[1]), np.ascontiguousarray(probes[0])
        result = library.RangeSearchResult(len(compared))
        self._index.range_search_preassigned_c(
            len(compared),
            library.swig_ptr(compared),
            _EVERY_PRODUCT,
            library.swig_ptr(probed),
            library.swig_ptr(ignored),
            result,
            False,
            parameters,
        )
        limits = library.rev_swig_ptr(result.lims, len(compared) + 1).astype(np.int64)
        total = int(limits[-1])
        if not total:
            yield from ((np.empty(0, dtype=np.float32), np.empty(0, dtype=np.int64)) for _ in compared)
            return
        products = library.rev_swig_ptr(result.distances, total)
        ordinals = library.rev_swig_ptr(result.labels, total)
        yield from ((products[begin:end], ordinals[begin:end]) for begin, end in pairwise(limits.tolist()))

    def _estimates_of_all(self, products: Vectors, centroid_distances: Vectors, probed: Ints) -> Vectors:
        """Return the estimates for the products of all rows of the partitions. Their factors are copied in ranges,
        which takes a fifth of the time of `_estimates`."""
        distances = -centroid_distances if self._metric is Metric.DOT else centroid_distances
        places = [self._places[number] for number in probed.tolist()]
        products *= np.concatenate([self._scales[place] for place in places])
        products += np.concatenate([self._summands[place] for place in places])
        products += np.repeat(distances, [place.stop - place.start for place in places])
        return products

    def _estimates(self, products: Vectors, rows: Ints, centroid_distances: Vectors, probed: Ints) -> Vectors:
        """Return the estimates for the products of some rows of the partitions."""
        distances = -centroid_distances if self._metric is Metric.DOT else centroid_distances
        by_partition = np.zeros(self._count, dtype=np.float32)
        by_partition[probed] = distances
        products *= self._scales[rows]
        products += self._summands[rows]
        products += by_partition[self._partitions[rows]]
        return products


def _smallest(estimates: Vectors, rows: Ints, k: int) -> tuple[Vectors, Ints]:
    """Return the `k` smallest estimates in order, with their rows. The rows of the nearest partitions come first, so
    that a bound from them leaves few others."""
    first = estimates[: max(_BOUND_ROWS, k)]
    if len(first) > k:
        bound = np.partition(first, k - 1)[k - 1]
        candidates = np.flatnonzero(estimates <= bound)
        estimates, rows = estimates[candidates], rows[candidates]
    order = np.lexsort((rows, estimates))[:k]
    return estimates[order], rows[order]


__all__ = ["RabitLists"]
