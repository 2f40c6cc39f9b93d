"""Exact vector search: computes the distance of every vector that passes the filter, and keeps the nearest `k`.

Only the vector column and the columns of the filter are read of all rows; other columns only of the nearest rows. Rows
at the same distance come in the order of the table, so that a search is deterministic. Vectors without a distance are
left out: nulls, vectors with NaN and, for cosine, vectors of length zero. `index/vector/search.py` combines it with
vector indices. Start with `scan_nearest`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core import validation
from lance_core.errors import InvalidInput
from lance_core.format.manifest import Manifest
from lance_core.scan.column_resolution import resolve_columns
from lance_core.scan.executor import scan
from lance_core.scan.pair_filter import PairFilter
from lance_core.scan.plan import ScanPlan, plan_scan
from lance_core.scan.selection import RowSelector
from lance_core.scan.system_columns import ROW_ADDRESS
from lance_core.scan.take import By, take
from lance_core.scan.vector_columns import flatten_vectors, is_multivector, nearest_of_each, vector_type_of
from lance_core.scan.vector_products import ProductScan, to_matrix
from lance_core.versions.location import Location

DISTANCE, QUERY = "_distance", "_query"
BLOCK_VALUES = 2**18
"""Numbers that are processed at a time, so that they stay in the processor cache."""

Floats = npt.NDArray[np.float64]
Values = npt.NDArray[np.floating] | npt.NDArray[np.uint8]
Vector: TypeAlias = Sequence[float] | Sequence[npt.NDArray[np.generic]] | npt.NDArray[np.generic] | pa.Array
Distances = Callable[[Values, Floats], Floats]


class Metric(Enum):
    """Distance metric."""

    L2 = "l2"
    """Squared Euclidean distance, as in Lance."""
    COSINE = "cosine"
    DOT = "dot"
    HAMMING = "hamming"


@dataclass(frozen=True, slots=True)
class NearestRows:
    """The nearest rows so far, in order of distance; rows at the same distance in the order of the table."""

    distances: Floats
    addresses: npt.NDArray[np.uint64]

    @classmethod
    def empty(cls) -> "NearestRows":
        return cls(np.empty(0), np.empty(0, dtype=np.uint64))

    def merge(self, distances: Floats, addresses: npt.NDArray[np.uint64], k: int) -> "NearestRows":
        """Return the nearest `k` rows of these and of more rows."""
        is_candidate = ~np.isnan(distances)
        if len(self.distances) == k:
            is_candidate &= distances < self.distances[-1]
        if not is_candidate.any():
            return self
        all_distances = np.concatenate([self.distances, distances[is_candidate]])
        nearest = np.argsort(all_distances, kind="stable")[:k]
        return NearestRows(all_distances[nearest], np.concatenate([self.addresses, addresses[is_candidate]])[nearest])


@dataclass(frozen=True, slots=True)
class VectorQueries:
    """Checked query vectors of one search."""

    column: str
    stored: pa.FixedSizeListType
    metric: Metric
    vectors: Floats
    """One vector a row."""
    is_batch: bool
    """True if the caller passed a list of queries, even of one."""
    starts: tuple[int, ...] | None = None
    """First vector of each query, and the number of vectors, in a column of multivectors; `None` if each vector is a
    query."""

    @property
    def count(self) -> int:
        """Number of queries."""
        return len(self.vectors) if self.starts is None else len(self.starts) - 1

    def vectors_of(self, number: int) -> range:
        """Return the rows of `vectors` that belong to a query."""
        if self.starts is None:
            return range(number, number + 1)
        return range(self.starts[number], self.starts[number + 1])

    def distances(self, column: pa.Array | Values, number: int) -> Floats:
        """Return the exact distances of the values of a column from one query; NaN for values without a distance. A
        matrix has a vector in each row."""
        if isinstance(column, np.ndarray):
            return _distances(self.metric, column, self.vectors[number])
        vectors, owners = flatten_vectors(column)
        if self.starts is None:
            distances = _distances(self.metric, vectors, self.vectors[number])
            if owners is None:
                return distances
            all_distances = np.full(len(column), np.nan)
            all_distances[owners] = distances
            return all_distances
        assert owners is not None
        total = np.zeros(len(column))
        for row in self.vectors_of(number):
            distances = _distances(self.metric, vectors, self.vectors[row])
            total += nearest_of_each(distances, owners, len(column))
        return total


def scan_nearest(
    location: Location, plan: ScanPlan, queries: VectorQueries, k: int, pair_filter: PairFilter | None = None
) -> list[NearestRows]:
    """Return the `k` rows nearest to each query among those of a plan, by exact distances. The plan returns the
    vectors, the row addresses and the columns of the filter. Many queries are compared by matrix products."""
    if queries.starts is None and ProductScan.is_possible(queries.metric.value, queries.vectors):
        found = _scan_by_products(location, plan, queries, k, pair_filter)
        if found is not None:
            return found
    nearest = [NearestRows.empty() for _ in range(queries.count)]
    for batch in _rows_with_vectors(location, plan):
        vectors, addresses = batch.column(0), batch.column(ROW_ADDRESS).to_numpy()
        for number, rows in enumerate(nearest):
            distances = queries.distances(vectors, number)
            if pair_filter is not None:
                distances = _without_excluded(distances, rows, k, pair_filter, batch, number)
            nearest[number] = rows.merge(distances, addresses, k)
    return nearest


def _scan_by_products(
    location: Location, plan: ScanPlan, queries: VectorQueries, k: int, pair_filter: PairFilter | None
) -> list[NearestRows] | None:
    """Return the nearest rows; `None` if a product of a vector may overflow."""
    products = ProductScan(queries.metric.value, queries.vectors, k)
    for batch in _rows_with_vectors(location, plan):
        may_pair = None if pair_filter is None else partial(pair_filter.mask_of, batch)
        if not products.add(to_matrix(batch.column(0)), batch.column(ROW_ADDRESS).to_numpy(), may_pair):
            return None
    return [NearestRows(*found) for found in products.nearest()]


def _rows_with_vectors(location: Location, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a plan whose first column is not null."""
    for batch in scan(location, plan):
        vectors = batch.column(0)
        yield batch.filter(pc.is_valid(vectors)) if vectors.null_count else batch


