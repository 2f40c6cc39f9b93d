"""Explain: its text describes the plan that runs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table
from lance_core.datafiles.codec import FileToRead, Rows
from lance_core.datafiles.lance_codec import LanceCodec, LanceFileReader
from lance_core.datafiles.staged_reader import JoinedReader
from lance_core.format.manifest import Manifest
from lance_core.scan.executor import scan
from lance_core.scan.explain import explain_plan
from lance_core.scan.plan import ScanPlan, plan_scan
from lance_core.scan.selection import RowSelector
from lance_core.table import reading
from lance_core.versions.location import Location, locate


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    path = str(tmp_path_factory.mktemp("explain") / "t")
    rows = {"a": range(10), "b": [str(row) for row in range(10)], "s": [{"x": row, "y": 0} for row in range(10)]}
    return Table.create(path, pa.table(rows), max_rows_per_file=4).delete("a = 5").table


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


def test_explain_rejects_arguments_that_do_not_scan(table: Table) -> None:
    with pytest.raises(InvalidInput, match="no column 'c'"):
        table.explain(columns=["c"])
    with pytest.raises(InvalidInput, match="no column 'q'"):
        table.explain("q = 1")


class QueryArguments(TypedDict, total=False):
    columns: Sequence[str] | None
    filter: str | None
    limit: int | None
    offset: int | None
    with_row_id: bool
    with_row_address: bool


ASKED: list[QueryArguments] = [
    {},
    {"columns": ["b"]},
    {"columns": [], "filter": "a > 3"},
    {"columns": ["s.x", "a"], "filter": "a > 3 AND b != 'x'", "limit": 2},
    {"columns": ["a"], "limit": 3, "offset": 5},
    {"filter": "s.y = 0 AND a IN (1, 2)", "with_row_id": True, "with_row_address": True},
    {"columns": ["_rowid", "b"], "filter": "_rowaddr > 3", "offset": 1},
]


@pytest.mark.parametrize("arguments", ASKED, ids=str)
def test_the_explained_plan_is_executed(
    table: Table, arguments: QueryArguments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One function creates every plan. The explained plan, the plan of a table and the plan of batches are equal, and
    the explained plan can be executed itself.
    """
    created: list[ScanPlan] = []
    run: list[ScanPlan] = []

    def record_plan(
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
        created.append(plan)
        return plan

    def record_scan(location: Location, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
        run.append(plan)
        return scan(location, plan)

    monkeypatch.setattr(reading, "plan_scan", record_plan)
    monkeypatch.setattr(reading, "scan", record_scan)
    reported = table.explain(**arguments)
    actual = table.to_table(**arguments)
    batches = list(table.to_batches(**arguments))
    assert len(created) == 3
    assert run[0] is created[1]
    assert run[1] is created[2]
    location = locate(table.uri)
    assert {explain_plan(location, plan) for plan in created} == {reported}
    assert replace(created[0], tasks=()) == replace(created[1], tasks=()) == replace(created[2], tasks=())
    for plan in created:
        assert [(task.fragment.id, task.skip, task.take) for task in plan.tasks] == [
            (task.fragment.id, task.skip, task.take) for task in created[0].tasks
        ]
    assert pa.Table.from_batches(scan(location, created[0]), created[0].schema).equals(actual)
    assert pa.Table.from_batches(batches, actual.schema).equals(actual)


@pytest.mark.parametrize("arguments", ASKED, ids=str)
def test_only_explained_columns_and_files_are_read(
    table: Table, arguments: QueryArguments, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: set[str] = set()
    files: set[str] = set()

    of_range, of_rows = LanceFileReader.read, LanceFileReader.take

    def record_columns(reader: LanceFileReader, columns: Sequence[str]) -> None:
        read.update(name.partition(".")[0] for name in columns)
        files.add(reader.full_path.rpartition("/")[2])

    def record_range(self: LanceFileReader, columns: Sequence[str], start: int, count: int) -> Iterator[pa.RecordBatch]:
        record_columns(self, columns)
        return of_range(self, columns, start, count)

    def record_rows(self: LanceFileReader, columns: Sequence[str], rows: Rows) -> Iterator[pa.RecordBatch]:
        record_columns(self, columns)
        return of_rows(self, columns, rows)

    join = LanceCodec.join

    def record_join(self: LanceCodec, joined: Sequence[FileToRead], columns: Sequence[str]) -> JoinedReader | None:
        """Small files are read together."""
        reader = join(self, joined, columns)
        if reader is not None:
            read.update(name.partition(".")[0] for name in columns)
            files.update(file.path.rpartition("/")[2] for file in joined)
        return reader

    monkeypatch.setattr(LanceCodec, "join", record_join)
    monkeypatch.setattr(LanceFileReader, "read", record_range)
    monkeypatch.setattr(LanceFileReader, "take", record_rows)
    plan = plan_scan(
        table.manifest,
        columns=arguments.get("columns"),
        filter=arguments.get("filter"),
        limit=arguments.get("limit"),
        offset=arguments.get("offset"),
    )
    table.to_table(**arguments)
    assert set(plan.early.arrow.names) <= read <= {*plan.early.arrow.names, *plan.late.arrow.names}
    assert files <= {file.path for task in plan.tasks for file in task.fragment.files}


def test_nothing_is_read(table: Table, tmp_path: Path) -> None:
    lost = Table.create(str(tmp_path / "t"), pa.table({"a": [1]}))
    for path in (tmp_path / "t" / "data").iterdir():
        path.unlink()
    assert "1 live rows" in lost.explain("a = 1")
