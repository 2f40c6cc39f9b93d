"""Tests of `lance_core/table/arrow_dataset.py`: engines read only the columns and rows that their queries need."""

import pickle
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest

from lance_core import InvalidInput, Table

ROWS = 40_000
RNG = np.random.default_rng(7)
CONTENT = pa.table(
    {
        "id": pa.array(range(ROWS)),
        "x": RNG.random(ROWS),
        "payload": [RNG.bytes(100).hex() for _ in range(ROWS)],
        "place": [{"city": number % 7, "code": "x"} for number in range(ROWS)],
    }
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    uri = tmp_path_factory.mktemp("dataset") / "t"
    created = Table.create(uri, CONTENT, max_rows_per_file=10_000, durable=False)
    indexed = created.create_index("id", "BTREE").table
    indexed.dataset().count_rows(pc.field("id") == 1)  # loads modules, whose bytes are not those of a query
    return indexed


def bytes_read(work: Callable[[], object]) -> int:
    """Return the bytes that this process reads during a call, in all its threads."""

    def total() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = total()
    work()
    return total() - before


def first_row(sql: str, orders: object) -> tuple:
    """Return the first row of a query of DuckDB, which finds the argument `orders` by its name."""
    relation = duckdb.sql(sql)
    assert relation is not None
    return relation.fetchall()[0]


QUERIES: list[tuple[str, Callable[[pl.LazyFrame], pl.LazyFrame], float]] = [
    ("select sum(x) from orders where id < 10", lambda rows: rows.filter(pl.col("id") < 10).select(pl.sum("x")), 0.2),
    (
        "select sum(length(payload)) from orders where id in (5, 39000)",
        lambda rows: rows.filter(pl.col("id").is_in([5, 39000])).select(pl.col("payload").str.len_chars().sum()),
        0.1,
    ),
    (
        "select count(*) from orders where place.city = 3",
        lambda rows: rows.filter(pl.col("place").struct.field("city") == 3).select(pl.len()),
        0.2,
    ),
    ("select count(*) from orders", lambda rows: rows.select(pl.len()), 0.2),
    (
        "select count(*) from orders where id + 1 < 10 and x >= 0",
        lambda rows: rows.filter((pl.col("id") + 1 < 10) & (pl.col("x") >= 0)).select(pl.len()),
        0.3,
    ),
]


@pytest.mark.parametrize(("sql", "query", "share"), QUERIES, ids=[sql for sql, _, _ in QUERIES])
def test_engines_read_the_columns_and_rows_of_a_query(
    table: Table, sql: str, query: Callable[[pl.LazyFrame], pl.LazyFrame], share: float
) -> None:
    expected = first_row(sql, pads.dataset(CONTENT))
    assert query(pl.scan_pyarrow_dataset(pads.dataset(CONTENT))).collect().row(0) == pytest.approx(expected)
    everything = bytes_read(table.to_table)
    dataset, found = table.dataset(), list[object]()
    for run in (
        lambda: found.append(first_row(sql, dataset)),
        lambda: found.append(query(pl.scan_pyarrow_dataset(dataset)).collect().row(0)),
        lambda: found.append(query(pl.scan_pyarrow_dataset(table)).collect().row(0)),
    ):
        assert bytes_read(run) < share * everything
    assert [pytest.approx(expected)] * 3 == found


def test_a_variable_with_a_table_is_a_relation_of_duckdb(table: Table) -> None:
    assert first_row("select count(*), max(id) from orders where id < 100", table) == (100, 99)


def test_the_methods_of_a_dataset_read_the_table(table: Table, tmp_path: Path) -> None:
    dataset = table.dataset(pc.field("id") < 1000).filter(pc.field("id") >= 10)
    expected = CONTENT.slice(10, 990)
    assert isinstance(dataset, pads.Dataset)
    assert dataset.schema == CONTENT.schema
    assert dataset.to_table() == expected
    assert dataset.count_rows() == 990
    assert dataset.count_rows(pc.field("id") + 1 < 15) == 4
    assert dataset.head(3, columns=["id"]) == expected.select(["id"]).slice(0, 3)
    assert dataset.take([5, 0], columns=["x"]) == expected.select(["x"]).take([5, 0])
    assert dataset.scanner(columns={"y": pc.field("x") * 2}).to_table()["y"] == pc.multiply(expected["x"], 2)
    assert [batch.num_rows for batch in dataset.to_batches(batch_size=400)] == [400, 400, 190]
    assert dataset.sort_by([("id", "descending")]).head(1)["id"].to_pylist() == [999]
    other = pads.dataset(pa.table({"id": [12, 5000], "name": ["a", "b"]}))
    flat = Table.create(tmp_path / "t", CONTENT.select(["id"]), durable=False).dataset()
    assert flat.join(other, "id", join_type="inner").to_table()["name"].to_pylist() == ["a", "b"]
    assert flat.join_asof(other, "id", [], -1).to_table()["name"][12:14].to_pylist() == ["a", "a"]
    assert pickle.loads(pickle.dumps(dataset)).to_table(columns=["id"]) == expected.select(["id"])
    assert "version 2" in repr(dataset)


@pytest.mark.parametrize(
    "read",
    [
        lambda dataset: dataset.get_fragments(),
        lambda dataset: dataset.replace_schema(pa.schema([])),
        lambda dataset: dataset.scanner(batch_size=0),
        lambda dataset: dataset.scanner(batch_size="10"),
        lambda dataset: dataset.to_table(columns=["nothing"]),
    ],
)
def test_what_a_table_cannot_do_is_refused(table: Table, read: Callable[[pads.Dataset], object]) -> None:
    with pytest.raises(InvalidInput):
        read(table.dataset())


def test_arrow_does_not_take_the_base_class_for_an_empty_table(table: Table) -> None:
    with pytest.raises(FileNotFoundError, match="Arrow itself cannot read the Lance table"):
        pads.Scanner.from_dataset(table.dataset()).to_table()
