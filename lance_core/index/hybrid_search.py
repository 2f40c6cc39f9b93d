"""Hybrid search: rows by vectors and by words, fused by their ranks, on one version and with one filter.

Distances and BM25 scores have no common scale, so that only ranks are used (reciprocal rank fusion): a row gets
`weight / (60 + rank)` for each of both results that has it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core import validation
from lance_core.errors import InvalidInput
from lance_core.index.table_order import TableOrder
from lance_core.index.text import text_search
from lance_core.index.vector import search as vector_search
from lance_core.index.vector.plan import SearchRequest
from lance_core.scan.take import By, take
from lance_core.scan.vector_search import DISTANCE, Vector
from lance_core.text import TextRequest
from lance_core.versions.snapshot import Snapshot

__all__ = ["HybridRequest", "SearchRequest", "check_candidates", "check_weights", "search"]

SCORE, TEXT_SCORE = "_score", "_text_score"
RANK_OFFSET = 60
"""Constant of reciprocal rank fusion, the usual one: the first rank of one result counts little more than the next."""
CANDIDATES_PER_ROW = 5
CANDIDATES_MIN = 50
_ADDED = (SCORE, DISTANCE, TEXT_SCORE)
_ADDRESS = "_rowaddr"


@dataclass(frozen=True, slots=True)
class HybridRequest:
    """Arguments of a hybrid search. The two requests have the same filter; their `k` is the number of candidates."""

    vectors: SearchRequest
    texts: TextRequest
    k: int
    weights: tuple[float, float]
    select: Sequence[str] | None


def check_candidates(k: int, candidates: int | None) -> int:
    """Return the number of rows that each of both searches returns."""
    k = validation.check_integer(k, "k", at_least=1, too_small="a search returns at least one row")
    if candidates is None:
        return max(CANDIDATES_MIN, CANDIDATES_PER_ROW * k)
    return validation.check_integer(candidates, "candidates", at_least=k, too_small="k rows are chosen among them")


def check_weights(weights: Sequence[object]) -> tuple[float, float]:
    """Return the weights of the vectors and of the text."""
    numbers = [
        float(weight)
        for weight in weights
        if isinstance(weight, int | float) and not isinstance(weight, bool) and math.isfinite(weight) and weight >= 0
    ]
    if len(numbers) != 2 or len(weights) != 2 or not any(numbers):
        raise InvalidInput(f"weights={weights!r} must be two numbers from 0, for the vectors and for the text")
    return numbers[0], numbers[1]


def search(base: Snapshot, vector: Vector, request: HybridRequest) -> pa.Table:
    """Return the best `k` rows by both searches, with the fused score, the distance and the score of the text."""
    names = base.manifest.schema.arrow.names
    if clash := [name for name in _ADDED if name in names]:
        raise InvalidInput(f"the table has a column {clash[0]!r}, a name that a hybrid search adds; rename it first")
    near = vector_search.search(base, vector, replace(request.vectors, columns=[_ADDRESS]))
    if "_query" in near.column_names:
        raise InvalidInput("a hybrid search takes one vector, not a batch of them")
    matching = _best_of_each_row(text_search.search(base, replace(request.texts, select=[_ADDRESS])))
    addresses = [found[_ADDRESS].to_numpy().astype(np.uint64) for found in (near, matching)]
    rows, scores = _fuse(base, addresses, request.weights, request.k)
    computed = {
        SCORE: pa.array(scores, pa.float32()),
        DISTANCE: _values_at(rows, addresses[0], near[DISTANCE]),
        TEXT_SCORE: _values_at(rows, addresses[1], matching[text_search.SCORE]),
    }
    selected = list(names if request.select is None else validation.check_names(request.select, "select"))
    return _read_rows(base, rows, [*selected, *(name for name in _ADDED if name not in selected)], computed)


def _read_rows(
    base: Snapshot, rows: npt.NDArray[np.uint64], columns: Sequence[str], computed: Mapping[str, pa.Array]
) -> pa.Table:
    """Return the columns of rows, those of the table and the computed ones."""
    stored = [name for name in columns if name not in computed]
    if not stored:
        return pa.table({name: computed[name] for name in columns})
    taken = take(base.location, base.manifest, rows, stored, by=By.ROW_ADDRESS)
    for position, name in enumerate(columns):
        if name in computed:
            taken = taken.add_column(position, pa.field(name, pa.float32()), computed[name])
    return taken


def _fuse(
    base: Snapshot, addresses: Sequence[npt.NDArray[np.uint64]], weights: Sequence[float], k: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64]]:
    """Return the best rows and their scores. Rows with equal scores come in table order."""
    together = np.concatenate(list(addresses))
    parts = [weight / (RANK_OFFSET + 1 + np.arange(len(rows))) for rows, weight in zip(addresses, weights, strict=True)]
    rows, places = np.unique(together, return_inverse=True)
    scores: npt.NDArray[np.float64] = np.zeros(len(rows))
    np.add.at(scores, places, np.concatenate(parts))
    best = np.lexsort((TableOrder(base).positions(rows), -scores))[:k]
    best = best[scores[best] > 0]
    return rows[best], scores[best]


def _best_of_each_row(found: pa.Table) -> pa.Table:
    """Return the first document of each row; rows have several if elements of lists are scored."""
    _, first = np.unique(found[_ADDRESS].to_numpy(), return_index=True)
    return found if len(first) == len(found) else found.take(pa.array(np.sort(first)))


def _values_at(rows: npt.NDArray[np.uint64], found: npt.NDArray[np.uint64], values: pa.ChunkedArray) -> pa.Array:
    """Return the value of each row in one of the results, or null."""
    by_row = dict(zip(found.tolist(), values.to_pylist(), strict=True))
    return pa.array([by_row.get(row) for row in rows.tolist()], pa.float32())
