"""Delete by workers equals the delete of one process."""

from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lance_core import InvalidInput, Table
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.rows.delete import delete
from tests.lance_core.tasks.in_process_workers import InProcessWorkers

ROWS = pa.table({"id": pa.array(range(100), pa.int64()), "x": [None if n % 7 == 0 else n / 3 for n in range(100)]})
PREDICATES = [pc.field("id") < 15, "id % 3 = 0", "x is null or id between 20 and 39", "id < 10", "true", "id = 1000"]


def create_table(directory: Path, *, stable: bool = False) -> str:
    uri = str(directory)
    Table.create(uri, ROWS, max_rows_per_file=10, stable_row_ids=stable, durable=False)
    return uri


def table_ref(uri: str) -> TableRef:
    return TableRef(uri, durable=False)


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("predicate", PREDICATES)
def test_a_delete_equals_that_of_one_process(tmp_path: Path, predicate: str | pc.Expression, stable: bool) -> None:
    distributed, local = (
        create_table(tmp_path / "spread", stable=stable),
        create_table(tmp_path / "alone", stable=stable),
    )
    for each in (predicate, "id > 50 and id % 2 = 1"):
        ours = delete(
            table_ref(distributed),
            each,
            options=WriteOptions(),
            runner=InProcessWorkers(slots=1, lost_partitions=frozenset({1})),
        )
        theirs = Table.open(local, durable=False).delete(each)
        assert (ours.version, ours.operation) == (theirs.version, theirs.operation)
        assert (ours.rows_added, ours.rows_removed) == (theirs.rows_added, theirs.rows_removed)
        assert [part.physical_rows for part in ours.table.fragments] == [
            part.physical_rows for part in theirs.table.fragments
        ]
        assert ours.table.to_table() == theirs.table.to_table()
        assert lance.dataset(distributed).to_table()["id"] == ours.table.to_table()["id"]
    assert Table.open(distributed).fsck().is_sound


def test_an_intent_runs_once(tmp_path: Path) -> None:
    uri = create_table(tmp_path / "t")
    first = delete(table_ref(uri), "id = 1", options=WriteOptions(intent="x"), runner=InProcessWorkers())
    workers = InProcessWorkers()
    again = delete(table_ref(uri), "id = 1", options=WriteOptions(intent="x"), runner=workers)
    assert (again.version, again.already_committed, workers.attempts) == (first.version, True, [])


def test_an_invalid_predicate_runs_no_task(tmp_path: Path) -> None:
    uri, workers = create_table(tmp_path / "t"), InProcessWorkers()
    with pytest.raises(InvalidInput, match="there is no column"):
        delete(table_ref(uri), "nope = 1", options=WriteOptions(), runner=workers)
    assert workers.attempts == []


def test_a_concurrent_delete_causes_a_second_plan(tmp_path: Path) -> None:
    """Another writer deletes one of the rows while the tasks run."""
    uri = create_table(tmp_path / "t")

    class WorkersWithConcurrentDelete(InProcessWorkers):
        def run(self, task: object, parts: int) -> pa.Table:
            answers = super().run(task, parts)  # type: ignore[arg-type]
            if len(self.attempts) == parts:
                Table.open(uri, durable=False).delete("id = 3")
            return answers

    workers = WorkersWithConcurrentDelete(slots=1)
    committed = delete(table_ref(uri), "id in (3, 55)", options=WriteOptions(), runner=workers)
    assert committed.rows_removed == 1
    assert len(workers.attempts) == 8
    assert committed.table.count_rows() == 98
