"""A write from its beginning to its version.

    begin    remember the intention; if it has landed before, that is the answer
    ...      the caller writes data files
    finish   check that the files are there, show the change to who audits it, commit, remember the landing

(`finish_append` also writes them, where the rows are in memory.)

The Spark ops and the methods of `Table` are the same three steps, with the middle one done elsewhere.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from lance_core.commit import audit as audit_module
from lance_core.commit import data_files
from lance_core.commit.audit import AuditFunction
from lance_core.commit.fencing import ClockReading, find_commit_problem
from lance_core.commit.group_commit import commit_append
from lance_core.commit.loop import CommitResult, commit
from lance_core.coordination import idempotency
from lance_core.coordination.idempotency import CommitSummary, IntentRecord
from lance_core.coordination.leases import Lease, acquire, release
from lance_core.datafiles.fragment_writer import BufferedRows
from lance_core.errors import AuditFailed, CommitUndecided, InvalidInput, LanceError, NotFound, StorageError
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.format.operations import Append, Operation, Restore, Rewrite
from lance_core.format.transaction import Transaction
from lance_core.runtime import Runtime
from lance_core.transactions.apply import NewTable
from lance_core.transactions.change_stats import RowsChanged, files_written, rows_changed, segments_written
from lance_core.transactions.fold import part_with_uuid
from lance_core.versions.location import Location, check_manifest_store, manifest_store_config
from lance_core.versions.snapshot import Snapshot, load_at, load_latest, load_transaction, read_history
from lance_core.versions.table_id import TABLE_ID


@dataclass(frozen=True, slots=True)
class StartedWrite:
    """A write under way. Single use: it ends in `finish`, or is left behind."""

    location: Location
    base: Snapshot | NewTable
    uuid: str
    record: IntentRecord | None
    runtime: Runtime
    started_at: ClockReading | None = None
    """Before the first of its files was written."""
    verb: str | None = None
    """What the caller does; recorded with the transaction, so that the history shows it."""

    @property
    def read_version(self) -> Version:
        return self.base.version if isinstance(self.base, Snapshot) else Version(0)

    @property
    def since(self) -> Version:
        """Where an earlier landing of it is searched for."""
        return min(self.read_version, self.record.base) if self.record else self.read_version


@dataclass(frozen=True, slots=True)
class WriteResult:
    """A version that holds the write."""

    snapshot: Snapshot
    summary: CommitSummary
    attempts: int
    rebased_over: tuple[Version, ...]
    already_committed: bool
    uncovered: tuple[str, ...] = ()
    """Names of indices that cover less now."""


def begin(
    location: Location, base: Snapshot | NewTable, *, verb: str, intent: str | None, runtime: Runtime
) -> StartedWrite | WriteResult:
    """Nothing is written before this returns, except the record of the intent itself. `verb` is what the caller is
    about to do: the same intent may not be two different things."""
    if isinstance(base, Snapshot):
        check_not_detached(base)
        check_manifest_store(location, base.manifest)
    uuid = str(runtime.new_uuid())
    moment = ClockReading.now(runtime)
    if intent is None:
        return StartedWrite(location, base, uuid, None, runtime, moment, verb)
    read_version = base.version if isinstance(base, Snapshot) else Version(0)
    record = idempotency.claim(location.store, intent, verb=verb, base=read_version, uuid=uuid, now_ns=runtime.now_ns())
    begun = StartedWrite(location, base, record.transaction_uuid, record, runtime, moment, verb)
    if record.landing:
        return _recorded_result(location, record, record.landing)
    if record.transaction_uuid == uuid:
        return begun
    return find_committed(begun) or begun


def find_committed(started: StartedWrite) -> WriteResult | None:
    """What somebody else who has the same intention made of it meanwhile, up to the version that this is based on."""
    location, record = started.location, started.record
    if record is None:
        return None
    history = read_history(location, record.base, base=started.base if isinstance(started.base, Snapshot) else None)
    for landed in history.others if history else ():
        if landed.transaction and (made := part_with_uuid(landed.transaction, record.transaction_uuid)):
            snapshot = load_at(location, landed.version)
            if wrong := find_commit_problem(location, snapshot.manifest, snapshot.scheme):
                raise _undecided_intent(
                    location, record, landed.version, f"is in version {landed.version}, but {wrong}"
                )
            location.store.ensure_durable([snapshot.manifest.path])
            return record_result(started, CommitResult(snapshot, made.operation, None, 0, ()))
    if history and history.missing:
        raise _undecided_intent(
            location,
            record,
            history.missing[0],
            f"was begun on version {record.base}; version {history.missing[0]} was cleaned up",
        )
    return None


def _find_committed_by_another_holder(begun: StartedWrite) -> WriteResult | None:
    if begun.record is None:
        return None
    try:
        return find_committed(replace(begun, base=load_latest(begun.location)))
    except NotFound:
        return None


def _recorded_result(location: Location, record: IntentRecord, landing: CommitSummary) -> WriteResult:
    """What the record says, if the version that it names still is what it was, or was cleaned up since. A version that
    is somebody else's, or that the table has not reached, means that the table was put back to an earlier state."""
    version = Version(landing.version)
    try:
        snapshot = load_at(location, version)  # asked for by name: a listing may miss what is there
    except NotFound:
        snapshot = load_latest(location)
        if version > snapshot.version:
            why = f"landed as version {version}, and the table ends at {snapshot.version} now"
            raise _undecided_intent(location, record, version, why) from None
    else:
        made_by = load_transaction(location, snapshot.manifest)
        if made_by is None or not part_with_uuid(made_by, record.transaction_uuid):
            raise _undecided_intent(
                location, record, version, f"landed as version {version}, which is another change now"
            )
    return WriteResult(snapshot, landing, attempts=0, rebased_over=(), already_committed=True)


