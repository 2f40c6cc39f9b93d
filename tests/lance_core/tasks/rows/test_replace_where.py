"""Replace where by workers equals that of one process."""

import pickle
import shutil
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import Committed, InvalidInput, NotFound, RetryableConflict, SchemaMismatch, Table
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.dml.replace_where import ReplaceScope
from lance_core.format.schema import TableSchema
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.rows.replace_where import overwrite_slice
from lance_core.tasks.rows.write import WriteTask
from tests.lance_core.tasks.in_process_workers import InProcessWorkers
from tests.lance_core.tasks.rows.test_upsert import StagedSource

ROWS = pa.table({"id": range(60), "day": [f"2026-01-0{n % 3 + 1}" for n in range(60)]})
SECOND = pa.table({"id": range(100, 110), "day": ["2026-01-02"] * 10})
WHERE = "day = '2026-01-02'"


def run_overwrite(
    uri: str,
    rows: StagedSource,
    where: str = WHERE,
    *,
    options: WriteOptions | None = None,
    workers: InProcessWorkers | None = None,
    branch: str | None = None,
) -> Committed:
    return overwrite_slice(
        TableRef(uri, branch, durable=False),
        rows.table.schema,
        rows.stage,
        where,
        limits=FileLimits(),
        options=options or WriteOptions(),
        runner=workers or InProcessWorkers(slots=2, lost_partitions=frozenset({1})),
    )


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
def test_an_overwrite_equals_that_of_one_process(tmp_path: Path, stable: bool) -> None:
    ours, alone = str(tmp_path / "ours"), str(tmp_path / "alone")
    Table.create(ours, ROWS, stable_row_ids=stable, max_rows_per_file=10, durable=False)
    shutil.copytree(ours, alone)
    distributed, local_result = (
        run_overwrite(ours, StagedSource(SECOND, 4)),
        Table.open(alone, durable=False).overwrite(SECOND, where=WHERE),
    )
    assert (distributed.rows_added, distributed.rows_removed, distributed.operation) == (
        local_result.rows_added,
        local_result.rows_removed,
        local_result.operation,
    )
    assert (distributed.rows_added, distributed.rows_removed, distributed.files) == (10, 20, 3)
    assert distributed.table.to_table() == local_result.table.to_table() == lance.dataset(ours).to_table()


def test_a_fragment_within_the_slice_is_removed_as_a_whole(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, ROWS.sort_by("day"), max_rows_per_file=20, durable=False)
    committed = run_overwrite(uri, StagedSource(SECOND, 10)).table
    assert [fragment.id for fragment in committed.fragments] == [0, 2, 3]
    assert not any(fragment.deletion_file for fragment in committed.fragments)


def test_an_overwrite_creates_a_missing_table(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    options = WriteOptions("fill", {"by": "me"})
    with pytest.raises(InvalidInput, match="a row of the new rows does not match: day is '2026-01-01'"):
        run_overwrite(uri, StagedSource(ROWS.slice(0, 2)), options=options)
    assert not Table.exists(uri)
    committed, again = (
        run_overwrite(uri, StagedSource(SECOND), options=options),
        run_overwrite(uri, StagedSource(SECOND), options=options),
    )
    assert (committed.version, committed.operation, committed.rows_added) == (1, "Overwrite", 10)
    assert (again.version, again.already_committed, Table.open(uri).version) == (1, True, 1)
    assert committed.table.transaction().properties["by"] == "me"  # type: ignore[union-attr]
    assert lance.dataset(uri).count_rows() == 10
    with pytest.raises(NotFound, match="dev"):
        run_overwrite(uri, StagedSource(SECOND), branch="dev")


def test_a_concurrently_created_table_is_a_conflict(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")

    class SourceWithConcurrentChange(StagedSource):
        def stage(self, task: WriteTask) -> pa.Table:
            staged = super().stage(task)
            Table.create(uri, ROWS, durable=False)
            return staged

    with pytest.raises(RetryableConflict, match="was created meanwhile; repeat the write") as raised:
        run_overwrite(uri, SourceWithConcurrentChange(SECOND), options=WriteOptions("fill"))
    assert raised.value.rule == "created_meanwhile"
    committed = run_overwrite(uri, StagedSource(SECOND), options=WriteOptions("fill"))
    assert (committed.version, committed.table.count_rows(WHERE), committed.table.count_rows()) == (2, 10, 50)


def test_rows_are_staged_once_and_only_changed_partitions_are_read_again(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, ROWS, max_rows_per_file=10, durable=False)
    concurrent_rows = pa.table({"id": [1007, 1008], "day": ["2026-01-02", "2026-01-03"]})

    class SourceWithConcurrentChange(StagedSource):
        def stage(self, task: WriteTask) -> pa.Table:
            Table.open(uri, durable=False).append(concurrent_rows)
            return super().stage(task)

    rows, workers = SourceWithConcurrentChange(SECOND), InProcessWorkers(slots=2)
    committed = run_overwrite(uri, rows, workers=workers)
    assert (rows.stage_count, committed.attempts, len(workers.attempts)) == (1, 2, 7)
    assert (committed.table.count_rows(WHERE), committed.rows_removed) == (10, 21)
    assert committed.table.count_rows("id = 1008") == 1


def test_an_overwrite_on_a_branch_leaves_main_unchanged(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, ROWS, durable=False).branches.create("dev")
    committed = run_overwrite(uri, StagedSource(SECOND), branch="dev")
    assert (committed.table.branch, committed.table.count_rows(), Table.open(uri).count_rows()) == ("dev", 50, 60)


def test_errors_are_raised_before_rows_are_staged(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, ROWS, durable=False)
    for data, where, error, message in (
        (SECOND, "nope = 1", InvalidInput, "no column 'nope'"),
        (SECOND, "true", InvalidInput, "reads no column"),
        (SECOND.append_column("x", pa.array([1] * 10)), WHERE, SchemaMismatch, "'x'"),
    ):
        rows = StagedSource(data)
        with pytest.raises(error, match=message):
            run_overwrite(uri, rows, where)
        assert rows.stage_count == 0
    with pytest.raises(InvalidInput, match="a row of the new rows does not match: day is '2026-01-02'"):
        run_overwrite(uri, StagedSource(SECOND), "day > '2026-01-02'")
    assert Table.open(uri).version == 1


def test_a_plan_has_a_small_pickle() -> None:

    scope = ReplaceScope.of(WHERE, TableSchema.from_arrow(ROWS.schema), what="t")
    assert pickle.loads(pickle.dumps(scope)) == scope
    assert len(pickle.dumps(scope)) < 2000
