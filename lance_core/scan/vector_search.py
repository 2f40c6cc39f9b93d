"""The rows nearest to a vector, exactly: every vector that the filter lets pass is looked at, and the best `k` stay.

Only the vector column and the filter's are read of all rows; the rest of a row only where it is among the best. Rows
at one distance come in the order of the table, so that a search always has one answer. Vectors that have no distance
are left out: null ones, those with NaN, and for cosine those of length zero. Start with `search`.
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
from lance_core.scan.column_resolution import resolved
from lance_core.scan.executor import scan
from lance_core.scan.plan import plan_scan
from lance_core.scan.selection import Select
from lance_core.scan.take import By, take
from lance_core.versions.location import Location

DISTANCE = "_distance"
_ADDRESS = "_rowaddr"
_BLOCK_VALUES = 2**18
"""Numbers that are worked on at a time, so that they stay in the cache."""

Floats = npt.NDArray[np.float64]
Values = npt.NDArray[np.floating] | npt.NDArray[np.uint8]
Vector: TypeAlias = Sequence[float] | npt.NDArray[np.generic] | pa.Array
Distances = Callable[[Values, Floats], Floats]


class Metric(Enum):
    L2 = "l2"
    """Squared, as Lance has it."""
    COSINE = "cosine"
    DOT = "dot"
    HAMMING = "hamming"


@dataclass(frozen=True, slots=True)
class Best:
    """The nearest so far: near before far, and first come first."""

    distances: Floats
    addresses: npt.NDArray[np.uint64]

    def and_of(self, distances: Floats, addresses: npt.NDArray[np.uint64], k: int) -> "Best":
        known = ~np.isnan(distances)
        if len(self.distances) == k:
            known &= distances < self.distances[-1]
        if not known.any():
            return self
        all_distances = np.concatenate([self.distances, distances[known]])
        nearest = np.argsort(all_distances, kind="stable")[:k]
        return Best(all_distances[nearest], np.concatenate([self.addresses, addresses[known]])[nearest])


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
    select: Select | None = None,
) -> pa.Table:
    k = validation.whole_number(k, "k", at_least=1, too_small="a search is for at least one row")
    for number, what in ((nprobes, "nprobes"), (refine, "refine")):
        if number is not None:
            validation.whole_number(number, what, at_least=1, too_small="it counts from 1")
    shown = _shown(manifest, columns)
    stored = _vector_type(manifest, validation.text(column, "column"))
    how = _metric(metric, stored.value_type, column)
    wanted = _query(vector, stored, column)
    best = Best(np.empty(0), np.empty(0, dtype=np.uint64))
    plan = plan_scan(manifest, columns=[column], filter=filter, with_row_address=True, select=select)
    for batch in scan(location, plan):
        vectors, addresses = batch.column(0), batch.column(1)
        if vectors.null_count:
            there = pc.is_valid(vectors)
            vectors, addresses = vectors.filter(there), addresses.filter(there)
        best = best.and_of(_distances(how, vectors, wanted), addresses.to_numpy(), k)
    rows = take(location, manifest, best.addresses, [name for name in shown if name != DISTANCE], by=By.ROW_ADDRESS)
    distances = pa.array(best.distances, pa.float32())
    where = shown.index(DISTANCE)
    if not rows.num_columns:
        return pa.table([distances], pa.schema([pa.field(DISTANCE, pa.float32())], rows.schema.metadata))
    return rows.add_column(where, pa.field(DISTANCE, pa.float32()), distances)


def _shown(manifest: Manifest, columns: Sequence[str] | None) -> list[str]:
    """With the distance, where it was asked for or else at the end."""
    names = manifest.schema.arrow.names
    if DISTANCE in names:
        raise InvalidInput(
            f"the table has a column {DISTANCE!r}, which is what a search calls its distances; give it another name "
            f"with alter_column({DISTANCE!r}, rename=...)"
        )
    asked = list(names if columns is None else validation.names(columns, "columns"))
    return asked if DISTANCE in asked else [*asked, DISTANCE]


def _vector_type(manifest: Manifest, column: str) -> pa.FixedSizeListType:
    (found,) = resolved(manifest.schema, [column])
    if not pa.types.is_fixed_size_list(found.arrow.type) or found.arrow.type.value_type not in _METRICS:
        raise InvalidInput(
            f"the column {column!r} holds {found.arrow.type}, and a search needs vectors: fixed-size lists of float16, "
            "float32, float64 or uint8; alter_column(..., type=pa.list_(pa.float32(), n)) makes them of what converts"
        )
    return found.arrow.type


def _metric(asked: str | None, values: pa.DataType, column: str) -> Metric:
    possible = _METRICS[values]
    if asked is None:
        return possible[0]
    found = validation.choice(Metric, asked, "metric")
    if found not in possible:
        words = " or ".join(each.value for each in possible)
        raise InvalidInput(f"metric={asked!r}: vectors of {values}, which {column!r} holds, are compared by {words}")
    return found


def _query(vector: Vector, stored: pa.FixedSizeListType, column: str) -> Floats:
    try:
        found = np.asarray(vector, dtype=np.float64)
    except (TypeError, ValueError):
        found = np.empty((0, 0))
    if found.ndim != 1:
        raise InvalidInput(f"vector is a list of {stored.list_size} numbers, as {column!r} holds them")
    if len(found) != stored.list_size:
        raise InvalidInput(
            f"vector has {len(found)} numbers, and those of {column!r} have {stored.list_size}; were they made by the "
            "same model?"
        )
    if not np.isfinite(found).all():
        place = int(np.flatnonzero(~np.isfinite(found))[0])
        raise InvalidInput(f"vector holds {found[place]} at place {place}; no row is near to that")
    if stored.value_type == pa.uint8() and not (np.isin(found, np.arange(256))).all():
        raise InvalidInput(f"vector is to be of whole numbers from 0 to 255, as {column!r} holds them")
    return found


def _distances(metric: Metric, vectors: pa.FixedSizeListArray, wanted: Floats) -> Floats:
    measure = _MEASURES[metric]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        parts = [measure(block, wanted) for block in _blocks(vectors, len(wanted))]
    return np.concatenate(parts) if parts else np.empty(0)


def _blocks(vectors: pa.FixedSizeListArray, size: int) -> Iterator[Values]:
    """Rows of numbers; a null among a vector's numbers counts as 0, as it does in Lance."""
    step = max(1, _BLOCK_VALUES // max(1, size))
    for start in range(0, len(vectors), step):
        part = vectors.slice(start, step)
        values = part.flatten()
        block = values.to_numpy(zero_copy_only=False)
        if values.null_count:
            block = np.where(np.asarray(values.is_valid()), block, 0).astype(block.dtype)
        yield block.reshape(len(part), size)


def _l2(block: Values, wanted: Floats) -> Floats:
    apart = block.astype(np.float64) - wanted
    return np.asarray(np.einsum("ij,ij->i", apart, apart), dtype=np.float64)


def _dot(block: Values, wanted: Floats) -> Floats:
    return 1 - _product(block.astype(np.float64), wanted)


def _cosine(block: Values, wanted: Floats) -> Floats:
    rows = block.astype(np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows)) * np.sqrt(wanted @ wanted)
    return np.where(lengths > 0, 1 - _product(rows, wanted) / lengths, np.nan)


def _hamming(block: Values, wanted: Floats) -> Floats:
    differing = np.bitwise_xor(block.astype(np.uint8), wanted.astype(np.uint8))
    return np.asarray(np.bitwise_count(differing).sum(axis=1), dtype=np.float64)


def _product(rows: Floats, wanted: Floats) -> Floats:
    """Row by row, so that equal rows have equal distances wherever they are; a matrix product gives them to BLAS, which
    does not promise it."""
    return np.asarray(np.einsum("ij,j->i", rows, wanted), dtype=np.float64)


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
"""What vectors of these are compared by; the first where nobody says."""
