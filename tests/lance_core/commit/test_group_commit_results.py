"""Shared data files: rows of concurrent appends go into one file, each append gets its own result, and no append
references a file that cannot be committed.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import CommitUndecided, StorageError, Table
from lance_core.commit import data_files, group_commit
from lance_core.commit.write_protocol import StartedWrite, WriteResult, begin, finish_append
from lance_core.coordination import idempotency
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.datafiles.ipc_codec import IpcCodec
from lance_core.format import naming
from lance_core.format.fragment import StorageVersion
from lance_core.format.ids import Version
from lance_core.maintenance.retention_guards import expired_intents, files_in_progress
from lance_core.transactions.fold import parts_of
from lance_core.versions.snapshot import load_transaction
from tests.lance_core.concurrent_appends import (
    PUT_OF_VERSION_3,
    buffered_rows,
    commit_together,
    concurrent_appends,
    fail_every_call,
    raiser_of,
)
from tests.lance_core.in_memory_table import (
    Fault,
    FaultyStore,
    InMemoryTable,
    deterministic_runtime,
    on_call,
    on_create,
)


def test_appends_of_rows_share_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with concurrent_appends(monkeypatch, 3) as appends:
        appends.append("", rows=[1])
        appends.append("", rows=[2, 3, 4])
        appends.append("", rows=[5, 6])
    results = appends.results()
    assert [each.snapshot.version for each in results] == [2, 3, 3, 3]
    assert appends.rows_by_file() == [[1, 2, 3, 4, 5, 6]]
    assert [each.summary.rows_added for each in results[1:]] == [1, 3, 2]
    assert [each.summary.files for each in results[1:]] == [1, 1, 1]
    (file,) = appends.table.at(3).manifest.fragments[-1].files
    assert sum(each.summary.bytes for each in results[1:]) == file.size
    assert not any(each.already_committed for each in results)


def test_appends_of_files_share_a_version_with_appends_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that appends files does not write rows for others."""
    with concurrent_appends(monkeypatch, 5) as appends:
        appends.append("a")
        appends.append("", rows=[1])
        appends.append("b")
        appends.append("", rows=[2])
        appends.append("c", run="other")
    results = appends.results()
    assert [each.snapshot.version for each in results] == [2, 3, 4, 3, 4, 5]
    assert appends.rows_by_file() == [[1, 2]]
    assert sorted(name for name in appends.table.file_names() if len(name) == 1) == ["a", "b", "c"]
    assert [each.summary.rows_added for each in results] == [1] * 6


def test_separate_files_follow_the_shared_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with concurrent_appends(monkeypatch, 4) as appends:
        appends.append("", rows=[1])
        appends.append("b", intent="b")
        appends.append("", rows=[2, 3])
        appends.append("c")
    results = appends.results()
    assert [each.snapshot.version for each in results] == [2, 3, 3, 3, 3]
    assert [each.summary.rows_added for each in results] == [1, 1, 1, 2, 1]
    assert [each.summary.bytes for each in results[2::2]] == [1, 1]
    assert appends.rows_by_file() == [[1, 2, 3]]
    assert appends.table.file_names()[-2:] == ["b", "c"]


def test_a_shared_file_respects_the_row_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = FileLimits(rows_max=3)
    with concurrent_appends(monkeypatch, 6) as appends:
        appends.append("", rows=[1, 1], limits=limits)
        appends.append("", rows=[2, 2], limits=limits)
        appends.append("", rows=[3], limits=limits)
        appends.append("", rows=[4], limits=FileLimits(rows_max=4))
        appends.append("", rows=[5, 5, 5, 5], limits=limits)
        appends.append("", rows=[6], limits=limits)
    assert [each.snapshot.version for each in appends.results()] == [2, 3, 4, 3, 5, 6, 4]
    assert appends.rows_by_file() == [[1, 1, 3], [2, 2, 6], [4], [5, 5, 5], [5]]


def test_a_shared_file_respects_the_byte_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = FileLimits(bytes_max=24)
    with concurrent_appends(monkeypatch, 3) as appends:
        appends.append("", rows=[1, 1], limits=limits)
        appends.append("", rows=[2, 2], limits=limits)
        appends.append("", rows=[3], limits=limits)
    assert [each.snapshot.version for each in appends.results()] == [2, 3, 4, 3]
    assert appends.rows_by_file() == [[1, 1, 3], [2, 2]]


def test_only_rows_of_one_storage_version_share_a_file() -> None:
    ours = buffered_rows({"id": [1]})
    assert ours.can_share_file(buffered_rows({"id": [2]}))
    assert not ours.can_share_file(replace(ours, version=StorageVersion(2, 0)))


