"""Update by workers equals the update of one process."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.format.operations import Update, UpdateMode
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.rows.update import update
from tests.lance_core.dml.paired_tables import LINEAGE, PairedTables, create_paired_tables
from tests.lance_core.tasks.in_process_workers import InProcessWorkers

ROWS = pa.table(
    {
        "id": pa.array(range(40), pa.int64()),
        "x": [None if n % 7 == 0 else n / 4 for n in range(40)],
        "s": [f"text of {n}, which is longer than a number" for n in range(40)],
    }
)
LIMITS = FileLimits()
MOVES = ({"x": "x * 2", "s": "upper(s)"}, "id % 9 = 4")
IN_PLACE = ({"x": "x + 3"}, "id % 8 != 3")
ALL_ROWS = ({"x": "x * 2"}, None)
NO_MATCH = ({"x": "1.0"}, "id > 1000")
UNEVEN = ({"x": "1.0"}, "id < 4 or id = 39")
"""Judged alone, the first fragment would rewrite its column and the last one would move its row."""
UpdateArguments = tuple[Mapping[str, str], str | None]


def table_ref(uri: str) -> TableRef:
    return TableRef(uri, durable=False)


def run_update(uri: str, arguments: UpdateArguments, workers: InProcessWorkers) -> Update:
    committed = update(table_ref(uri), *arguments, limits=LIMITS, options=WriteOptions(), runner=workers)
    return operation_of(committed.table)


def operation_of(table: Table) -> Update:
    made_by = table.transaction()
    assert made_by is not None
    assert isinstance(made_by.operation, Update)
    return made_by.operation


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
@pytest.mark.parametrize(
    ("indexed", "deleted"), [((), ""), (("x",), "id in (4, 8, 9, 10, 11)")], ids=["plain", "indexed, with deletions"]
)
@pytest.mark.parametrize(
    "arguments",
    [MOVES, IN_PLACE, ALL_ROWS, NO_MATCH, UNEVEN],
    ids=["moves", "in place", "everywhere", "nowhere", "uneven"],
)
def test_results_equal_those_of_one_process_and_pylance(
    tmp_path: Path, arguments: UpdateArguments, deleted: str, indexed: tuple[str, ...], stable: bool
) -> None:
    pair = create_paired_tables(tmp_path, ROWS, stable=stable, indexed=indexed, deleted=deleted)
    shutil.copytree(pair.ours, tmp_path / "alone")
    pair.dataset.update(dict(arguments[0]), where=arguments[1])
    ours = run_update(pair.ours, arguments, InProcessWorkers(slots=2, lost_partitions=frozenset({0, 3})))
    local_table = Table.open(str(tmp_path / "alone"), durable=False).update(*arguments).table
    theirs = operation_of(local_table)
    assert (ours.mode, ours.fields_modified, ours.fields_assigned) == (
        theirs.mode,
        theirs.fields_modified,
        theirs.fields_assigned,
    )
    assert ours.updated_offsets == theirs.updated_offsets
    assert ours.removed_ids == theirs.removed_ids
    pair.check()
    columns = ["id", "x", "s", *(["_rowid", *LINEAGE] if stable else [])]
    assert pair.table.to_table(columns) == local_table.to_table(columns)
    assert pair.table.fsck().is_sound


def test_the_rewrite_strategy_is_chosen_once_for_all_partitions(tmp_path: Path) -> None:
    pair = create_paired_tables(tmp_path, ROWS, stable=False)
    made_by = run_update(pair.ours, UNEVEN, InProcessWorkers(slots=4))
    assert made_by.mode is UpdateMode.REWRITE_COLUMNS
    assert len(made_by.updated) == 2


def test_fragments_without_a_match_are_not_written(tmp_path: Path) -> None:
    pair = create_paired_tables(tmp_path, ROWS, stable=True)
    workers = InProcessWorkers(slots=3)
    made_by = run_update(pair.ours, ({"s": "'x'"}, "id in (5, 6, 30)"), workers)
    assert [fragment.id for fragment in made_by.updated] == [1, 7]
    assert workers.attempts == [*reversed(range(10)), 1, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({}, None), "values= is empty"),
        (({"nope": "1"}, None), "no such column"),
        (({"x": "1.0"}, "nope = 1"), "there is no column"),
        (({"x": "nope + 1"}, None), "nope"),
        (({"x": "= ="}, None), "character"),
    ],
)
def test_invalid_arguments_run_no_task(tmp_path: Path, arguments: UpdateArguments, message: str) -> None:
    pair, workers = create_paired_tables(tmp_path, ROWS, stable=False), InProcessWorkers()
    with pytest.raises(InvalidInput, match=message):
        run_update(pair.ours, arguments, workers)
    assert workers.attempts == []


def test_an_error_of_a_worker_keeps_its_type(tmp_path: Path) -> None:
    pair = create_paired_tables(tmp_path, ROWS, stable=False)
    with pytest.raises(InvalidInput):
        run_update(pair.ours, ({"id": "cast(s as bigint)"}, "id = 3"), InProcessWorkers())
    assert pair.table.version == 1


class WorkersWithConcurrentUpdate(InProcessWorkers):
    """Workers during whose second job another writer changes the table."""

    def __init__(self, pair: PairedTables, theirs: str) -> None:
        super().__init__(slots=5)
        self.pair, self.theirs, self.jobs = pair, theirs, list[int]()

    def run(self, task: object, parts: int) -> pa.Table:
        answers = super().run(task, parts)  # type: ignore[arg-type]
        self.jobs.append(parts)
        if len(self.jobs) == 2:
            self.pair.table.update({"s": "'theirs'"}, self.theirs)
        return answers


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
def test_unchanged_fragments_are_not_updated_again(tmp_path: Path, stable: bool) -> None:
    pair = create_paired_tables(tmp_path, ROWS, stable=stable)
    workers = WorkersWithConcurrentUpdate(pair, "id = 9")
    made_by = update(
        table_ref(pair.ours),
        {"s": "concat(s, '!')"},
        "id % 4 = 1",
        limits=LIMITS,
        options=WriteOptions(),
        runner=workers,
    )
    assert made_by.version == 3
    assert workers.jobs == [10, 5, 2, 2]
    rows = {row["id"]: row["s"] for row in lance.dataset(pair.ours).to_table().to_pylist()}
    assert rows[9] == "theirs!"
    assert all(rows[n].endswith("!") == (n % 4 == 1) for n in range(40))
    assert len(rows) == 40
    assert pair.table.fsck().is_sound
