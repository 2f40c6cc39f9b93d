"""Column sources: every change that computes columns records from which ones, in one process and by workers, and the
record of the caller replaces that of the plan."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import Committed, Table
from lance_core.commit import openlineage
from lance_core.commit.openlineage import COLUMNS
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.dml.computed_column import ComputedColumn
from lance_core.tasks.columns.computed_fill import Bounds, compute_columns
from lance_core.tasks.columns.map_columns import Computation, map_columns
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.rows.update import update
from tests.lance_core.tasks.in_process_workers import InProcessWorkers

ROWS = pa.table({"id": [1, 2], "net": [2.0, 4.0], "tax": [0.5, 0.25], "city": ["a", "b"]})
TOTAL = pa.schema([("total", pa.float64())])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t.lance"), ROWS, durable=False)


def recorded(committed: Committed) -> dict[str, list[str]]:
    """Return the sources that a version records, all of which are columns of the table itself."""
    transaction = committed.table.transaction()
    assert transaction is not None
    if COLUMNS not in transaction.properties:
        return {}
    value = json.loads(transaction.properties[COLUMNS])
    assert value["tables"] == [[committed.table.uri, None]]
    return {column: [name for _, name in sources] for column, sources in value["columns"].items()}


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
    assert recorded(merged) == {}
    renamed = merged.table.alter_column("gross", rename="sum")
    assert recorded(renamed) == {"sum": ["gross"]}
    assert recorded(renamed.table.alter_column("sum", nullable=True)) == {}


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
    table.add_columns({"gross": "net + tax"})
    assert openlineage.flush()
    openlineage.reset()
    (event,) = map(json.loads, file.read_text().splitlines())
    lineage = event["outputs"][0]["facets"]["columnLineage"]["fields"]
    assert [(each["name"], each["field"]) for each in lineage["gross"]["inputFields"]] == [
        (table.uri, "net"), (table.uri, "tax"),
    ]  # fmt: skip
