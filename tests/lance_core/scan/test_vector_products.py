"""Vector products: many queries at once find exactly what one query after the other finds."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lance_core import Table
from lance_core.scan import vector_products

DRAW = np.random.default_rng(8)
SIZE, ROWS, QUERIES = 12, 3000, 25


def make_table(directory: Path, values: np.ndarray, type_: pa.DataType) -> Table:
    mask = pa.array([row % 97 == 5 for row in range(len(values))])
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel(), type_), values.shape[1], mask=mask)
    rows = pa.table({"id": range(len(values)), "v": vectors})
    return Table.create(directory, rows, max_rows_per_file=800, durable=False).delete("id % 13 = 4").table


def check(table: Table, queries: np.ndarray, metric: str, k: int, filter: str | None = None) -> None:
    """Check that a batch returns the rows and distances of its queries alone, in the same order."""
    batch = table.search("v", queries, k, metric=metric, exact=True, filter=filter, columns=["id"])  # type: ignore[arg-type]
    for number, query in enumerate(queries):
        alone = table.search("v", query, k, metric=metric, exact=True, filter=filter, columns=["id"])  # type: ignore[arg-type]
        rows = batch.filter(pa.compute.equal(batch["_query"], number)).drop_columns(["_query"])
        assert rows == alone, (metric, number)


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
@pytest.mark.parametrize("type_", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_a_batch_equals_its_queries(
    tmp_path: Path, metric: str, type_: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_products, "BLOCK_ESTIMATES", 4000)
    values = DRAW.normal(size=(ROWS, SIZE)) * 3
    values[100:160] = values[100]  # ties
    values[7], values[8, 3] = 0, np.nan
    table = make_table(tmp_path / "t", values.astype(type_.to_pandas_dtype()), type_)
    queries = np.concatenate(
        [DRAW.normal(size=(QUERIES - 3, SIZE)), values[100:101], values[200:201], np.zeros((1, SIZE))]
    )
    check(table, queries, metric, 10)
    check(table, queries, metric, 3, filter="id % 3 = 0")
    check(table, queries[:9], metric, 5000)


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
def test_cancellation_and_overflow(tmp_path: Path, metric: str) -> None:
    far = DRAW.normal(size=(ROWS, SIZE)) + 3000.0  # differences are much smaller than the vectors
    check(make_table(tmp_path / "far", far, pa.float64()), far[:QUERIES] + 0.01, metric, 10)
    huge = DRAW.normal(size=(400, SIZE)) * 1e30
    check(make_table(tmp_path / "huge", huge, pa.float64()), huge[:QUERIES], metric, 5)
    ascending = np.sort(DRAW.random(ROWS))[::-1, None] * np.ones(SIZE)  # each block is nearer than the one before
    check(make_table(tmp_path / "ascending", ascending, pa.float64()), np.zeros((QUERIES, SIZE)) + 0.001, metric, 10)


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
@pytest.mark.parametrize("length", [1e-12, 1e-20, 1e-24, 1e-40])
def test_vectors_whose_squares_underflow(tmp_path: Path, metric: str, length: float) -> None:
    short = DRAW.normal(size=(ROWS, SIZE)) * length
    short[9] = 0
    table = make_table(tmp_path / "t", short, pa.float64())
    check(table, short[:QUERIES], metric, 10)
    check(table, short[:QUERIES] / length, metric, 10)
