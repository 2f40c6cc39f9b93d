"""Recall: compares the rows that a vector search finds with the nearest rows, for a sample of queries.

    sample_queries(table, ...) -> Queries                    vectors of the table, or those of the caller
    RecallProbe(table, queries, ...)                         the nearest rows, by comparing every vector
    probe.measure(nprobes) -> RecallPoint                    recall and time of searches

A row that is as near as the last of the nearest rows counts as one of them. A query that is a row of the table does not
count itself.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from lance_assets.diagrams.recall_curve import RecallPoint
from lance_core import InvalidInput, Table
from lance_core.tasks.partitioning import Runner
from lance_core.tasks.scan.exact_nearest import (
    SearchRequest,
    estimate_comparison,
    find_exact_nearest,
    fingerprint_rows,
    has_lists_of_vectors,
)

Vectors = npt.NDArray[np.float64]
Query = Sequence[float] | Sequence[Sequence[float]]
"""One vector or, for a column of lists of vectors, a list of them."""
QueryFunction = Callable[[Table], Sequence[Query]]
Answer = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]
"""Addresses and distances of the rows that a query finds."""
ONE_PROCESS_VALUES_MAX = 1 << 30
"""Numbers in the vectors of a table that one process compares, in some ten seconds for 200 queries."""
_ADDRESS = "_rowaddr"
_SEED = 7
_TIES_MAX = 16
"""Rows at the distance of the last nearest row that are recognized."""
_RELATIVE_ERROR = 1e-6
_LATENCY_QUERIES_MAX = 20
_NPROBES_MAX = 4096
_GAIN_MIN = 0.0005


@dataclass(frozen=True, slots=True)
class Queries:
    """Query vectors with the addresses of their own rows, or -1."""

    vectors: Vectors | list[Vectors]
    """One vector a row or, for a column of lists of vectors, a matrix for each query."""
    addresses: npt.NDArray[np.int64]


def sample_queries(table: Table, column: str, source: QueryFunction | Sequence[Query] | None, count: int) -> Queries:
    """Return the queries of the caller, or the vectors of random rows of the table."""
    is_multivector = has_lists_of_vectors(table, column)
    if source is not None:
        given = source(table) if callable(source) else source
        if is_multivector:
            matrices = [np.atleast_2d(np.asarray(each, dtype=np.float64)) for each in given]
            if not sum(each.size for each in matrices):
                raise InvalidInput("queries= has no vectors")
            return Queries(matrices, np.full(len(matrices), -1))
        vectors = np.atleast_2d(np.asarray(given, dtype=np.float64))
        if not vectors.size:
            raise InvalidInput("queries= has no vectors")
        return Queries(vectors, np.full(len(vectors), -1))
    rows = table.sample(count, [column, _ADDRESS], seed=_SEED)
    values, addresses = rows.column(0).combine_chunks(), rows.column(1).to_numpy().astype(np.int64)
    is_valid = np.asarray(values.is_valid())
    if is_multivector:
        matrices = [_usable_vectors(each) for each in values.drop_null().to_pylist()]
        has_vector = np.array([len(each) > 0 for each in matrices], dtype=np.bool_)
        return Queries([each for each in matrices if len(each)], addresses[is_valid][has_vector])
    vectors = np.array(values.drop_null().to_pylist(), dtype=np.float64)
    if not len(vectors):
        return Queries(np.empty((0, 0)), np.empty(0, dtype=np.int64))
    usable = np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
    return Queries(vectors[usable], addresses[is_valid][usable])


def _usable_vectors(vectors: Sequence[Sequence[float] | None]) -> Vectors:
    """Return the vectors of a row that have a direction, as rows of a matrix."""
    matrix = np.array([each for each in vectors if each is not None], dtype=np.float64)
    if not len(matrix):
        return np.empty((0, 0))
    return matrix[np.isfinite(matrix).all(axis=1) & matrix.any(axis=1)]


def find_runner() -> Runner | None:
    """Return the workers of the active Spark session; `None` without one."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    from lance_assets.spark.jobs import SparkRunner

    session = SparkSession.getActiveSession()
    return None if session is None else SparkRunner(session)


def _digest(queries: Queries) -> bytes:
    digest = sha256(queries.addresses.tobytes())
    for vector in queries.vectors:
        digest.update(len(vector).to_bytes(8, "little") + vector.tobytes())
    return digest.digest()


