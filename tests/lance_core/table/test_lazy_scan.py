"""Tests of `lance_core/table/lazy_scan.py`: a scan returns what pyarrow computes from all rows."""

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lance_core import InvalidInput, NotFound, Table
from lance_core.operations import Delete
from tests.pairwise import pairwise

ROWS = pa.table(
    {
        "id": pa.array(range(60), pa.int64()),
        "x": pa.array([None if each % 11 == 0 else (each * 37) % 17 for each in range(60)], pa.int32()),
        "s": pa.array([f"n{each % 5}" for each in range(60)]),
    }
)
ORDERS: dict[str, list[tuple[str, str]]] = {
    "": [],
    "x": [("x", "ascending")],
    "x DESC": [("x", "descending")],
    "s,x desc": [("s", "ascending"), ("x", "descending")],
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    uri = tmp_path_factory.mktemp("scan") / "t"
    return Table.create(uri, ROWS, max_rows_per_file=10, durable=False).delete("id % 13 = 0").table


@pytest.mark.parametrize(
    ("columns", "condition", "order", "window", "fragments"),
    pairwise(
        [
            None,
            ["s"],
            ["id", pc.field("x")],
            {"twice": "x * 2", "c": "'c'", "id": "id"},
            {"twice": pc.field("x") * 2, "c": "'c'", "id": pc.field("id")},
        ],
        [
            None,
            "x > 5",
            "s = 'n3' and id < 40",
            "id < 0",
            pc.field("x") > 5,
            (pc.field("s") == "n3") & (pc.field("id") + 1 < 41),
        ],
        list(ORDERS),
        [(None, None), (7, None), (None, 3), (5, 50), (0, 0)],
        [None, (1, 4), ()],
    ),
)
def test_a_scan_returns_what_pyarrow_computes(
    table: Table,
    columns: list[str | pc.Expression] | dict[str, str | pc.Expression] | None,
    condition: str | pc.Expression | None,
    order: str,
    window: tuple[int | None, int | None],
    fragments: tuple[int, ...] | None,
) -> None:
    limit, offset = window
    scan = table.scan(
        columns,
        condition,
        order_by=[each for each in order.split(",") if each],
        limit=limit,
        offset=offset,
        fragments=fragments,
    )
    expected = ROWS.filter(pc.not_equal(pc.subtract(ROWS["id"], pc.multiply(pc.divide(ROWS["id"], 13), 13)), 0))
    if fragments is not None:
        expected = expected.filter(pc.is_in(pc.divide(expected["id"], 10), pa.array(fragments, pa.int64())))
    if isinstance(condition, pc.Expression):
        expected = expected.filter(condition)
    elif condition == "x > 5":
        expected = expected.filter(pc.greater(expected["x"], 5))
    elif condition == "id < 0":
        expected = expected.slice(0, 0)
    elif condition:
        expected = expected.filter(pc.and_(pc.equal(expected["s"], "n3"), pc.less(expected["id"], 40)))
    if order:
        expected = expected.take(pc.sort_indices(expected, sort_keys=ORDERS[order]))
    expected = expected.slice(offset or 0, limit)
    assert scan.count_rows() == expected.num_rows
    if isinstance(columns, dict):
        rows = expected.to_pylist()
        computed = [{"twice": None if row["x"] is None else row["x"] * 2, "c": "c", "id": row["id"]} for row in rows]
        assert scan.to_table().to_pylist() == computed
    else:
        names = ["id", "x"] if columns and len(columns) == 2 else columns
        assert scan.to_table() == (expected if names is None else expected.select(names))
    assert pa.table(scan).schema == scan.schema


def test_rows_are_ordered_by_computed_and_system_columns(table: Table) -> None:
    computed = table.scan({"id": "id", "rest": "id % 7"}, order_by=["rest desc", "x", "id"], limit=20).to_table()
    rows = table.to_table().to_pylist()
    by_x = sorted(rows, key=lambda row: (-(row["id"] % 7), row["x"] is None, row["x"] or 0, row["id"]))
    assert computed["id"].to_pylist() == [row["id"] for row in by_x[:20]]
    assert computed.schema.names == ["id", "rest"]
    addressed = table.scan(["id"], order_by="_rowaddr desc", with_row_address=True, limit=3).to_table()
    assert addressed.schema.names == ["id", "_rowaddr"]
    assert addressed["id"].to_pylist() == [59, 58, 57]


def test_rows_that_cannot_be_in_the_result_are_dropped_while_sorting(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lance_core.table.lazy_scan.SORTED_ROWS_MAX", 7)
    found = table.scan(["x"], order_by="x desc", limit=4, offset=1).to_table()["x"].to_pylist()
    expected = sorted((each for each in table.to_table(["x"])["x"].to_pylist() if each is not None), reverse=True)
    assert found == expected[1:5]


def test_a_scan_is_described_and_reads_nothing_before_it_is_asked(table: Table) -> None:
    scan = table.scan({"y": "x + 1"}, "s = 'n1'", order_by="x", limit=2)
    for part in ("filter    s = 'n1'", "order     x", "window    2 rows after 0", "computes  y = x + 1"):
        assert part in repr(scan)
    with pytest.raises(InvalidInput, match="to_batches"):
        list(scan)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"order_by": "nope"}, "no column 'nope'"),
        ({"columns": "id"}, "must be a list of names"),
        ({"order_by": (5,)}, "must be names of columns"),
        ({"columns": {"a": "make_array(x)"}, "order_by": "a"}, "has no order"),
        ({"order_by": 5}, "order_by=5 must be a list"),
        ({"columns": 5}, "columns=5 must be a list"),
        ({"columns": {5: "x"}}, "names of columns= must be strings"),
        ({"fragments": [9]}, "has no fragment 9"),
        ({"fragments": 0}, "must be a list of fragment ids"),
        ({"fragments": ["x", 9]}, "fragments has 'x' where a fragment id is expected"),
        ({"columns": {"a": "nope + 1"}}, "SQL of column 'a'"),
        ({"limit": -1, "order_by": "x"}, "must not be negative"),
        ({"filter": "id >"}, "does not parse"),
    ],
)
def test_invalid_arguments_are_refused_when_the_scan_is_made(
    table: Table, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        table.scan(**arguments)  # type: ignore[arg-type]


def test_readers_accept_expressions_of_pyarrow(table: Table) -> None:
    small, odd = pc.field("id") < 20, pc.field("id") - 1 == 4
    expected = table.to_table(filter="id < 20")
    assert table.to_table(filter=small) == expected
    assert pa.Table.from_batches(table.to_batches(filter=small)) == expected
    for form in (small, "id < 20"):
        sizes = [batch.num_rows for batch in table.to_batches(["id"], form, batch_size=4)]
        assert (max(sizes), sum(sizes)) == (4, expected.num_rows)
    assert table.scan(filter=small, offset=5, limit=9).head(3) == expected.slice(5, 3)
    assert table.scan(["id"], small, offset=5, limit=2).head().num_rows == 2
    assert table.to_table(["id", pc.field("x")], small, limit=3) == expected.select(["id", "x"]).slice(0, 3)
    assert table.to_table({"y": pc.field("_rowoffset")}, odd)["y"].to_pylist() == [5]
    assert table.to_table(["_rowid", "_rowaddr", "_rowoffset"], pc.field("_rowaddr") == 5).num_rows == 1
    assert table.to_table(["s"], odd, with_row_id=True).column_names == ["s", "_rowid"]
    assert (table.count_rows(small), table.count_rows(small & odd)) == (expected.num_rows, 1)
    assert "id < 20" in table.explain(small).replace("`", "")
    assert "pyarrow filters by" in table.explain(small & odd)


def test_writers_accept_expressions_of_pyarrow(tmp_path: Path) -> None:
    small = pc.field("id") < 20
    table = Table.create(tmp_path / "t", ROWS, durable=False)
    updated = table.update({"x": "-1"}, small).table
    assert updated.count_rows("x = -1") == 20
    sliced = updated.overwrite(ROWS.slice(0, 2), where=small).table
    assert len(sliced) == 42
    kept = sliced.upsert(ROWS.slice(0, 1), "id", delete_unmatched=small).table
    assert len(kept) == 41
    deleted = kept.delete(small).table
    assert len(deleted) == 40
    transaction = deleted.transaction()
    assert transaction is not None
    assert isinstance(transaction.operation, Delete)
    assert transaction.operation.predicate == "`id` < 20"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda table: table.delete(pc.field("id") + 1 < 3), "predicate=.* cannot be evaluated here"),
        (
            lambda table: table.update({"x": "1"}, pc.utf8_lower(pc.field("s")) == "a"),
            "write the condition as a string",
        ),
        (lambda table: table.to_table(filter=pc.field("nothing") == 1), "there is no column 'nothing'"),
        (lambda table: table.to_table([pc.field("x") * 2]), "has no name; pass a dict"),
        (lambda table: table.to_table({"y": pc.field("nothing")}), "column 'y': there is no column 'nothing'"),
        (lambda table: table.to_table({"y": pc.field("s") * 2}), "the expression of y cannot be evaluated"),
        (lambda table: table.to_table(filter=pc.utf8_lower(pc.field("id")) == "a"), "cannot be evaluated by pyarrow"),
    ],
)
def test_expressions_that_cannot_be_evaluated_are_refused(
    table: Table, call: Callable[[Table], object], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        call(table)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"columns": ["id"], "filter": "x > 5", "order_by": "id desc", "limit": 3, "offset": 1, "with_row_id": True},
        {"columns": {"y": pc.field("x") + 1}, "filter": pc.utf8_upper(pc.field("s")) == "N3", "fragments": [0, 1]},
    ],
)
def test_a_scan_can_be_pickled(table: Table, arguments: dict[str, Any]) -> None:
    scan = table.scan(**arguments)
    copy = pickle.loads(pickle.dumps(scan))
    assert copy.to_table() == scan.to_table()
    assert repr(copy) == repr(scan)


