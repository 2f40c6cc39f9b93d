"""Writers that come back after a long pause: what they put may have landed in a gap, or name what is gone."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from lance_core import CommitUndecided, NotFound, RetryableConflict
from lance_core.commit.write_protocol import StartedWrite, begin, finish
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.naming import NamingScheme
from lance_core.format.operations import Append
from lance_core.storage.memory import MemoryStore
from tests.lance_core.world import Fault, FaultyStore, World, creating, runtime


class Paused:
    """A table whose clock is moved by hand, and a writer to whom something happens right before its put."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.stored = MemoryStore(now=lambda: self.now)
        self.world = World(self.stored)
        self.world.create("a")

    def append(
        self,
        before_the_put: Callable[[], object],
        *,
        begun_ago: timedelta = timedelta(0),
        attempts: int = 10,
        lost: int = 1,
        outcome: str = "",
    ) -> FaultyStore:
        """`before_the_put` happens as often as `lost` says."""
        store = FaultyStore(self.stored, [Fault(creating(naming.VERSIONS), outcome, before_the_put)] * lost)
        given = replace(runtime(5), elapsed_ns=lambda: int(self.now.timestamp() * 1e9), now_ns=lambda: 0)
        mine = World(store)
        begun = begin(mine.location(), mine.at(), verb="append", intent=None, runtime=given)
        assert isinstance(begun, StartedWrite)
        operation = Append(mine.fragments("late"))
        self.now += begun_ago
        finish(begun, operation, properties={}, attempts=attempts)
        return store

    def removed(self, *versions: int) -> None:
        for version in versions:
            self.stored.delete(naming.manifest_path(Version(version), NamingScheme.V2))


def test_a_put_that_lands_in_a_gap_is_no_commit() -> None:
    """Built for version 2; three commits, a cleanup; then it is put, and nothing is in its place."""
    paused = Paused()

    def three_commits_and_a_cleanup() -> None:
        for writer, name in enumerate("bcd", start=10):
            paused.world.append(name, writer=writer)
        paused.now += timedelta(minutes=2)
        paused.removed(1, 2, 3)

    with pytest.raises(CommitUndecided, match="after version 4, in a gap"):
        paused.append(three_commits_and_a_cleanup)
    assert paused.world.names() == ["a", "b", "c", "d"]


def test_who_is_quick_asks_nothing() -> None:
    """The calls of a commit are what they were: nothing is looked at after the put."""
    paused = Paused()
    store = FaultyStore(paused.stored)
    World(store).append("b")
    assert store.calls[-1] == ("create", naming.manifest_path(Version(2), NamingScheme.V2))


def test_files_that_went_while_a_writer_stood_still_are_told() -> None:
    paused = Paused()

    def an_orphan_is_removed() -> None:
        paused.now += timedelta(hours=2)
        paused.stored.delete("data/late.lance")

    with pytest.raises(
        CommitUndecided, match=r"removed 1 of its files as orphan files, such as data/late\.lance.*Restore version 1"
    ):
        paused.append(an_orphan_is_removed)


def test_who_took_long_holds_its_files_and_looks_whether_they_are_there() -> None:
    paused = Paused()
    held: list[str] = []

    def look() -> None:
        held.extend(info.path for info in paused.stored.list("_lance_assets/holds"))

    paused.append(look, begun_ago=timedelta(hours=1))
    assert len(held) == 1
    assert not paused.stored.list("_lance_assets/holds")
    assert paused.world.names() == ["a", "late"]


def test_who_took_long_looks_once_however_many_races_it_loses() -> None:
    """And not right before a put, which would lose it the next one too."""
    paused = Paused()
    writers = iter(range(10, 20))

    def somebody_is_first() -> None:
        paused.world.append(f"of_{(writer := next(writers))}", writer=writer)

    store = paused.append(somebody_is_first, begun_ago=timedelta(hours=1), lost=4)
    assert len(paused.world.names()) == 6
    assert [call for call, path in store.calls if "/holds/" in path] == ["put", "delete"]
    late = [at for at, (call, path) in enumerate(store.calls) if (call, path) == ("head", "data/late.lance")]
    puts = [at for at, (call, path) in enumerate(store.calls) if call == "create" and path.startswith(naming.VERSIONS)]
    assert len(late) == 2, "once before the commit, once while it is held"
    assert any(store.calls[at][0] in ("list", "read") for at in range(late[-1] + 1, puts[0])), "looked again"


def test_to_look_at_old_files_is_no_attempt() -> None:
    paused = Paused()
    paused.append(lambda: None, begun_ago=timedelta(hours=1), attempts=1)
    assert paused.world.names() == ["a", "late"]


def test_what_was_held_is_let_go_when_it_is_known_that_nothing_landed() -> None:
    paused = Paused()
    with pytest.raises(RetryableConflict, match="lost the race"):
        paused.append(lambda: paused.world.append("b", writer=9), begun_ago=timedelta(hours=1), attempts=1)
    assert not paused.stored.list("_lance_assets/holds")


def test_it_is_held_on_while_a_put_may_still_land() -> None:
    paused = Paused()
    with pytest.raises(CommitUndecided):
        paused.append(lambda: None, begun_ago=timedelta(hours=1), attempts=1, outcome="late")
    assert len(paused.stored.list("_lance_assets/holds")) == 1


@pytest.mark.parametrize("versions", ['["x"]', "[null]", "[1e400]", "[true]", "[[]]"])
def test_a_notice_that_is_none_leaves_what_landed_undecided(versions: str) -> None:
    paused = Paused()

    def stands_still() -> None:
        paused.now += timedelta(hours=2)
        paused.stored.put("_lance_assets/notices/a.json", b'{"versions": %s, "files": []}' % versions.encode())

    with pytest.raises(CommitUndecided, match="is not the sweep notice of a cleanup"):
        paused.append(stands_still)


def test_who_took_long_and_misses_a_file_commits_nothing() -> None:
    paused = Paused()
    paused.stored.delete("data/a.lance")  # of another version: not ours to look at

    class Removing(MemoryStore):
        def put(self, path: str, data: bytes) -> None:
            super().put(path, data)
            if path.startswith("_lance_assets/holds"):
                self.delete("data/late.lance")

    removing = Removing(now=lambda: paused.now)
    for info in (*paused.stored.list(naming.VERSIONS), *paused.stored.list(naming.TRANSACTIONS)):
        removing.put(info.path, paused.stored.read(info.path))
    paused.stored, paused.world = removing, World(removing)
    with pytest.raises(NotFound, match=r"1 files of this commit do not exist any more, such as data/late\.lance"):
        paused.append(lambda: None, begun_ago=timedelta(hours=1))
    assert paused.world.at().version == 1


def test_an_unanswered_put_whose_version_was_cleaned_up_is_not_called_a_conflict() -> None:
    """It landed, or somebody else's did; nobody can tell any more."""
    paused = Paused()
    store = FaultyStore(paused.stored, [Fault(creating(naming.VERSIONS), "lost")])

    def others() -> None:
        for writer, name in enumerate("bcd", start=10):
            paused.world.append(name, writer=writer)
        paused.now += timedelta(hours=1)
        paused.removed(2, 3)

    store.faults.append(Fault(lambda call, path: call == "list" and len(store.calls) > creations(store), "", others))
    with pytest.raises(CommitUndecided, match="a cleanup removed that version"):
        World(store).append("late")


def creations(store: FaultyStore) -> int:
    """Where the first put of a version was, once there was one."""
    puts = [at for at, (call, path) in enumerate(store.calls) if call == "create" and path.startswith(naming.VERSIONS)]
    return puts[0] if puts else 10**6