def _without_excluded(
    distances: Floats, nearest: NearestRows, k: int, pair_filter: PairFilter, rows: pa.RecordBatch, number: int
) -> Floats:
    """Return the distances of rows from a query, with NaN for those that could be among the nearest but for the
    filter."""
    is_candidate = ~np.isnan(distances)
    if len(nearest.distances) == k:
        is_candidate &= distances < nearest.distances[-1]
    candidates = np.flatnonzero(is_candidate)
    passes = pair_filter.mask_of(rows, np.full(len(candidates), number), candidates)
    distances = distances.copy()
    distances[candidates[~passes]] = np.nan
    return distances


def plan_nearest(
    manifest: Manifest,
    column: str,
    filter: str | None,
    select: RowSelector | None,
    fragments: BitMap | None = None,
    also: Sequence[str] = (),
) -> ScanPlan:
    """Return the plan that `scan_nearest` runs, for all fragments or some. It also returns the columns in `also`."""
    columns = list(dict.fromkeys([column, *also, ROW_ADDRESS]))
    plan = plan_scan(manifest, columns=columns, filter=filter, select=select)
    if fragments is None:
        return plan
    return replace(plan, tasks=tuple(task for task in plan.tasks if task.fragment.id in fragments))


def read_nearest(
    location: Location, manifest: Manifest, nearest: Sequence[NearestRows], columns: Sequence[str], *, is_batch: bool
) -> pa.Table:
    """Return the nearest rows of each query as a table with these columns, among them the distances; for a batch also
    the number of the query."""
    nothing = NearestRows.empty()
    addresses = np.concatenate([nothing.addresses, *(rows.addresses for rows in nearest)])
    rows = take(
        location, manifest, addresses, [name for name in columns if name not in (DISTANCE, QUERY)], by=By.ROW_ADDRESS
    )
    computed = {
        DISTANCE: pa.array(np.concatenate([nothing.distances, *(each.distances for each in nearest)]), pa.float32())
    }
    if is_batch:
        counts = np.array([len(each.distances) for each in nearest], dtype=np.int64)
        numbers = np.repeat(np.arange(len(nearest)), counts)
        computed[QUERY] = pa.array(numbers, pa.int32())
    if not rows.num_columns:
        fields = [pa.field(name, computed[name].type) for name in columns]
        return pa.table([computed[name] for name in columns], pa.schema(fields, rows.schema.metadata))
    for position, name in enumerate(columns):
        if name in computed:
            rows = rows.add_column(position, pa.field(name, computed[name].type), computed[name])
    return rows


