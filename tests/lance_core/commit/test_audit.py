"""Audits: which version an audit sees before other readers do, which changes it refuses, and that each change is
committed once.
"""

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
from tests.lance_core.concurrent_appends import concurrent_appends
from tests.lance_core.in_memory_table import NEW_TABLE, SCHEMA, Fault, FaultyStore, InMemoryTable, deterministic_runtime
from tests.lance_core.maintenance.test_cleanup import DAY, set_age

Write = Callable[..., Committed]


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([10 * each for each in ids], pa.int64())})


def ids(table: Table) -> list[int]:
    values: list[int] = table.to_table(["id"])["id"].to_pylist()
    return sorted(values)


@pytest.fixture(params=[False, True], ids=["addresses", "stable row ids"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return Table.create(
        str(tmp_path / "t"), rows(*range(8)), stable_row_ids=request.param, max_rows_per_file=4, durable=False
    )


@dataclass
class RecordingAudit:
    """An audit that records the versions it sees and refuses the first `refusals` of them."""

    refusals: int = 0
    calls: list[tuple[Table, Table | None]] = field(default_factory=list)
    meanwhile: Callable[[Table], object] = lambda _table: None

    def __call__(self, table: Table, base: Table | None) -> None:
        self.calls.append((table, base))
        self.meanwhile(table)
        if len(self.calls) <= self.refusals:
            raise ValueError(f"{table.count_rows()} rows are wrong")

    @property
    def version_numbers(self) -> list[int]:
        return [table.version for table, _ in self.calls]


def detached_manifests(table: Table) -> list[str]:
    return [path.name for path in Path(table.uri, "_versions").glob("d*")]


def lease_files(table: Table) -> list[Path]:
    return list(Path(table.uri).glob("_lance_assets/holds/*"))


WRITES: dict[str, tuple[Write, list[int]]] = {
    "append": (lambda t, **outcome: t.append(rows(50), **outcome), [*range(8), 50]),
    "append of files": (lambda t, **outcome: t.append(iter(rows(50, 51).to_batches()), **outcome), [*range(8), 50, 51]),
    "overwrite": (lambda t, **outcome: t.overwrite(rows(50), **outcome), [50]),
    "a slice": (lambda t, **outcome: t.overwrite(rows(7), where="id > 3", **outcome), [0, 1, 2, 3, 7]),
    "delete": (lambda t, **outcome: t.delete("id > 2", **outcome), [0, 1, 2]),
    "update": (lambda t, **outcome: t.update({"id": "id + 10"}, "id < 2", **outcome), [2, 3, 4, 5, 6, 7, 10, 11]),
    "upsert": (lambda t, **outcome: t.upsert(rows(7, 8), on="id", **outcome), [*range(9)]),
    "add_columns": (lambda t, **outcome: t.add_columns({"x": "id"}, **outcome), [*range(8)]),
    "merge_columns": (
        lambda t, **outcome: t.merge_columns(rows(1).rename_columns(["id", "y"]), "id", **outcome),
        [*range(8)],
    ),
    "drop_columns": (lambda t, **outcome: t.drop_columns(["v"], **outcome), [*range(8)]),
    "alter_column": (lambda t, **outcome: t.alter_column("v", type=pa.float64(), **outcome), [*range(8)]),
    "restore": (lambda t, **outcome: t.restore(1, **outcome), [*range(8)]),
}


@pytest.mark.parametrize("name", WRITES)
def test_each_write_is_audited_before_readers_see_it(table: Table, name: str) -> None:
    write, expected = WRITES[name]
    ids_of_pylance: list[list[int]] = []

    def meanwhile(calls: Table) -> None:
        assert table.refresh().version == lance.dataset(table.uri).version == 1
        at = lance.dataset(table.uri).checkout_version(calls.version)
        ids_of_pylance.append(sorted(at.to_table()["id"].to_pylist()))
        assert at.schema == calls.schema == lance.dataset(table.uri, version=calls.version).schema

    refusing = RecordingAudit(refusals=1, meanwhile=meanwhile)
    with pytest.raises(AuditFailed, match="rows are wrong") as refused:
        write(table, audit=refusing, properties={"by": "me"})
    assert table.refresh().version == 1
    (number,) = refusing.version_numbers
    error = refused.value
    assert (error.uri, error.detached_version, type(error.__cause__)) == (table.uri, number, ValueError)
    assert f"Nothing was published. The change stays as the detached version {number}" in str(error)
    assert f"Table.open({table.uri!r}, version={number})" in str(error)
    refused_version = Table.open(table.uri, version=number)
    assert ids(refused_version) == expected
    transaction = refused_version.transaction()
    assert transaction is not None
    assert transaction.properties["by"] == "me"

    passing = RecordingAudit(meanwhile=meanwhile)
    done = write(table, audit=passing, properties={"by": "me"})
    assert (done.version, ids(done.table), done.attempts) == (2, expected, 1)
    ((calls, base),) = passing.calls
    assert calls.version >= 2**63
    assert base is not None
    assert (base.version, ids(base)) == (1, [*range(8)])
    assert ids_of_pylance == [expected, expected]
    published = done.table.transaction()
    assert published is not None
    assert published.uuid == calls.transaction().uuid  # type: ignore[union-attr]
    records_columns = name in ("update", "add_columns", "upsert", "merge_columns")
    recorded = {"lance_assets.columns"} if records_columns else set()
    assert set(published.properties) == {"by", *recorded}
    assert published.properties["by"] == "me"
    assert detached_manifests(table) == [f"d{number}.manifest"], "the detached manifest of a published change remains"
    assert not lease_files(table)
    assert done.table.fsck().is_sound
    with pytest.raises(NotFound):
        Table.open(table.uri, version=calls.version)


def test_a_write_without_changes_is_not_audited(table: Table) -> None:
    audit = RecordingAudit(refusals=9)
    table.append(rows(), audit=audit)
    assert (audit.calls, table.refresh().version) == ([], 1)


def test_a_table_does_not_exist_before_its_first_version_passes(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")

    def meanwhile(_shown: Table) -> None:
        assert not Table.exists(uri)
        with pytest.raises(NotFound):
            Table.open(uri)
        with pytest.raises(ValueError, match="not found"):
            lance.dataset(uri)

    refusing, passing = RecordingAudit(refusals=1, meanwhile=meanwhile), RecordingAudit(meanwhile=meanwhile)
    for _ in range(2):  # the second attempt gets the same answer as the first
        with pytest.raises(AuditFailed) as refused:
            Table.create(uri, rows(1, 2), audit=refusing, intent="first", properties={"by": "me"})
        refusing.refusals = 2
    meanwhile(refusing.calls[0][0])
    number = refused.value.detached_version
    assert ids(Table.open(uri, version=number)) == [1, 2]
    assert lance.dataset(uri, version=number).count_rows() == 2
    created = Table.create(uri, rows(1, 2), audit=passing, intent="first", properties={"by": "me"})
    assert (created.version, lance.dataset(uri).version, passing.calls[0][1]) == (1, 1, None)
    uuids = {each.transaction().uuid for each in (created, passing.calls[0][0])}  # type: ignore[union-attr]
    assert uuids == {Table.open(uri, version=number).transaction().uuid}  # type: ignore[union-attr]
    assert created.id == passing.calls[0][0].id
    again = Table.create(uri, rows(1, 2), audit=RecordingAudit(refusals=1), intent="first")
    assert (again.version, len(created.versions())) == (1, 1)
    assert created.fsck().is_sound


def test_a_refused_intent_is_committed_once_after_it_passes(table: Table) -> None:
    audit = RecordingAudit(refusals=2)
    for _ in range(2):
        with pytest.raises(AuditFailed):
            table.append(rows(50), audit=audit, intent="daily")
    committed = table.append(rows(50), audit=audit, intent="daily")
    again = table.append(rows(50), audit=audit, intent="daily")
    assert (committed.version, again.version, again.already_committed) == (2, 2, True)
    assert len(audit.calls) == 3, "a committed change is audited again"
    assert ids(again.table) == [*range(8), 50]


def test_a_refused_change_can_be_published_by_hand(table: Table) -> None:
    with pytest.raises(AuditFailed) as refused:
        table.delete("id > 3", audit=RecordingAudit(refusals=1), intent="purge", properties={"by": "me"})
    table.append(rows(50))
    done = table.publish(refused.value.detached_version)
    assert (done.version, ids(done.table)) == (3, [0, 1, 2, 3, 50])
    assert done.table.version_info().properties["by"] == "me"
    again = table.delete("id > 3", audit=RecordingAudit(refusals=1), intent="purge")
    assert (again.version, again.already_committed) == (3, True)


@pytest.mark.parametrize("stable", [False, True])
def test_a_refused_first_version_can_be_published_by_hand(tmp_path: Path, stable: bool) -> None:
    uri = str(tmp_path / "t")
    with pytest.raises(AuditFailed) as refused:
        Table.create(uri, rows(1, 2), stable_row_ids=stable, audit=RecordingAudit(refusals=1), intent="first")
    number = refused.value.detached_version
    done = Table.open(uri, version=number).publish(number)
    assert (done.version, ids(done.table), done.table.manifest.has_stable_row_ids) == (1, [1, 2], stable)
    assert lance.dataset(uri).count_rows() == 2
    assert Table.open(uri).publish(number).already_committed
    assert Table.create(uri, rows(1, 2), audit=RecordingAudit(refusals=1), intent="first").version == 1
    assert done.table.append(rows(3)).version == 2
    with pytest.raises(AuditFailed) as refused:
        Table.create(str(tmp_path / "u"), rows(1), audit=RecordingAudit(refusals=1))
    Table.create(str(tmp_path / "u"), rows(7))
    with pytest.raises(AlreadyExists):
        Table.open(str(tmp_path / "u")).publish(refused.value.detached_version)


def test_a_rebased_change_is_audited_once(table: Table) -> None:
    """The committed version differs from the audited one: the rules combine both changes."""
    audit = RecordingAudit(meanwhile=lambda _shown: table.append(rows(99)))
    done = table.delete("id > 3", audit=audit)
    assert (done.version, done.rebased_over, len(audit.calls)) == (3, (2,), 1)
    assert ids(done.table) == [0, 1, 2, 3, 99]
    assert ids(audit.calls[0][0].at(1)) == [*range(8)]


def test_a_replanned_change_is_audited_again(table: Table) -> None:
    others = iter([lambda: table.append(rows(50)), lambda: table.refresh().delete("id = 5"), lambda: None])
    audit = RecordingAudit(meanwhile=lambda _shown: next(others)())
    done = table.upsert(rows(5, 50), on="id", audit=audit)
    assert done.version == 4
    assert [base.version for _, base in audit.calls if base] == [1, 2, 3]
    assert [calls.count_rows() for calls, _ in audit.calls] == [9, 9, 9]
    assert ids(done.table) == [*range(8), 50]
    # Before the commit, nothing is deleted but detached manifests that are published.
    assert len(detached_manifests(table)) == 2

    refusing = RecordingAudit(
        refusals=2, meanwhile=lambda calls: table.append(rows(60)) if len(refusing.calls) == 1 else None
    )
    refusing.refusals = 0

    def refuse_second_version(calls: Table, base: Table | None) -> None:
        refusing(calls, base)
        if len(refusing.calls) == 2:
            raise ValueError("now it is wrong")

    with pytest.raises(AuditFailed, match="now it is wrong"):
        done.table.upsert(rows(60), on="id", audit=refuse_second_version)
    assert table.refresh().version == 5


def test_a_conflict_after_the_audit_is_reported_as_a_conflict(table: Table) -> None:
    audit = RecordingAudit(meanwhile=lambda _shown: table.overwrite(rows(1)))
    with pytest.raises(IncompatibleConflict):
        table.append(rows(50), audit=audit)
    assert ids(table.refresh()) == [1]


def test_errors_of_an_audit(table: Table) -> None:
    def audit_that_raises(error: BaseException) -> Audit:
        def audit(_table: Table, _base: Table | None) -> None:
            raise error

        return audit

    with pytest.raises(StorageError, match="the store is down"):
        table.append(rows(50), audit=audit_that_raises(StorageError("the store is down")))
    with pytest.raises(KeyboardInterrupt):
        table.append(rows(50), audit=audit_that_raises(KeyboardInterrupt()))
    # These errors of an audit neither cause a replan nor a search for the commit.
    for error in (
        CommitUndecided("the outcome is unknown", uuid="u", version=2),
        AssertionError(),
        NotFound("it does not exist"),
    ):
        with pytest.raises(AuditFailed, match=str(error) or "AssertionError"):
            table.append(rows(50), audit=audit_that_raises(error))
    assert not lease_files(table)
    assert ids(table.refresh()) == [*range(8)]
    with pytest.raises(InvalidInput, match="audit= must be a function of two tables, not a bool"):
        table.append(rows(50), audit=True)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="read the version, then publish it"):
        table.commit(Append(()), detached=True, audit=RecordingAudit())


def test_a_refused_write_finds_the_commit_of_its_intent(table: Table) -> None:
    passed = RecordingAudit()
    refusing = RecordingAudit(refusals=1, meanwhile=lambda _shown: table.append(rows(50), intent="daily", audit=passed))
    done = table.append(rows(50), intent="daily", audit=refusing)
    assert (done.version, done.already_committed, ids(done.table)) == (2, True, [*range(8), 50])
    both = RecordingAudit(meanwhile=lambda _shown: table.refresh().append(rows(60), intent="nightly"))
    done = done.table.append(rows(60), intent="nightly", audit=both)
    assert (done.version, ids(done.table)) == (3, [*range(8), 50, 60])


def test_appends_do_not_share_a_file_with_a_concurrent_audited_append(
    monkeypatch: pytest.MonkeyPatch, table: Table
) -> None:
    """Other appends commit during the audit, and the refused append does not fail them."""
    audit_started, may_continue = threading.Event(), threading.Event()

    def wait_and_refuse(calls: Table, _base: Table | None) -> None:
        assert ids(calls) == [*range(8), 50]
        audit_started.set()
        assert may_continue.wait(60)
        raise ValueError("no")

    with ThreadPoolExecutor(4) as pool:
        refused = pool.submit(table.append, rows(50), audit=wait_and_refuse)
        assert audit_started.wait(60)
        others = [pool.submit(table.append, rows(number)).result(60) for number in (60, 61, 62)]
        may_continue.set()
        with pytest.raises(AuditFailed):
            refused.result(60)
    assert ids(table.refresh()) == [*range(8), 60, 61, 62]
    assert {file.path for other in others for part in other.table.fragments for file in part.files}.isdisjoint(
        file.path
        for part in Table.open(table.uri, version=detached_version(table)).fragments[2:]
        for file in part.files
    )


def test_an_audited_append_does_not_join_the_queued_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """It commits the transaction that the audit has seen."""
    results: list[WriteResult] = []
    with concurrent_appends(monkeypatch, 2) as appends:
        for name in ("a", "b"):
            appends.append(name)
        table = InMemoryTable(appends.store.inner)
        started = begin(
            appends.table.location(), appends.table.at(1), verb="append", intent=None, runtime=deterministic_runtime(77)
        )
        assert isinstance(started, StartedWrite)
        append = Append(table.fragments("mine"))
        results.append(finish(started, append, properties={}, attempts=9, audit=lambda _detached, _base: None))
    appends.results()
    transaction = load_transaction(appends.table.location(), results[0].snapshot.manifest)
    assert transaction is not None
    assert (parts_of(transaction), transaction.uuid) == ((), started.uuid)
    assert sorted(appends.table.file_names()) == ["a", "alone", "b", "first", "mine"]


def detached_version(table: Table) -> int:
    (name,) = detached_manifests(table)
    return int(name.removeprefix("d").removesuffix(".manifest"))


# Interrupted and repeated


def write_audited(table: InMemoryTable, *, is_new: bool, audited_versions: list[int]) -> WriteResult:
    """Write as a restarted process does, with other uuids in each run."""
    started = begin(
        table.location(),
        NEW_TABLE if is_new else table.at(1),
        verb="write",
        intent="daily",
        runtime=deterministic_runtime(5 + len(audited_versions)),
    )
    if isinstance(started, WriteResult):
        return started
    fragments = table.fragments("mine")
    operation = Overwrite(fragments, SCHEMA) if is_new else Append(fragments)
    return finish(
        started,
        operation,
        properties={},
        attempts=9,
        audit=lambda detached, _base: audited_versions.append(detached.version),
    )


INTERRUPTIBLE_CALLS = ("create", "put", "delete", "head", "list", "read")


@pytest.mark.parametrize("outcome", ["fails", "lost", "never", "late"])
@pytest.mark.parametrize("is_new", [False, True], ids=["a table", "a new table"])
def test_a_write_commits_once_after_a_fault_in_any_call(outcome: str, is_new: bool) -> None:
    call_names = INTERRUPTIBLE_CALLS if outcome == "fails" else ("create",)

    def create_store_and_table() -> tuple[FaultyStore, InMemoryTable]:
        store = FaultyStore()
        table = InMemoryTable(store)
        if not is_new:
            table.create("first")
            table.append("second")
        store.calls.clear()
        return store, table

    store, table = create_store_and_table()
    write_audited(table, is_new=is_new, audited_versions=[])
    points = [call for call in store.calls if call[0] in call_names]
    assert len(points) >= (3 if outcome != "fails" else 12)
    for position, point in enumerate(points):
        store, table = create_store_and_table()
        audited_versions: list[int] = []
        count = itertools.count()

        def is_faulty_call(
            call: str, _path: str, position: int = position, count: "itertools.count[int]" = count
        ) -> bool:
            return call in call_names and next(count) == position

        store.faults.append(Fault(is_faulty_call, outcome))
        with suppress(LanceError):
            write_audited(table, is_new=is_new, audited_versions=audited_versions)
        assert not store.faults, point
        store.deliver_late_puts()
        write_audited(table, is_new=is_new, audited_versions=audited_versions)
        version_before = 0 if is_new else 2
        assert (table.file_names().count("mine"), table.at().version) == (1, version_before + 1), point
        audit_count = len(audited_versions)
        assert write_audited(table, is_new=is_new, audited_versions=audited_versions).already_committed
        assert (len(audited_versions), table.at().version) == (audit_count, version_before + 1), point


# Cleanup after audits


def test_a_refused_version_is_kept_for_a_week_and_then_removed_with_its_files(table: Table) -> None:
    def clean_up(**options: Any) -> Any:
        return table.refresh().cleanup(**{"older_than": timedelta(0), "keep": 1, **options})

    before = {path.name for path in Path(table.uri, "data").iterdir()}
    with pytest.raises(AuditFailed) as refused:
        table.append(rows(50), audit=RecordingAudit(refusals=1), intent="daily")
    number = refused.value.detached_version
    (new,) = {path.name for path in Path(table.uri, "data").iterdir()} - before
    set_age(table.uri, 6 * DAY)
    table.append(rows(60))
    assert clean_up().detached == ()
    assert ids(Table.open(table.uri, version=number)) == [*range(8), 50]
    set_age(table.uri, 8 * DAY)
    assert clean_up(older_than=9 * DAY).detached == ()
    table.tags.create("review", number)
    kept = clean_up()
    assert (kept.detached, kept.kept[number]) == ((), ("tag review",))
    table.tags.delete("review")
    assert clean_up(dry_run=True).detached == (number,)
    assert ids(Table.open(table.uri, version=number)) == [*range(8), 50]
    report = clean_up()
    assert report.detached == (number,)
    assert f"data/{new}" in report.files
    assert not detached_manifests(table)
    assert not Path(table.uri, "data", new).exists()
    assert ids(table.refresh()) == [*range(8), 60]
    assert lance.dataset(table.uri).count_rows() == 9
    assert table.refresh().fsck().is_sound
    done = table.refresh().append(rows(50), intent="daily")
    assert (done.already_committed, ids(done.table)) == (False, [*range(8), 50, 60])


def test_files_that_a_refused_version_shares_are_kept(table: Table) -> None:
    with pytest.raises(AuditFailed):
        table.delete("id = 3", audit=RecordingAudit(refusals=1))
    set_age(table.uri, 30 * DAY)
    table.append(rows(60))
    report = table.refresh().cleanup(older_than=timedelta(0), keep=1)
    assert len(report.detached) == 1
    assert ids(table.refresh()) == [*range(8), 60]
    assert not list(Path(table.uri, "_deletions").iterdir())


def test_a_cleanup_keeps_the_version_of_a_running_audit(table: Table) -> None:
    def meanwhile(calls: Table) -> None:
        set_age(table.uri, 30 * DAY, "_versions/*", "data/*")
        report = table.refresh().cleanup(older_than=timedelta(0), keep=1)
        assert report.detached == ()
        assert report.kept[calls.version] == ("its audit",)
        assert ids(calls) == [*range(8), 50]

    done = table.append(rows(50), audit=RecordingAudit(meanwhile=meanwhile))
    assert ids(done.table) == [*range(8), 50]


def test_publishing_checks_for_files_that_a_cleanup_may_remove(table: Table) -> None:
    """A cleanup may be about to delete an old detached version."""
    with pytest.raises(AuditFailed) as refused:
        table.append(rows(50), audit=RecordingAudit(refusals=1))
    number = refused.value.detached_version
    (file,) = Table.open(table.uri, version=number).fragments[-1].files
    store = LocalStore(Path(table.uri))
    notice_path = announce_sweep(store, SweepNotice((number,), (file.qualified_path,)), SYSTEM_RUNTIME)
    with pytest.raises(StorageError, match="a cleanup may be removing"):
        table.publish(number)
    release(store, notice_path)
    assert ids(table.publish(number).table) == [*range(8), 50]


def test_a_detached_manifest_that_cannot_be_deleted_is_left_to_cleanup(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = LocalStore.delete

    def fail_for_detached_manifests(self: LocalStore, path: str) -> None:
        if path.startswith(f"{naming.VERSIONS}/d"):
            raise StorageError("not now")
        delete(self, path)

    monkeypatch.setattr(LocalStore, "delete", fail_for_detached_manifests)
    done = table.append(rows(50), audit=RecordingAudit())
    monkeypatch.undo()
    assert done.version == 2
    assert len(detached_manifests(table)) == 1
    set_age(table.uri, 30 * DAY)
    assert len(done.table.cleanup().detached) == 1
    assert ids(table.refresh()) == [*range(8), 50]


def test_audits_on_a_branch(table: Table) -> None:
    dev = table.branches.create("dev")
    with pytest.raises(AuditFailed) as refused:
        dev.append(rows(50), audit=RecordingAudit(refusals=1))
    calls = Table.open(refused.value.uri, version=refused.value.detached_version)
    assert (calls.branch, ids(calls)) == ("dev", [*range(8), 50])
    assert dev.append(rows(50), audit=RecordingAudit()).table.branch == "dev"
