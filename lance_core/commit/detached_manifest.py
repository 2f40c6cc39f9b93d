"""Detached manifest: puts a transaction as a version under a random number, based on the version it was planned on.

Conflicts are not checked, and the version is found by its number alone. `detached.py` creates such versions for
callers, and `audit.py` for audits.
"""

from lance_core.commit.fencing import ClockReading, CommitFence
from lance_core.commit.loop import CommitResult, check_caps, refusing_unreadable, restored_manifest
from lance_core.coordination.backoff import Backoff
from lance_core.errors import StorageError
from lance_core.format import naming
from lance_core.format.transaction import Transaction
from lance_core.package_version import LIBRARY_VERSION
from lance_core.runtime import Runtime
from lance_core.storage.store import Put
from lance_core.transactions.apply import CommitContext, NewTable, apply, encode_transaction_file
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot

_CREATES_MAX = 5


def put_detached(
    location: Location,
    base: Snapshot | NewTable,
    ours: Transaction,
    *,
    started_at: ClockReading | None,
    runtime: Runtime,
) -> CommitResult:
    """Create the detached version. It works before the table exists, and does not create the table. `started_at` is a
    time before the first file was written."""
    before = base.manifest if isinstance(base, Snapshot) else None
    head = before or base
    assert not isinstance(head, Snapshot)
    scheme = base.scheme if isinstance(base, Snapshot) else naming.NamingScheme.V2
    operation = ours.operation
    restored = restored_manifest(location, operation)
    backoff = Backoff(runtime)
    with CommitFence(location, ours.uuid, started_at, runtime) as fence:
        for attempt in range(_CREATES_MAX):
            context = CommitContext(
                now_ns=runtime.now_ns(),
                library_version=LIBRARY_VERSION,
                transaction_file=naming.transaction_name(ours.read_version, str(runtime.new_uuid())),
                version=naming.detached_version(runtime.new_uuid().int >> 65),
            )
            transaction_file = f"{naming.TRANSACTIONS}/{context.transaction_file}"
            content = encode_transaction_file(head, ours)
            with refusing_unreadable(location, operation):
                manifest = apply(head, ours, context, restored=restored)
                check_caps(manifest, {transaction_file: content})
            location.store.put(transaction_file, content)
            fence.begin_attempt()
            fence.before_put(manifest, before, [transaction_file])
            # If the number exists, or the store did not answer, the next attempt takes another number.
            if location.store.create(manifest.path, manifest.encode()) is Put.CREATED:
                return CommitResult(
                    Snapshot(location.for_manifest(manifest), manifest, scheme), operation, before, attempt + 1, ()
                )
            backoff.wait()
    raise StorageError(
        f"{location.uri}: the store confirmed none of {_CREATES_MAX} puts of a detached version; repeat the call"
    )
