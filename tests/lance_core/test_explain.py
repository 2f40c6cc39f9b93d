"""What `explain` says is what the plan says."""

from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    place = str(tmp_path_factory.mktemp("explain") / "t")
    rows = {"a": range(10), "b": [str(row) for row in range(10)], "s": [{"x": row, "y": 0} for row in range(10)]}
    return Table.create(place, pa.table(rows), max_rows_per_file=4).delete("a = 5").table


def test_a_whole_scan(table: Table) -> None:
    assert table.explain().splitlines() == [
        f"scan {table.uri} at version 2",
        "  returns   a, b, s",
        "  reads     a: int64, b: string, s: struct<x: int64, y: int64>",
        "  fragments 3 of 3 (0-2), 9 live rows, 1 deleted",
        "  indices   none used: every fragment is scanned",
    ]


def test_a_filter_reads_its_columns_first(table: Table) -> None:
    assert table.explain("a > 3 AND b != 'x'", ["s.x", "a"], limit=2).splitlines()[1:] == [
        "  returns   s.x, a",
        "  filter    a > 3 AND b != 'x'",
        "  reads     a: int64, b: string of every row, where the filter is evaluated",
        "  then      s: struct<x: int64> of rows that match",
        "  window    2 matching rows after 0",
        "  fragments 3 of 3 (0-2), 9 live rows, 1 deleted",
        "  indices   none used: every fragment is scanned",
    ]


def test_a_window_names_the_rows(table: Table) -> None:
    assert table.explain(columns=["a"], offset=5, limit=3).splitlines()[2:] == [
        "  reads     a: int64",
        "  fragments 2 of 3 (1-2), 5 live rows, 1 deleted",
        "            of fragment 1 live rows 1 to 3",
        "            of fragment 2 live rows 0 to 1",
        "  indices   none used: every fragment is scanned",
    ]
    assert "fragments 0 of 3 (none)" in table.explain(limit=0)


def test_what_does_not_scan_is_not_explained(table: Table) -> None:
    with pytest.raises(InvalidInput, match="no column 'c'"):
        table.explain(columns=["c"])
    with pytest.raises(InvalidInput, match="no column 'q'"):
        table.explain("q = 1")


def test_nothing_is_read(table: Table, tmp_path: Path) -> None:
    lost = Table.create(str(tmp_path / "t"), pa.table({"a": [1]}))
    for path in (tmp_path / "t" / "data").iterdir():
        path.unlink()
    assert "1 live rows" in lost.explain("a = 1")
