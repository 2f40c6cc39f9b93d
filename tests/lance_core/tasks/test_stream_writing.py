"""Stream writing: a batch commits exactly one version, however often it is repeated and wherever a process dies."""

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import ConflictError, InvalidInput, RetryableConflict, SchemaMismatch, StorageError, Table
from lance_core.format import naming
from lance_core.tasks.rows.write import FileLimits
from lance_core.tasks.streaming.stream_sink import BATCH, QUERY, RUN, MicroBatch, StreamedWrite, commit_batch
from lance_core.tasks.streaming.stream_source import ReadLimits
from tests.histories.cooperative_scheduler import ProcessKilled
from tests.histories.storage_backends import STORAGE_BACKENDS, StorageBackend, simulated_process
from tests.lance_core.in_memory_table import clean_up
from tests.lance_core.storage.manifest_stores.fault_injection import FaultPlan
from tests.lance_core.tasks.streaming_query import Checkpoint, run_query, write_batch, write_pieces


def rows(first: int, stop: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, stop), pa.int64()), "s": [f"s{n}" for n in range(first, stop)]})


def ids(uri: str) -> list[int]:
    return sorted(int(n) for n in Table.open(uri).to_table(columns=["id"])["id"].to_pylist())


def test_batches_are_versions(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    for number in range(3):
        committed = write_batch(uri, rows(number * 10, number * 10 + 10), number)
        assert committed is not None
        assert committed.version == number + 1
    table = Table.open(uri)
    assert ids(uri) == list(range(30))
    assert (
        dict(table.versions()[-1].properties) | {QUERY: "q", BATCH: "2", RUN: "run"} == table.versions()[-1].properties
    )
    assert table.fsck().is_sound


@pytest.mark.parametrize("replaces", [False, True])
def test_a_repeated_batch_commits_nothing(tmp_path: Path, replaces: bool) -> None:
    """A repetition with other rows changes nothing: the rows that were committed first remain."""
    uri = str(tmp_path / "t")
    Table.create(uri, rows(0, 5), durable=False)
    first = write_batch(uri, rows(10, 20), 0, replaces=replaces)
    Table.open(uri).append(rows(50, 51))
    before = sum(1 for _ in (tmp_path / "t" / "data").iterdir())
    again = write_batch(uri, rows(10, 22), 0, replaces=replaces)
    assert first is not None
    assert again is not None
    assert (again.version, again.already_committed, Table.open(uri).version) == (first.version, True, 3)
    assert sum(1 for _ in (tmp_path / "t" / "data").iterdir()) == before, "the repetition writes no data file"
    assert ids(uri) == [*([] if replaces else range(5)), *range(10, 20), 50]


def test_a_batch_is_recognized_after_a_cleanup_of_its_version(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    for number in range(4):
        write_batch(uri, rows(number, number + 1), number)
    assert clean_up(Table.open(uri)).versions
    again = write_batch(uri, rows(1, 2), 1)
    assert again is not None
    assert again.already_committed
    assert ids(uri) == [0, 1, 2, 3]


def test_two_queries_write_one_table(tmp_path: Path) -> None:
    """Both queries begin before the table exists."""
    uri = str(tmp_path / "t")
    messages = [
        write_pieces(uri, [rows(10 * n, 10 * n + 5).to_batches()], MicroBatch(f"q{n}", 0), schema=rows(0, 1).schema)
        for n in range(2)
    ]
    committed = [commit_batch(each, 0) for each in messages]
    assert [each.version for each in committed if each] == [1, 2]
    assert [commit_batch(each, 0).already_committed for each in messages] == [True, True]  # type: ignore[union-attr]
    assert ids(uri) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]


def test_a_batch_is_written_to_a_branch(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, rows(0, 5), durable=False).branches.create("b")
    schema = rows(0, 1).schema
    for _ in range(2):
        committed = commit_batch(
            write_pieces(uri, [rows(5, 7).to_batches()], MicroBatch("q", 0), schema=schema, branch="b"), 0
        )
        assert committed is not None
    assert sorted(Table.open(uri, branch="b").to_table()["id"].to_pylist()) == list(range(7))
    assert ids(uri) == list(range(5))


def test_two_drivers_of_one_batch_commit_once(tmp_path: Path) -> None:
    """Spark restarts the query while the driver that it considers dead continues: both have written their files."""
    uri = str(tmp_path / "t")
    Table.create(uri, rows(0, 1), durable=False)
    schema = rows(0, 1).schema
    messages = [
        write_pieces(uri, [rows(1, 5).to_batches()], MicroBatch("q", 0, run), schema=schema) for run in ("one", "two")
    ]
    with ThreadPoolExecutor(2) as threads:
        committed = list(threads.map(lambda each: commit_batch(each, 0), messages))
    assert {each.version for each in committed if each} == {2}
    assert ids(uri) == list(range(5))
    assert Table.open(uri).fsck().is_sound


def test_a_concurrently_created_table_with_another_schema(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    messages = write_pieces(uri, [rows(0, 5).to_batches()], MicroBatch("q", 0), schema=rows(0, 1).schema)
    Table.create(uri, pa.table({"s": ["x"], "id": [1]}), durable=False)
    with pytest.raises(RetryableConflict, match="created meanwhile"):
        commit_batch(messages, 0)
    write_batch(uri, rows(7, 9), 0)
    assert ids(uri) == [1, 7, 8]


def test_an_empty_batch_makes_no_version(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    assert write_batch(uri, rows(0, 0), 0) is None
    assert not Table.exists(uri)
    write_batch(uri, rows(0, 3), 1)
    assert write_batch(uri, rows(0, 0), 2) is None
    assert commit_batch([], 3) is None
    assert Table.open(uri).version == 1
    assert len(list((tmp_path / "t" / "_lance_assets" / "intents").iterdir())) == 1
    emptied = write_batch(uri, rows(0, 0), 4, replaces=True)
    assert emptied is not None
    assert (emptied.version, ids(uri)) == (2, [])


def test_a_batch_without_identity_is_rejected(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, rows(0, 1), durable=False)
    schema = rows(0, 1).schema
    unknown = write_pieces(uri, [rows(1, 2).to_batches()], None, schema=schema)
    with pytest.raises(InvalidInput, match="foreachBatch"):
        commit_batch(unknown, 0)
    late = write_pieces(uri, [rows(1, 2).to_batches()], MicroBatch("q", 3), schema=schema)
    with pytest.raises(InvalidInput, match="continuous"):
        commit_batch(late, 4)
    with pytest.raises(InvalidInput, match="continuous"):
        commit_batch([*late, *write_pieces(uri, [[]], MicroBatch("p", 3), schema=schema)], 3)
    assert Table.open(uri).version == 1


def test_a_value_that_does_not_fit(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, pa.table({"id": pa.array([1], pa.int8()), "s": ["x"]}), durable=False)
    with pytest.raises(SchemaMismatch, match="id"):
        write_batch(uri, rows(0, 500), 0)
    assert Table.open(uri).version == 1
    write_batch(uri, rows(0, 5), 0)
    assert ids(uri) == [0, 1, 1, 2, 3, 4]


def test_a_batch_conflicts_with_changes_since_its_begin(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = Table.create(uri, rows(0, 1), durable=False)
    messages = write_pieces(uri, [rows(1, 2).to_batches()], MicroBatch("q", 0), schema=rows(0, 1).schema)
    table.overwrite(pa.table({"other": ["x"]}))
    with pytest.raises(ConflictError):
        commit_batch(messages, 0)


def test_messages_contain_no_secret(tmp_path: Path) -> None:
    options = {"aws_secret_access_key": "hush"}
    write = StreamedWrite.begin(
        str(tmp_path / "t"), rows(0, 1).schema, replaces=False, limits=FileLimits(), storage_options=options
    )
    message = write.write_batches(iter(rows(0, 3).to_batches()), MicroBatch("q", 0))
    assert b"hush" not in pickle.dumps(message)
    assert "hush" not in repr(write)
    committed = commit_batch([pickle.loads(pickle.dumps(message))], 0, storage_options=options)
    assert committed is not None
    assert committed.rows_added == 3


def test_a_lost_idempotency_record_ends_the_commit(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write_batch(uri, rows(0, 3), 0)
    messages = write_pieces(uri, [rows(0, 3).to_batches()], MicroBatch("q", 0), schema=rows(0, 1).schema)
    assert all(each.already_committed for each in messages)
    for record in (tmp_path / "t" / "_lance_assets" / "intents").iterdir():
        record.unlink()
    with pytest.raises(StorageError, match="restart the query"):
        commit_batch(messages, 0)


def crash_points(calls: list[str]) -> Iterator[tuple[int, str]]:
    for call_number, call in enumerate(calls):
        for crash in ("before", "after", "adrift") if call.startswith(("create", "reserve")) else ("before", "after"):
            yield call_number, crash


@pytest.mark.parametrize("storage", ["memory", "bucket with manifest store", "disk"])
@pytest.mark.parametrize("replaces", [False, True])
def test_a_batch_that_dies_at_any_call_is_exactly_once(storage: str, replaces: bool) -> None:
    """Two processes repeat the batch after the crash."""
    backend = STORAGE_BACKENDS[storage]()
    with simulated_process(backend) as manifests:
        Table.create(backend.uri, rows(0, 5), manifest_store=manifests, durable=False)
    restore = backend.take_snapshot()

    def attempt(steps: FaultPlan) -> None:
        with simulated_process(backend, steps) as manifests:
            write_batch(backend.uri, rows(5, 9), 0, replaces=replaces, manifests=manifests)

    complete = FaultPlan()
    attempt(complete)
    crashes = list(crash_points(complete.calls))
    for call_number, crash in crashes[:: 5 if storage == "disk" else 1]:
        restore()
        steps = FaultPlan(call_number, crash)
        with suppress(ProcessKilled):
            attempt(steps)
        attempt(FaultPlan())
        steps.run_late_calls()
        attempt(FaultPlan())
        with simulated_process(backend) as manifests:
            table = Table.open(backend.uri, manifest_store=manifests, durable=False)
            found = sorted(table.to_table()["id"].to_pylist())
            assert found == list(range(5 if replaces else 0, 9)), (call_number, crash, complete.calls[call_number])
            assert table.version == 2, (call_number, crash, complete.calls[call_number])
    backend.close()


def create_source(backend: StorageBackend) -> None:
    with simulated_process(backend) as manifests:
        source = f"{backend.uri}-from"
        table = Table.create(source, rows(0, 6), max_rows_per_file=4, manifest_store=manifests, durable=False)
        for first in (6, 9, 12):
            table.append(rows(first, first + 3))


@pytest.mark.parametrize("storage", ["memory", "disk", "bucket with manifest store"])
def test_a_query_that_dies_at_any_call_is_exactly_once(storage: str) -> None:
    """The sink has each row once and one version for each batch, at whatever call the query dies."""
    backend = STORAGE_BACKENDS[storage]()
    create_source(backend)
    restore = backend.take_snapshot()
    source, limits = f"{backend.uri}-from", ReadLimits(rows=5)

    def attempt(checkpoint: Checkpoint, steps: FaultPlan) -> None:
        with simulated_process(backend, steps) as manifests:
            list(run_query(source, backend.uri, checkpoint, limits=limits, manifests=manifests))

    complete = FaultPlan()
    attempt(Checkpoint(), complete)
    crashes = list(crash_points(complete.calls))
    assert len(crashes) > 100
    for call_number, crash in crashes[:: 23 if storage == "disk" else 3]:
        restore()
        checkpoint, steps = Checkpoint(), FaultPlan(call_number, crash)
        with suppress(ProcessKilled):
            attempt(checkpoint, steps)
        with simulated_process(backend) as manifests:
            table = Table.open(source, manifest_store=manifests, durable=False)
            table.compact(target_rows=100)
            table.refresh().append(rows(15, 20))
        attempt(checkpoint, FaultPlan())
        steps.run_late_calls()
        with simulated_process(backend) as manifests:
            table = Table.open(backend.uri, manifest_store=manifests, durable=False)
            assert sorted(table.to_table()["id"].to_pylist()) == list(range(20)), (
                call_number,
                crash,
                complete.calls[call_number],
            )
            numbers = [int(version.properties[BATCH]) for version in table.versions()]
            assert numbers == sorted(set(numbers)), (call_number, crash, complete.calls[call_number])
    backend.close()


@pytest.mark.parametrize(
    "moment",
    [
        "before its end is written down",
        "before its rows are written",
        "before it is committed",
        "before that is written down",
    ],
)
@pytest.mark.parametrize("number", [0, 2])
def test_a_driver_that_dies_between_steps(tmp_path: Path, moment: str, number: int) -> None:
    source, sink = str(tmp_path / "from"), str(tmp_path / "to")
    Table.create(source, rows(0, 20), durable=False)
    checkpoint = Checkpoint()

    def fail_at_step(step: str) -> None:
        if step == moment and checkpoint.committed == number:
            raise ProcessKilled(step)

    with pytest.raises(ProcessKilled):
        list(run_query(source, sink, checkpoint, limits=ReadLimits(rows=6), on_step=fail_at_step))
    Table.open(source).append(rows(20, 25))
    Table.open(source).delete("id = 3") if number else None
    with suppress(InvalidInput):  # the delete ends the query after the batches before it
        list(run_query(source, sink, checkpoint, limits=ReadLimits(rows=6)))
    assert ids(sink) == list(range(25))
    assert list((tmp_path / "to" / naming.VERSIONS).glob("*.manifest"))
