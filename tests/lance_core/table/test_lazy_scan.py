"""Tests of `lance_core/table/lazy_scan.py`: a scan returns what pyarrow computes from all rows."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lance_core import InvalidInput, Table
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
        [None, ["s"], ["id", "x"], {"twice": "x * 2", "c": "'c'", "id": "id"}],
        [None, "x > 5", "s = 'n3' and id < 40", "id < 0"],
        list(ORDERS),
        [(None, None), (7, None), (None, 3), (5, 50), (0, 0)],
        [None, (1, 4), ()],
    ),
)
def test_a_scan_returns_what_pyarrow_computes(
    table: Table,
    columns: list[str] | dict[str, str] | None,
    condition: str | None,
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
    if condition == "x > 5":
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
        assert scan.to_table() == (expected if columns is None else expected.select(columns))
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
        ({"fragments": [9]}, "has no fragment 9"),
        ({"columns": {"a": "nope + 1"}}, "SQL of column 'a'"),
        ({"limit": -1, "order_by": "x"}, "must not be negative"),
        ({"filter": "id >"}, "does not parse"),
        ({"columns": {"a": "x"}, "with_row_id": True}, "compute '_rowid' instead"),
    ],
)
def test_invalid_arguments_are_refused_when_the_scan_is_made(
    table: Table, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        table.scan(**arguments)  # type: ignore[arg-type]
