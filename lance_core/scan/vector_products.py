"""Vector products: the nearest rows of many queries by matrix products, with the distances of a scan.

A product in single precision estimates the distances of a block of rows from all queries. Rows that can be among the
nearest `k` within the error of the estimate are compared again, in double precision and pair by pair, so that the
result is that of a comparison of every pair. Start with `ProductScan`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
PairMask = Callable[[Ints, Ints], Bools]
"""Function from pairs of a query and a row to whether they may be results. It is called for pairs near enough."""

QUERIES_MIN = 8
"""Number of queries from which products take less time than one comparison after the other."""
BLOCK_ESTIMATES = 1 << 22
"""Estimates that are held at a time."""
_FIRST_ROWS = 1024
_NORM_MAX = 1e17
"""Length up to which squares and products do not overflow single precision."""
_ROUNDING = 2.0**-23
_SQUARE_MIN = 1e-30
"""Square of a length above which single precision computes lengths without underflow."""
_UNDERFLOW = 2.0**-126


@dataclass(slots=True)
class ProductScan:
    """Nearest `k` rows of each query among the rows that were added."""

    metric: str
    """`l2`, `cosine` or `dot`."""
    queries: Floats
    k: int
    _factors: Singles = field(init=False)
    """Matrix whose product with rows estimates their distances, up to a constant of each query."""
    _lengths: Floats = field(init=False)
    _largest: Floats = field(init=False)
    _best: "_Pairs" = field(init=False)

    def __post_init__(self) -> None:
        self._lengths = np.sqrt(np.array([query @ query for query in self.queries]))  # rounded as in a scan
        with np.errstate(invalid="ignore", divide="ignore"):
            directed = self.queries / self._lengths[:, None] if self.metric == "cosine" else self.queries
        factors = np.nan_to_num(directed) * (-2.0 if self.metric == "l2" else -1.0)
        if self.metric == "l2":
            factors = np.concatenate([factors, np.ones((len(factors), 1))], axis=1)
        self._factors = factors.astype(np.float32)
        self._largest = np.full(len(self.queries), np.inf)
        self._best = _Pairs.empty()

    @staticmethod
    def is_possible(metric: str, queries: Floats) -> bool:
        """Return whether the queries are many, and neither they nor their products overflow."""
        return metric in ("l2", "cosine", "dot") and len(queries) >= QUERIES_MIN and _is_in_range(queries)

    def add(
        self,
        vectors: npt.NDArray[np.floating],
        addresses: npt.NDArray[np.uint64],
        may_pair: PairMask | None = None,
    ) -> bool:
        """Compare more rows, which follow the earlier ones in table order. Return False, and compare none, if their
        products may overflow."""
        if not _is_in_range(vectors):
            return False
        step = max(1, BLOCK_ESTIMATES // max(1, len(self.queries)))
        start = 0
        while start < len(vectors):
            rows = step if np.isfinite(self._largest).any() else min(step, max(_FIRST_ROWS, 2 * self.k))
            self._add_block(vectors[start : start + rows], addresses[start : start + rows], _from_row(may_pair, start))
            start += rows
        return True

    def nearest(self) -> list[tuple[Floats, npt.NDArray[np.uint64]]]:
        """Return the distances and addresses of the nearest rows of each query, nearest first; rows at the same
        distance in table order."""
        starts = np.searchsorted(self._best.queries, np.arange(len(self.queries) + 1))
        pairs = zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
        return [(self._best.distances[first:last], self._best.addresses[first:last]) for first, last in pairs]

    def _add_block(
        self, block: npt.NDArray[np.floating], addresses: npt.NDArray[np.uint64], may_pair: PairMask | None
    ) -> None:
        rows = block.astype(np.float32)
        squares = np.einsum("ij,ij->i", rows, rows)
        if self.metric == "cosine":
            rows = _directions(block, rows, squares)
        offsets = np.ones(len(self.queries))
        if self.metric == "l2":
            rows = np.concatenate([rows, squares[:, None]], axis=1)  # one product adds the squares, too
            offsets = self._lengths**2
        estimates = self._factors @ rows.T
        longest = float(np.sqrt(np.fmax.reduce(squares, initial=0))) if self.metric != "cosine" else 1.0
        lengths = self._lengths if self.metric != "cosine" else np.ones(len(self.queries))
        errors = _ROUNDING * (rows.shape[1] + 8) * (lengths + longest) * longest * 2
        errors += _UNDERFLOW * (rows.shape[1] + 8) * (1 + lengths + longest)
        errors += 2 * np.finfo(np.float64).eps * np.abs(offsets)  # rounding of the distances to which they are compared
        limits = self._largest - offsets + errors
        unknown = ~np.isfinite(self._largest)
        if may_pair is not None and unknown.any():  # their limit depends on the pairs that may be results
            _exclude_pairs(estimates, np.flatnonzero(unknown), may_pair)
        if unknown.any() and len(rows) > self.k:
            comparable = np.where(np.isnan(estimates[unknown]), np.inf, estimates[unknown])
            limits[unknown] = np.partition(comparable, self.k - 1, axis=1)[:, self.k - 1] + 2 * errors[unknown]
        with np.errstate(invalid="ignore"):
            hits = np.flatnonzero(estimates <= limits.astype(np.float32)[:, None])
        query_numbers, columns = np.divmod(hits, len(rows))
        if may_pair is not None:
            query_numbers, columns = _possible_pairs(query_numbers, columns, unknown[query_numbers], may_pair)
        if len(query_numbers):
            distances = self._distances(block, query_numbers, columns)
            is_row = ~np.isnan(distances)
            pairs = _Pairs(query_numbers[is_row], distances[is_row], addresses[columns[is_row]])
            self._best = self._best.merge(pairs, self.k)
            counts = np.bincount(self._best.queries, minlength=len(self.queries))
            ends = np.cumsum(counts)
            is_full = counts == self.k
            self._largest[is_full] = self._best.distances[ends[is_full] - 1]

    def _distances(self, block: npt.NDArray[np.floating], query_numbers: Ints, columns: Ints) -> Floats:
        """Return the distances of pairs, computed as those of a scan."""
        step = max(1, BLOCK_ESTIMATES // max(1, block.shape[1]))
        parts = [np.empty(0)]
        for start in range(0, len(query_numbers), step):
            rows = block[columns[start : start + step]].astype(np.float64)
            queries = self.queries[query_numbers[start : start + step]]
            if self.metric == "l2":
                differences = rows - queries
                parts.append(np.einsum("ij,ij->i", differences, differences))
                continue
            products = np.einsum("ij,ij->i", rows, queries)
            if self.metric == "dot":
                parts.append(1 - products)
                continue
            lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows)) * self._lengths[query_numbers[start : start + step]]
            with np.errstate(invalid="ignore", divide="ignore"):
                parts.append(np.where(lengths > 0, 1 - products / lengths, np.nan))
        return np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Queries with rows, in the order of queries, distances and rows."""

    queries: Ints
    distances: Floats
    addresses: npt.NDArray[np.uint64]

    @classmethod
    def empty(cls) -> "_Pairs":
        return cls(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0, dtype=np.uint64))

    def merge(self, later: "_Pairs", k: int) -> "_Pairs":
        """Return the best `k` pairs of each query; at the same distance, the earlier rows."""
        queries = np.concatenate([self.queries, later.queries])
        distances = np.concatenate([self.distances, later.distances])
        addresses = np.concatenate([self.addresses, later.addresses])
        order = np.lexsort((distances, queries))  # stable, and rows are in table order
        ranked = queries[order]
        position = np.arange(len(ranked)) - np.searchsorted(ranked, ranked)
        order = order[position < k]
        return _Pairs(queries[order], distances[order], addresses[order])


