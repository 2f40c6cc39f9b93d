"""A change from what was asked for to the version that holds it, planned again where somebody was in the way.

    plan on a version -> write files -> commit -> in the way? -> the newest version -> plan again

Most of what others commit is settled when ours is put (`commit.py`). What is not, such as the same row changed by both,
takes the work itself: it is done again on what there is now, within a deadline, under the same intention. Files of the
attempt before stay behind for cleanup. What no repetition can mend is the caller's to decide.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from lance_core.commit import write_protocol
from lance_core.commit.audit import AuditFunction
from lance_core.commit.fencing import ClockReading
from lance_core.commit.write_protocol import StartedWrite, WriteResult
from lance_core.coordination.backoff import Backoff
from lance_core.datafiles.fragment_writer import BufferedRows
from lance_core.errors import RetryableConflict
from lance_core.format.operations import Operation
from lance_core.runtime import Runtime
from lance_core.versions.snapshot import Snapshot, load_latest

Plan = Callable[[Snapshot], Operation | BufferedRows | None]
"""Writes its files, or holds the rows of an append. None: there is nothing to change."""


@dataclass(frozen=True, slots=True)
class Change:
    """What was asked for."""

    verb: str
    plan: Plan
    operation: str
    """What it would be called if there is nothing to change."""
    can_replan: bool
    """Whether it means the same on a newer version. An overwrite replaces what its writer saw, and nothing else."""
    files_exist: bool = False
    """Whether its files were there before it was begun: nobody here knows for how long."""
    audit: AuditFunction | None = None
    """Who looks at each plan before it is committed."""


def commit_with_retry(
    change: Change,
    base: Snapshot,
    *,
    intent: str | None,
    properties: Mapping[str, str],
    retries: int,
    runtime: Runtime,
) -> WriteResult:
    begun = write_protocol.begin(base.location, base, verb=change.verb, intent=intent, runtime=runtime)
    return begun if isinstance(begun, WriteResult) else resume(change, begun, properties=properties, retries=retries)


def resume(change: Change, begun: StartedWrite, *, properties: Mapping[str, str], retries: int) -> WriteResult:
    """From a beginning that others may have made together with that of other changes."""
    if change.files_exist:
        begun = replace(begun, moment=ClockReading.distant_past())
    pace = Backoff(begun.runtime)
    for done_before in range(retries):
        try:
            written = _once(change, begun, properties, retries)
        except RetryableConflict as conflict:
            if not change.can_replan or conflict.rule == "exhausted" or done_before + 1 == retries or pace.is_expired:
                raise
            pace.wait()
            begun = replace(begun, base=load_latest(begun.location))
            # Another holder of the intention may be done, and then there could be nothing left to change.
            if landed := write_protocol.find_committed(begun):
                return landed
        else:
            return replace(written, attempts=written.attempts + done_before) if written.attempts else written
    raise AssertionError("the last attempt returns or raises")


def _once(change: Change, begun: StartedWrite, properties: Mapping[str, str], retries: int) -> WriteResult:
    assert isinstance(begun.base, Snapshot)
    planned = change.plan(begun.base)
    if planned is None:
        return write_protocol.finish_unchanged(begun, change.operation)
    if isinstance(planned, BufferedRows):
        return write_protocol.finish_append(begun, planned, properties=properties, attempts=retries, audit=change.audit)
    return write_protocol.finish(begun, planned, properties=properties, attempts=retries, audit=change.audit)
