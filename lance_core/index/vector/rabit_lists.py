"""Lists of RaBitQ codes: faiss computes the products of a query with the codes of the probed partitions, and the
factors of each row turn them into distances.

faiss compares bytes, a number each, in lists of its own. Until a second query visits a partition, it stays as it is
stored, and numpy compares a block of its rows at a time: that takes a third of the time of adding it to a list.

The products of the nearest partitions are all returned. The distances of their rows bound the products of the other
partitions (`rabit_bounds.py`), of which faiss then returns the few that matter."""

import threading
from itertools import pairwise
from typing import Any

import numpy as np

from lance_core.index.vector.faiss_library import faiss
from lance_core.index.vector.kernels import add_to_list, new_byte_products
from lance_core.index.vector.model import Model
from lance_core.index.vector.quantizers import Codes, Ints, Vectors
from lance_core.index.vector.rabit import RabitCodes
from lance_core.index.vector.rabit_bounds import BYTES, ProductBounds
from lance_core.scan.vector_search import Floats, Metric

_EVERY_PRODUCT = -3e38
_QUERIES_AT_A_TIME = 64
PRODUCTS_MAX = 1 << 15
"""Products that are held at a time, unless a partition has more. Memory for many more of them is mapped anew for each
search, which takes longer than the products."""
_BOUND_ROWS = 4096
UNBOUNDED_ROWS, UNBOUNDED_ROWS_PER_RESULT = 1024, 4
"""Rows of the nearest partitions whose products are all computed, so that the others have a bound."""
_FASTEST_MULTIPLE = 16
"""Multiple of the length of codes for which faiss has its fastest products."""