def test_rows_that_arrive_during_the_write_join_the_file() -> None:
    others = (buffered_rows({"id": rows}) for rows in ([2, 3], [4], [5]))
    location = InMemoryTable().location()
    (written,) = data_files.write_shared_file(
        location, buffered_rows({"id": [1]}), others, deterministic_runtime().new_uuid
    )
    assert IpcCodec(location.store).open(written.files[0].qualified_path).table["id"].to_pylist() == [1, 2, 3, 4, 5]
    assert written.physical_rows == 5


def test_the_transaction_records_the_rows_of_each_append(monkeypatch: pytest.MonkeyPatch) -> None:
    with concurrent_appends(monkeypatch, 3) as appends:
        for rows in ([1], [2, 2], [3, 3, 3]):
            appends.append("", rows=rows)
    transaction = load_transaction(appends.table.location(), appends.table.at(3).manifest)
    assert transaction
    assert appends.rows_by_file() == [[1, 2, 2, 3, 3, 3]]
    positions = [(part.first_row, part.append.fragments[0].physical_rows) for part in parts_of(transaction)]
    assert positions == [(0, 1), (1, 2), (3, 3)]


def test_a_shared_file_has_at_most_shared_bytes_max(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "SHARED_BYTES_MAX", 24)
    with concurrent_appends(monkeypatch, 4) as appends:
        appends.append("", rows=[1, 1])
        appends.append("", rows=[2, 2])
        appends.append("", rows=[3])
        appends.append("", rows=[4])
    assert appends.results()
    assert appends.rows_by_file() == [[1, 1, 3], [2, 2, 4]]


def test_an_append_in_a_shared_file_is_found_by_its_intent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the file nor the commit is in the record, as after a process that is killed right after the put."""
    with concurrent_appends(monkeypatch, 2) as appends:
        monkeypatch.setattr("lance_core.coordination.idempotency.record_commit", lambda *args, **named: None)
        appends.append("", rows=[1], intent="a")
        appends.append("", rows=[2, 3], intent="b")
    monkeypatch.undo()
    summary = appends.results()[2].summary
    again = appends.table.append("again", intent="b", writer=9)
    assert (again.snapshot.version, again.already_committed) == (3, True)
    assert again.summary == summary
    assert (summary.rows_added, summary.files) == (2, 1)
    assert appends.rows_by_file() == [[1, 2, 3]]


def test_rows_with_other_columns_go_into_a_separate_file(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    table = Table.create(str(tmp_path / "t"), schema)
    wide, narrow = pa.table({"a": [1], "b": ["x"]}, schema), pa.table({"a": [2]})
    results = commit_together(table, wide, narrow, wide)
    assert [each.snapshot.version for each in results] == [2, 3, 2]
    assert table.refresh().to_table()["b"].to_pylist() == ["x", "x", None]


def test_appends_write_separate_files_after_a_failed_shared_write(monkeypatch: pytest.MonkeyPatch) -> None:
    with concurrent_appends(monkeypatch, 3) as appends:
        appends.append("", rows=[1], intent="a")
        appends.append("b")
        appends.append("", rows=[2])
        appends.store.faults.append(Fault(on_call("put", naming.DATA), "fails"))
    assert [each.snapshot.version for each in appends.results()] == [2, 3, 4, 5]
    assert appends.rows_by_file() == [[1], [2]]


def test_a_truncated_shared_file_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    def truncate_shared_file() -> None:
        store = appends.store.inner
        (path,) = (each.path for each in store.walk(naming.DATA) if "alone" not in each.path and "fi" not in each.path)
        store.put(path, store.read(path)[:-1])

    with concurrent_appends(monkeypatch, 2) as appends:
        appends.append("", rows=[1])
        appends.append("", rows=[2])
        appends.store.faults.append(Fault(on_call("head", naming.DATA), "", truncate_shared_file))
    assert [each.snapshot.version for each in appends.results()] == [2, 3, 4]
    assert appends.rows_by_file() == [[1], [2]]


def test_rows_that_cannot_be_written_do_not_fail_other_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second failure hits the leader, which then writes alone."""
    with concurrent_appends(monkeypatch, 3) as appends:
        for number in (1, 2, 3):
            appends.append("", rows=[number])
        appends.store.faults += [Fault(on_call("put", naming.DATA), "fails")] * 2
    errors = [answer.exception() for answer in appends.futures]
    assert [type(each) for each in errors] == [type(None), StorageError, type(None), type(None)]
    assert appends.rows_by_file() == [[2], [3]]


def test_appends_write_separate_files_after_a_failed_shared_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    with concurrent_appends(monkeypatch, 3) as appends:
        for value in (1, 2, 3):
            appends.append("", rows=[value], intent=f"value {value}")
        appends.store.faults.append(Fault(PUT_OF_VERSION_3, "fails"))
    assert [each.snapshot.version for each in appends.results()] == [2, 3, 4, 5]
    assert appends.rows_by_file() == [[1], [2], [3]]