def result_columns(manifest: Manifest, columns: Sequence[str] | None, *, is_batch: bool) -> list[str]:
    """Return the columns of the result. The number of the query comes first and the distance last, unless the caller
    requested them elsewhere."""
    names = manifest.schema.arrow.names
    for name, what in ((DISTANCE, "its distances"), (QUERY, "the numbers of the queries")):
        if name in names and (name == DISTANCE or is_batch):
            raise InvalidInput(
                f"the table has a column {name!r}, the name that a search gives to {what}; rename it "
                f"with alter_column({name!r}, rename=...)"
            )
    requested = list(names if columns is None else validation.check_names(columns, "columns"))
    if is_batch and QUERY not in requested:
        requested.insert(0, QUERY)
    return requested if DISTANCE in requested else [*requested, DISTANCE]


def vector_type(manifest: Manifest, column: str) -> pa.FixedSizeListType:
    """Return the type of the vectors of a column: for multivectors, that of their elements."""
    arrow = _column_type(manifest, column)
    vector = vector_type_of(arrow)
    if vector is None:
        raise InvalidInput(
            f"column {column!r} has the type {arrow}, but a search needs vectors: fixed-size lists of float16, "
            "float32, float64 or uint8, or lists of these; alter_column(..., type=pa.list_(pa.float32(), n)) converts "
            "a column"
        )
    return vector


def has_multivectors(manifest: Manifest, column: str) -> bool:
    """Return whether each value of a vector column is a list of vectors."""
    return is_multivector(_column_type(manifest, column))


def _column_type(manifest: Manifest, column: str) -> pa.DataType:
    (resolved,) = resolve_columns(manifest.schema, [column])
    return resolved.arrow.type


def parse_metric(metric: object) -> Metric:
    """Return the metric of a name, in any case; "euclidean" is "l2", as in pylance."""
    name = metric.lower() if isinstance(metric, str) else metric
    return validation.check_choice(Metric, "l2" if name == "euclidean" else name, "metric")


def resolve_metric(metric: str | None, values: pa.DataType, column: str) -> Metric:
    metrics = _METRICS[values]
    if metric is None:
        return metrics[0]
    chosen = parse_metric(metric)
    if chosen not in metrics:
        allowed = " or ".join(each.value for each in metrics)
        raise InvalidInput(
            f"metric={metric!r} does not apply to column {column!r}: vectors of {values} are compared by {allowed}"
        )
    return chosen


def parse_queries(
    vector: Vector, stored: pa.FixedSizeListType, metric: Metric, column: str, *, is_multivector: bool = False
) -> VectorQueries:
    """Check one query vector, or a two-dimensional array of them. In a column of multivectors, a two-dimensional array
    is one query, and a list of such arrays is a batch."""
    given = _numbers(vector)
    if not is_multivector:
        if given is None or given.ndim not in (1, 2):
            raise InvalidInput(
                f"vector must be a list of {stored.list_size} numbers, like the values of column {column!r}, or a "
                "two-dimensional array of such rows"
            )
        where = " of query {}" if given.ndim == 2 else ""
        return VectorQueries(column, stored, metric, _check_vectors(given, stored, column, where), given.ndim == 2)
    is_batch = given is None or given.ndim == 3
    parts = [_numbers(each) for each in vector] if is_batch and isinstance(vector, Sequence | np.ndarray) else [given]
    checked = []
    for part in parts:
        if part is None or part.ndim not in (1, 2) or not len(part):
            raise InvalidInput(
                f"vector must be an array of rows of {stored.list_size} numbers, since the values of column {column!r} "
                "are lists of vectors, or a list of such arrays, one for each query"
            )
        checked.append(_check_vectors(part, stored, column, " of vector {}"))
    starts = np.cumsum([0, *map(len, checked)]).tolist()
    vectors = np.concatenate([np.empty((0, stored.list_size)), *checked])
    return VectorQueries(column, stored, metric, vectors, is_batch, tuple(starts))


