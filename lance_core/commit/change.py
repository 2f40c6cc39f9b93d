"""Change: one write of a table, from its plan to the version that contains it.

    begin  ──►  plan and write files  ──►  finish  ──►  result
                        ▲                     │
                        └── newest version ◄──┘  a conflict that only a new plan resolves

Every verb is a `Change`, and `commit_with_retry` runs it: the methods of `Table`, the operations on Spark, compactions
and repairs. A write that begins in one process and finishes in another calls `write_protocol.begin` there and `resume`
here. The commit loop (`loop.py`) rebases a change over most commits of other writers. A conflict that a rebase cannot
resolve, such as a row that both changed, takes a new plan on the newest version, within a deadline and under the same
transaction uuid. Files of the abandoned plan are left to cleanup. Start with `commit_with_retry`; the reasons are in
`004-one-write-protocol.md`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from lance_core.commit import write_protocol
from lance_core.commit.audit import AuditFunction
from lance_core.commit.fencing import ClockReading
from lance_core.commit.write_protocol import StartedWrite, WriteResult
from lance_core.coordination.backoff import Backoff
from lance_core.datafiles.fragment_writer import BufferedRows
from lance_core.errors import AlreadyExists, RetryableConflict
from lance_core.format.operations import Append, Operation
from lance_core.runtime import Runtime
from lance_core.transactions.apply import NewTable
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, load_latest


@dataclass(frozen=True, slots=True)
class Planned:
    """An operation whose files are written, with properties of its own for the transaction."""

    operation: Operation
    properties: Mapping[str, str] = field(default_factory=dict)


Plan = Callable[[Snapshot], Operation | Planned | BufferedRows | None]
"""Plan a change on a version and write its files, or buffer the rows of an append. None: there is nothing to change."""
Create = Callable[[StartedWrite], Operation | Planned]
"""Write the files of the first version of a table."""


@dataclass(frozen=True, slots=True)
class Change:
    """Description of what a verb does to a table."""

    verb: str
    """Recorded with the intent: an intent is used for one verb only."""
    plan: Plan | None
    """None for a change that only creates tables."""
    operation: str = Append.name
    """Name of the operation that a result without a new version reports."""
    can_replan: bool = True
    """True if the change means the same on a newer version. An overwrite does not: it replaces what its caller read."""
    files_exist: bool = False
    """True if the files were written before the write began, at an unknown time."""
    audit: AuditFunction | None = None
    """Check of each plan before it is committed."""
    create: Create | None = None
    """How the change creates the table; None if the table must exist."""


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
    """Begin a change on this version, or on no table yet, plan it and commit it. An intent that was committed before
    returns that commit."""
    started = write_protocol.begin(location, base, verb=change.verb, intent=intent, runtime=runtime)
    if isinstance(started, WriteResult):
        return started
    return resume(change, started, properties=properties, retries=retries)


def resume(change: Change, started: StartedWrite, *, properties: Mapping[str, str], retries: int) -> WriteResult:
    """Plan and commit a write that has begun, here or elsewhere. A conflict is raised if the change cannot be
    replanned, after `retries` plans, and at the deadline."""
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
            if committed := write_protocol.find_committed(started):
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
        return write_protocol.finish_unchanged(started, change.operation)
    if isinstance(planned, BufferedRows):
        return write_protocol.finish_append(
            started, planned, properties=properties, attempts=retries, audit=change.audit
        )
    if not isinstance(planned, Planned):
        planned = Planned(planned)
    properties = {**properties, **planned.properties}
    return write_protocol.finish(
        started, planned.operation, properties=properties, attempts=retries, audit=change.audit
    )


def _may_replan(change: Change, started: StartedWrite, conflict: RetryableConflict | AlreadyExists) -> bool:
    if isinstance(conflict, AlreadyExists):  # another writer created the table, or the plan names what exists already
        return change.can_replan and isinstance(started.base, NewTable)
    return change.can_replan and conflict.rule != "exhausted"


def _on_newest_version(started: StartedWrite) -> StartedWrite:
    base = load_latest(started.location)
    if isinstance(started.base, Snapshot):
        return replace(started, base=base)
    base.manifest.check_writable()
    return replace(started, location=base.location, base=base)
