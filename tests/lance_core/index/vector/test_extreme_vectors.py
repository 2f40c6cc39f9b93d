"""Vectors that are infinite or too long for single precision have no code; a search by an index compares them
exactly, as one without an index."""

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_core import Table
from tests.lance_core.index.vector.test_multivectors import KINDS

ROWS, SIZE = 600, 8
POINTS = np.random.default_rng(8).normal(size=(ROWS, SIZE))


def rows_of(points: np.ndarray, first: int = 0) -> pa.Table:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(points.ravel()), SIZE)
    return pa.table({"id": pa.array(range(first, first + len(points)), pa.int64()), "v": vectors})


def extreme(number: str) -> np.ndarray:
    """Return vectors with NaN, infinities and the largest numbers of a type."""
    points = POINTS.astype(number)
    largest = np.finfo(number).max
    points[3] = np.nan
    points[4, 2] = np.inf
    points[5] = largest
    points[6, 1] = -largest
    points[7] = 0
    return points


def answer(table: Table, metric: Any, **arguments: Any) -> dict[int, float]:
    """Return the distances of all rows, with the index if it is not exact."""
    found = table.search("v", POINTS[0], 2 * ROWS, metric=metric, nprobes=8, columns=["id"], **arguments)
    return dict(zip(found["id"].to_pylist(), found["_distance"].to_pylist(), strict=True))


def check(table: Table, metric: Any) -> None:
    indexed, exact = answer(table, metric, refine=1), answer(table, metric, exact=True)
    assert indexed.keys() == exact.keys()
    np.testing.assert_allclose([indexed[each] for each in exact], list(exact.values()), rtol=1e-4, atol=1e-4)
    wanted = {each: distance for each, distance in exact.items() if each % 2 == 0}
    assert answer(table, metric, refine=1, filter="id % 2 = 0").keys() == wanted.keys()
    assert not table.fsck("head").findings


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("number", "metric"), [("float32", "l2"), ("float64", "dot"), ("float64", "cosine")])
def test_answers_are_those_without_an_index(kind: str, number: str, metric: Any, tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows_of(extreme(number)), max_rows_per_file=300, durable=False)
    parameters: dict[str, Any] = {"num_sub_vectors": 4} if kind.endswith("PQ") else {}
    table = table.create_index("v", kind, metric=metric, num_partitions=4, **parameters).table
    check(table, metric)
    lance.dataset(table.uri).to_table(nearest={"column": "v", "q": POINTS[0].astype(number), "k": 5, "nprobes": 4})
    more = POINTS[:6].astype(number)
    more[1] = np.finfo(number).max
    table = table.append(rows_of(more, 1_000)).table.optimize_indices().table
    check(table, metric)
    table = table.delete("id IN (5, 9)").table
    table = table.compact(target_rows=5_000).table.optimize_indices().table
    assert "no fragment" in table.explain_search("v")
    check(table, metric)
