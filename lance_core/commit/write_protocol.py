"""Write protocol: one write of a table, from its plan to the version that contains it.

    begin    claim the intent; if it was committed before, return that commit
    plan     plan the change on a version and write its files           <──┐
    finish   verify the files, audit the change, commit it,                │  newest version: after a conflict
             record the commit with the intent                         ────┘  that only a new plan resolves

Every verb is a `Change`, and `commit_with_retry` runs it: the methods of `Table`, the operations on Spark, compactions
and repairs. A write that begins in one process and finishes in another calls `begin` there and `resume` here. The
commit loop (`loop.py`) rebases a change over most commits of other writers. A conflict that a rebase cannot resolve,
such as a row that both changed, takes a new plan on the newest version, within a deadline and under the same
transaction uuid. Files of the abandoned plan are left to cleanup, and nothing is deleted on an error path.
`finish_append` writes the files too, for rows that are in memory. Start with `commit_with_retry`; the reasons are in
`004-one-write-protocol.md`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from lance_core.commit import audit as audit_module
from lance_core.commit import data_files, intent_history
from lance_core.commit.audit import AuditFunction
from lance_core.commit.fencing import ClockReading
from lance_core.commit.group_commit import commit_append
from lance_core.commit.loop import CommitResult, commit
from lance_core.commit.openlineage import COLUMNS
from lance_core.coordination import idempotency
from lance_core.coordination.backoff import Backoff
from lance_core.coordination.idempotency import CommitSummary, IntentRecord
from lance_core.coordination.leases import Lease, acquire, check_not_being_swept, release
from lance_core.datafiles.fragment_writer import BufferedRows
from lance_core.errors import (
    AlreadyExists,
    AuditFailed,
    CommitUndecided,
    InvalidInput,
    LanceError,
    NotFound,
    RetryableConflict,
    StorageError,
)
from lance_core.format import naming
from lance_core.format.config_keys import TABLE_ID
from lance_core.format.fragment import DataFile
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.format.operations import Append, Operation, Restore, Rewrite
from lance_core.format.transaction import Transaction
from lance_core.runtime import Runtime
from lance_core.transactions.apply import NewTable
from lance_core.transactions.change_summary import RowsChanged, files_written, rows_changed, segments_written
from lance_core.versions.location import Location, check_manifest_store, manifest_store_config
from lance_core.versions.snapshot import (
    Snapshot,
    check_one_naming_scheme,
    load_at,
    load_latest,
)


@dataclass(frozen=True, slots=True)
class StartedWrite:
    """Write that has begun. It is used once: it ends in `finish`, or is abandoned."""

    location: Location
    base: Snapshot | NewTable
    uuid: str
    record: IntentRecord | None
    runtime: Runtime
    started_at: ClockReading | None = None
    """Time before the first of its files was written."""
    verb: str | None = None
    """Name of the change, which the transaction records for the history."""

    @property
    def read_version(self) -> Version:
        return self.base.version if isinstance(self.base, Snapshot) else Version(0)

    @property
    def since(self) -> Version:
        """Version after which the search of the history for an earlier commit of this write begins."""
        return min(self.read_version, self.record.base) if self.record else self.read_version


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Version that contains the write."""

    snapshot: Snapshot
    summary: CommitSummary
    attempts: int
    rebased_over: tuple[Version, ...]
    already_committed: bool
    uncovered: tuple[str, ...] = ()
    """Names of the indices that cover fewer rows after the write."""


@dataclass(frozen=True, slots=True)
class Planned:
    """An operation whose files are written, with properties of its own for the transaction."""

    operation: Operation
    properties: Mapping[str, str] = field(default_factory=dict)


Plan = Callable[[Snapshot], Operation | Planned | BufferedRows | None]
"""Plan a change on a version and write its files, or buffer the rows of an append. `None` if nothing is to change."""
Create = Callable[[StartedWrite], Operation | Planned]
"""Write the files of the first version of a table."""