def _undecided_intent(location: Location, record: IntentRecord, version: Version, why: str) -> CommitUndecided:
    return CommitUndecided(
        f"{location.uri}: whether the table holds the {record.verb} of the intent {record.intent!r} is not known: "
        f"it {why}. Look whether its rows are there; if they are not, write them under another intent",
        uuid=record.transaction_uuid,
        version=version,
    )


def finish(
    started: StartedWrite,
    operation: Operation,
    *,
    properties: Mapping[str, str],
    attempts: int,
    audit: AuditFunction | None = None,
) -> WriteResult:
    planned_on = started.base.manifest if isinstance(started.base, Snapshot) else None
    files, segments = files_written(operation, planned_on), segments_written(operation, planned_on)
    data_files.register_files(started.location, started.record, files, started.runtime, segments)
    ours = Transaction(started.read_version, started.uuid, operation, properties, verb=started.verb)
    beside = None
    if audit is not None:
        try:
            beside = audit_module.run_audit(
                started.location, started.base, ours, audit, started_at=started.started_at, runtime=started.runtime
            )
        except AuditFailed:
            # Of two holders of one intention the other may have passed meanwhile.
            if landed := _find_committed_by_another_holder(started):
                return landed
            raise
    land = commit_append if isinstance(operation, Append) and audit is None else commit
    with restore_lease(started.location, operation, started.runtime):
        outcome = land(
            started.location,
            ours,
            base=started.base,
            since=started.since,
            attempts=attempts,
            runtime=started.runtime,
            started_at=started.started_at,
        )
    done = record_result(started, outcome)
    if beside is not None:
        audit_module.discard(beside)
    return replace(done, uncovered=operation.uncovered) if isinstance(operation, Rewrite) and outcome.attempts else done


