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
from tests.lance_core.tasks.in_process_workers import Loop
from tests.lance_core.tasks.rows.test_upsert import Rows

ROWS = pa.table({"id": range(60), "day": [f"2026-01-0{n % 3 + 1}" for n in range(60)]})
SECOND = pa.table({"id": range(100, 110), "day": ["2026-01-02"] * 10})
WHERE = "day = '2026-01-02'"


def run(
    uri: str,
    rows: Rows,
    where: str = WHERE,
    *,
    how: WriteOptions | None = None,
    loop: Loop | None = None,
    branch: str | None = None,
) -> Committed:
    return overwrite_slice(
        TableRef(uri, branch, durable=False),
        rows.table.schema,
        rows.stage,
        where,
        limits=FileLimits(),
        options=how or WriteOptions(),
        runner=loop or Loop(slots=2, lost=frozenset({1})),
    )


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
def test_as_one_process_does_it(tmp_path: Path, stable: bool) -> None:
    ours, alone = str(tmp_path / "ours"), str(tmp_path / "alone")
    Table.create(ours, ROWS, stable_row_ids=stable, max_rows_per_file=10, durable=False)
    shutil.copytree(ours, alone)
    did, does = run(ours, Rows(SECOND, 4)), Table.open(alone, durable=False).overwrite(SECOND, where=WHERE)
    assert (did.rows_added, did.rows_removed, did.operation) == (does.rows_added, does.rows_removed, does.operation)
    assert (did.rows_added, did.rows_removed, did.files) == (10, 20, 3)
    assert did.table.to_table() == does.table.to_table() == lance.dataset(ours).to_table()


def test_a_fragment_of_the_slice_alone_goes_as_a_whole(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, ROWS.sort_by("day"), max_rows_per_file=20, durable=False)
    done = run(uri, Rows(SECOND, 10)).table
    assert [fragment.id for fragment in done.fragments] == [0, 2, 3]
    assert not any(fragment.deletion_file for fragment in done.fragments)


def test_a_table_that_is_not_there_begins_with_it(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    how = WriteOptions("fill", {"by": "me"})
    with pytest.raises(InvalidInput, match="a row of the new rows does not match: day is '2026-01-01'"):
        run(uri, Rows(ROWS.slice(0, 2)), how=how)
    assert not Table.exists(uri)
    done, again = run(uri, Rows(SECOND), how=how), run(uri, Rows(SECOND), how=how)
    assert (done.version, done.operation, done.rows_added) == (1, "Overwrite", 10)
    assert (again.version, again.already_committed, Table.open(uri).version) == (1, True, 1)
    assert done.table.transaction().properties["by"] == "me"  # type: ignore[union-attr]
    assert lance.dataset(uri).count_rows() == 10
    with pytest.raises(NotFound, match="dev"):
        run(uri, Rows(SECOND), branch="dev")


def test_created_meanwhile(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")

    class Slow(Rows):
        def stage(self, task: WriteTask) -> pa.Table:
            staged = super().stage(task)
            Table.create(uri, ROWS, durable=False)
            return staged

    with pytest.raises(RetryableConflict, match="was created meanwhile; repeat the write") as refused:
        run(uri, Slow(SECOND), how=WriteOptions("fill"))
    assert refused.value.rule == "created_meanwhile"
    done = run(uri, Rows(SECOND), how=WriteOptions("fill"))
    assert (done.version, done.table.count_rows(WHERE), done.table.count_rows()) == (2, 10, 50)


def test_rows_are_made_once_and_parts_looked_at_again_only_where_they_changed(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, ROWS, max_rows_per_file=10, durable=False)
    beside = pa.table({"id": [1007, 1008], "day": ["2026-01-02", "2026-01-03"]})

    class Slow(Rows):
        def stage(self, task: WriteTask) -> pa.Table:
            Table.open(uri, durable=False).append(beside)
            return super().stage(task)

    rows, loop = Slow(SECOND), Loop(slots=2)
    done = run(uri, rows, loop=loop)
    assert (rows.staged, done.attempts, len(loop.ran)) == (1, 2, 7)
    assert (done.table.count_rows(WHERE), done.rows_removed) == (10, 21)
    assert done.table.count_rows("id = 1008") == 1


def test_a_branch_is_a_line_of_its_own(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, ROWS, durable=False).branches.create("dev")
    done = run(uri, Rows(SECOND), branch="dev")
    assert (done.table.branch, done.table.count_rows(), Table.open(uri).count_rows()) == ("dev", 50, 60)


def test_what_is_wrong_is_told_before_a_row_is_made(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, ROWS, durable=False)
    for data, where, error, message in (
        (SECOND, "nope = 1", InvalidInput, "no column 'nope'"),
        (SECOND, "true", InvalidInput, "reads no column"),
        (SECOND.append_column("x", pa.array([1] * 10)), WHERE, SchemaMismatch, "'x'"),
    ):
        rows = Rows(data)
        with pytest.raises(error, match=message):
            run(uri, rows, where)
        assert rows.staged == 0
    with pytest.raises(InvalidInput, match="a row of the new rows does not match: day is '2026-01-02'"):
        run(uri, Rows(SECOND), "day > '2026-01-02'")
    assert Table.open(uri).version == 1


def test_a_plan_travels_small() -> None:

    its = ReplaceScope.of(WHERE, TableSchema.from_arrow(ROWS.schema), what="t")
    assert pickle.loads(pickle.dumps(its)) == its
    assert len(pickle.dumps(its)) < 2000