def test_a_pickled_scan_of_a_recreated_table_is_refused(tmp_path: Path) -> None:
    pickled = pickle.dumps(Table.create(tmp_path / "t", {"id": [1]}, durable=False).scan())
    shutil.rmtree(tmp_path / "t")
    Table.create(tmp_path / "t", {"id": [2]}, durable=False)
    with pytest.raises(NotFound, match="version 1 is not the one that was pickled"):
        pickle.loads(pickled)


def test_computed_columns_come_with_row_ids_and_addresses(table: Table) -> None:
    expected = table.to_table(["id"], with_row_id=True, with_row_address=True)
    found = table.to_table({"twice": "id * 2"}, with_row_id=True, with_row_address=True)
    assert found.column_names == ["twice", "_rowid", "_rowaddr"]
    assert found.select(["_rowid", "_rowaddr"]) == expected.select(["_rowid", "_rowaddr"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": ["x*2"]}, r"no column 'x\*2'.* To compute a value, pass a dict: columns=\{'value': 'x\*2'\}"),
        ({"columns": ["id", "upper(s)"]}, r"columns=\{'value': 'upper\(s\)'\}"),
        ({"order_by": "x * 2 desc"}, r"not the expression 'x \* 2'; compute it .* order_by='value desc'"),
        ({"columns": ["xx"]}, "no column 'xx'; did you mean 'x'"),
    ],
)
def test_sql_in_place_of_a_name_is_refused_with_the_way_to_compute_it(
    table: Table, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        table.scan(**arguments)
    if "columns" in arguments:
        with pytest.raises(InvalidInput, match=message):
            table.to_table(**arguments)


def test_a_name_with_signs_is_no_expression(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", {"a - b": [2, 1], "c d": [{"e f": 1}, None]}, durable=False)
    assert table.scan(["a - b"], order_by="a - b desc").to_table()["a - b"].to_pylist() == [2, 1]
    assert table.scan({"x (y)": "`a - b`"}, order_by="x (y)").to_table()["x (y)"].to_pylist() == [1, 2]
    assert table.to_table(["`c d`.`e f`"]).num_rows == 2
