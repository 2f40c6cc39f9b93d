"""Exact nearest rows in tasks: workers compare the vectors of some fragments with all queries, and the driver merges
their nearest rows.

Each worker reads its fragments once, whatever the number of queries. Start with `find_exact_nearest`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.index.vector.plan import SearchRequest
from lance_core.index.vector.search import VectorLookup, check_request
from lance_core.scan.vector_search import (
    Floats,
    Metric,
    NearestRows,
    VectorQueries,
    has_multivectors,
    parse_queries,
    plan_nearest,
    scan_nearest,
    vector_type,
)
from lance_core.table.table import Table
from lance_core.tasks.driver import run_over_fragments
from lance_core.tasks.partitioning import Runner
from lance_core.versions.snapshot import Snapshot

_SAMPLED_LISTS = 64
_PRODUCT_SPEEDUP = 20
"""Time of a comparison of pairs, 1 ns for each number, over that of a matrix product."""
_RESULT = pa.schema([("query", pa.int32()), ("distance", pa.float64()), ("address", pa.uint64())])


@dataclass(frozen=True, slots=True)
class CompareFragments:
    """Runs in a worker: the rows of some fragments that are nearest to each query."""

    column: str
    metric: Metric
    vectors: Floats
    starts: tuple[int, ...] | None
    k: int

    def __call__(self, partition: Snapshot, _number: int) -> Iterator[bytes]:
        stored = vector_type(partition.manifest, self.column)
        queries = VectorQueries(self.column, stored, self.metric, self.vectors, True, self.starts)
        plan = plan_nearest(partition.manifest, self.column, None, None)
        nearest = scan_nearest(partition.location, plan, queries, self.k)
        counts = [len(each.distances) for each in nearest]
        columns = [
            pa.array(np.repeat(np.arange(len(nearest)), counts), pa.int32()),
            pa.array(np.concatenate([each.distances for each in nearest])),
            pa.array(np.concatenate([each.addresses for each in nearest])),
        ]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _RESULT) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_RESULT))
        yield sink.getvalue().to_pybytes()


def find_exact_nearest(
    table: Table, request: SearchRequest, vectors: Floats | Sequence[Floats], runner: Runner
) -> list[NearestRows]:
    """Return the rows nearest to each query, by the metric of a search; rows at the same distance in table order."""
    base, request = table._snapshot, check_request(request)
    metric = VectorLookup.of(base).plan(request).metric
    stored = vector_type(base.manifest, request.column)
    is_multivector = has_multivectors(base.manifest, request.column)
    queries = parse_queries(vectors, stored, metric, request.column, is_multivector=is_multivector)
    nearest = [NearestRows.empty() for _ in range(queries.count)]
    if not nearest:
        return nearest
    task = CompareFragments(request.column, metric, queries.vectors, queries.starts, request.k)
    results = run_over_fragments(base, base.manifest.fragments, task, runner)
    for _, parts in sorted(results.items()):
        _merge(nearest, parts, request.k)
    return nearest


def estimate_comparison(table: Table, column: str, queries: Floats | Sequence[Floats]) -> float:
    """Return the numbers in the vectors of a column, as a measure of the time to compare them all with the queries.

    Lists of vectors are compared without products: each number counts as often as the slower comparison takes longer,
    for each vector of a query. Some rows show how many vectors a list has."""
    numbers = float(table.count_rows() * int(vector_type(table._snapshot.manifest, column).list_size))
    if not has_lists_of_vectors(table, column):
        return numbers
    lengths = pc.list_value_length(table.sample(_SAMPLED_LISTS, [column], seed=0).column(0))
    vectors_per_query = sum(map(len, queries)) / max(1, len(queries))
    return numbers * float(pc.mean(lengths).as_py() or 1) * vectors_per_query * _PRODUCT_SPEEDUP


def has_lists_of_vectors(table: Table, column: str) -> bool:
    """Return whether the values of a column of vectors are lists of them."""
    return has_multivectors(table._snapshot.manifest, column)


def fingerprint_rows(table: Table) -> bytes:
    """Return a digest of the files of all fragments; versions with the same one have the same rows."""
    digest = sha256()
    for fragment in table._snapshot.manifest.message.fragments:
        digest.update(fragment.SerializeToString(deterministic=True))
    return digest.digest()


def _merge(nearest: list[NearestRows], parts: Sequence[bytes], k: int) -> None:
    for part in parts:
        table = pa.ipc.open_stream(part).read_all()
        numbers, distances, addresses = (column.to_numpy() for column in table.columns)
        bounds = np.searchsorted(numbers, np.arange(len(nearest) + 1))
        for number, rows in enumerate(nearest):
            chosen = slice(int(bounds[number]), int(bounds[number + 1]))
            nearest[number] = rows.merge(distances[chosen], addresses[chosen], k)


__all__ = ["SearchRequest", "estimate_comparison", "find_exact_nearest", "fingerprint_rows", "has_lists_of_vectors"]