@dataclass(frozen=True, slots=True)
class Change:
    """Description of what a verb does to a table."""

    verb: str
    """Recorded with the intent: an intent is used for one verb only."""
    plan: Plan | None
    """`None` for a change that only creates tables."""
    operation: str = Append.name
    """Name of the operation that a result without a new version reports."""
    can_replan: bool = True
    """True if the change means the same on a newer version. An overwrite does not: it replaces what its caller read."""
    files_exist: bool = False
    """True if the files were written before the write began, at an unknown time."""
    audit: AuditFunction | None = None
    """Check of each plan before it is committed."""
    create: Create | None = None
    """Function that writes the first version; `None` if the table must exist."""


def commit_with_retry(
    change: Change,
    location: Location,
    base: Snapshot | NewTable,
    *,
    intent: str | None,
    properties: Mapping[str, str],
    retries: int,
    runtime: Runtime,
) -> WriteResult:
    """Begin a change on `base`, plan it and commit it. If the intent was committed before, return that commit.

    A `NewTable` as `base` means that the table does not exist yet."""
    started = begin(location, base, verb=change.verb, intent=intent, runtime=runtime)
    if isinstance(started, WriteResult):
        return started
    return resume(change, started, properties=properties, retries=retries)


def resume(change: Change, started: StartedWrite, *, properties: Mapping[str, str], retries: int) -> WriteResult:
    """Plan and commit a write that has begun, in this process or in another one. Raise a conflict if the change cannot
    be replanned, after `retries` plans, and at the deadline."""
    if change.files_exist:
        started = replace(started, started_at=ClockReading.distant_past())
    backoff = Backoff(started.runtime)
    for failed_plans in range(retries):
        try:
            result = _plan_and_finish(change, started, properties, retries)
        except (RetryableConflict, AlreadyExists) as conflict:
            if not _may_replan(change, started, conflict) or failed_plans + 1 == retries or backoff.is_expired:
                raise
            backoff.wait()
            started = _on_newest_version(started)
            # Another holder of the intent may have committed, and then there may be nothing left to change.
            if committed := find_committed(started):
                return committed
        else:
            return replace(result, attempts=result.attempts + failed_plans) if result.attempts else result
    raise AssertionError("the last attempt returns or raises")


def _plan_and_finish(change: Change, started: StartedWrite, properties: Mapping[str, str], retries: int) -> WriteResult:
    if isinstance(started.base, Snapshot):
        assert change.plan is not None, f"{change.verb} only creates tables"
        planned = change.plan(started.base)
    else:
        assert change.create is not None, f"{change.verb} needs a table"
        planned = change.create(started)
    if planned is None:
        return finish_unchanged(started, change.operation)
    if isinstance(planned, BufferedRows):
        return finish_append(started, planned, properties=properties, attempts=retries, audit=change.audit)
    if not isinstance(planned, Planned):
        planned = Planned(planned)
    return finish(
        started,
        planned.operation,
        properties=_merge_properties(properties, planned),
        attempts=retries,
        audit=change.audit,
    )


def _merge_properties(properties: Mapping[str, str], planned: Planned) -> Mapping[str, str]:
    """Return the properties of the transaction. The caller may know the sources of columns more exactly than the plan,
    such as their assets, so its record of them is kept."""
    recorded = {COLUMNS: properties[COLUMNS]} if COLUMNS in properties else {}
    return {**properties, **planned.properties, **recorded}


def _may_replan(change: Change, started: StartedWrite, conflict: RetryableConflict | AlreadyExists) -> bool:
    if isinstance(conflict, AlreadyExists):  # another writer created the table, or the plan names what exists already
        return change.can_replan and isinstance(started.base, NewTable)
    return change.can_replan and conflict.rule != "exhausted"


def _on_newest_version(started: StartedWrite) -> StartedWrite:
    base = load_latest(started.location)
    if isinstance(started.base, Snapshot):
        return replace(started, base=base)
    base.manifest.check_writable()
    check_manifest_store(base.location, base.manifest)  # another writer created the table, perhaps with another store
    check_one_naming_scheme(base.location, base.version)
    return replace(started, location=base.location, base=base)