class RecallProbe:
    """Queries with their nearest rows in one version."""

    def __init__(
        self,
        table: Table,
        queries: Queries,
        column: str,
        k: int,
        refine: int | None,
        known: dict[bytes, list[Answer]] | None = None,
    ) -> None:
        """`known` holds the exact answers of versions that were measured before, and receives those of this one."""
        self._table, self._queries, self._column, self._k, self._refine = table, queries, column, k, refine
        known = {} if known is None else known
        key = fingerprint_rows(table) + _digest(queries)
        if key not in known:
            known[key] = self._compare_all(k + 1 + _TIES_MAX)
        self._nearest = [self._accepted(*found) for found in known[key]]

    def measure(self, nprobes: int | None) -> RecallPoint:
        """Return the recall of searches in a number of partitions."""
        started = time.perf_counter()
        answers = self._search(self._k + 1, nprobes=nprobes)
        seconds = time.perf_counter() - started
        found = wanted = 0
        for (nearest, count), (addresses, _distances) in zip(self._nearest, answers, strict=True):
            wanted += count
            found += min(count, len(nearest.intersection(addresses[: self._k].tolist())))
        share = found / wanted if wanted else 1.0
        return RecallPoint(nprobes or 0, share, seconds / max(1, len(answers)) * 1000)

    def curve(self, target: float, used: int) -> list[RecallPoint]:
        """Return the recall for ascending numbers of partitions, until more of them find no more rows."""
        points: list[RecallPoint] = []
        nprobes, without_gain = 1, 0
        while nprobes <= _NPROBES_MAX and without_gain < 2:
            points.append(self.measure(nprobes))
            if len(points) > 1 and points[-1].recall - points[-2].recall < _GAIN_MIN:
                without_gain += 1
            else:
                without_gain = 0
            if points[-1].recall >= 1 and nprobes >= used:
                break
            nprobes *= 2
        if used not in [point.nprobes for point in points]:
            points.append(self.measure(used))
        return sorted(points, key=lambda point: point.nprobes)

    def latency(self, nprobes: int | None) -> float:
        """Return the median milliseconds of a search for one query."""
        times = []
        for vector in self._queries.vectors[:_LATENCY_QUERIES_MAX]:
            started = time.perf_counter()
            self._table.search(self._column, vector, self._k, nprobes=nprobes, refine=self._refine, columns=[_ADDRESS])
            times.append((time.perf_counter() - started) * 1000)
        return statistics.median(times) if times else 0.0

    def _compare_all(self, k: int) -> list[Answer]:
        """Return the nearest rows of each query by comparing every vector, in tasks if there are many and a Spark
        session is active."""
        work = estimate_comparison(self._table, self._column, self._queries.vectors)
        is_large = work > ONE_PROCESS_VALUES_MAX
        runner = find_runner() if is_large else None
        if runner is None:
            return self._search(k, exact=True)
        request = SearchRequest(self._column, k)
        nearest = find_exact_nearest(self._table, request, self._queries.vectors, runner)
        found = []
        for rows, own in zip(nearest, self._queries.addresses.tolist(), strict=True):
            addresses = rows.addresses.astype(np.int64)
            found.append((addresses[addresses != own], rows.distances[addresses != own]))
        return found

    def _search(self, k: int, *, nprobes: int | None = None, exact: bool = False) -> list[Answer]:
        """Return the addresses and distances for each query, without its own row."""
        answer = self._table.search(
            self._column,
            self._queries.vectors,
            k,
            nprobes=nprobes,
            refine=None if exact else self._refine,
            exact=exact,
            columns=[_ADDRESS],
        )
        numbers, addresses = answer["_query"].to_numpy(), answer[_ADDRESS].to_numpy().astype(np.int64)
        distances = answer["_distance"].to_numpy().astype(np.float64)
        found = []
        for number, own in enumerate(self._queries.addresses.tolist()):
            is_other = (numbers == number) & (addresses != own)
            found.append((addresses[is_other], distances[is_other]))
        return found

    def _accepted(
        self, addresses: npt.NDArray[np.int64], distances: npt.NDArray[np.float64]
    ) -> tuple[frozenset[int], int]:
        """Return the rows that count as nearest, and how many of them a search can find."""
        count = min(self._k, len(addresses))
        if not count:
            return frozenset(), 0
        limit = distances[count - 1] + _RELATIVE_ERROR * max(abs(distances[count - 1]), 1e-12)
        return frozenset(addresses[distances <= limit].tolist()), count
