"""SQL queries over a version in one process: rows, groups, and the errors for unsupported queries."""

from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table

ROWS = pa.table(
    {
        "id": [1, 2, 3, 3, None],
        "Amount": [1.0, -2.0, None, 4.0, -5.0],
        "s": [{"x": 1}, {"x": 2}, None, {"x": 4}, {"x": 5}],
    }
)

RESULTS: tuple[tuple[str, list[dict[str, object]]], ...] = (
    ("select id from dataset where Amount < 0", [{"id": 2}, {"id": None}]),
    ("select id, amount * 2 as b from dataset d where d.amount > 0", [{"id": 1, "b": 2.0}, {"id": 3, "b": 8.0}]),
    ("select * from dataset where amount = 1", [{"id": 1, "Amount": 1.0, "s": {"x": 1}}]),
    ("select s.x as x from dataset where s is not null limit 2", [{"x": 1}, {"x": 2}]),
    ("select id from dataset limit 2 offset 1", [{"id": 2}, {"id": 3}]),
    ("select id from dataset where Amount < 0 limit 5 offset 1", [{"id": None}]),
    ("select _rowaddr as a from dataset where id = 3", [{"a": 2}, {"a": 3}]),
    ("select id from dataset where false", []),
    ("select 7 as seven from dataset where id = 1", [{"seven": 7}]),
    ("select count(*) as n from dataset", [{"n": 5}]),
    ("select id, count(*) as n from dataset group by id having count(*) > 1", [{"id": 3, "n": 2}]),
    ("select count(*) = 2 as ok from dataset where Amount < 0", [{"ok": True}]),
)  # fmt: skip

UNSUPPORTED = (
    ("select id from dataset order by id", "Sort needs all rows at once"),
    ("select distinct id from dataset", "DISTINCT cannot be computed from partial results"),
    ("select id from orders", "the table is called dataset"),
    ("select nope from dataset", "there is no column 'nope'.*id, Amount, s"),
    ("drop table dataset", "DDL not supported"),
    ("select a.id from dataset a join dataset b on a.id = b.id", "a join in a query for rows"),
    ("select id, row_number() over (order by id) from dataset", "a window function in a query for rows"),
    ("select 1", "a query without FROM"),
    (7, "a query must be an SQL string"),
)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table of two fragments, after a third was deleted."""
    table = Table.create(tmp_path / "t", ROWS.slice(0, 3)).append(pa.table({"id": [99], "Amount": [9.0]})).table
    return table.append(ROWS.slice(3)).table.delete("id = 99").table


@pytest.mark.parametrize(("sql", "expected"), RESULTS, ids=[sql for sql, _ in RESULTS])
def test_a_query_returns_the_expected_rows(table: Table, sql: str, expected: list[dict[str, object]]) -> None:
    if "_rowaddr" in sql:
        expected = table.to_table([], "id = 3", with_row_address=True).rename_columns(["a"]).to_pylist()
    assert table.query(sql).to_pylist() == expected
    assert table.query(sql, limit=1).to_pylist() == expected[:1]


@pytest.mark.parametrize(("sql", "message"), UNSUPPORTED, ids=[str(sql) for sql, _ in UNSUPPORTED])
def test_what_is_refused(table: Table, sql: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        table.query(sql)


def test_a_limit_reads_only_the_needed_fragments(table: Table, tmp_path: Path) -> None:
    """The query succeeds although the data files of the later fragments are absent."""
    for fragment in list(table.fragments)[1:]:
        for file in fragment.files:
            (tmp_path / "t" / file.qualified_path).unlink()
    assert table.query("select id from dataset where id >= 2", limit=2).to_pylist() == [{"id": 2}, {"id": 3}]
    assert table.query("select count(*) as n from dataset").to_pylist() == [{"n": 5}]