def test_a_file_of_an_append_is_registered_with_its_intent() -> None:
    """A repetition may take a while, and a cleanup must not delete the file until then."""
    store = FaultyStore()
    table = InMemoryTable(store)
    table.create("first")
    started = begin(table.location(), table.at(), verb="append", intent="a", runtime=deterministic_runtime(1))
    store.faults.append(Fault(on_create(naming.VERSIONS), "fails"))
    assert isinstance(started, StartedWrite)
    with pytest.raises(StorageError):
        finish_append(started, buffered_rows({"id": [1]}), properties={}, attempts=1)
    (file,) = idempotency.read_record(store, idempotency.path_of("a")).files
    assert store.head(f"{naming.DATA}/{file}")


def append_rows(table: InMemoryTable, intent: str | None, writer: int = 1) -> WriteResult:
    runtime = deterministic_runtime(writer)
    started = begin(table.location(), table.at(), verb="append", intent=intent, runtime=runtime)
    if isinstance(started, WriteResult):
        return started
    return finish_append(started, buffered_rows({"id": [1]}), properties={}, attempts=1)


def test_an_intent_costs_two_calls_more() -> None:
    """The claim and the commit are recorded; a cleanup knows the record by its size, and does not read it."""
    store = FaultyStore()
    table = InMemoryTable(store)
    table.create("first")
    append_rows(table, None, writer=9)  # the first append of a process checks the names of the manifests
    calls = []
    for writer, intent in enumerate((None, "a", None, "b"), 1):
        store.calls.clear()
        append_rows(table, intent, writer)
        calls.append(len(store.calls))
    assert calls == [calls[0], calls[0] + 2] * 2
    store.calls.clear()
    now, patience = datetime.now(UTC), timedelta(days=7)
    assert files_in_progress(store, now=now, patience=patience) == set()
    assert expired_intents(store, now=now + timedelta(days=31)) == sorted(map(idempotency.path_of, ("a", "b")))
    assert [path for call, path in store.calls if call == "read"] == []


def test_a_removed_commit_is_found_by_the_name_of_its_file() -> None:
    """The writer dies before it records the commit, and a cleanup of another engine removes the version at once."""
    store = FaultyStore()
    table = InMemoryTable(store)
    table.create("first")
    store.faults.append(Fault(on_call("put", idempotency.DIRECTORY), "fails"))
    with pytest.raises(CommitUndecided, match="committed as version 2"):
        append_rows(table, "a")
    assert idempotency.read_record(store, idempotency.path_of("a")).landing is None
    table.append("later", writer=2)
    store.delete(naming.manifest_path(Version(2)))
    again = append_rows(table, "a", writer=3)
    assert (again.already_committed, again.summary.version, again.summary.rows_added) == (True, 2, 1)
    assert len(table.file_names()) == 3


def test_an_append_without_followers_is_written_once() -> None:
    store = FaultyStore()
    table = InMemoryTable(store)
    table.create("first")
    started = begin(table.location(), table.at(), verb="append", intent=None, runtime=deterministic_runtime(1))
    store.faults.append(Fault(on_call("put", naming.DATA), "fails"))
    assert isinstance(started, StartedWrite)
    with pytest.raises(StorageError):
        finish_append(started, buffered_rows({"id": [1]}), properties={}, attempts=1)
    assert table.file_names() == ["first"]


def test_rows_committed_by_another_process_are_not_committed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process has the same intent and commits first."""
    with concurrent_appends(monkeypatch, 3) as appends:
        for value in (1, 2, 3):
            appends.append("", rows=[value], intent=f"value {value}")
        other = InMemoryTable(appends.store.inner)
        assert other.append("twin", intent="value 2", base=1, writer=8).snapshot.version == 2
    results = appends.results()
    assert (results[2].snapshot.version, results[2].already_committed) == (2, True)
    assert appends.rows_by_file() == [[1], [3]]
    assert appends.table.file_names().count("twin") == 1


def test_two_appends_of_one_intent_do_not_share_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second append finds the commit of the first, and the others still share a version."""
    with concurrent_appends(monkeypatch, 3) as appends:
        appends.append("", rows=[1])
        appends.append("", rows=[2], intent="twins")
        appends.append("", rows=[2], intent="twins")
    results = appends.results()
    assert [each.snapshot.version for each in results] == [2, 3, 3, 3]
    assert [each.already_committed for each in results] == [False, False, False, True]
    assert results[3].summary == results[2].summary
    assert appends.rows_by_file() == [[1, 2]]


