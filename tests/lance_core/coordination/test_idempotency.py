"""Idempotency: an intent is committed in exactly one version when it is repeated, concurrent, retried after a crash,
retried in another process, or retried after a cleanup.
"""

import json
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import PERMANENT_PREFIX, AlreadyExists, CommitUndecided, Corrupt, InvalidInput, StorageError, Table
from lance_core.commit import data_files
from lance_core.coordination.idempotency import path_of
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.operations import Append
from lance_core.maintenance import cleanup
from lance_core.versions.snapshot import list_versions
from tests.lance_core.in_memory_table import Fault, FaultyStore, InMemoryTable, on_call, on_create

MANIFESTS = naming.VERSIONS + "/"
MANIFEST_2 = naming.manifest_path(Version(2))
INTENTS = naming.PROJECT_DIRECTORY + "/intents/"


def rows(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def read_record(store: FaultyStore, intent: str) -> dict[str, object]:
    record = json.loads(store.inner.read(path_of(intent)))
    assert isinstance(record, dict)
    return record


def table_and_store() -> tuple[InMemoryTable, FaultyStore]:
    store = FaultyStore()
    table = InMemoryTable(store)
    table.create("first")
    store.calls.clear()
    return table, store


def test_the_same_intent_twice_is_one_version() -> None:
    table, _ = table_and_store()
    first = table.append("mine", intent="load 7")
    again = table.append("again", intent="load 7", writer=2)
    assert (first.snapshot.version, first.already_committed) == (2, False)
    assert (again.snapshot.version, again.already_committed, again.attempts) == (2, True, 0)
    assert again.summary == first.summary
    assert table.file_names() == ["first", "mine"]


def test_two_intents_are_two_versions() -> None:
    table, _ = table_and_store()
    table.append("one", intent="load 7")
    table.append("two", intent="load 8", writer=2)
    assert table.file_names() == ["first", "one", "two"]


def test_the_record_is_written_before_anything_else() -> None:
    table, store = table_and_store()
    store.faults.append(Fault(on_call("put"), "fails"))
    fragments = InMemoryTable(store.inner).fragments("mine")
    with pytest.raises(StorageError):
        table.write(Append(fragments), base=table.at(), intent="load 7")
    assert [call for call, _ in store.calls if call in ("create", "put")] == ["create", "put"]
    assert read_record(store, "load 7")["base_version"] == 1


def test_the_record_has_files_and_commit() -> None:
    table, store = table_and_store()
    table.append("mine", intent="load 7")
    record_fields = read_record(store, "load 7")
    assert record_fields["intent"] == "load 7"
    assert record_fields["files"] == []
    assert record_fields["landing"] == {
        "version": 2, "operation": "Append", "rows_added": 1, "rows_removed": 0, "files": 1, "bytes": 1,
    }  # fmt: skip


def test_a_crash_after_the_put_is_found_by_the_next_run() -> None:
    """The commit succeeded without an answer: the record lacks it, but the history has it."""
    table, store = table_and_store()
    store.faults.append(
        Fault(lambda call, path: call == "put" and path == path_of("load 7") and has_new_version(table), "fails")
    )
    with pytest.raises(CommitUndecided, match="was committed as version 2, but the record of its intent"):
        table.append("mine", intent="load 7")
    assert read_record(store, "load 7")["landing"] is None
    table.append("others", writer=2)
    again = table.append("again", intent="load 7", writer=3)
    assert (again.snapshot.version, again.already_committed) == (2, True)
    assert table.file_names() == ["first", "mine", "others"]
    assert read_record(store, "load 7")["landing"] is not None


def has_new_version(table: InMemoryTable) -> bool:
    return len(list_versions(table.location()).numbers) > 1


def test_a_crash_before_the_put_continues_with_the_same_uuid() -> None:
    table, store = table_and_store()
    store.faults.append(Fault(on_create(MANIFESTS), "fails"))
    with pytest.raises(StorageError):
        table.append("mine", intent="load 7")
    first_uuid = read_record(store, "load 7")["transaction_uuid"]
    table.append("others", writer=2)
    again = table.append("again", intent="load 7", writer=3)
    assert (again.snapshot.version, again.already_committed) == (3, False)
    assert read_record(store, "load 7")["transaction_uuid"] == first_uuid
    assert table.file_names() == ["first", "others", "again"]


def test_a_put_that_arrives_after_its_process_died_is_found() -> None:
    table, store = table_and_store()
    store.faults.append(Fault(on_create(MANIFESTS), "late"))
    store.faults.append(Fault(lambda call, path: call == "list" and ("create", MANIFEST_2) in store.calls, "fails"))
    with pytest.raises(CommitUndecided):
        table.append("mine", intent="load 7")
    store.deliver_late_puts()
    again = table.append("again", intent="load 7", writer=3)
    assert (again.snapshot.version, again.already_committed) == (2, True)
    assert table.file_names() == ["first", "mine"]


@pytest.mark.parametrize("outcome", ["lost", "late", "never"])
def test_an_unanswered_record_is_decided_by_reading_it_back(outcome: str) -> None:
    table, store = table_and_store()
    store.faults.append(Fault(on_create(INTENTS), outcome))
    result = table.append("mine", intent="load 7")
    store.deliver_late_puts()
    assert result.snapshot.version == 2
    again = table.append("again", intent="load 7", writer=2)
    assert (again.snapshot.version, table.file_names()) == (2, ["first", "mine"])


def test_a_record_that_is_never_answered_stops_the_write() -> None:
    table, store = table_and_store()
    store.faults += [Fault(on_create(INTENTS), "never") for _ in range(5)]
    with pytest.raises(StorageError, match="could not record the intent 'load 7'"):
        table.append("mine", intent="load 7")
    assert list_versions(table.location()).numbers == (1,)


def test_the_record_outlives_the_version() -> None:
    table, store = table_and_store()
    table.append("mine", intent="load 7")
    table.append("others", writer=2)
    store.delete(MANIFEST_2)
    again = table.append("again", intent="load 7", writer=3)
    assert (again.summary.version, again.snapshot.version, again.already_committed) == (2, 3, True)


def test_a_commit_that_cleanup_may_have_removed_is_undecided() -> None:
    """The intent has a record without a commit, and a version since then is removed: the outcome cannot be known, so
    nothing is written.
    """
    table, store = table_and_store()
    store.faults.append(Fault(on_create(MANIFESTS), "fails"))
    with pytest.raises(StorageError):
        table.append("mine", intent="load 7")
    table.append("others", writer=2)
    table.append("more", writer=3)
    store.delete(MANIFEST_2)
    with pytest.raises(CommitUndecided, match="began on version 1, and a cleanup removed version 2 since"):
        table.append("again", intent="load 7", writer=4)


def test_a_late_heartbeat_does_not_remove_the_commit_from_the_record() -> None:
    """Two writers have the intent; one has committed and ended when the other writes its heartbeat."""
    table, store = table_and_store()
    other = InMemoryTable(store.inner)
    store.faults.append(
        Fault(
            lambda call, path: call == "read" and path == path_of("load 7"),
            "",
            lambda: other.append("theirs", intent="load 7", writer=2),
        )
    )
    result = table.append("mine", intent="load 7", writer=3)
    assert (result.snapshot.version, table.file_names()) == (2, ["first", "theirs"])
    assert result.summary.version == 2
    assert read_record(store, "load 7")["landing"] is not None


@pytest.mark.parametrize("intent", ["", "x" * 4097])
def test_an_intent_has_a_length(intent: str) -> None:
    table, _ = table_and_store()
    with pytest.raises(InvalidInput, match="a text of 1 to 4096 characters"):
        table.append("mine", intent=intent)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"intent": "load 7"',
        b'{"intent": 1, "landing": null, "files": [], "x": 1}',
        b"\xff",
    ],
)
def test_a_damaged_record_is_reported(data: bytes) -> None:
    table, store = table_and_store()
    store.put(path_of("load 7"), data)
    with pytest.raises(Corrupt, match="is not the record of an intent") as caught:
        table.append("mine", intent="load 7")
    assert caught.value.path == path_of("load 7")


