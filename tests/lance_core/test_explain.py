"""What `explain` says is what the plan says."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table
from lance_core.datafiles.codec import Rows
from lance_core.datafiles.lance_codec import LanceFileReader
from lance_core.format.manifest import Manifest
from lance_core.scan.executor import scan
from lance_core.scan.explain import explain_plan
from lance_core.scan.plan import ScanPlan, plan_scan
from lance_core.scan.selection import RowSelector
from lance_core.table import reading
from lance_core.versions.location import Location, locate


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
        "  reads     a: int64, b: string of every row, to evaluate the filter",
        "  then      s: struct<x: int64> of rows that match",
        "            in the same read in 3 fragments of at most 65536 bytes",
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


class Asked(TypedDict, total=False):
    columns: Sequence[str] | None
    filter: str | None
    limit: int | None
    offset: int | None
    with_row_id: bool
    with_row_address: bool


ASKED: list[Asked] = [
    {},
    {"columns": ["b"]},
    {"columns": [], "filter": "a > 3"},
    {"columns": ["s.x", "a"], "filter": "a > 3 AND b != 'x'", "limit": 2},
    {"columns": ["a"], "limit": 3, "offset": 5},
    {"filter": "s.y = 0 AND a IN (1, 2)", "with_row_id": True, "with_row_address": True},
    {"columns": ["_rowid", "b"], "filter": "_rowaddr > 3", "offset": 1},
]


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_the_plan_that_is_told_is_the_one_that_runs(
    table: Table, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One function makes every plan. What it made is told, run for a table, and run for batches; all are equal, and the
    one that was told can be run itself."""
    made: list[ScanPlan] = []
    run: list[ScanPlan] = []

    def planning(
        manifest: Manifest,
        *,
        columns: Sequence[str] | None,
        filter: str | None,
        limit: int | None,
        offset: int | None,
        with_row_id: bool,
        with_row_address: bool,
        select: RowSelector | None = None,
    ) -> ScanPlan:
        plan = plan_scan(
            manifest,
            columns=columns,
            filter=filter,
            limit=limit,
            offset=offset,
            with_row_id=with_row_id,
            with_row_address=with_row_address,
            select=select,
        )
        made.append(plan)
        return plan

    def scanning(location: Location, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
        run.append(plan)
        return scan(location, plan)

    monkeypatch.setattr(reading, "plan_scan", planning)
    monkeypatch.setattr(reading, "scan", scanning)
    told = table.explain(**asked)
    found = table.to_table(**asked)
    batches = list(table.to_batches(**asked))
    assert len(made) == 3
    assert run[0] is made[1]
    assert run[1] is made[2]
    location = locate(table.uri)
    assert {explain_plan(location, plan) for plan in made} == {told}
    assert replace(made[0], tasks=()) == replace(made[1], tasks=()) == replace(made[2], tasks=())
    for plan in made:
        assert [(task.fragment.id, task.skip, task.take) for task in plan.tasks] == [
            (task.fragment.id, task.skip, task.take) for task in made[0].tasks
        ]
    assert pa.Table.from_batches(scan(location, made[0]), made[0].schema).equals(found)
    assert pa.Table.from_batches(batches, found.schema).equals(found)


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_no_other_columns_and_files_are_read_than_told(
    table: Table, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: set[str] = set()
    files: set[str] = set()

    of_range, of_rows = LanceFileReader.read, LanceFileReader.take

    def note(reader: LanceFileReader, columns: Sequence[str]) -> None:
        read.update(name.partition(".")[0] for name in columns)
        files.add(reader.full_path.rpartition("/")[2])

    def noted_range(self: LanceFileReader, columns: Sequence[str], start: int, count: int) -> Iterator[pa.RecordBatch]:
        note(self, columns)
        return of_range(self, columns, start, count)

    def noted_rows(self: LanceFileReader, columns: Sequence[str], rows: Rows) -> Iterator[pa.RecordBatch]:
        note(self, columns)
        return of_rows(self, columns, rows)

    monkeypatch.setattr(LanceFileReader, "read", noted_range)
    monkeypatch.setattr(LanceFileReader, "take", noted_rows)
    plan = plan_scan(
        table.manifest,
        columns=asked.get("columns"),
        filter=asked.get("filter"),
        limit=asked.get("limit"),
        offset=asked.get("offset"),
    )
    table.to_table(**asked)
    assert set(plan.early.arrow.names) <= read <= {*plan.early.arrow.names, *plan.late.arrow.names}
    assert files <= {file.path for task in plan.tasks for file in task.fragment.files}


def test_nothing_is_read(table: Table, tmp_path: Path) -> None:
    lost = Table.create(str(tmp_path / "t"), pa.table({"a": [1]}))
    for path in (tmp_path / "t" / "data").iterdir():
        path.unlink()
    assert "1 live rows" in lost.explain("a = 1")