def test_a_shared_file_is_written_once_when_its_commit_is_rebased(monkeypatch: pytest.MonkeyPatch) -> None:
    with concurrent_appends(monkeypatch, 2) as appends:
        appends.append("", rows=[1])
        appends.append("", rows=[2])
        appends.store.faults.append(
            Fault(PUT_OF_VERSION_3, "", lambda: InMemoryTable(appends.store.inner).append("theirs", writer=7))
        )
    results = appends.results()
    assert [each.snapshot.version for each in results] == [2, 4, 4]
    assert [each.attempts for each in results] == [1, 2, 2]
    assert appends.rows_by_file() == [[1, 2]]
    assert len(appends.store.inner.walk(naming.DATA)) == 4


def test_followers_continue_after_their_writer_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows cannot have been committed, so no follower is undecided."""
    with concurrent_appends(monkeypatch, 3) as appends:
        for value in (1, 2, 3):
            appends.append("", rows=[value])
        appends.store.faults.append(Fault(on_call("put", naming.DATA), "", raiser_of(KeyboardInterrupt())))
    assert isinstance(appends.futures[1].exception(), KeyboardInterrupt)
    assert [appends.futures[number].result().snapshot.version for number in (2, 3)] == [3, 4]
    assert appends.rows_by_file() == [[2], [3]]


def test_an_unanswered_shared_file_is_undecided_for_all_its_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    with concurrent_appends(monkeypatch, 2) as appends:
        appends.append("", rows=[1], intent="a")
        appends.append("", rows=[2], intent="b")
        appends.store.faults.append(Fault(PUT_OF_VERSION_3, "lost", lambda: fail_every_call(appends.store)))
    assert [type(appends.futures[number].exception()) for number in (1, 2)] == [CommitUndecided] * 2
    appends.store.faults.clear()
    for name in ("a", "b"):
        again = appends.table.append("again", intent=name, writer=9)
        assert (again.snapshot.version, again.already_committed) == (3, True)
    assert appends.rows_by_file() == [[1, 2]]


def test_an_append_that_waits_too_long_writes_its_own_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "QUEUE_PATIENCE_SECONDS", 0.01)
    with concurrent_appends(monkeypatch, 1) as appends:
        appends.append("", rows=[1], intent="impatient")
        assert appends.futures[1].result(60).snapshot.version == 2
    assert appends.futures[0].result().snapshot.version == 3
    assert appends.rows_by_file() == [[1]]


COLUMNS = {
    "dictionaries": lambda at: pa.array(["a", f"b{at}", None], pa.string()).dictionary_encode(),
    "lists": lambda at: pa.array([[at], None, []], pa.list_(pa.int32())),
    "fixed": lambda at: pa.array([[at, 1.0], [2.0, 3.0], [4.0, at]], pa.list_(pa.float32(), 2)),
    "structs": lambda at: pa.array([{"x": at, "y": "y"}, None, {"x": None, "y": str(at)}]),
    "decimals": lambda at: pa.array([at, None, 7], pa.decimal128(20, 2)),
    "slices": lambda at: pa.array([{"x": number} for number in range(10)]).slice(at, 3),
    "bools": lambda at: pa.array([bool(at % 2), None, True]),
    "nothing": lambda at: pa.nulls(3, pa.int8()),
}


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
@pytest.mark.parametrize("column", COLUMNS)
def test_a_shared_file_has_the_rows_in_order_of_arrival(column: str, stable: bool, tmp_path: Path) -> None:
    uri, inputs = str(tmp_path / "t"), [pa.table({"v": COLUMNS[column](at)}) for at in range(4)]
    table = Table.create(uri, inputs[0].schema, stable_row_ids=stable)
    results = commit_together(table, *inputs)
    assert [each.snapshot.version for each in results] == [2] * 4
    expected = [row for rows in inputs for row in rows.to_pylist()]
    table = table.refresh()
    assert table.to_table().to_pylist() == lance.dataset(uri).to_table().to_pylist() == expected
    assert len(table.manifest.fragments) == 1
    if stable:
        assert table.to_table(with_row_id=True)["_rowid"].to_pylist() == list(range(12))
    assert table.fsck().errors == ()


def test_blobs_of_several_appends_accompany_the_shared_file(tmp_path: Path) -> None:
    sizes = (10, 100_000, 5_000_000)
    schema = pa.schema([pa.field("v", pa.large_binary(), metadata={"lance-encoding:blob": "true"})])
    inputs = [pa.table({"v": pa.array([bytes([at]) * size], pa.large_binary())}) for at, size in enumerate(sizes)]
    table = Table.create(str(tmp_path / "t"), schema)
    commit_together(table, *inputs)
    table = table.refresh()
    blobs = table.blobs("v", [0, 1, 2])
    assert [blob.read() for blob in blobs if blob] == [rows["v"][0].as_py() for rows in inputs]
    assert table.fsck().errors == ()