def begin(
    location: Location, base: Snapshot | NewTable, *, verb: str, intent: str | None, runtime: Runtime
) -> StartedWrite | WriteResult:
    """Begin a write, or return its result if its intent was committed before.

    The record of the intent is the first file that is written. `verb` names the change; an intent is used for one verb
    only."""
    if isinstance(base, Snapshot):
        check_not_detached(base)
        check_manifest_store(location, base.manifest)
        check_one_naming_scheme(location, base.version)
    uuid = str(runtime.new_uuid())
    started_at = ClockReading.now(runtime)
    if intent is None:
        return StartedWrite(location, base, uuid, None, runtime, started_at, verb)
    read_version = base.version if isinstance(base, Snapshot) else Version(0)
    record = idempotency.claim(location.store, intent, verb=verb, base=read_version, uuid=uuid, now_ns=runtime.now_ns())
    started = StartedWrite(location, base, record.transaction_uuid, record, runtime, started_at, verb)
    if record.landing:
        return _recorded_result(location, record, record.landing)
    if record.transaction_uuid == uuid:
        return started
    if committed := find_committed(started):
        return committed
    _confirm_claim(started, record)
    return started


def _confirm_claim(started: StartedWrite, record: IntentRecord) -> None:
    """Show that the work of an earlier attempt continues. Raise `StorageError` if a cleanup is removing its record,
    which it took for abandoned. The record is written before the notices are read, and the cleanup does the reverse."""
    store = started.location.own_store
    idempotency.heartbeat(store, record, now_ns=started.runtime.now_ns())
    path = idempotency.path_of(record.intent)
    check_not_being_swept(store, Lease(f"continuing the intent {record.intent!r}", files=(path,)))


def _recorded_result(location: Location, record: IntentRecord, summary: CommitSummary) -> WriteResult:
    """Return the commit that the record of an intent names."""
    snapshot = intent_history.load_recorded_commit(location, record, summary)
    return WriteResult(snapshot, summary, attempts=0, rebased_over=(), already_committed=True)


def find_intent(base: Snapshot, intent: str, runtime: Runtime) -> WriteResult | None:
    """Return the commit of an intent without claiming the intent; `None` if no write has committed it. `base` is the
    newest version. Raise `CommitUndecided` if the history does not decide it."""
    location = base.location
    try:
        record = idempotency.read_record(location.store, idempotency.path_of(intent))
    except NotFound:
        return None
    if record.landing:
        return _recorded_result(location, record, record.landing)
    return find_committed(StartedWrite(location, base, record.transaction_uuid, record, runtime, verb=record.verb))


def find_committed(started: StartedWrite) -> WriteResult | None:
    """Return the commit of this write by an earlier attempt or another holder of its intent; `None` if the history
    since its base contains none. Raise `CommitUndecided` if that history does not decide it."""
    if started.record is None:
        return None
    base = started.base if isinstance(started.base, Snapshot) else None
    commit_or_summary = intent_history.find_commit(started.location, started.record, base)
    return (
        record_result(started, commit_or_summary)
        if isinstance(commit_or_summary, CommitResult)
        else _record_removed(started, commit_or_summary)
    )


def _record_removed(started: StartedWrite, summary: CommitSummary | None) -> WriteResult | None:
    """Record a commit whose version was removed, if there is one, and return the result of the write."""
    if summary is None:
        return None
    _record_commit(started, summary)
    return WriteResult(load_latest(started.location), summary, attempts=0, rebased_over=(), already_committed=True)


def _find_committed_by_another_holder(started: StartedWrite) -> WriteResult | None:
    """Call `find_committed` with the newest version as the base. Return `None` if the table does not exist."""
    if started.record is None:
        return None
    try:
        return find_committed(replace(started, base=load_latest(started.location)))
    except NotFound:
        return None


