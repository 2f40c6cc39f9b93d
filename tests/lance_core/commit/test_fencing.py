"""Commit fence: a put after a long pause may fill a gap in the versions or reference deleted files."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import CommitUndecided, NotFound, RetryableConflict, Table
from lance_core.commit import fencing
from lance_core.commit.write_protocol import StartedWrite, begin, finish
from lance_core.coordination import leases
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.naming import NamingScheme
from lance_core.format.operations import Append
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.storage.local import LocalStore
from lance_core.storage.memory import MemoryStore
from lance_core.storage.store import ObjectInfo, Put
from tests.lance_core.in_memory_table import Fault, FaultyStore, InMemoryTable, deterministic_runtime, on_create


class PausedWriter:
    """A table whose clock is advanced by hand, and a writer with a callback right before its put."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.backing_store = MemoryStore(now=lambda: self.now)
        self.table = InMemoryTable(self.backing_store)
        self.table.create("a")

    def append(
        self,
        before_put: Callable[[], object],
        *,
        paused_for: timedelta = timedelta(0),
        attempts: int = 10,
        races_lost: int = 1,
        outcome: str = "",
    ) -> FaultyStore:
        """Append with `before_put` called before each of the first `races_lost` puts."""
        store = FaultyStore(self.backing_store, [Fault(on_create(naming.VERSIONS), outcome, before_put)] * races_lost)
        runtime = replace(
            deterministic_runtime(5), elapsed_ns=lambda: int(self.now.timestamp() * 1e9), now_ns=lambda: 0
        )
        table = InMemoryTable(store)
        started = begin(table.location(), table.at(), verb="append", intent=None, runtime=runtime)
        assert isinstance(started, StartedWrite)
        operation = Append(table.fragments("late"))
        self.now += paused_for
        finish(started, operation, properties={}, attempts=attempts)
        return store

    def remove_versions(self, *versions: int) -> None:
        for version in versions:
            self.backing_store.delete(naming.manifest_path(Version(version), NamingScheme.V2))


def test_a_put_into_a_gap_is_no_commit() -> None:
    """The version is built as version 2; three commits and a cleanup follow, and then the put finds version 2 free."""
    slow_writer = PausedWriter()

    def commit_three_times_and_clean_up() -> None:
        for writer, name in enumerate("bcd", start=10):
            slow_writer.table.append(name, writer=writer)
        slow_writer.now += timedelta(minutes=2)
        slow_writer.remove_versions(1, 2, 3)

    with pytest.raises(CommitUndecided, match="after version 4, in a gap"):
        slow_writer.append(commit_three_times_and_clean_up)
    assert slow_writer.table.file_names() == ["a", "b", "c", "d"]


def test_a_quick_commit_makes_no_calls_after_its_put() -> None:
    """The fence costs a quick commit nothing."""
    slow_writer = PausedWriter()
    store = FaultyStore(slow_writer.backing_store)
    InMemoryTable(store).append("b")
    assert store.calls[-1] == ("create", naming.manifest_path(Version(2), NamingScheme.V2))


