"""Column sources: every change that computes columns records from which ones, in one process and by workers, and the
record of the caller replaces that of the plan."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_core import Committed, Table
from lance_core.commit import openlineage
from lance_core.commit.openlineage import COLUMNS
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.dml.computed_column import ComputedColumn
from lance_core.tasks.columns.computed_fill import Bounds, compute_columns
from lance_core.tasks.columns.map_columns import Computation, map_columns
from lance_core.tasks.columns.merge_columns import MergeRequest, merge_columns
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.rows.update import update
from lance_core.tasks.rows.upsert import UpsertRules, upsert
from lance_core.tasks.rows.write import WriteTask
from tests.lance_core.tasks.columns.test_merge_columns import InMemorySource
from tests.lance_core.tasks.in_process_workers import InProcessWorkers

ROWS = pa.table({"id": [1, 2], "net": [2.0, 4.0], "tax": [0.5, 0.25], "city": ["a", "b"]})
TOTAL = pa.schema([("total", pa.float64())])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t.lance"), ROWS, durable=False)


def recorded(committed: Committed) -> dict[str, list[str]]:
    """Return the sources that a version records: columns of the table, or `given NAME` for the caller's columns."""
    transaction = committed.table.transaction()
    assert transaction is not None
    if COLUMNS not in transaction.properties:
        return {}
    value = json.loads(transaction.properties[COLUMNS])
    prefixes = [{committed.table.uri: "", openlineage.GIVEN_ROWS: "given "}[uri] for uri, _ in value["tables"]]
    return {column: [prefixes[number] + name for number, name in each] for column, each in value["columns"].items()}


def ones(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"total": pa.array([1.0] * batch.num_rows)})


def twos(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"total": pa.array([2.0] * batch.num_rows)})


def test_changes_of_one_process(table: Table) -> None:
    assert recorded(table.update({"net": "net * tax", "city": "'c'"}, where="id > 1")) == {
        "net": ["id", "net", "tax"], "city": ["id"],
    }  # fmt: skip
    assert recorded(table.refresh().update({"city": "'c'"})) == {}
    added = table.refresh().add_columns({"gross": "net + tax", "place": "_rowid", "one": "1"})
    assert recorded(added) == {"gross": ["net", "tax"]}
    replaced = added.table.add_columns({"gross": "gross * 2"}, replace=True, where="id = 1")
    assert recorded(replaced) == {"gross": ["gross", "id"]}
    by_function = replaced.table.add_columns(ones, read_columns=["net", "tax"])
    assert recorded(by_function) == {"total": ["net", "tax"]}
    again = by_function.table.add_columns(twos, schema=TOTAL, replace=True)
    assert recorded(again) == {}  # the function gets all columns
    merged = again.table.merge_columns({"id": [1], "stars": [5]}, on="id")
    assert recorded(merged) == {"stars": ["given stars"]}
    replaced_by_key = merged.table.merge_columns({"id": [1], "stars": [4]}, on="id", replace=True)
    assert recorded(replaced_by_key) == {"stars": ["given stars"]}
    renamed = merged.table.alter_column("gross", rename="sum")
    assert recorded(renamed) == {"sum": ["gross"]}
    assert recorded(renamed.table.alter_column("sum", nullable=True)) == {}


@pytest.mark.parametrize(
    ("rows", "rules", "expected"),
    [
        ({"id": [2, 9], "net": [5.0, 6.0]}, {}, {"id": ["given id"], "net": ["given net"]}),
        ({"id": [2], "net": [5.0]}, {"insert": False}, {"net": ["given net"]}),
        ({"id": [2, 9], "net": [5.0, 6.0]}, {"matched": "ignore"}, {"id": ["given id"], "net": ["given net"]}),
        ({"id": [2], "net": [5.0]}, {"matched": "delete", "insert": False}, {}),
        ({"id": [2], "net": [5.0]}, {"delete_if": "net > 0"}, {}),  # deletes only
        ({"id": [8], "net": [5.0]}, {"insert": False}, {}),  # matches nothing
    ],
)
def test_upserts_record_the_columns_of_the_data(
    table: Table, rows: dict[str, list[float]], rules: dict[str, Any], expected: dict[str, list[str]]
) -> None:
    local = Table.create(f"{table.uri}-local", ROWS, durable=False)
    assert recorded(local.upsert(rows, "id", **rules)) == expected
    source = pa.table(rows)

    def stage(task: WriteTask) -> pa.Table:
        return pa.Table.from_batches(task(source.to_batches()))

    arguments = {"matched": "update", "matched_if": None, "insert": True, "delete_unmatched": None, **rules}
    by_workers = upsert(
        TableRef(table.uri, durable=False),
        source.schema,
        stage,
        UpsertRules.of("id", **arguments),
        limits=FileLimits(),
        options=WriteOptions(),
        runner=InProcessWorkers(),
    )
    assert recorded(by_workers) == expected


