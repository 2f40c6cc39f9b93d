"""Pushed selection: workers read only the candidate rows of an index lookup on the driver."""

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import Table
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.expressions import Predicate
from lance_core.scan.column_resolution import filterable_schema
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.rows.delete import delete
from lance_core.tasks.rows.update import update
from lance_core.tasks.scan import pushed_selection
from lance_core.tasks.scan.aggregate import aggregate
from lance_core.tasks.scan.pushed_selection import fragments_to_scan
from lance_core.tasks.scan.read import ReadTask, VersionRef, count_rows, plan_read
from tests.lance_core.tasks.in_process_workers import InProcessWorkers

ROWS = pa.table({"id": range(500), "word": [f"w{n % 7}" for n in range(500)], "n": [n // 3 for n in range(500)]})
FILTERS = [
    "id IN (7, 107, 450)",
    "id = 107 AND n + 1 < 90",
    "word != 'w3' AND id > 380",
    "n BETWEEN 40 AND 42",
    "id % 5 = 0",
]


def create_table(directory: Path, *, indexed: bool = True) -> Table:
    """Create a table of four covered fragments and an uncovered one, with deleted rows in both kinds."""
    table = Table.create(str(directory), ROWS.slice(0, 400), max_rows_per_file=100, durable=False)
    for column, kind in {"id": "BTREE", "word": "BITMAP", "n": "ZONEMAP"}.items() if indexed else ():
        table = table.create_index(column, kind).table
    return table.append(ROWS.slice(400)).table.delete("id % 50 = 7").table


def read(table: Table, predicate: str, slots: int = 2) -> pa.Table:
    base = VersionRef(table.uri).snapshot()
    plan = plan_read(base, transport=lambda schema: schema, slots=slots, filter=predicate)
    task: ReadTask = pickle.loads(pickle.dumps(ReadTask(plan)))
    numbers = pa.RecordBatch.from_pydict({"id": pa.array(range(len(plan.partitions)), pa.int64())})
    return pa.Table.from_batches(task([numbers]), plan.work.transport)


@pytest.mark.parametrize("bytes_max", [pushed_selection.SELECTION_BYTES_MAX, 30, 0])
@pytest.mark.parametrize("predicate", FILTERS)
def test_rows_and_their_number(tmp_path: Path, predicate: str, bytes_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushed_selection, "SELECTION_BYTES_MAX", bytes_max)
    table = create_table(tmp_path / "t")
    expected = table.to_table(filter=predicate, use_indices=False)
    assert read(table, predicate).equals(expected)
    base = VersionRef(table.uri).snapshot()
    assert count_rows(base, predicate, runner=lambda: InProcessWorkers(slots=2)) == expected.num_rows
    sums = aggregate(
        base, f"select sum(n) as n from dataset where {predicate}", runner=lambda: InProcessWorkers(slots=2)
    )
    assert sums["n"].to_pylist() == [sum(expected["n"].to_pylist()) if expected.num_rows else None]


def test_one_row_is_one_task_with_one_row(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t")
    base = VersionRef(table.uri).snapshot()
    plan = plan_read(base, transport=lambda schema: schema, slots=8, filter="id = 108 AND id < 400")
    (partition,) = plan.partitions
    ranges = [
        (skip, take, None if selection is None else list(selection.selection.rows))
        for skip, take, selection in partition.ranges
    ]
    assert ranges == [(0, None, [8]), (0, None, None)]
    fragments, selection = fragments_to_scan(base, Predicate.parse("id IN (8, 108)", filterable_schema(base.manifest)))
    assert [fragment.id for fragment in fragments] == [0, 1, 4]
    assert [id for id, _ in selection.fragments] == [0, 1]


def test_an_exact_count_runs_no_task(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t").delete("id >= 400").table
    assert count_rows(VersionRef(table.uri).snapshot(), "id IN (7, 8, 9)", runner=lambda: pytest.fail("a task")) == 2


@pytest.mark.parametrize("predicate", FILTERS)
def test_update_and_delete_use_indices(tmp_path: Path, predicate: str) -> None:
    indexed, plain = create_table(tmp_path / "indexed"), create_table(tmp_path / "plain", indexed=False)
    for table in (indexed, plain):
        table_ref = TableRef(table.uri, durable=False)
        update(
            table_ref,
            {"n": "n + 1"},
            predicate,
            limits=FileLimits(),
            options=WriteOptions(),
            runner=InProcessWorkers(slots=2),
        )
        delete(
            table_ref,
            f"({predicate}) AND id > 100",
            options=WriteOptions(),
            runner=InProcessWorkers(slots=2, lost_partitions=frozenset({0})),
        )
    ours, theirs = (table.refresh().to_table().sort_by("id") for table in (indexed, plain))
    assert ours.equals(theirs)