def finish(
    started: StartedWrite,
    operation: Operation,
    *,
    properties: Mapping[str, str],
    attempts: int,
    audit: AuditFunction | None = None,
) -> WriteResult:
    """Verify the files of the operation, audit it, commit it, and record the commit with the intent."""
    planned_on = started.base.manifest if isinstance(started.base, Snapshot) else None
    files, segments = files_written(operation, planned_on), segments_written(operation, planned_on)
    written_by_us = started.started_at is not None and not started.started_at.is_distant_past
    are_old = started.started_at is not None and started.started_at.is_distant_past
    leased = _own_keys(files) if are_old else ()
    with _hold_lease(started.location, Lease("this commit", files=leased), started.runtime):
        data_files.register_files(
            started.location, started.record, files, started.runtime, segments, written_by_us=written_by_us
        )
        return _audit_and_commit(started, operation, properties, attempts, audit, leased)


def _own_keys(files: Iterable[DataFile]) -> tuple[str, ...]:
    """Return the sorted keys of the data files that are in the table itself, not in another base."""
    return tuple(sorted(file.qualified_path for file in files if not file.message.HasField("base_id")))


@contextmanager
def _hold_lease(location: Location, lease: Lease, runtime: Runtime) -> Iterator[None]:
    """Hold a lease on existing files until they are committed, so that no cleanup removes them and one check of their
    existence is enough. After an undecided commit the lease is left to expire, since the put may still succeed."""
    records = [acquire(location.own_store, part, runtime) for part in lease.parts()] if lease.files else []
    try:
        yield
    except CommitUndecided:
        raise
    except LanceError:
        for record in records:
            release(location.own_store, record)
        raise
    for record in records:
        release(location.own_store, record)


def _audit_and_commit(
    started: StartedWrite,
    operation: Operation,
    properties: Mapping[str, str],
    attempts: int,
    audit: AuditFunction | None,
    leased: Sequence[str],
) -> WriteResult:
    """Audit an operation, commit it, and record the commit with the intent. `leased` are the keys of files
    that have a lease."""
    ours = Transaction(started.read_version, started.uuid, operation, properties, verb=started.verb)
    detached = None
    if audit is not None:
        try:
            detached = audit_module.run_audit(
                started.location, started.base, ours, audit, started_at=started.started_at, runtime=started.runtime
            )
        except AuditFailed:
            # Another holder of the intent may have passed its audit and committed meanwhile.
            if committed := _find_committed_by_another_holder(started):
                return committed
            raise
    commit_operation = commit_append if isinstance(operation, Append) and audit is None else commit
    try:
        with restore_lease(started.location, operation, started.runtime):
            committed_version = commit_operation(
                started.location,
                ours,
                base=started.base,
                since=started.since,
                attempts=attempts,
                runtime=started.runtime,
                started_at=started.started_at,
                leased=leased,
            )
    except CommitUndecided:
        with suppress(LanceError):  # the outcome stays undecided
            summary = intent_history.find_removed_commit(started.location, started.record) if started.record else None
            if committed := _record_removed(started, summary):
                return committed
        raise
    result = record_result(started, committed_version)
    if detached is not None:
        audit_module.discard(detached)
    if isinstance(operation, Rewrite) and committed_version.attempts:
        return replace(result, uncovered=operation.uncovered)
    return result


def finish_append(
    started: StartedWrite,
    rows: BufferedRows,
    *,
    properties: Mapping[str, str],
    attempts: int,
    audit: AuditFunction | None = None,
) -> WriteResult:
    """Finish an append whose rows are still in memory: group commit writes the rows of concurrent appends into one
    file. An audited append writes a file of its own first."""
    if audit is not None:
        append = Append(rows.write(started.location.codec, started.runtime.new_uuid))
        return finish(started, append, properties=properties, attempts=attempts, audit=audit)
    committed_version = commit_append(
        started.location,
        Transaction(started.read_version, started.uuid, Append(()), properties, verb=started.verb),
        base=started.base,
        since=started.since,
        attempts=attempts,
        runtime=started.runtime,
        started_at=started.started_at,
        rows=rows,
        record=started.record,
    )
    return record_result(started, committed_version)