class RabitLists:
    """Rows of the loaded partitions of a segment with RaBitQ codes."""

    def __init__(self, model: Model, rows: int) -> None:
        assert isinstance(model.quantizer, RabitCodes)
        self._quantizer, self._metric = model.quantizer, model.metric
        count = len(model.centroids)
        self._width = -(-(self._quantizer.query_size + BYTES) // _FASTEST_MULTIPLE) * _FASTEST_MULTIPLE
        self._index = new_byte_products(self._width, count)
        self._index.by_residual = True  # the search adds what it passes as the distance of a centroid
        self._bounds = ProductBounds(count, rows)
        self._summands = np.empty(rows, dtype=np.float32)
        self._scales = np.empty(rows, dtype=np.float32)
        self._partitions = np.empty(rows, dtype=np.int32)
        self._places: list[slice] = [slice(0, 0)] * count
        """Ordinals of each loaded partition."""
        self._rows, self._count = 0, count
        self._unpacked: dict[int, Codes] = {}
        """Codes of the loaded partitions that are not in a list of faiss yet."""
        self._visited: set[int] = set()
        """Partitions among them that a query has visited."""
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes in memory, once all rows are in lists."""
        return self._rows * (int(self._index.code_size) + 16) + 20 * len(self._scales)

    def add(self, partition: int, ordinal: int, codes: Codes) -> None:
        unpacked = self._quantizer.unpack(codes)
        place = slice(ordinal, ordinal + len(unpacked[0]))
        self._summands[place], self._scales[place] = self._quantizer.factors(unpacked)
        self._partitions[place] = partition
        self._places[partition] = place
        self._rows += len(unpacked[0])
        self._unpacked[partition] = unpacked

    def _add_list(self, partition: int) -> None:
        """Add the rows of a partition to its list."""
        place = self._places[partition]
        numbers = self._quantizer.numbers(self._unpacked[partition])
        size = numbers.shape[1]
        rows = np.empty((len(numbers), self._width), dtype=np.uint8)
        rows[:, :size], rows[:, size + BYTES :] = numbers, 0
        rows[:, size : size + BYTES] = self._bounds.add(partition, place, (self._summands[place], self._scales[place]))
        add_to_list(self._index, partition, place.start, rows)

    def _codes_to_compare(self, probed: Ints) -> dict[int, Codes]:
        """Return the codes of partitions that are compared as they are stored. The others are in lists afterwards."""
        if not self._unpacked:
            return {}
        with self._lock:
            found = {each: self._unpacked[each] for each in np.unique(probed).tolist() if each in self._unpacked}
            is_visited = self._visited.union(found) if len(probed) > 1 else self._visited
            for number in is_visited & found.keys():
                self._add_list(number)
                del found[number], self._unpacked[number]
            self._visited = (self._visited | found.keys()) & self._unpacked.keys()
        return found

    def nearest(
        self, queries: Vectors, probes: tuple[Vectors, Ints], k: int, allowed: Any, ef: int | None
    ) -> tuple[Floats, Ints]:
        distances, ordinals = np.full((len(queries), k), np.inf), np.full((len(queries), k), -1, dtype=np.int64)
        centroid_distances = -probes[0] if self._metric is Metric.DOT else probes[0]
        rotated = self._quantizer.rotation.apply(queries)
        rows_each = max(1, self._rows // max(1, self._count))
        if stored := self._codes_to_compare(probes[1]):
            is_stored = np.isin(probes[1][0], list(stored))
            first_visits = centroid_distances[0, is_stored], probes[1][0, is_stored]
            self._add_stored(rotated[0], first_visits, stored, allowed, (distances, ordinals))
            centroid_distances, probes = centroid_distances[:, ~is_stored], (probes[0], probes[1][:, ~is_stored])
        probed = probes[1].shape[1]
        first = -(-max(UNBOUNDED_ROWS, k * UNBOUNDED_ROWS_PER_RESULT) // rows_each)
        first = max(1, min(probed, first, PRODUCTS_MAX // rows_each))
        step = max(1, min(_QUERIES_AT_A_TIME, PRODUCTS_MAX // (rows_each * first)))
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            asked = _Queries(self._quantizer, rotated[part], self._width)
            nearest = (distances[part], ordinals[part])
            done, width = 0, first
            while done < probed and (nearest[1][:, -1] < 0).any():
                chosen = slice(done, done + width)
                self._add_all(asked, (centroid_distances[part, chosen], probes[1][part, chosen]), allowed, nearest)
                done, width = done + width, max(1, min(2 * width, PRODUCTS_MAX // (rows_each * len(asked.vectors))))
            if done < probed:
                rest = centroid_distances[part, done:], probes[1][part, done:]
                self._add_bounded(asked, rest, allowed, nearest)
        return (distances / 2 if self._metric is Metric.COSINE else distances), ordinals

    def _add_stored(
        self,
        rotated: Vectors,
        probes: tuple[Vectors, Ints],
        stored: dict[int, Codes],
        allowed: Any,
        nearest: tuple[Floats, Ints],
    ) -> None:
        """Add the rows of some partitions to the nearest of the only query, by their stored codes."""
        for number, distance in zip(probes[1].tolist(), probes[0], strict=True):
            place = self._places[number]
            estimates = self._quantizer.products(stored[number], rotated)
            estimates *= self._scales[place]
            estimates += self._summands[place]
            estimates += distance
            rows = np.arange(place.start, place.stop)
            if allowed is not None:
                is_allowed = (allowed[rows >> 3] >> (rows & 7) & 1).astype(np.bool_)
                estimates, rows = estimates[is_allowed], rows[is_allowed]
            _add_nearest(estimates, rows, nearest, 0)

    def _add_all(
        self, asked: "_Queries", probes: tuple[Vectors, Ints], allowed: Any, nearest: tuple[Floats, Ints]
    ) -> None:
        """Add the rows of some partitions to the nearest of each query so far, by the products of all rows."""
        constants = np.broadcast_to(-asked.offsets[:, None], probes[1].shape)
        products, rows, limits = self._products(asked.vectors, probes[1], constants, _EVERY_PRODUCT, allowed)
        for number, (begin, end) in enumerate(pairwise(limits.tolist())):
            found = products[begin:end], rows[begin:end]
            if allowed is None:
                estimates = self._estimates_of_all(found[0], probes[0][number], probes[1][number])
            else:
                estimates = self._estimates(*found, probes[0][number], probes[1][number])
            _add_nearest(estimates, found[1], nearest, number)

    def _add_bounded(
        self, asked: "_Queries", probes: tuple[Vectors, Ints], allowed: Any, nearest: tuple[Floats, Ints]
    ) -> None:
        """Add the rows of some partitions to the nearest of each query, which has `k` rows. Only products that can
        belong to a nearer row are returned: each pair of a query and a partition has a query vector of its own."""
        count, width = probes[1].shape
        partitions, owners = probes[1].ravel(), np.repeat(np.arange(count), width)
        centroid_distances = probes[0].ravel().astype(np.float64)
        differences = nearest[0][owners, -1] - centroid_distances
        pairs = self._bounds.pairs(partitions, differences, asked.reach[owners], self._width)
        vectors = asked.vectors[owners]
        size = self._quantizer.query_size
        vectors[:, size : size + BYTES] = pairs.weights
        constants = (pairs.constants - asked.offsets[owners])[:, None]
        found, rows, limits = self._products(vectors, partitions[:, None], constants, 0.0, allowed)
        numbers = np.repeat(np.arange(len(owners)), np.diff(limits))
        products = self._bounds.products(found, rows, pairs, numbers)
        estimates = centroid_distances[numbers] + self._summands[rows] + self._scales[rows] * products
        for number, (begin, end) in enumerate(pairwise(limits[::width].tolist())):
            if end > begin:
                _add_nearest(estimates[begin:end].astype(np.float32), rows[begin:end], nearest, number)

    def _products(
        self, vectors: Vectors, partitions: Ints, constants: Floats, least: float, allowed: Any
    ) -> tuple[Vectors, Ints, Ints]:
        """Return the products of each vector with the codes of its partitions, plus the constant of each partition, if
        they are larger than `least`, with the ordinals of the rows, partition by partition; and the limits of each
        vector in both."""
        library = faiss()
        parameters = library.SearchParametersIVF(nprobe=partitions.shape[1])
        if allowed is not None:
            parameters.sel = library.IDSelectorBitmap(allowed)
        # `swig_ptr` holds no reference, so each array has a name until the call has returned.
        compared, probed = np.ascontiguousarray(vectors), np.ascontiguousarray(partitions)
        added = np.ascontiguousarray(constants, dtype=np.float32)
        result = library.RangeSearchResult(len(compared))
        self._index.range_search_preassigned_c(
            len(compared),
            library.swig_ptr(compared),
            least,
            library.swig_ptr(probed),
            library.swig_ptr(added),
            result,
            False,
            parameters,
        )
        limits = library.rev_swig_ptr(result.lims, len(compared) + 1).astype(np.int64)
        total = int(limits[-1])
        if not total:
            return np.empty(0, dtype=np.float32), np.empty(0, dtype=np.int64), limits
        products = library.rev_swig_ptr(result.distances, total).copy()
        return products, library.rev_swig_ptr(result.labels, total).copy(), limits

    def _estimates_of_all(self, products: Vectors, centroid_distances: Vectors, probed: Ints) -> Vectors:
        """Return the estimates for the products of all rows of the partitions. Their factors are copied in ranges,
        which takes a fifth of the time of `_estimates`."""
        places = [self._places[number] for number in probed.tolist()]
        products *= np.concatenate([self._scales[place] for place in places])
        products += np.concatenate([self._summands[place] for place in places])
        products += np.repeat(centroid_distances, [place.stop - place.start for place in places])
        return products

    def _estimates(self, products: Vectors, rows: Ints, centroid_distances: Vectors, probed: Ints) -> Vectors:
        """Return the estimates for the products of some rows of the partitions."""
        by_partition = np.zeros(self._count, dtype=np.float32)
        by_partition[probed] = centroid_distances
        products *= self._scales[rows]
        products += self._summands[rows]
        products += by_partition[self._partitions[rows]]
        return products


class _Queries:
    """Rotated queries as they are compared with codes."""

    def __init__(self, quantizer: RabitCodes, rotated: Vectors, width: int) -> None:
        expanded = quantizer.expanded(rotated)
        self.vectors = np.zeros((len(rotated), width), dtype=np.float32)
        self.vectors[:, : expanded.shape[1]] = expanded
        self.offsets = quantizer.offset * rotated.sum(axis=1, dtype=np.float64)
        """Product of each query with the number that is subtracted from a code."""
        self.reach = np.abs(rotated).sum(axis=1, dtype=np.float64) * (1 << quantizer.num_bits)
        """Largest product of each query with a code."""


def _add_nearest(estimates: Vectors, rows: Ints, nearest: tuple[Floats, Ints], number: int) -> None:
    """Add rows to the nearest of a query."""
    k = nearest[1].shape[1]
    known = int(np.count_nonzero(nearest[1][number] >= 0))
    if known == k:
        candidates = np.flatnonzero(estimates <= nearest[0][number, -1])
        estimates, rows = estimates[candidates], rows[candidates]
    if known:
        estimates = np.concatenate([nearest[0][number, :known].astype(np.float32), estimates])
        rows = np.concatenate([nearest[1][number, :known], rows])
    estimates, rows = _smallest(estimates, rows, k)
    nearest[0][number, : len(rows)], nearest[1][number, : len(rows)] = estimates, rows


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