def test_changes_by_workers(table: Table) -> None:
    ref, workers, options = TableRef(table.uri, durable=False), InProcessWorkers(), WriteOptions()
    updated = update(ref, {"net": "net * tax"}, "id > 1", limits=FileLimits(), options=options, runner=workers)
    assert recorded(updated) == {"net": ["id", "net", "tax"]}
    for computation, expected in (
        (Computation(ones, ["net", "tax"], TOTAL), {"total": ["net", "tax"]}),
        (Computation(twos, ["net"], TOTAL, "recompute", "id > 1"), {"total": ["id", "net"]}),
        (Computation(ones, None, TOTAL, "recompute"), {}),
    ):
        mapped = map_columns(ref, computation, resume_key=None, progress=None, options=options, runner=workers)
        assert recorded(mapped) == expected
    column = ComputedColumn("gross", pa.float64(), sql="net * (1 + tax)")
    (report,) = compute_columns(
        ref, [column], recompute=False, bounds=Bounds(), options=options, runner_for=lambda _: workers
    )
    assert recorded(report.committed) == {"gross": ["net", "tax"]}


@pytest.mark.parametrize("replace", [False, True])
def test_merges_by_workers_record_the_columns_of_the_data(table: Table, replace: bool) -> None:
    name = "net" if replace else "stars"
    address = table.to_table(["_rowaddr"])["_rowaddr"]
    by_key, by_address = pa.table({"id": [1], name: [5.0]}), pa.table({"_rowaddr": address, name: [6.0, 7.0]})
    for on, rows in (("id", by_key), ("_rowaddr", by_address)):
        request = MergeRequest.of(on, None, None, None, replace=replace)
        ref = TableRef(table.uri, durable=False)
        assert recorded(merge_columns(ref, InMemorySource(rows), request, options=WriteOptions())) == {
            name: [f"given {name}"]
        }
        Table.open(table.uri, durable=False).restore(1)


def test_the_record_of_the_caller_stays(table: Table) -> None:
    own = json.dumps({"columns": {"net": [[0, "price"]]}, "tables": [["/lake/prices.lance", "lake/prices"]]})
    transaction = table.update({"net": "net * 2"}, properties={COLUMNS: own}).table.transaction()
    assert transaction is not None
    assert transaction.properties[COLUMNS] == own


def test_an_event_has_the_sources_of_a_plain_write(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "events.jsonl"
    for name, value in (
        (openlineage.SWITCH, "1"),
        ("OPENLINEAGE__TRANSPORT__TYPE", "file"),
        ("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(file)),
        ("OPENLINEAGE__TRANSPORT__APPEND", "true"),
    ):
        monkeypatch.setenv(name, value)
    openlineage.reset()
    table.add_columns({"gross": "net + tax"}).table.upsert({"id": [2], "net": [5.0]}, on="id")
    assert openlineage.flush(60)  # the thread imports the package
    openlineage.reset()
    (event, merged) = map(json.loads, file.read_text().splitlines())
    assert "columnLineage" not in merged["outputs"][0]["facets"]  # rows of unknown origin are no dataset
    lineage = event["outputs"][0]["facets"]["columnLineage"]["fields"]
    assert [(each["name"], each["field"]) for each in lineage["gross"]["inputFields"]] == [
        (table.uri, "net"), (table.uri, "tax"),
    ]  # fmt: skip
