"""Changes that are looked at before anybody else sees them: what is shown, what is refused, that each lands once."""

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_core import (
    AlreadyExists,
    Audit,
    AuditFailed,
    Committed,
    CommitUndecided,
    IncompatibleConflict,
    InvalidInput,
    LanceError,
    NotFound,
    StorageError,
    Table,
)
from lance_core.commit.write_protocol import StartedWrite, WriteResult, begin, finish
from lance_core.coordination.leases import SweepNotice, announce_sweep, release
from lance_core.format import naming
from lance_core.format.operations import Append, Overwrite
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.storage.local import LocalStore
from lance_core.transactions.fold import parts_of
from lance_core.versions.snapshot import load_transaction
from tests.lance_core.maintenance.test_cleanup import DAY, age
from tests.lance_core.meeting import meeting
from tests.lance_core.world import BIRTH, SCHEMA, Fault, FaultyStore, World, runtime

Verb = Callable[..., Committed]


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([10 * each for each in ids], pa.int64())})


def ids(table: Table) -> list[int]:
    found: list[int] = table.to_table(["id"])["id"].to_pylist()
    return sorted(found)


@pytest.fixture(params=[False, True], ids=["addresses", "stable row ids"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return Table.create(
        str(tmp_path / "t"), rows(*range(8)), stable_row_ids=request.param, max_rows_per_file=4, durable=False
    )


@dataclass
class Seen:
    """An audit that notes what it was shown, and refuses as often as it is told."""

    refuses: int = 0
    shown: list[tuple[Table, Table | None]] = field(default_factory=list)
    meanwhile: Callable[[Table], object] = lambda _table: None

    def __call__(self, table: Table, base: Table | None) -> None:
        self.shown.append((table, base))
        self.meanwhile(table)
        if len(self.shown) <= self.refuses:
            raise ValueError(f"{table.count_rows()} rows are wrong")

    @property
    def numbers(self) -> list[int]:
        return [table.version for table, _ in self.shown]


def beside(table: Table) -> list[str]:
    return [path.name for path in Path(table.uri, "_versions").glob("d*")]


def holds(table: Table) -> list[Path]:
    return list(Path(table.uri).glob("_lance_assets/holds/*"))


VERBS: dict[str, tuple[Verb, list[int]]] = {
    "append": (lambda t, **how: t.append(rows(50), **how), [*range(8), 50]),
    "append of files": (lambda t, **how: t.append(iter(rows(50, 51).to_batches()), **how), [*range(8), 50, 51]),
    "overwrite": (lambda t, **how: t.overwrite(rows(50), **how), [50]),
    "a slice": (lambda t, **how: t.overwrite(rows(7), where="id > 3", **how), [0, 1, 2, 3, 7]),
    "delete": (lambda t, **how: t.delete("id > 2", **how), [0, 1, 2]),
    "update": (lambda t, **how: t.update({"id": "id + 10"}, "id < 2", **how), [2, 3, 4, 5, 6, 7, 10, 11]),
    "upsert": (lambda t, **how: t.upsert(rows(7, 8), on="id", **how), [*range(9)]),
    "add_columns": (lambda t, **how: t.add_columns({"x": "id"}, **how), [*range(8)]),
    "merge_columns": (lambda t, **how: t.merge_columns(rows(1).rename_columns(["id", "y"]), "id", **how), [*range(8)]),
    "drop_columns": (lambda t, **how: t.drop_columns(["v"], **how), [*range(8)]),
    "alter_column": (lambda t, **how: t.alter_column("v", type=pa.float64(), **how), [*range(8)]),
    "restore": (lambda t, **how: t.restore(1, **how), [*range(8)]),
}


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_is_shown_before_anybody_sees_it(table: Table, verb: str) -> None:
    do, expected = VERBS[verb]
    theirs: list[list[int]] = []

    def meanwhile(shown: Table) -> None:
        assert table.refresh().version == lance.dataset(table.uri).version == 1
        at = lance.dataset(table.uri).checkout_version(shown.version)
        theirs.append(sorted(at.to_table()["id"].to_pylist()))
        assert at.schema == shown.schema == lance.dataset(table.uri, version=shown.version).schema

    refusing = Seen(refuses=1, meanwhile=meanwhile)
    with pytest.raises(AuditFailed, match="rows are wrong") as refused:
        do(table, audit=refusing, properties={"by": "me"})
    assert table.refresh().version == 1
    (number,) = refusing.numbers
    error = refused.value
    assert (error.uri, error.detached_version, type(error.__cause__)) == (table.uri, number, ValueError)
    assert f"Nothing was published. The change stays as the detached version {number}" in str(error)
    assert f"Table.open({table.uri!r}, version={number})" in str(error)
    left = Table.open(table.uri, version=number)
    assert ids(left) == expected
    made_by = left.transaction()
    assert made_by is not None
    assert made_by.properties["by"] == "me"

    passing = Seen(meanwhile=meanwhile)
    done = do(table, audit=passing, properties={"by": "me"})
    assert (done.version, ids(done.table), done.attempts) == (2, expected, 1)
    ((shown, base),) = passing.shown
    assert shown.version >= 2**63
    assert base is not None
    assert (base.version, ids(base)) == (1, [*range(8)])
    assert theirs == [expected, expected]
    landed = done.table.transaction()
    assert landed is not None
    assert (landed.uuid, landed.properties) == (shown.transaction().uuid, {"by": "me"})  # type: ignore[union-attr]
    assert beside(table) == [f"d{number}.manifest"], "what has landed is left beside the line"
    assert not holds(table)
    assert done.table.fsck().is_sound
    with pytest.raises(NotFound):
        Table.open(table.uri, version=shown.version)


def test_what_changes_nothing_is_not_shown(table: Table) -> None:
    audit = Seen(refuses=9)
    table.append(rows(), audit=audit)
    assert (audit.shown, table.refresh().version) == ([], 1)


def test_a_table_is_not_there_before_its_first_version_passed(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")

    def meanwhile(_shown: Table) -> None:
        assert not Table.exists(uri)
        with pytest.raises(NotFound):
            Table.open(uri)
        with pytest.raises(ValueError, match="not found"):
            lance.dataset(uri)

    refusing, passing = Seen(refuses=1, meanwhile=meanwhile), Seen(meanwhile=meanwhile)
    for _ in range(2):  # the second is told what it is told without an audit
        with pytest.raises(AuditFailed) as refused:
            Table.create(uri, rows(1, 2), audit=refusing, intent="first", properties={"by": "me"})
        refusing.refuses = 2
    meanwhile(refusing.shown[0][0])
    number = refused.value.detached_version
    assert ids(Table.open(uri, version=number)) == [1, 2]
    assert lance.dataset(uri, version=number).count_rows() == 2
    made = Table.create(uri, rows(1, 2), audit=passing, intent="first", properties={"by": "me"})
    assert (made.version, lance.dataset(uri).version, passing.shown[0][1]) == (1, 1, None)
    uuids = {each.transaction().uuid for each in (made, passing.shown[0][0])}  # type: ignore[union-attr]
    assert uuids == {Table.open(uri, version=number).transaction().uuid}  # type: ignore[union-attr]
    assert made.id == passing.shown[0][0].id
    again = Table.create(uri, rows(1, 2), audit=Seen(refuses=1), intent="first")
    assert (again.version, len(made.versions())) == (1, 1)
    assert made.fsck().is_sound


def test_an_intent_that_was_refused_lands_once_when_it_passes(table: Table) -> None:
    audit = Seen(refuses=2)
    for _ in range(2):
        with pytest.raises(AuditFailed):
            table.append(rows(50), audit=audit, intent="daily")
    landed = table.append(rows(50), audit=audit, intent="daily")
    again = table.append(rows(50), audit=audit, intent="daily")
    assert (landed.version, again.version, again.already_committed) == (2, 2, True)
    assert len(audit.shown) == 3, "what has landed is shown again"
    assert ids(again.table) == [*range(8), 50]


def test_what_was_refused_can_be_published_by_a_person(table: Table) -> None:
    with pytest.raises(AuditFailed) as refused:
        table.delete("id > 3", audit=Seen(refuses=1), intent="purge", properties={"by": "me"})
    table.append(rows(50))
    done = table.publish(refused.value.detached_version)
    assert (done.version, ids(done.table)) == (3, [0, 1, 2, 3, 50])
    assert done.table.version_info().properties["by"] == "me"
    again = table.delete("id > 3", audit=Seen(refuses=1), intent="purge")
    assert (again.version, again.already_committed) == (3, True)


@pytest.mark.parametrize("stable", [False, True])
def test_so_can_the_first_version_of_a_table(tmp_path: Path, stable: bool) -> None:
    uri = str(tmp_path / "t")
    with pytest.raises(AuditFailed) as refused:
        Table.create(uri, rows(1, 2), stable_row_ids=stable, audit=Seen(refuses=1), intent="first")
    number = refused.value.detached_version
    done = Table.open(uri, version=number).publish(number)
    assert (done.version, ids(done.table), done.table.manifest.has_stable_row_ids) == (1, [1, 2], stable)
    assert lance.dataset(uri).count_rows() == 2
    assert Table.open(uri).publish(number).already_committed
    assert Table.create(uri, rows(1, 2), audit=Seen(refuses=1), intent="first").version == 1
    assert done.table.append(rows(3)).version == 2
    with pytest.raises(AuditFailed) as refused:
        Table.create(str(tmp_path / "u"), rows(1), audit=Seen(refuses=1))
    Table.create(str(tmp_path / "u"), rows(7))
    with pytest.raises(AlreadyExists):
        Table.open(str(tmp_path / "u")).publish(refused.value.detached_version)


def test_what_follows_others_is_shown_once(table: Table) -> None:
    """And is not what was shown, but what the rules make of both."""
    audit = Seen(meanwhile=lambda _shown: table.append(rows(99)))
    done = table.delete("id > 3", audit=audit)
    assert (done.version, done.rebased_over, len(audit.shown)) == (3, (2,), 1)
    assert ids(done.table) == [0, 1, 2, 3, 99]
    assert ids(audit.shown[0][0].at(1)) == [*range(8)]


def test_what_is_planned_again_is_shown_again(table: Table) -> None:
    others = iter([lambda: table.append(rows(50)), lambda: table.refresh().delete("id = 5"), lambda: None])
    audit = Seen(meanwhile=lambda _shown: next(others)())
    done = table.upsert(rows(5, 50), on="id", audit=audit)
    assert done.version == 4
    assert [base.version for _, base in audit.shown if base] == [1, 2, 3]
    assert [shown.count_rows() for shown, _ in audit.shown] == [9, 9, 9]
    assert ids(done.table) == [*range(8), 50]
    # On the way to landing nothing is removed but what has landed.
    assert len(beside(table)) == 2

    refusing = Seen(refuses=2, meanwhile=lambda shown: table.append(rows(60)) if len(refusing.shown) == 1 else None)
    refusing.refuses = 0

    def second(shown: Table, base: Table | None) -> None:
        refusing(shown, base)
        if len(refusing.shown) == 2:
            raise ValueError("now it is wrong")

    with pytest.raises(AuditFailed, match="now it is wrong"):
        done.table.upsert(rows(60), on="id", audit=second)
    assert table.refresh().version == 5


def test_a_conflict_after_the_audit_is_told_as_one(table: Table) -> None:
    audit = Seen(meanwhile=lambda _shown: table.overwrite(rows(1)))
    with pytest.raises(IncompatibleConflict):
        table.append(rows(50), audit=audit)
    assert ids(table.refresh()) == [1]


def test_what_else_an_audit_may_raise(table: Table) -> None:
    def raising(error: BaseException) -> Audit:
        def audit(_table: Table, _base: Table | None) -> None:
            raise error

        return audit

    with pytest.raises(StorageError, match="the store is down"):
        table.append(rows(50), audit=raising(StorageError("the store is down")))
    with pytest.raises(KeyboardInterrupt):
        table.append(rows(50), audit=raising(KeyboardInterrupt()))
    # Not one to plan again for, nor to look for.
    for error in (CommitUndecided("who knows", uuid="u", version=2), AssertionError(), NotFound("it is not there")):
        with pytest.raises(AuditFailed, match=str(error) or "AssertionError"):
            table.append(rows(50), audit=raising(error))
    assert not holds(table)
    assert ids(table.refresh()) == [*range(8)]
    with pytest.raises(InvalidInput, match="audit= must be a function of two tables, not a bool"):
        table.append(rows(50), audit=True)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="read the version, then publish it"):
        table.commit(Append(()), detached=True, audit=Seen())


def test_of_two_holders_of_an_intent_the_refused_one_is_told_of_the_landing(table: Table) -> None:
    passed = Seen()
    refusing = Seen(refuses=1, meanwhile=lambda _shown: table.append(rows(50), intent="daily", audit=passed))
    done = table.append(rows(50), intent="daily", audit=refusing)
    assert (done.version, done.already_committed, ids(done.table)) == (2, True, [*range(8), 50])
    both = Seen(meanwhile=lambda _shown: table.refresh().append(rows(60), intent="nightly"))
    done = done.table.append(rows(60), intent="nightly", audit=both)
    assert (done.version, ids(done.table)) == (3, [*range(8), 50, 60])


def test_appends_that_meet_an_audited_one_do_not_share_with_it(monkeypatch: pytest.MonkeyPatch, table: Table) -> None:
    """While it is looked at, others append and land; who is refused takes nobody along."""
    at_work, go_on = threading.Event(), threading.Event()

    def waits(shown: Table, _base: Table | None) -> None:
        assert ids(shown) == [*range(8), 50]
        at_work.set()
        assert go_on.wait(60)
        raise ValueError("no")

    with ThreadPoolExecutor(4) as pool:
        refused = pool.submit(table.append, rows(50), audit=waits)
        assert at_work.wait(60)
        others = [pool.submit(table.append, rows(number)).result(60) for number in (60, 61, 62)]
        go_on.set()
        with pytest.raises(AuditFailed):
            refused.result(60)
    assert ids(table.refresh()) == [*range(8), 60, 61, 62]
    assert {file.path for other in others for part in other.table.fragments for file in part.files}.isdisjoint(
        file.path for part in Table.open(table.uri, version=_number(table)).fragments[2:] for file in part.files
    )


def test_who_passed_lands_beside_those_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in one transaction with them: it is the one that was shown."""
    done: list[WriteResult] = []
    with meeting(monkeypatch, 2) as held:
        for name in ("a", "b"):
            held.append(name)
        world = World(held.store.inner)
        begun = begin(held.table.location(), held.table.at(1), verb="append", intent=None, runtime=runtime(77))
        assert isinstance(begun, StartedWrite)
        append = Append(world.fragments("mine"))
        done.append(finish(begun, append, properties={}, attempts=9, audit=lambda _beside, _base: None))
    held.written()
    transaction = load_transaction(held.table.location(), done[0].snapshot.manifest)
    assert transaction is not None
    assert (parts_of(transaction), transaction.uuid) == ((), begun.uuid)
    assert sorted(held.table.names()) == ["a", "alone", "b", "first", "mine"]


def _number(table: Table) -> int:
    (name,) = beside(table)
    return int(name.removeprefix("d").removesuffix(".manifest"))


# Stopped, and gone on with


def audited(world: World, *, is_new: bool, shown: list[int]) -> WriteResult:
    """As a process that starts again does it: with other uuids each time."""
    begun = begin(
        world.location(),
        BIRTH if is_new else world.at(1),
        verb="write",
        intent="daily",
        runtime=runtime(5 + len(shown)),
    )
    if isinstance(begun, WriteResult):
        return begun
    brought = world.fragments("mine")
    operation = Overwrite(brought, SCHEMA) if is_new else Append(brought)
    return finish(begun, operation, properties={}, attempts=9, audit=lambda beside, _base: shown.append(beside.version))


STOPS = ("create", "put", "delete", "head", "list", "read")


@pytest.mark.parametrize("how", ["fails", "lost", "never", "late"])
@pytest.mark.parametrize("is_new", [False, True], ids=["a table", "a new table"])
def test_it_lands_once_wherever_it_was_stopped(how: str, is_new: bool) -> None:
    stops = STOPS if how == "fails" else ("create",)

    def made() -> tuple[FaultyStore, World]:
        store = FaultyStore()
        world = World(store)
        if not is_new:
            world.create("first")
            world.append("second")
        store.calls.clear()
        return store, world

    store, world = made()
    audited(world, is_new=is_new, shown=[])
    points = [call for call in store.calls if call[0] in stops]
    assert len(points) >= (3 if how != "fails" else 12)
    for stop, point in enumerate(points):
        store, world = made()
        shown: list[int] = []
        count = itertools.count()

        def this(call: str, _path: str, stop: int = stop, count: "itertools.count[int]" = count) -> bool:
            return call in stops and next(count) == stop

        store.faults.append(Fault(this, how))
        with suppress(LanceError):
            audited(world, is_new=is_new, shown=shown)
        assert not store.faults, point
        store.land()
        audited(world, is_new=is_new, shown=shown)
        before = 0 if is_new else 2
        assert (world.names().count("mine"), world.at().version) == (1, before + 1), point
        looked = len(shown)
        assert audited(world, is_new=is_new, shown=shown).already_committed
        assert (len(shown), world.at().version) == (looked, before + 1), point


# Cleaning up after it


def test_a_refused_version_stays_for_a_while_and_then_goes_with_its_files(table: Table) -> None:
    def cleaned(**options: Any) -> Any:
        return table.refresh().cleanup(**{"older_than": timedelta(0), "keep": 1, **options})

    before = {path.name for path in Path(table.uri, "data").iterdir()}
    with pytest.raises(AuditFailed) as refused:
        table.append(rows(50), audit=Seen(refuses=1), intent="daily")
    number = refused.value.detached_version
    (new,) = {path.name for path in Path(table.uri, "data").iterdir()} - before
    age(table.uri, 6 * DAY)
    table.append(rows(60))
    assert cleaned().detached == ()
    assert ids(Table.open(table.uri, version=number)) == [*range(8), 50]
    age(table.uri, 8 * DAY)
    assert cleaned(older_than=9 * DAY).detached == ()
    table.tags.create("look", number)
    kept = cleaned()
    assert (kept.detached, kept.kept[number]) == ((), ("tag look",))
    table.tags.delete("look")
    assert cleaned(dry_run=True).detached == (number,)
    assert ids(Table.open(table.uri, version=number)) == [*range(8), 50]
    report = cleaned()
    assert report.detached == (number,)
    assert f"data/{new}" in report.files
    assert not beside(table)
    assert not Path(table.uri, "data", new).exists()
    assert ids(table.refresh()) == [*range(8), 60]
    assert lance.dataset(table.uri).count_rows() == 9
    assert table.refresh().fsck().is_sound
    done = table.refresh().append(rows(50), intent="daily")
    assert (done.already_committed, ids(done.table)) == (False, [*range(8), 50, 60])


def test_files_that_a_refused_version_shares_stay(table: Table) -> None:
    with pytest.raises(AuditFailed):
        table.delete("id = 3", audit=Seen(refuses=1))
    age(table.uri, 30 * DAY)
    table.append(rows(60))
    report = table.refresh().cleanup(older_than=timedelta(0), keep=1)
    assert len(report.detached) == 1
    assert ids(table.refresh()) == [*range(8), 60]
    assert not list(Path(table.uri, "_deletions").iterdir())


def test_a_cleanup_leaves_what_an_audit_is_looking_at(table: Table) -> None:
    def meanwhile(shown: Table) -> None:
        age(table.uri, 30 * DAY, "_versions/*", "data/*")
        report = table.refresh().cleanup(older_than=timedelta(0), keep=1)
        assert report.detached == ()
        assert report.kept[shown.version] == ("its audit",)
        assert ids(shown) == [*range(8), 50]

    done = table.append(rows(50), audit=Seen(meanwhile=meanwhile))
    assert ids(done.table) == [*range(8), 50]


def test_publishing_asks_for_files_that_may_be_going(table: Table) -> None:
    """An old one may be about to be cleaned up."""
    with pytest.raises(AuditFailed) as refused:
        table.append(rows(50), audit=Seen(refuses=1))
    number = refused.value.detached_version
    (file,) = Table.open(table.uri, version=number).fragments[-1].files
    store = LocalStore(Path(table.uri))
    noticed = announce_sweep(store, SweepNotice((number,), (file.qualified_path,)), SYSTEM_RUNTIME)
    with pytest.raises(StorageError, match="a cleanup may be removing"):
        table.publish(number)
    release(store, noticed)
    assert ids(table.publish(number).table) == [*range(8), 50]


def test_what_has_landed_and_cannot_be_removed_stays_for_a_cleanup(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = LocalStore.delete

    def fails(self: LocalStore, path: str) -> None:
        if path.startswith(f"{naming.VERSIONS}/d"):
            raise StorageError("not now")
        delete(self, path)

    monkeypatch.setattr(LocalStore, "delete", fails)
    done = table.append(rows(50), audit=Seen())
    monkeypatch.undo()
    assert done.version == 2
    assert len(beside(table)) == 1
    age(table.uri, 30 * DAY)
    assert len(done.table.cleanup().detached) == 1
    assert ids(table.refresh()) == [*range(8), 50]


def test_on_a_branch(table: Table) -> None:
    dev = table.branches.create("dev")
    with pytest.raises(AuditFailed) as refused:
        dev.append(rows(50), audit=Seen(refuses=1))
    shown = Table.open(refused.value.uri, version=refused.value.detached_version)
    assert (shown.branch, ids(shown)) == ("dev", [*range(8), 50])
    assert dev.append(rows(50), audit=Seen()).table.branch == "dev"