def _numbers(vector: object) -> Floats | None:
    """Return an array of numbers; `None` if the argument is none, or its rows have different lengths."""
    try:
        return np.asarray(vector, dtype=np.float64)
    except (TypeError, ValueError):
        return None


def _check_vectors(given: Floats, stored: pa.FixedSizeListType, column: str, where: str) -> Floats:
    """Return query vectors as rows. `where` names a row in messages."""
    queries = np.atleast_2d(given)
    if queries.shape[1] != stored.list_size:
        raise InvalidInput(
            f"vector has {queries.shape[1]} numbers, but those of column {column!r} have {stored.list_size}; check "
            "that both come from the same model"
        )
    if not np.isfinite(queries).all():
        row, position = (int(each[0]) for each in np.nonzero(~np.isfinite(queries)))
        place = f"position {position}{where.format(row)}"
        raise InvalidInput(f"vector has {queries[row, position]} at {place}; its elements must be finite")
    if stored.value_type == pa.uint8() and not (np.isin(queries, np.arange(256))).all():
        raise InvalidInput(f"vector must consist of integers from 0 to 255, like the values of column {column!r}")
    return queries


def _distances(metric: Metric, vectors: pa.FixedSizeListArray | Values, query: Floats) -> Floats:
    measure = _MEASURES[metric]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        parts = [measure(block, query) for block in _blocks(vectors, len(query))]
    return np.concatenate(parts) if parts else np.empty(0)


def _blocks(vectors: pa.FixedSizeListArray | Values, size: int) -> Iterator[Values]:
    """Yield vectors as blocks of rows. A null element of a vector counts as 0, as in Lance."""
    step = max(1, BLOCK_VALUES // max(1, size))
    if isinstance(vectors, np.ndarray):
        yield from (vectors[start : start + step] for start in range(0, len(vectors), step))
        return
    for start in range(0, len(vectors), step):
        part = vectors.slice(start, step)
        values = part.flatten()
        block = values.to_numpy(zero_copy_only=False)
        if values.null_count:
            block = np.where(np.asarray(values.is_valid()), block, 0).astype(block.dtype)
        yield block.reshape(len(part), size)


def _l2(block: Values, query: Floats) -> Floats:
    apart = block.astype(np.float64) - query
    return np.asarray(np.einsum("ij,ij->i", apart, apart), dtype=np.float64)


def _dot(block: Values, query: Floats) -> Floats:
    return 1 - _product(block.astype(np.float64), query)


def _cosine(block: Values, query: Floats) -> Floats:
    rows = block.astype(np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows)) * np.sqrt(query @ query)
    return np.where(lengths > 0, 1 - _product(rows, query) / lengths, np.nan)


def _hamming(block: Values, query: Floats) -> Floats:
    differing = np.bitwise_xor(block.astype(np.uint8), query.astype(np.uint8))
    return np.asarray(np.bitwise_count(differing).sum(axis=1), dtype=np.float64)


def _product(rows: Floats, query: Floats) -> Floats:
    """Return the dot product of each row. Each row is computed by itself, so that equal rows have equal distances in
    any position; a matrix product uses BLAS, which does not guarantee that."""
    return np.asarray(np.einsum("ij,j->i", rows, query), dtype=np.float64)


_MEASURES: Mapping[Metric, Distances] = {
    Metric.L2: _l2,
    Metric.COSINE: _cosine,
    Metric.DOT: _dot,
    Metric.HAMMING: _hamming,
}
_FLOATS = (Metric.L2, Metric.COSINE, Metric.DOT)
_METRICS: Mapping[pa.DataType, Sequence[Metric]] = {
    pa.float16(): _FLOATS,
    pa.float32(): _FLOATS,
    pa.float64(): _FLOATS,
    pa.uint8(): (Metric.HAMMING,),
}
"""Metrics for each type of vector element; the first is the default."""
