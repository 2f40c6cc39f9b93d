"""An intent lands in exactly one version: repeated, at once, after a crash, in another process, after cleanup."""

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import PERMANENT_PREFIX, AlreadyExists, CommitUndecided, Corrupt, InvalidInput, StorageError, Table
from lance_core.coordination.idempotency import path_of
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.operations import Append
from lance_core.versions.snapshot import list_versions
from tests.lance_core.world import Fault, FaultyStore, World, calling, creating

MANIFESTS = naming.VERSIONS + "/"
MANIFEST_2 = naming.manifest_path(Version(2))
INTENTS = naming.PROJECT_DIRECTORY + "/intents/"


def rows(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def record(store: FaultyStore, intent: str) -> dict[str, object]:
    found = json.loads(store.inner.read(path_of(intent)))
    assert isinstance(found, dict)
    return found


def world() -> tuple[World, FaultyStore]:
    store = FaultyStore()
    table = World(store)
    table.create("first")
    store.calls.clear()
    return table, store


def test_the_same_intent_twice_is_one_version() -> None:
    table, _ = world()
    first = table.append("mine", intent="load 7")
    again = table.append("again", intent="load 7", writer=2)
    assert (first.snapshot.version, first.already_committed) == (2, False)
    assert (again.snapshot.version, again.already_committed, again.attempts) == (2, True, 0)
    assert again.summary == first.summary
    assert table.names() == ["first", "mine"]


def test_two_intents_are_two_versions() -> None:
    table, _ = world()
    table.append("one", intent="load 7")
    table.append("two", intent="load 8", writer=2)
    assert table.names() == ["first", "one", "two"]


def test_the_record_is_there_before_anything_else_is_written() -> None:
    table, store = world()
    store.faults.append(Fault(calling("put"), "fails"))
    fragments = World(store.inner).fragments("mine")
    with pytest.raises(StorageError):
        table.write(Append(fragments), base=table.at(), intent="load 7")
    assert [call for call, _ in store.calls if call in ("create", "put")] == ["create", "put"]
    assert record(store, "load 7")["base_version"] == 1


def test_the_record_notes_files_and_landing() -> None:
    table, store = world()
    table.append("mine", intent="load 7")
    kept = record(store, "load 7")
    assert kept["intent"] == "load 7"
    assert kept["files"] == []
    assert kept["landing"] == {
        "version": 2, "operation": "Append", "rows_added": 1, "rows_removed": 0, "files": 1, "bytes": 1,
    }  # fmt: skip


def test_a_crash_after_the_put_is_found_by_the_next_run() -> None:
    """It landed, and nobody was told: the record says nothing of it, the history does."""
    table, store = world()
    store.faults.append(
        Fault(lambda call, path: call == "put" and path == path_of("load 7") and landed(table), "fails")
    )
    with pytest.raises(CommitUndecided, match="was committed as version 2, but the record of its intent"):
        table.append("mine", intent="load 7")
    assert record(store, "load 7")["landing"] is None
    table.append("others", writer=2)
    again = table.append("again", intent="load 7", writer=3)
    assert (again.snapshot.version, again.already_committed) == (2, True)
    assert table.names() == ["first", "mine", "others"]
    assert record(store, "load 7")["landing"] is not None


def landed(table: World) -> bool:
    return len(list_versions(table.location()).numbers) > 1


def test_a_crash_before_the_put_goes_on_under_the_same_uuid() -> None:
    table, store = world()
    store.faults.append(Fault(creating(MANIFESTS), "fails"))
    with pytest.raises(StorageError):
        table.append("mine", intent="load 7")
    begun_as = record(store, "load 7")["transaction_uuid"]
    table.append("others", writer=2)
    again = table.append("again", intent="load 7", writer=3)
    assert (again.snapshot.version, again.already_committed) == (3, False)
    assert record(store, "load 7")["transaction_uuid"] == begun_as
    assert table.names() == ["first", "others", "again"]


def test_a_put_that_lands_after_its_process_died_is_found() -> None:
    table, store = world()
    store.faults.append(Fault(creating(MANIFESTS), "late"))
    store.faults.append(Fault(lambda call, path: call == "list" and ("create", MANIFEST_2) in store.calls, "fails"))
    with pytest.raises(CommitUndecided):
        table.append("mine", intent="load 7")
    store.land()
    again = table.append("again", intent="load 7", writer=3)
    assert (again.snapshot.version, again.already_committed) == (2, True)
    assert table.names() == ["first", "mine"]


@pytest.mark.parametrize("how", ["lost", "late", "never"])
def test_an_unanswered_claim_is_settled_by_looking(how: str) -> None:
    table, store = world()
    store.faults.append(Fault(creating(INTENTS), how))
    written = table.append("mine", intent="load 7")
    store.land()
    assert written.snapshot.version == 2
    again = table.append("again", intent="load 7", writer=2)
    assert (again.snapshot.version, table.names()) == (2, ["first", "mine"])


def test_a_claim_that_nobody_answers_writes_nothing() -> None:
    table, store = world()
    store.faults += [Fault(creating(INTENTS), "never") for _ in range(5)]
    with pytest.raises(StorageError, match="could not record the intent 'load 7'"):
        table.append("mine", intent="load 7")
    assert list_versions(table.location()).numbers == (1,)


def test_the_landing_outlives_the_version() -> None:
    table, store = world()
    table.append("mine", intent="load 7")
    table.append("others", writer=2)
    store.delete(MANIFEST_2)
    again = table.append("again", intent="load 7", writer=3)
    assert (again.summary.version, again.snapshot.version, again.already_committed) == (2, 3, True)


def test_a_landing_that_cleanup_may_have_taken_is_undecided() -> None:
    """Begun, never noted, and a version since is gone: nobody can tell, so nothing is written."""
    table, store = world()
    store.faults.append(Fault(creating(MANIFESTS), "fails"))
    with pytest.raises(StorageError):
        table.append("mine", intent="load 7")
    table.append("others", writer=2)
    table.append("more", writer=3)
    store.delete(MANIFEST_2)
    with pytest.raises(CommitUndecided, match="began on version 1, and a cleanup removed version 2 since"):
        table.append("again", intent="load 7", writer=4)


def test_a_late_heartbeat_does_not_forget_the_landing() -> None:
    """Two hold the intent; one has landed and gone when the other tells that it is alive."""
    table, store = world()
    other = World(store.inner)
    store.faults.append(
        Fault(
            lambda call, path: call == "read" and path == path_of("load 7"),
            "",
            lambda: other.append("theirs", intent="load 7", writer=2),
        )
    )
    written = table.append("mine", intent="load 7", writer=3)
    assert (written.snapshot.version, table.names()) == (2, ["first", "theirs"])
    assert written.summary.version == 2
    assert record(store, "load 7")["landing"] is not None


@pytest.mark.parametrize("intent", ["", "x" * 4097])
def test_an_intent_has_a_length(intent: str) -> None:
    table, _ = world()
    with pytest.raises(InvalidInput, match="a text of 1 to 4096 characters"):
        table.append("mine", intent=intent)


@pytest.mark.parametrize(
    "damage",
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
def test_a_damaged_record_is_named(damage: bytes) -> None:
    table, store = world()
    store.put(path_of("load 7"), damage)
    with pytest.raises(Corrupt, match="is not the record of an intent") as caught:
        table.append("mine", intent="load 7")
    assert caught.value.path == path_of("load 7")


def test_any_text_is_an_intent(tmp_path: Path) -> None:
    """Slashes, dots and scripts of all kinds do not get into a file name."""
    table = Table.create(str(tmp_path / "t"), rows(1))
    for number, intent in enumerate(["../../x", "a/b", "zażółć\n", "x" * 4096, "\0"]):
        assert table.append(rows(number), intent=intent).version == number + 2
        assert table.append(rows(number), intent=intent).already_committed
    assert {path.suffix for path in (tmp_path / "t" / INTENTS).iterdir()} == {".json"}


def test_at_once_from_threads(tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    Table.create(place, rows(0))
    barrier = threading.Barrier(6)

    def load(number: int) -> tuple[int, int]:
        table = Table.open(place, durable=False)
        barrier.wait()
        committed = table.append(rows(number), intent="once")
        return committed.version, committed.rows_added

    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(load, range(1, 7)))
    assert set(outcomes) == {(2, 1)}
    assert Table.open(place).count_rows() == 2


def test_after_reopening_and_from_an_old_handle(tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    old = Table.create(place, rows(0))
    first = old.append(rows(1), intent="once", properties={"run": "1"})
    Table.open(place).append(rows(2))
    for table in (Table.open(place), old, first.table):
        again = table.append(rows(9), intent="once")
        assert (again.version, again.already_committed, again.rows_added, again.operation) == (2, True, 1, "Append")
        assert (again.files, again.bytes) == (first.files, first.bytes)
    assert Table.open(place).to_table()["id"].to_pylist() == [0, 1, 2]


def test_an_overwrite_is_an_intent_too(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), rows(0, 1))
    first = table.overwrite(rows(7), intent="once")
    again = first.table.append(rows(8)).table.overwrite(rows(9), intent="once")
    assert (first.rows_added, first.rows_removed) == (1, 2)
    assert (again.version, again.rows_added, again.rows_removed, again.already_committed) == (2, 1, 2, True)
    assert table.refresh().to_table()["id"].to_pylist() == [7, 8]


def test_creating_with_an_intent(tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    first = Table.create(place, rows(1), intent="birth")
    first.append(rows(2))
    again = Table.create(place, rows(9), intent="birth")
    assert (again.version, again.id) == (1, first.id)
    with pytest.raises(AlreadyExists):
        Table.create(place, rows(9), intent="another birth")
    with pytest.raises(AlreadyExists, match="open it or overwrite it"):
        Table.create(place, rows(9))
    assert Table.open(place).to_table()["id"].to_pylist() == [1, 2]


def test_creating_again_after_a_crash_before_the_first_version(tmp_path: Path) -> None:
    place = tmp_path / "t"
    first = Table.create(str(place), rows(1), intent="birth")
    (place / first.manifest.path).unlink()
    record_path = place / path_of("birth")
    kept = json.loads(record_path.read_text()) | {"landing": None}
    record_path.write_text(json.dumps(kept))
    assert not Table.exists(str(place))
    again = Table.create(str(place), rows(2), intent="birth")
    assert (again.version, again.id) == (1, first.id)
    assert again.to_table()["id"].to_pylist() == [2]


def test_no_rows_leave_an_intent_open(tmp_path: Path) -> None:
    """There may be rows when it is repeated; and what was committed meanwhile need not be searched again."""
    table = Table.create(str(tmp_path / "t"), rows(0))
    first = table.append(rows(), intent="empty load")
    table = table.append(rows(7)).table
    assert table.append(rows(), intent="empty load").rows_added == 0
    Path(table.uri, table.at(1).manifest.path).unlink()
    again = table.append(rows(1), intent="empty load")
    assert (first.version, first.rows_added, first.already_committed) == (1, 0, False)
    assert (again.version, again.rows_added, again.already_committed) == (3, 1, False)
    assert table.append(rows(1), intent="empty load").already_committed


def test_a_landing_is_believed_only_of_the_version_that_is_ours(tmp_path: Path) -> None:
    """The table was put back to an earlier state, and went on from there."""
    table = Table.create(str(tmp_path / "t"), rows(0))
    landed = table.append(rows(1), intent="day 2")
    (tmp_path / "t" / landed.table.manifest.path).unlink()
    with pytest.raises(CommitUndecided, match="was committed as version 2, but the table ends at version 1 now"):
        table.append(rows(1), intent="day 2")
    table.append(rows(77))
    with pytest.raises(
        CommitUndecided, match="was committed as version 2, but that version contains another change now"
    ):
        table.append(rows(1), intent="day 2")
    assert Table.open(table.uri).count_rows() == 2


def test_an_intent_is_one_change(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), rows(0), intent="birth")
    table.append(rows(1), intent="k")
    with pytest.raises(InvalidInput, match=r"another change already \(append, and this is overwrite\)"):
        table.overwrite(rows(2), intent="k")
    with pytest.raises(InvalidInput, match=r"\(create, and this is append\)"):
        table.append(rows(2), intent="birth")
    assert Table.open(table.uri).version == 2


def test_records_are_swept_when_they_landed_and_are_old(tmp_path: Path) -> None:
    """By the clock of the store; what is still open is remembered however old it is."""
    table = Table.create(tmp_path / "t", rows(1))
    kept = f"{PERMANENT_PREFIX}partition 7"
    for name in ("landed long ago", "landed just now", "open", kept):
        table = table.append(rows(2), intent=name).table
    unfinished = tmp_path / "t" / path_of("open")
    unfinished.write_text(json.dumps({**json.loads(unfinished.read_text()), "landing": None}))
    for name in ("landed long ago", "open", kept):
        when = time.time() - timedelta(days=31).total_seconds()
        os.utime(tmp_path / "t" / path_of(name), (when, when))
    assert table.cleanup(dry_run=True).intents == (path_of("landed long ago"),)
    assert len(list((tmp_path / "t" / INTENTS).iterdir())) == 4
    assert table.cleanup().intents == (path_of("landed long ago"),)
    assert table.cleanup().intents == ()
    assert {path.name for path in (tmp_path / "t" / INTENTS).iterdir()} == {
        Path(path_of(name)).name for name in ("landed just now", "open", kept)
    }
    assert table.append(rows(2), intent="open").already_committed
    assert table.append(rows(2), intent="landed just now").already_committed
    assert table.append(rows(2), intent=kept).already_committed, "for good"
    assert not table.append(rows(2), intent="landed long ago").already_committed, "as if it were a new one"


def test_a_landing_that_is_noted_between_the_look_and_the_put_of_another_holder_is_noted_again() -> None:
    """It is written over by whoever tells its files, and found by its commit."""
    table, store = world()
    told: list[Version] = []

    def the_other_lands() -> None:
        other = World(store.inner)
        told.append(other.append("theirs", intent="load 7", writer=2).snapshot.version)

    store.faults.append(Fault(calling("put", INTENTS), "", the_other_lands))
    mine = table.append("mine", intent="load 7")
    assert (told, mine.snapshot.version, table.names()) == ([2], 2, ["first", "theirs"])
    landing = record(store, "load 7")["landing"]
    assert isinstance(landing, dict)
    assert landing["version"] == 2
