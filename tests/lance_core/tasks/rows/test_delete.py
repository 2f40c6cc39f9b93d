"""Delete by workers equals the delete of one process."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.rows.delete import delete
from tests.lance_core.tasks.in_process_workers import InProcessWorkers

ROWS = pa.table({"id": pa.array(range(100), pa.int64()), "x": [None if n % 7 == 0 else n / 3 for n in range(100)]})
PREDICATES = ["id % 3 = 0", "x is null or id between 20 and 39", "id < 10", "true", "id = 1000"]


def made(place: Path, *, stable: bool = False) -> str:
    uri = str(place)
    Table.create(uri, ROWS, max_rows_per_file=10, stable_row_ids=stable, durable=False)
    return uri


def where(uri: str) -> TableRef:
    return TableRef(uri, durable=False)


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("predicate", PREDICATES)
def test_a_delete_equals_that_of_one_process(tmp_path: Path, predicate: str, stable: bool) -> None:
    spread, alone = made(tmp_path / "spread", stable=stable), made(tmp_path / "alone", stable=stable)
    for each in (predicate, "id > 50 and id % 2 = 1"):
        ours = delete(
            where(spread),
            each,
            options=WriteOptions(),
            runner=InProcessWorkers(slots=1, lost_partitions=frozenset({1})),
        )
        theirs = Table.open(alone, durable=False).delete(each)
        assert (ours.version, ours.operation) == (theirs.version, theirs.operation)
        assert (ours.rows_added, ours.rows_removed) == (theirs.rows_added, theirs.rows_removed)
        assert [part.physical_rows for part in ours.table.fragments] == [
            part.physical_rows for part in theirs.table.fragments
        ]
        assert ours.table.to_table() == theirs.table.to_table()
        assert lance.dataset(spread).to_table()["id"] == ours.table.to_table()["id"]
    assert Table.open(spread).fsck().is_sound


def test_an_intent_runs_once(tmp_path: Path) -> None:
    uri = made(tmp_path / "t")
    first = delete(where(uri), "id = 1", options=WriteOptions(intent="x"), runner=InProcessWorkers())
    loop = InProcessWorkers()
    again = delete(where(uri), "id = 1", options=WriteOptions(intent="x"), runner=loop)
    assert (again.version, again.already_committed, loop.attempts) == (first.version, True, [])


def test_an_invalid_predicate_runs_no_task(tmp_path: Path) -> None:
    uri, loop = made(tmp_path / "t"), InProcessWorkers()
    with pytest.raises(InvalidInput, match="there is no column"):
        delete(where(uri), "nope = 1", options=WriteOptions(), runner=loop)
    assert loop.attempts == []


def test_a_concurrent_delete_causes_a_second_plan(tmp_path: Path) -> None:
    """Another writer deletes one of the rows while the tasks run."""
    uri = made(tmp_path / "t")

    class Late(InProcessWorkers):
        def run(self, task: object, parts: int) -> pa.Table:
            answers = super().run(task, parts)  # type: ignore[arg-type]
            if len(self.attempts) == parts:
                Table.open(uri, durable=False).delete("id = 3")
            return answers

    loop = Late(slots=1)
    made_by = delete(where(uri), "id in (3, 55)", options=WriteOptions(), runner=loop)
    assert made_by.rows_removed == 1
    assert len(loop.attempts) == 8
    assert made_by.table.count_rows() == 98
