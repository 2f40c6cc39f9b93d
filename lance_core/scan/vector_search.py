"""Vector search, exact: computes the distance of every vector that passes the filter, and keeps the nearest `k`.

Only the vector column and the columns of the filter are read of all rows; other columns only of the nearest rows. Rows
at the same distance come in the order of the table, so that a search is deterministic. Vectors without a distance are
left out: nulls, vectors with NaN and, for cosine, vectors of length zero. Start with `search`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core import validation
from lance_core.errors import InvalidInput
from lance_core.format.manifest import Manifest
from lance_core.scan.column_resolution import resolve_columns
from lance_core.scan.executor import scan
from lance_core.scan.plan import plan_scan
from lance_core.scan.selection import RowSelector
from lance_core.scan.take import By, take
from lance_core.versions.location import Location

DISTANCE = "_distance"
_ADDRESS = "_rowaddr"
BLOCK_VALUES = 2**18
"""Numbers that are processed at a time, so that they stay in the processor cache."""

Floats = npt.NDArray[np.float64]
Values = npt.NDArray[np.floating] | npt.NDArray[np.uint8]
Vector: TypeAlias = Sequence[float] | npt.NDArray[np.generic] | pa.Array
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


def search(
    location: Location,
    manifest: Manifest,
    column: str,
    vector: Vector,
    k: int,
    *,
    metric: str | None,
    nprobes: int | None,
    refine: int | None,
    filter: str | None,
    columns: Sequence[str] | None,
    select: RowSelector | None = None,
) -> pa.Table:
    """Return the `k` rows nearest to a vector, with their distances."""
    k = validation.check_integer(k, "k", at_least=1, too_small="a search returns at least one row")
    for number, what in ((nprobes, "nprobes"), (refine, "refine")):
        if number is not None:
            validation.check_integer(number, what, at_least=1, too_small="it counts from 1")
    result_columns = _result_columns(manifest, columns)
    stored = _vector_type(manifest, validation.check_text(column, "column"))
    resolved_metric = _resolve_metric(metric, stored.value_type, column)
    query_vector = _query_vector(vector, stored, column)
    nearest = NearestRows(np.empty(0), np.empty(0, dtype=np.uint64))
    plan = plan_scan(manifest, columns=[column], filter=filter, with_row_address=True, select=select)
    for batch in scan(location, plan):
        vectors, addresses = batch.column(0), batch.column(1)
        if vectors.null_count:
            is_valid = pc.is_valid(vectors)
            vectors, addresses = vectors.filter(is_valid), addresses.filter(is_valid)
        nearest = nearest.merge(_distances(resolved_metric, vectors, query_vector), addresses.to_numpy(), k)
    rows = take(
        location, manifest, nearest.addresses, [name for name in result_columns if name != DISTANCE], by=By.ROW_ADDRESS
    )
    distances = pa.array(nearest.distances, pa.float32())
    position = result_columns.index(DISTANCE)
    if not rows.num_columns:
        return pa.table([distances], pa.schema([pa.field(DISTANCE, pa.float32())], rows.schema.metadata))
    return rows.add_column(position, pa.field(DISTANCE, pa.float32()), distances)


def _result_columns(manifest: Manifest, columns: Sequence[str] | None) -> list[str]:
    """Return the columns of the result. The distance comes where the caller requested it, or else last."""
    names = manifest.schema.arrow.names
    if DISTANCE in names:
        raise InvalidInput(
            f"the table has a column {DISTANCE!r}, the name that a search gives to its distances; rename it "
            f"with alter_column({DISTANCE!r}, rename=...)"
        )
    requested = list(names if columns is None else validation.check_names(columns, "columns"))
    return requested if DISTANCE in requested else [*requested, DISTANCE]


def _vector_type(manifest: Manifest, column: str) -> pa.FixedSizeListType:
    (resolved,) = resolve_columns(manifest.schema, [column])
    if not pa.types.is_fixed_size_list(resolved.arrow.type) or resolved.arrow.type.value_type not in _METRICS:
        raise InvalidInput(
            f"column {column!r} has the type {resolved.arrow.type}, but a search needs vectors: fixed-size lists of "
            "float16, float32, float64 or uint8; alter_column(..., type=pa.list_(pa.float32(), n)) converts a column"
        )
    return resolved.arrow.type


def _resolve_metric(metric: str | None, values: pa.DataType, column: str) -> Metric:
    metrics = _METRICS[values]
    if metric is None:
        return metrics[0]
    chosen = validation.check_choice(Metric, metric, "metric")
    if chosen not in metrics:
        allowed = " or ".join(each.value for each in metrics)
        raise InvalidInput(
            f"metric={metric!r} does not apply to column {column!r}: vectors of {values} are compared by {allowed}"
        )
    return chosen


def _query_vector(vector: Vector, stored: pa.FixedSizeListType, column: str) -> Floats:
    try:
        query = np.asarray(vector, dtype=np.float64)
    except (TypeError, ValueError):
        query = np.empty((0, 0))
    if query.ndim != 1:
        raise InvalidInput(f"vector must be a list of {stored.list_size} numbers, like the values of column {column!r}")
    if len(query) != stored.list_size:
        raise InvalidInput(
            f"vector has {len(query)} numbers, but those of column {column!r} have {stored.list_size}; check that both "
            "come from the same model"
        )
    if not np.isfinite(query).all():
        position = int(np.flatnonzero(~np.isfinite(query))[0])
        raise InvalidInput(f"vector has {query[position]} at position {position}; its elements must be finite")
    if stored.value_type == pa.uint8() and not (np.isin(query, np.arange(256))).all():
        raise InvalidInput(f"vector must consist of integers from 0 to 255, like the values of column {column!r}")
    return query


def _distances(metric: Metric, vectors: pa.FixedSizeListArray, query: Floats) -> Floats:
    measure = _MEASURES[metric]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        parts = [measure(block, query) for block in _blocks(vectors, len(query))]
    return np.concatenate(parts) if parts else np.empty(0)


def _blocks(vectors: pa.FixedSizeListArray, size: int) -> Iterator[Values]:
    """Yield vectors as blocks of rows. A null element of a vector counts as 0, as in Lance."""
    step = max(1, BLOCK_VALUES // max(1, size))
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