def finish_append(
    started: StartedWrite,
    rows: BufferedRows,
    *,
    properties: Mapping[str, str],
    attempts: int,
    audit: AuditFunction | None = None,
) -> WriteResult:
    """Of rows that are not written yet: those of several who append at the same time go into one file, unless somebody
    wants to see them first."""
    if audit is not None:
        append = Append(rows.write(started.location.codec, started.runtime.new_uuid))
        return finish(started, append, properties=properties, attempts=attempts, audit=audit)
    outcome = commit_append(
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
    return record_result(started, outcome)


@contextmanager
def restore_lease(location: Location, operation: Operation, runtime: Runtime) -> Iterator[None]:
    """Files of an old version are to be named once more: no cleanup may take them meanwhile. Where it ends undecided a
    put may still be under way, and the hold is left to be forgotten."""
    if not isinstance(operation, Restore):
        yield
        return
    held = acquire(location.own_store, Lease("restoring it", operation.version), runtime)
    try:
        yield
    except CommitUndecided:
        raise
    except LanceError:
        release(location.own_store, held)
        raise
    release(location.own_store, held)


def finish_unchanged(started: StartedWrite, operation: str = Append.name) -> WriteResult:
    """A change that finds nothing to change makes no version, and leaves its intention open: there may be some next
    time."""
    assert isinstance(started.base, Snapshot)
    landing = CommitSummary(started.base.version, operation, rows_added=0, rows_removed=0, files=0, bytes=0)
    if started.record:
        idempotency.move_base(started.location.store, started.record, started.base.version)
    return WriteResult(started.base, landing, attempts=0, rebased_over=(), already_committed=False)


def new_table_config(started: StartedWrite, config: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the config of the first version of a table: its id, `config`, and its manifest store."""
    return {TABLE_ID: started.uuid, **(config or {}), **manifest_store_config(started.location)}


def check_not_detached(base: Snapshot) -> None:
    if naming.is_detached(base.version):
        raise InvalidInput(
            f"{base.location.uri}: version {base.version} is detached, and nothing is written upon such a one; publish "
            "it, or open a version of the table"
        )


def record_result(started: StartedWrite, result: CommitResult) -> WriteResult:
    landing = _summarize(result, started.base.manifest if isinstance(started.base, Snapshot) else None)
    _record_commit(started, landing)
    return WriteResult(
        snapshot=result.snapshot,
        summary=landing,
        attempts=result.attempts,
        rebased_over=result.rebased_over,
        already_committed=result.attempts == 0,
    )


def _summarize(outcome: CommitResult, base: Manifest | None) -> CommitSummary:
    operation, after = outcome.operation, outcome.snapshot.manifest
    changed = rows_changed(operation, outcome.before or _load_previous(outcome.snapshot), after) or RowsChanged(0, 0)
    files = files_written(operation, base)
    of_indices = [file for segment in segments_written(operation, base) for file in segment.files]
    return CommitSummary(
        version=after.version,
        operation=operation.name,
        rows_added=changed.added,
        rows_removed=changed.removed,
        files=len(files) + len(of_indices),
        bytes=sum(file.size or 0 for file in files) + sum(file.size for file in of_indices),
    )


def _load_previous(snapshot: Snapshot) -> Manifest | None:
    """None where it cannot be read: what has landed is not called a failure for a count."""
    if snapshot.version == 1:
        return None
    try:
        return load_at(snapshot.location, Version(snapshot.version - 1)).manifest
    except LanceError:
        return None


def _record_commit(begun: StartedWrite, landing: CommitSummary) -> None:
    if begun.record is None or begun.record.landing:
        return
    location = begun.location
    try:
        idempotency.record_commit(location.store, begun.record, landing, now_ns=begun.runtime.now_ns())
    except StorageError as error:
        raise CommitUndecided(
            f"{location.uri}: this {landing.operation} landed as version {landing.version}, but that could not be "
            f"noted for the intent {begun.record.intent!r}: {error}. Repeat it with that intent, which will find it",
            uuid=begun.uuid,
            version=Version(landing.version),
        ) from error
