"""An audit: a change is looked at, as the version that it would be, before anybody else can see it.

    beside the line -> shown to who audits, with the version it was made upon -> refused: it stays there, unpublished
                                                                              -> passed: the commit goes on

It is the same transaction, under the same uuid, that is shown and then committed; so it lands once however often this
is begun. What is shown is the change on the version it was planned on. What others commit meanwhile is followed as by
any change, and only a change that had to be planned again is looked at again (`003-write-audit-publish.md`).
"""

from collections.abc import Callable
from contextlib import suppress

from lance_core.commit.detached_manifest import put_detached
from lance_core.commit.fencing import ClockReading
from lance_core.coordination.leases import Lease, acquire, release
from lance_core.errors import AuditFailed, LanceError, StorageError
from lance_core.format import naming
from lance_core.format.transaction import Transaction
from lance_core.runtime import Runtime
from lance_core.transactions.apply import NewTable
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot

AuditFunction = Callable[[Snapshot, Snapshot | None], object]
"""Given the change as a version, and the version that it was made upon; None where there is no table yet. It refuses by
raising, and what it returns counts for nothing."""


def run_audit(
    location: Location,
    base: Snapshot | NewTable,
    ours: Transaction,
    audit: AuditFunction,
    *,
    started_at: ClockReading | None,
    runtime: Runtime,
) -> Snapshot:
    """The version beside the line that was looked at. While it is, no cleanup takes it."""
    beside = put_detached(location, base, ours, started_at=started_at, runtime=runtime).snapshot
    held = acquire(location.own_store, Lease("its audit", beside.version), runtime)
    try:
        audit(beside, base if isinstance(base, Snapshot) else None)
    except StorageError as error:
        error.add_note(f"{location.uri}: this happened in an audit, and nothing was published")
        raise
    except Exception as error:
        raise _refusal_error(beside, ours, error) from error
    finally:
        release(location.own_store, held)
    return beside


def discard(detached: Snapshot) -> None:
    """Of a change that has landed: the line has it now. What cannot be removed is a cleanup's to find."""
    store, transaction_file = detached.location.own_store, detached.manifest.transaction_file
    with suppress(LanceError):
        store.delete(detached.manifest.path)
        if transaction_file is not None:
            store.delete(f"{naming.TRANSACTIONS}/{transaction_file}")


def _refusal_error(beside: Snapshot, ours: Transaction, error: Exception) -> AuditFailed:
    location, why = beside.location, str(error) or type(error).__name__
    return AuditFailed(
        f"{location.uri}: the audit of this {ours.operation.name} refused it: {why.rstrip('.')}. Nothing was "
        f"published. What it would have become is version {beside.version}, beside the line, until a cleanup takes it; "
        f"look at it with Table.open({location.address!r}, version={beside.version})",
        uri=location.address,
        detached_version=beside.version,
        why=why,
    )