def test_files_deleted_during_a_pause_are_reported() -> None:
    slow_writer = PausedWriter()

    def remove_orphan() -> None:
        slow_writer.now += timedelta(hours=2)
        slow_writer.backing_store.delete("data/late.lance")

    with pytest.raises(
        CommitUndecided, match=r"removed 1 of its files as orphan files, such as data/late\.lance.*Restore version 1"
    ):
        slow_writer.append(remove_orphan)


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_clock_that_steps_ahead_before_a_put_is_detected_on_a_local_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_finished: bool
) -> None:
    """The clock of the file server jumps ahead by a month between the syncs of a writer and its put, so that its files
    are old for a cleanup that runs meanwhile, or has announced what it will remove."""
    table = Table.create(tmp_path / "t", pa.table({"id": [1]}))
    create = LocalStore.create_after
    steps = iter([True])

    def create_after_cleanup(store: LocalStore, path: str, data: bytes, unsynced: Sequence[str]) -> Put:
        if path.startswith(f"{naming.VERSIONS}/") and next(steps, False):
            store.ensure_durable(unsynced)
            unsynced = ()
            for file in tmp_path.rglob("*.*"):
                os.utime(file, times=(0, 0))
            report = Table.open(table.uri).cleanup(dry_run=not is_finished)
            assert {name.partition("/")[0] for name in report.orphans} == {"data", "_transactions"}
            if not is_finished:
                notice = leases.SweepNotice((), files=tuple(each.path for each in store.walk("data")))
                leases.announce_sweep(store, notice, SYSTEM_RUNTIME)
        return create(store, path, data, unsynced)

    monkeypatch.setattr(LocalStore, "create_after", create_after_cleanup)
    with pytest.raises(CommitUndecided, match="clock of the store had been changed"):
        table.append(pa.table({"id": [2]}))
    restored = Table.open(table.uri).restore(1)
    assert restored.table.to_table()["id"].to_pylist() == [1]


@pytest.mark.parametrize("has_jumped", [True, False])
def test_files_from_before_a_jump_of_the_clock_are_leased(monkeypatch: pytest.MonkeyPatch, has_jumped: bool) -> None:
    """The writer learned of the jump after it had written its files, and before its attempt began."""
    writer, leased = PausedWriter(), list[str]()
    began = int(writer.now.timestamp() * 1e9)
    monkeypatch.setattr(fencing, "ReportsClockJumps", FaultyStore)

    def has_clock_jumped_since(_store: FaultyStore, elapsed_ns: int) -> bool:
        return has_jumped and elapsed_ns <= began

    monkeypatch.setattr(FaultyStore, "has_clock_jumped_since", has_clock_jumped_since, raising=False)

    def read_leases() -> None:
        active, _damaged = leases.active_leases(writer.backing_store, now=writer.now)
        leased.extend(name for lease in active for name in lease.files)

    writer.append(read_leases, paused_for=timedelta(seconds=1))
    assert leased == (["data/late.lance"] if has_jumped else [])
    assert writer.table.file_names() == ["a", "late"]


def test_a_slow_writer_leases_its_files_and_checks_that_they_exist() -> None:
    slow_writer = PausedWriter()
    leases: list[str] = []

    def collect_leases() -> None:
        leases.extend(info.path for info in slow_writer.backing_store.list("_lance_assets/holds"))

    slow_writer.append(collect_leases, paused_for=timedelta(hours=1))
    assert len(leases) == 1
    assert not slow_writer.backing_store.list("_lance_assets/holds")
    assert slow_writer.table.file_names() == ["a", "late"]


@pytest.mark.parametrize("check_takes", [timedelta(seconds=1), timedelta(seconds=3)], ids=["quick check", "slow check"])
def test_a_slow_writer_checks_its_files_once_for_any_number_of_lost_races(check_takes: timedelta) -> None:
    """It does not take long right before a put, since that would lose the next race too."""
    slow_writer = PausedWriter()
    head = slow_writer.backing_store.head

    def head_slowly(path: str) -> ObjectInfo | None:
        slow_writer.now += check_takes if path == "data/late.lance" else timedelta(0)
        return head(path)

    slow_writer.backing_store.head = head_slowly  # type: ignore[method-assign]
    numbers = iter(range(10, 20))

    def commit_first() -> None:
        number = next(numbers)
        slow_writer.table.append(f"of_{number}", writer=number)

    store = slow_writer.append(commit_first, paused_for=timedelta(hours=1), races_lost=4)
    assert len(slow_writer.table.file_names()) == 6
    assert [call for call, path in store.calls if "/holds/" in path] == ["put", "delete"]
    checks = [at for at, (call, path) in enumerate(store.calls) if (call, path) == ("head", "data/late.lance")]
    puts = [at for at, (call, path) in enumerate(store.calls) if call == "create" and path.startswith(naming.VERSIONS)]
    assert len(checks) == 2, "once before the commit, once under the lease"
    reads = [at for at, (call, path) in enumerate(store.calls) if call in ("list", "read") and "_versions" in path]
    reads_again = any(checks[-1] < at < puts[0] for at in reads)
    assert reads_again == (check_takes > timedelta(seconds=2))


