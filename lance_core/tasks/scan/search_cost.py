"""Search cost: estimates how long a process takes to find the nearest rows of many queries, with a vector index and by
exact matrix products, and chooses the search that takes less time.

The rates are estimates for one core, which were not fitted to measurements of both searches.
`001-index-search-or-products.md` gives the reasons.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_core.index.lookup import UNREADABLE_ERRORS
from lance_core.index.vector.build import code_bytes_of
from lance_core.index.vector.plan import (
    MULTIVECTOR_CANDIDATES,
    NPROBES,
    SearchPlan,
    SearchRequest,
    explain_plan,
)
from lance_core.index.vector.search import VectorLookup
from lance_core.scan.vector_search import Metric, has_multivectors, vector_type

if TYPE_CHECKING:
    from lance_core.versions.snapshot import Snapshot

READ_BYTES_PER_SECOND = 600e6
"""Reading and decoding of a column."""
PRODUCT_OPERATIONS_PER_SECOND = 40e9
ESTIMATE_SECONDS = 0.6e-9
"""Comparison of an estimated distance with the nearest ones so far."""
MULTIVECTOR_NUMBER_SECONDS = 1e-9
"""Comparison of a pair of vectors, for each of their numbers, in a column of lists of vectors: without products."""
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
    has_products: bool = True
    """False if vectors are compared one after the other."""

    @classmethod
    def of(
        cls,
        base: "Snapshot",
        request: SearchRequest,
        queries: int,
        query_vectors: int | None = None,
        condition: str | None = None,
    ) -> "SearchCost":
        """Estimate a search for queries that have so many vectors, by default one each. No index is searched if a
        condition reads both sides."""
        if condition is not None:
            cost = cls.of(base, replace(request, exact=True), queries, query_vectors)
            reason = "condition= reads both sides"
            explained = explain_plan(base, replace(cost.plan, reason=reason))
            pairs = f"  condition {condition}, evaluated for pairs that are near enough"
            return replace(cost, lines=(*explained, pairs))
        if has_multivectors(base.manifest, request.column):
            return cls._of_multivectors(base, request, queries, query_vectors or queries)
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

    @classmethod
    def _of_multivectors(
        cls, base: "Snapshot", request: SearchRequest, queries: int, query_vectors: int
    ) -> "SearchCost":
        """Estimate a search in a column of lists of vectors, all of whose candidates are refined. The segments tell how
        many vectors there are; without an index, rows count as vectors."""
        lookup = VectorLookup.of(base)
        plan = lookup.plan(request)
        lines = tuple(explain_plan(base, plan))
        column = pa.field(request.column, vector_type(base.manifest, request.column))
        size, width = column.type.list_size, column.type.value_type.bit_width // 8
        rows = {each.id: each.physical_rows for each in base.manifest.message.fragments}
        per_vector = size * (width / READ_BYTES_PER_SECOND + query_vectors * MULTIVECTOR_NUMBER_SECONDS)
        if not plan.segments:
            return cls(plan, lines, queries, sum(rows.values()) * per_vector, None, False)
        covered = sum(rows[each] for scope in plan.segments for each in scope.fragments)
        by_index, stored = query_vectors * _QUERY_SECONDS, 0
        try:
            for scope in plan.segments:
                segment = lookup.view(scope).segment
                stored += segment.row_count
                code_bytes = code_bytes_of(segment.model, column)
                partitions = len(segment.lengths)
                by_index += _segment_seconds(
                    segment.row_count, partitions, code_bytes, size, request.nprobes, query_vectors
                )
        except (*UNREADABLE_ERRORS, ImportError):
            return cls(plan, lines, queries, sum(rows.values()) * per_vector, None, False)
        vectors_per_row = max(1.0, stored / max(1, covered))
        candidates = query_vectors * request.k * (request.refine or 1) * MULTIVECTOR_CANDIDATES
        by_index += min(candidates, queries * covered) * _REFINED_SECONDS
        by_index += sum(rows[each] for each in plan.scanned) * vectors_per_row * per_vector
        return cls(plan, lines, queries, sum(rows.values()) * vectors_per_row * per_vector, by_index, False)

    @property
    def exact_is_cheaper(self) -> bool:
        return self.indexed is None or self.exact <= self.indexed

    def describe(self) -> str:
        """Describe the search of a worker."""
        label = "products" if self.has_products else "compared"
        products = f"  {label}  {self.exact:.3f} s for {self.queries:,} queries at a time, in a worker with one core"
        if self.indexed is None:
            return "\n".join([*self.lines, products])
        compared = "matrix products" if self.has_products else "every vector is compared"
        choice = f"{compared}: exact, and not slower" if self.exact_is_cheaper else "the index"
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