def test_any_text_is_an_intent(tmp_path: Path) -> None:
    """Slashes, dots and characters of any script stay out of the file name."""
    table = Table.create(str(tmp_path / "t"), rows(1))
    for number, intent in enumerate(["../../x", "a/b", "zażółć\n", "x" * 4096, "\0"]):
        assert table.append(rows(number), intent=intent).version == number + 2
        assert table.append(rows(number), intent=intent).already_committed
    assert {path.suffix for path in (tmp_path / "t" / INTENTS).iterdir()} == {".json"}


def test_concurrent_threads_commit_once(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    Table.create(path, rows(0))
    barrier = threading.Barrier(6)

    def load(number: int) -> tuple[int, int]:
        table = Table.open(path, durable=False)
        barrier.wait()
        committed = table.append(rows(number), intent="once")
        return committed.version, committed.rows_added

    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(load, range(1, 7)))
    assert set(outcomes) == {(2, 1)}
    assert Table.open(path).count_rows() == 2


def test_after_reopening_and_from_an_old_handle(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    old = Table.create(path, rows(0))
    first = old.append(rows(1), intent="once", properties={"run": "1"})
    Table.open(path).append(rows(2))
    for table in (Table.open(path), old, first.table):
        again = table.append(rows(9), intent="once")
        assert (again.version, again.already_committed, again.rows_added, again.operation) == (2, True, 1, "Append")
        assert (again.files, again.bytes) == (first.files, first.bytes)
    assert Table.open(path).to_table()["id"].to_pylist() == [0, 1, 2]


def test_an_overwrite_with_an_intent(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), rows(0, 1))
    first = table.overwrite(rows(7), intent="once")
    again = first.table.append(rows(8)).table.overwrite(rows(9), intent="once")
    assert (first.rows_added, first.rows_removed) == (1, 2)
    assert (again.version, again.rows_added, again.rows_removed, again.already_committed) == (2, 1, 2, True)
    assert table.refresh().to_table()["id"].to_pylist() == [7, 8]