@contextmanager
def restore_lease(location: Location, operation: Operation, runtime: Runtime) -> Iterator[None]:
    """Hold a lease on the version that a restore is about to reference again, so that no cleanup removes its files. An
    undecided commit leaves the lease to expire, since its put may still succeed."""
    if not isinstance(operation, Restore):
        yield
        return
    lease = acquire(location.own_store, Lease("restoring it", operation.version), runtime)
    try:
        yield
    except CommitUndecided:
        raise
    except LanceError:
        release(location.own_store, lease)
        raise
    release(location.own_store, lease)


def finish_unchanged(started: StartedWrite, operation: str = Append.name) -> WriteResult:
    """Finish a write that changes nothing. It commits no version and leaves its intent open, since a repetition may
    find something to change."""
    assert isinstance(started.base, Snapshot)
    summary = CommitSummary(started.base.version, operation, rows_added=0, rows_removed=0, files=0, bytes=0)
    if started.record:
        idempotency.move_base(started.location.store, started.record, started.base.version)
    return WriteResult(started.base, summary, attempts=0, rebased_over=(), already_committed=False)


def new_table_config(started: StartedWrite, config: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the config of the first version of a table: its id, `config`, and its manifest store."""
    return {TABLE_ID: started.uuid, **(config or {}), **manifest_store_config(started.location)}


def check_not_detached(base: Snapshot) -> None:
    if naming.is_detached(base.version):
        raise InvalidInput(
            f"{base.location.uri}: version {base.version} is detached and cannot be the base of a write; publish it, "
            "or open a version of the table"
        )


def record_result(started: StartedWrite, committed: CommitResult) -> WriteResult:
    """Record a commit with the intent of its write, and return the result of the write."""
    summary = _summarize(committed, started.base.manifest if isinstance(started.base, Snapshot) else None)
    _record_commit(started, summary)
    return WriteResult(
        snapshot=committed.snapshot,
        summary=summary,
        attempts=committed.attempts,
        rebased_over=committed.rebased_over,
        already_committed=committed.attempts == 0,
    )


def _summarize(committed: CommitResult, base: Manifest | None) -> CommitSummary:
    operation, after = committed.operation, committed.snapshot.manifest
    before = committed.before or _load_previous(committed.snapshot)
    changed = rows_changed(operation, before, after) or RowsChanged(0, 0)
    data_files_written = files_written(operation, base)
    index_files = [file for segment in segments_written(operation, base) for file in segment.files]
    return CommitSummary(
        version=after.version,
        operation=operation.name,
        rows_added=changed.added,
        rows_removed=changed.removed,
        files=len(data_files_written) + len(index_files),
        bytes=sum(file.size or 0 for file in data_files_written) + sum(file.size for file in index_files),
    )


def _load_previous(snapshot: Snapshot) -> Manifest | None:
    """Load the previous version; `None` if it cannot be read, since an unknown row count must not fail a commit."""
    if snapshot.version == 1:
        return None
    try:
        return load_at(snapshot.location, Version(snapshot.version - 1)).manifest
    except LanceError:
        return None


def _record_commit(started: StartedWrite, summary: CommitSummary) -> None:
    if started.record is None or started.record.landing:
        return
    location = started.location
    try:
        idempotency.record_commit(location.store, started.record, summary, now_ns=started.runtime.now_ns())
    except StorageError as error:
        raise CommitUndecided(
            f"{location.uri}: this {summary.operation} was committed as version {summary.version}, but the record of "
            f"its intent {started.record.intent!r} could not be written: {error}. Repeat it with that intent, which "
            "finds the version",
            uuid=started.uuid,
            version=Version(summary.version),
        ) from error
