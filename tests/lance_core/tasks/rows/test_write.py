"""Write: the driver begins and finishes a write; function calls with pickled plans stand for the workers."""

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import Committed, InvalidInput, NotFound, RetryableConflict, SchemaMismatch, Table
from lance_core.tasks.rows.write import (
    RESULT,
    FileLimits,
    PlannedWrite,
    WriteTask,
    begin_append,
    begin_overwrite,
)

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})


def begin(uri: str, *, intent: str | None = None, create: bool = True, rows: pa.Table = ROWS) -> PlannedWrite:
    plan = begin_append(uri, rows.schema, create=create, intent=intent, limits=FileLimits())
    assert isinstance(plan, PlannedWrite)
    return plan


def run_workers(plan: PlannedWrite, *parts: pa.Table) -> pa.Table:
    """Run the task for each part as a worker does, from a pickle; return the encoded fragments."""
    task: WriteTask = pickle.loads(pickle.dumps(WriteTask(plan.plan)))
    return pa.Table.from_batches([batch for part in parts or (ROWS,) for batch in task(part.to_batches())], RESULT)


def test_two_workers_write_one_version(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    plan = begin(uri)
    committed = plan.finish(run_workers(plan, ROWS, ROWS), properties={"run": "7"})
    assert (committed.version, committed.rows_added, committed.files) == (1, 6, 2)
    table = Table.open(uri)
    assert table.to_table()["id"].to_pylist() == [1, 2, 3, 1, 2, 3]
    assert table.versions()[0].properties == {"run": "7"}
    assert table.id is not None


def test_small_batches_are_coalesced_first(tmp_path: Path) -> None:
    """Spark passes text in batches of a thousand rows, and a later batch may have another type."""
    rows = pa.table({"id": pa.array(range(40_000), pa.int64()), "name": ["x"] * 40_000})
    narrow = rows.set_column(0, "id", rows["id"].cast(pa.int32()))
    parts = [*rows.to_batches(max_chunksize=1000), *narrow.to_batches(max_chunksize=1000)]
    plan = begin(str(tmp_path / "t"))
    results = pa.Table.from_batches(WriteTask(plan.plan)(iter(parts)), RESULT)
    assert plan.finish(results).table.to_table() == pa.concat_tables([rows, rows])


def test_files_of_a_lost_attempt_add_no_rows(tmp_path: Path) -> None:
    plan = begin(str(tmp_path / "t"))
    run_workers(plan)  # an attempt whose result never reaches the driver
    committed = plan.finish(run_workers(plan))
    assert committed.table.count_rows() == 3
    assert len(list((tmp_path / "t" / "data").iterdir())) == 2


def test_a_committed_intent_returns_before_any_work(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    plan = begin(uri, intent="day 1")
    first = plan.finish(run_workers(plan))
    again = begin_append(uri, ROWS.schema, create=True, intent="day 1", limits=FileLimits())
    assert isinstance(again, Committed)
    assert (again.version, again.already_committed, again.rows_added) == (first.version, True, 3)


def test_an_abandoned_intent_is_resumed_with_its_uuid(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, ROWS)
    first = begin(uri, intent="k")
    run_workers(first)  # then the driver dies
    Table.open(uri).append(ROWS)  # by another writer
    second = begin(uri, intent="k")
    second_result = second.finish(run_workers(second))
    first_result = first.finish(run_workers(first))  # the first driver was only suspended
    assert second_result.version == first_result.version == 3
    assert first_result.already_committed
    assert Table.open(uri).count_rows() == 9


def test_no_rows_make_no_version(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, ROWS)
    committed = begin(uri).finish(RESULT.empty_table())
    assert (committed.version, committed.files) == (1, 0)
    assert Table.open(uri).version == 1


def test_an_append_without_create_needs_a_table(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no Lance table at"):
        begin(str(tmp_path / "t"), create=False)
    assert not (tmp_path / "t").exists()


def test_a_concurrently_created_table_is_a_conflict(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    plan = begin(uri)
    fragments = run_workers(plan)
    Table.create(uri, ROWS)
    with pytest.raises(RetryableConflict, match="created meanwhile; repeat"):
        plan.finish(fragments)
    assert Table.open(uri).count_rows() == 3


def test_columns_are_checked_on_the_driver(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, ROWS)
    with pytest.raises(SchemaMismatch, match="no column 'nme'") as raised:
        begin(uri, rows=ROWS.rename_columns(["id", "nme"]))
    assert (raised.value.column, raised.value.got) == ("nme", "string")


def test_an_overwrite_keeps_the_exact_schema(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    exact = pa.schema([pa.field("v", pa.list_(pa.float32(), 2), metadata={"k": "x"}), ("n", pa.uint8())])
    Table.create(uri, pa.table({"v": [[1.0, 2.0]], "n": [1]}, exact))
    inexact = pa.table({"v": pa.array([[3.0, 4.0]], pa.list_(pa.float32())), "n": pa.array([5], pa.int16())})
    plan = begin_overwrite(uri, inexact.schema, replace_schema=False, intent=None, limits=FileLimits())
    assert isinstance(plan, PlannedWrite)
    committed = plan.finish(run_workers(plan, inexact))
    assert committed.table.schema == exact
    assert committed.table.to_table().to_pydict() == {"v": [[3.0, 4.0]], "n": [5]}
    assert (committed.rows_added, committed.rows_removed) == (1, 1)


def test_options_stay_out_of_repr(tmp_path: Path) -> None:
    plan = begin_append(
        str(tmp_path / "t"),
        ROWS.schema,
        create=True,
        intent=None,
        limits=FileLimits(),
        storage_options={"aws_secret_access_key": "canary"},
    )
    assert "canary" not in repr(plan)


def test_a_failed_cast_is_raised_by_finish(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, pa.schema([("n", pa.uint8())]))
    source = pa.table({"n": pa.array([1, 300], pa.int64())})
    plan = begin(uri, rows=source)
    with pytest.raises(SchemaMismatch, match="column 'n' of type int64 does not convert to uint8") as raised:
        plan.finish(run_workers(plan, source))
    assert (raised.value.column, raised.value.expected, raised.value.got) == ("n", "uint8", "int64")
    assert Table.open(uri).version == 1


def test_an_intent_without_rows_can_be_repeated_with_rows(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, ROWS)
    assert begin(uri, intent="day 2").finish(RESULT.empty_table()).rows_added == 0
    Table.open(uri).append(ROWS)
    plan = begin(uri, intent="day 2")
    committed = plan.finish(run_workers(plan))
    assert (committed.version, committed.rows_added, committed.already_committed) == (3, 3, False)


def test_an_intent_is_one_change(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    plan = begin(uri, intent="k")
    plan.finish(run_workers(plan))
    with pytest.raises(InvalidInput, match=r"another change already \(append, and this is overwrite\)"):
        begin_overwrite(uri, ROWS.schema, replace_schema=False, intent="k", limits=FileLimits())
