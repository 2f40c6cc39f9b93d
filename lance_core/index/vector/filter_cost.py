"""Cost of filtered searches: decides how many partitions are probed under a filter, and whether the rows that pass it
are compared exactly instead.

The costs are processor times of one core, measured with 200,000 vectors of 128 numbers in 256 partitions; their unit is
the exact comparison of one row, about 3 microseconds, nearly all of which reads the vector.
"""

import math
from dataclasses import dataclass

EXACT_ROWS_MIN = 256
"""Rows that are always compared exactly."""
_EXACT_ROWS_MAX = 16_384
_SEARCH_COST = 150
"""Cost of a search of an index besides its rows."""
_SCANNED_ROWS, _COMPARED_ROWS = 500, 12
"""Codes that are scanned under a mask, and vectors in memory that are compared, at the cost of one unit."""
_DENSE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class IndexWork:
    """Rows that a search of indices processes for each query."""

    scanned: int
    refined: int

    @classmethod
    def empty(cls) -> "IndexWork":
        return cls(0, 0)

    def plus(self, scanned: int, refined: int) -> "IndexWork":
        return IndexWork(self.scanned + scanned, self.refined + refined)


def is_exact_faster(rows: int, work: IndexWork, queries: int) -> bool:
    """Return whether comparing these rows exactly costs less than searching the indices."""
    if rows <= EXACT_ROWS_MIN:
        return True
    exact = rows + queries * rows // _COMPARED_ROWS
    by_index = _SEARCH_COST + queries * (work.scanned // _SCANNED_ROWS + work.refined)
    return rows <= _EXACT_ROWS_MAX and exact <= by_index


def probes_under_filter(nprobes: int, share: float) -> int:
    """Return how many partitions are searched if a share of the rows passes a filter.

    The nearest rows that pass lie in more partitions than the nearest rows do. As long as a tenth passes, recall stays
    that of an unfiltered search if the number grows with the root of the share: in Gaussian, clustered and low-rank
    data it had to grow with a power between 0 and 0.32. If fewer rows pass than a cluster has neighbours, the nearest
    are in other clusters, and the power comes close to 1.

    >>> probes_under_filter(16, 1.0), probes_under_filter(16, 0.25), probes_under_filter(16, 0.01)
    (16, 32, 1600)
    """
    return math.ceil(nprobes / (math.sqrt(share) if share >= _DENSE_SHARE else max(share, 1e-9)))


__all__ = ["EXACT_ROWS_MIN", "IndexWork", "is_exact_faster", "probes_under_filter"]