def _from_row(may_pair: PairMask | None, start: int) -> PairMask | None:
    """Return the mask for rows that are numbered from a row."""
    return None if may_pair is None else lambda queries, rows: may_pair(queries, rows + start)


def _exclude_pairs(estimates: Singles, queries: Ints, may_pair: PairMask) -> None:
    """Make the estimates of pairs NaN that cannot be results, for some queries."""
    rows = np.arange(estimates.shape[1])
    is_result = may_pair(np.repeat(queries, len(rows)), np.tile(rows, len(queries)))
    estimates[queries] = np.where(is_result.reshape(len(queries), len(rows)), estimates[queries], np.nan)


def _possible_pairs(queries: Ints, rows: Ints, is_checked: Bools, may_pair: PairMask) -> tuple[Ints, Ints]:
    """Return the pairs that may be results. Some are checked already."""
    is_result = is_checked.copy()
    unchecked = np.flatnonzero(~is_checked)
    is_result[unchecked] = may_pair(queries[unchecked], rows[unchecked])
    return queries[is_result], rows[is_result]


def _directions(block: npt.NDArray[np.floating], rows: Singles, squares: Singles) -> Singles:
    """Return vectors divided by their lengths; NaN for vectors without a direction."""
    with np.errstate(invalid="ignore", divide="ignore"):
        if (squares < _SQUARE_MIN).any():
            exact = block.astype(np.float64)
            lengths = np.sqrt(np.einsum("ij,ij->i", exact, exact))
            return np.asarray(exact / lengths[:, None], dtype=np.float32)
        rows /= np.sqrt(squares)[:, None]
        return rows


def _is_in_range(vectors: npt.NDArray[np.floating]) -> bool:
    return not vectors.size or bool(np.nanmax(np.abs(vectors), initial=0) < _NORM_MAX / np.sqrt(vectors.shape[1]))


def to_matrix(vectors: pa.FixedSizeListArray) -> npt.NDArray[np.floating]:
    """Return vectors that are not null as rows. A null element counts as 0."""
    values = vectors.flatten()
    numbers = values.to_numpy(zero_copy_only=False)
    if values.null_count:
        numbers = np.where(np.asarray(values.is_valid()), numbers, 0).astype(numbers.dtype)
    return np.asarray(numbers.reshape(len(vectors), vectors.type.list_size))
