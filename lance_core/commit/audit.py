"""Audit (write-audit-publish): shows a change as a detached version before any reader can see it.

    detached version ──► audit function ──► passed: the same transaction is committed
                                        ──► refused: the version stays detached, and the error names it

The audited transaction and the committed one have the same uuid, so a repetition commits it only once. The audit sees
the change on the version it was planned on. A rebase over commits of other writers in between needs no other audit; a
change that is replanned is audited again (`003-write-audit-publish.md`).
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
"""Function of the version with the change and the version it is based on (None for a first version). It refuses the
change by raising. Its result is ignored."""


def run_audit(
    location: Location,
    base: Snapshot | NewTable,
    ours: Transaction,
    audit: AuditFunction,
    *,
    started_at: ClockReading | None,
    runtime: Runtime,
) -> Snapshot:
    """Audit a change and return its detached version, on which a lease is held until the audit returns."""
    detached = put_detached(location, base, ours, started_at=started_at, runtime=runtime).snapshot
    lease = acquire(location.own_store, Lease("its audit", detached.version), runtime)
    try:
        audit(detached, base if isinstance(base, Snapshot) else None)
    except StorageError as error:
        error.add_note(f"{location.uri}: the store failed during an audit; nothing was published")
        raise
    except Exception as error:
        raise _refusal_error(detached, ours, error) from error
    finally:
        release(location.own_store, lease)
    return detached


def discard(detached: Snapshot) -> None:
    """Remove the detached version of a change that is committed. If that fails, a cleanup removes it later."""
    store, transaction_file = detached.location.own_store, detached.manifest.transaction_file
    with suppress(LanceError):
        store.delete(detached.manifest.path)
        if transaction_file is not None:
            store.delete(f"{naming.TRANSACTIONS}/{transaction_file}")


def _refusal_error(detached: Snapshot, ours: Transaction, error: Exception) -> AuditFailed:
    location, why = detached.location, str(error) or type(error).__name__
    return AuditFailed(
        f"{location.uri}: the audit of this {ours.operation.name} refused it: {why.rstrip('.')}. Nothing was "
        f"published. The change stays as the detached version {detached.version} until a cleanup removes it; open it "
        f"with Table.open({location.address!r}, version={detached.version})",
        uri=location.address,
        detached_version=detached.version,
        why=why,
    )