def test_checking_old_files_is_no_attempt() -> None:
    slow_writer = PausedWriter()
    slow_writer.append(lambda: None, paused_for=timedelta(hours=1), attempts=1)
    assert slow_writer.table.file_names() == ["a", "late"]


def test_the_lease_is_released_after_a_definite_failure() -> None:
    slow_writer = PausedWriter()
    with pytest.raises(RetryableConflict, match="lost the race"):
        slow_writer.append(lambda: slow_writer.table.append("b", writer=9), paused_for=timedelta(hours=1), attempts=1)
    assert not slow_writer.backing_store.list("_lance_assets/holds")


def test_the_lease_stays_while_a_put_may_still_arrive() -> None:
    slow_writer = PausedWriter()
    with pytest.raises(CommitUndecided):
        slow_writer.append(lambda: None, paused_for=timedelta(hours=1), attempts=1, outcome="late")
    assert len(slow_writer.backing_store.list("_lance_assets/holds")) == 1


@pytest.mark.parametrize("versions", ['["x"]', "[null]", "[1e400]", "[true]", "[[]]"])
def test_an_invalid_sweep_notice_leaves_the_commit_undecided(versions: str) -> None:
    slow_writer = PausedWriter()

    def pause() -> None:
        slow_writer.now += timedelta(hours=2)
        slow_writer.backing_store.put(
            "_lance_assets/notices/a.json", b'{"versions": %s, "files": []}' % versions.encode()
        )

    with pytest.raises(CommitUndecided, match="is a damaged sweep notice"):
        slow_writer.append(pause)


def test_a_slow_writer_without_one_of_its_files_commits_nothing() -> None:
    slow_writer = PausedWriter()
    slow_writer.backing_store.delete("data/a.lance")  # a file of another version, which the writer need not check

    class RemovingStore(MemoryStore):
        def put(self, path: str, data: bytes) -> None:
            super().put(path, data)
            if path.startswith("_lance_assets/holds"):
                self.delete("data/late.lance")

    removing = RemovingStore(now=lambda: slow_writer.now)
    for info in (
        *slow_writer.backing_store.list(naming.VERSIONS),
        *slow_writer.backing_store.list(naming.TRANSACTIONS),
    ):
        removing.put(info.path, slow_writer.backing_store.read(info.path))
    slow_writer.backing_store, slow_writer.table = removing, InMemoryTable(removing)
    with pytest.raises(NotFound, match=r"1 files of this commit do not exist any more, such as data/late\.lance"):
        slow_writer.append(lambda: None, paused_for=timedelta(hours=1))
    assert slow_writer.table.at().version == 1


def test_an_unanswered_put_of_a_removed_version_is_undecided() -> None:
    """The version may be ours or another writer's: its manifest no longer exists."""
    slow_writer = PausedWriter()
    store = FaultyStore(slow_writer.backing_store, [Fault(on_create(naming.VERSIONS), "lost")])

    def commit_and_clean_up() -> None:
        for writer, name in enumerate("bcd", start=10):
            slow_writer.table.append(name, writer=writer)
        slow_writer.now += timedelta(hours=1)
        slow_writer.remove_versions(2, 3)

    store.faults.append(
        Fault(
            lambda call, path: call == "list" and len(store.calls) > position_of_first_put(store),
            "",
            commit_and_clean_up,
        )
    )
    with pytest.raises(CommitUndecided, match="a cleanup removed that version"):
        InMemoryTable(store).append("late")


def position_of_first_put(store: FaultyStore) -> int:
    """Return the position of the first put of a version among the calls, or a large number."""
    puts = [at for at, (call, path) in enumerate(store.calls) if call == "create" and path.startswith(naming.VERSIONS)]
    return puts[0] if puts else 10**6
