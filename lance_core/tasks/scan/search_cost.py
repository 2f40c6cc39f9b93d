"""Search cost: estimates how long a process takes to find the nearest rows of many queries, with a vector index and by
exact matrix products, and chooses the search that takes less time.

The rates are estimates for one core, which were not fitted to measurements of both searches.
`001-index-search-or-products.md` gives the reasons.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_core.index.lookup import UNREADABLE_ERRORS
from lance_core.index.vector.build import code_bytes_of
from lance_core.index.vector.plan import NPROBES, SearchPlan, SearchRequest, explain_plan
from lance_core.index.vector.search import VectorLookup
from lance_core.scan.vector_search import Metric, vector_type

if TYPE_CHECKING:
    from lance_core.versions.snapshot import Snapshot

READ_BYTES_PER_SECOND = 600e6
"""Reading and decoding of a column."""
PRODUCT_OPERATIONS_PER_SECOND = 40e9
ESTIMATE_SECONDS = 0.6e-9
"""Comparison of an estimated distance with the nearest ones so far."""
_PAIR_SECONDS = 20e-9
"""Comparison of a pair for a metric without products, for each eight numbers."""
_CODE_SECONDS, _CODE_BYTE_SECONDS = 7e-9, 0.02e-9
"""Comparison of a query with a code, for the code and for each of its bytes."""
_REFINED_SECONDS = 2e-6
"""Reading of a candidate and its comparison."""
_QUERY_SECONDS = 30e-6


@dataclass(frozen=True, slots=True)
class SearchCost:
    """Estimated seconds of a search for a number of queries."""

    plan: "SearchPlan"
    lines: tuple[str, ...]
    queries: int
    exact: float
    indexed: float | None
    """`None` if no index is searched."""

    @classmethod
    def of(cls, base: "Snapshot", request: SearchRequest, queries: int) -> "SearchCost":
        vectors = VectorLookup.of(base)
        plan = vectors.plan(request)
        stored = vector_type(base.manifest, request.column)
        rows = {each.id: each.physical_rows for each in base.manifest.message.fragments}
        size, width = stored.list_size, stored.value_type.bit_width // 8
        exact = _exact_seconds(sum(rows.values()), size, width, queries, plan.metric)
        lines = tuple(explain_plan(base, plan))
        if not plan.segments:
            return cls(plan, lines, queries, exact, None)
        indexed = _exact_seconds(sum(rows[each] for each in plan.scanned), size, width, queries, plan.metric)
        indexed += queries * (_QUERY_SECONDS + request.k * (request.refine or 0) * _REFINED_SECONDS)
        column = pa.field(request.column, stored)
        try:
            for scope in plan.segments:
                segment = vectors.view(scope).segment
                indexed += _segment_seconds(
                    segment.row_count,
                    len(segment.lengths),
                    code_bytes_of(segment.model, column),
                    size,
                    request.nprobes,
                    queries,
                )
        except (*UNREADABLE_ERRORS, ImportError):
            return cls(plan, lines, queries, exact, None)
        return cls(plan, lines, queries, exact, indexed)

    @property
    def exact_is_cheaper(self) -> bool:
        return self.indexed is None or self.exact <= self.indexed

    def describe(self) -> str:
        """Describe the search of a worker."""
        products = f"  products  {self.exact:.3f} s for {self.queries:,} queries at a time, in a worker with one core"
        if self.indexed is None:
            return "\n".join([*self.lines, products])
        choice = "matrix products: exact, and not slower" if self.exact_is_cheaper else "the index"
        return "\n".join(
            [*self.lines, f"  search    {self.indexed:.3f} s by the index", products, f"  chosen    {choice}"]
        )


def _exact_seconds(rows: int, size: int, width: int, queries: int, metric: Metric) -> float:
    read = rows * size * width / READ_BYTES_PER_SECOND
    if metric is Metric.HAMMING:
        return read + queries * rows * size / 8 * _PAIR_SECONDS
    return read + queries * rows * (2 * size / PRODUCT_OPERATIONS_PER_SECOND + ESTIMATE_SECONDS)


def _segment_seconds(
    rows: int, partitions: int, code_bytes: int, size: int, nprobes: int | None, queries: int
) -> float:
    """Return the seconds of a search in a segment that is not cached."""
    probes = min(partitions, nprobes or NPROBES)
    touched = 1 - (1 - probes / max(1, partitions)) ** queries
    load = rows * touched * code_bytes / READ_BYTES_PER_SECOND
    rank = 2 * partitions * size / PRODUCT_OPERATIONS_PER_SECOND
    compared = rows * probes / max(1, partitions)
    return load + queries * (rank + compared * (_CODE_SECONDS + code_bytes * _CODE_BYTE_SECONDS))