def test_creating_with_an_intent(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    first = Table.create(path, rows(1), intent="create")
    first.append(rows(2))
    again = Table.create(path, rows(9), intent="create")
    assert (again.version, again.id) == (1, first.id)
    with pytest.raises(AlreadyExists):
        Table.create(path, rows(9), intent="another create")
    with pytest.raises(AlreadyExists, match="open it or overwrite it"):
        Table.create(path, rows(9))
    assert Table.open(path).to_table()["id"].to_pylist() == [1, 2]


def test_creating_again_after_a_crash_before_the_first_version(tmp_path: Path) -> None:
    path = tmp_path / "t"
    first = Table.create(str(path), rows(1), intent="create")
    (path / first.manifest.path).unlink()
    record_path = path / path_of("create")
    record_fields = json.loads(record_path.read_text()) | {"landing": None}
    record_path.write_text(json.dumps(record_fields))
    assert not Table.exists(str(path))
    again = Table.create(str(path), rows(2), intent="create")
    assert (again.version, again.id) == (1, first.id)
    assert again.to_table()["id"].to_pylist() == [2]


def test_an_append_without_rows_leaves_the_intent_open(tmp_path: Path) -> None:
    """The repetition may have rows; it need not search the versions committed meanwhile again."""
    table = Table.create(str(tmp_path / "t"), rows(0))
    first = table.append(rows(), intent="empty load")
    table = table.append(rows(7)).table
    assert table.append(rows(), intent="empty load").rows_added == 0
    Path(table.uri, table.at(1).manifest.path).unlink()
    again = table.append(rows(1), intent="empty load")
    assert (first.version, first.rows_added, first.already_committed) == (1, 0, False)
    assert (again.version, again.rows_added, again.already_committed) == (3, 1, False)
    assert table.append(rows(1), intent="empty load").already_committed


def test_a_recorded_commit_must_match_its_version(tmp_path: Path) -> None:
    """The table was restored to an earlier state from a backup, and other versions followed."""
    table = Table.create(str(tmp_path / "t"), rows(0))
    has_new_version = table.append(rows(1), intent="day 2")
    (tmp_path / "t" / has_new_version.table.manifest.path).unlink()
    with pytest.raises(CommitUndecided, match="was committed as version 2, but the table ends at version 1 now"):
        table.append(rows(1), intent="day 2")
    table.append(rows(77))
    with pytest.raises(
        CommitUndecided, match="was committed as version 2, but that version contains another change now"
    ):
        table.append(rows(1), intent="day 2")
    assert Table.open(table.uri).count_rows() == 2


def test_an_intent_is_one_change(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), rows(0), intent="create")
    table.append(rows(1), intent="k")
    with pytest.raises(InvalidInput, match=r"another change already \(append, and this is overwrite\)"):
        table.overwrite(rows(2), intent="k")
    with pytest.raises(InvalidInput, match=r"\(create, and this is append\)"):
        table.append(rows(2), intent="create")
    assert Table.open(table.uri).version == 2


def test_cleanup_removes_old_records_of_committed_intents(tmp_path: Path) -> None:
    """The clock of the store decides the age; the record of an intent whose commit was not recorded stays."""
    table = Table.create(tmp_path / "t", rows(1))
    permanent = f"{PERMANENT_PREFIX}partition 7"
    for name in ("committed long ago", "committed just now", "open", permanent):
        table = table.append(rows(2), intent=name).table
    unfinished = tmp_path / "t" / path_of("open")
    unfinished.write_text(json.dumps({**json.loads(unfinished.read_text()), "landing": None}))
    for name in ("committed long ago", "open", permanent):
        when = time.time() - timedelta(days=31).total_seconds()
        os.utime(tmp_path / "t" / path_of(name), (when, when))
    assert table.cleanup(dry_run=True).intents == (path_of("committed long ago"),)
    assert len(list((tmp_path / "t" / INTENTS).iterdir())) == 4
    assert table.cleanup().intents == (path_of("committed long ago"),)
    assert table.cleanup().intents == ()
    assert {path.name for path in (tmp_path / "t" / INTENTS).iterdir()} == {
        Path(path_of(name)).name for name in ("committed just now", "open", permanent)
    }
    assert table.append(rows(2), intent="open").already_committed
    assert table.append(rows(2), intent="committed just now").already_committed
    assert table.append(rows(2), intent=permanent).already_committed, "the record is permanent"
    assert not table.append(rows(2), intent="committed long ago").already_committed, "the intent counts as new"


class ClaimedTable:
    """Table with a claim of an append that was never committed, and some versions after it."""

    def __init__(self, uri: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table = Table.create(uri, rows(1))
        with monkeypatch.context() as patch:
            patch.setattr("lance_core.commit.write_protocol.commit_append", lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                self.table.append(rows(2), intent="day 2")
        self.record = uri / path_of("day 2")
        for number in (3, 4):
            self.table = self.table.append(rows(number)).table

    def set_age(self, days: float) -> None:
        when = time.time() - timedelta(days=days).total_seconds()
        os.utime(self.record, (when, when))


def test_an_abandoned_claim_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claimed = ClaimedTable(tmp_path / "t", monkeypatch)
    claimed.set_age(29.9)
    assert claimed.table.cleanup().intents == ()
    claimed.set_age(30.1)
    assert claimed.table.cleanup(orphan_grace=timedelta(days=31)).intents == ()
    assert claimed.table.cleanup(dry_run=True).intents == (path_of("day 2"),)
    assert claimed.record.exists()
    assert claimed.table.cleanup().intents == (path_of("day 2"),)
    assert not claimed.record.exists()
    assert claimed.table.append(rows(2), intent="day 2").rows_added == 1
    assert claimed.table.append(rows(2), intent="day 2").already_committed


def test_a_claim_stays_if_a_removed_version_may_contain_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claimed = ClaimedTable(tmp_path / "t", monkeypatch)
    Path(claimed.table.uri, claimed.table.at(2).manifest.path).unlink()
    claimed.set_age(100)
    assert claimed.table.cleanup().intents == ()
    with pytest.raises(CommitUndecided):
        claimed.table.append(rows(2), intent="day 2")


@pytest.mark.parametrize("continued", ["before the notice", "after the notice"])
def test_a_claim_is_continued_or_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, continued: str) -> None:
    """An attempt that continues the claim during a cleanup keeps the record, or is refused and claims it anew."""
    claimed = ClaimedTable(tmp_path / "t", monkeypatch)
    claimed.set_age(31)
    name = "_announce" if continued == "before the notice" else "_find_spared_files"
    original = getattr(cleanup, name)
    outcomes: list[object] = []

    def append_and_continue(*arguments: object) -> object:
        result = original(*arguments) if continued == "after the notice" else None
        try:
            outcomes.append(claimed.table.append(rows(2), intent="day 2").rows_added)
        except StorageError as error:
            outcomes.append(str(error))
        return result if continued == "after the notice" else original(*arguments)

    monkeypatch.setattr(cleanup, name, append_and_continue)
    removed = claimed.table.cleanup().intents
    if continued == "before the notice":
        assert (outcomes, removed) == ([1], ())
    else:
        assert removed == (path_of("day 2"),)
        assert re.search("continuing the intent 'day 2'", str(outcomes[0]))
        assert claimed.table.append(rows(2), intent="day 2").rows_added == 1
    assert claimed.table.append(rows(2), intent="day 2").already_committed
    assert claimed.table.refresh().count_rows("id = 2") == 1


def test_a_writer_whose_claim_has_expired_commits_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.create(tmp_path / "t", rows(1))
    register_files = data_files.register_files

    def expire_and_register(*arguments: object, **named: object) -> None:
        (tmp_path / "t" / path_of("delete")).unlink()
        register_files(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(data_files, "register_files", expire_and_register)
    with pytest.raises(StorageError, match="the claim of the intent 'delete' has expired"):
        table.delete("id = 1", intent="delete")
    assert table.refresh().version == 1


def test_a_commit_that_a_concurrent_record_overwrites_is_recorded_again() -> None:
    """The other writer overwrites the record when it registers its files, and finds the commit in the history."""
    table, store = table_and_store()
    versions: list[Version] = []

    def commit_first() -> None:
        other = InMemoryTable(store.inner)
        versions.append(other.append("theirs", intent="load 7", writer=2).snapshot.version)

    store.faults.append(Fault(on_call("put", INTENTS), "", commit_first))
    mine = table.append("mine", intent="load 7")
    assert (versions, mine.snapshot.version, table.file_names()) == ([2], 2, ["first", "theirs"])
    landing = read_record(store, "load 7")["landing"]
    assert isinstance(landing, dict)
    assert landing["version"] == 2
