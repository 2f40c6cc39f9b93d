"""A transaction put beside the line of versions: under a number that nobody has, upon the version it was planned on.

No conflict is looked for, and nobody meets such a version who does not have its number. What becomes of it is decided
in `detached.py`, where callers make one by themselves, and in `audit.py`.
"""

from lance_core.commit.fencing import ClockReading, CommitFence
from lance_core.commit.loop import CommitResult
from lance_core.coordination.backoff import Backoff
from lance_core.errors import StorageError
from lance_core.format import naming
from lance_core.format.operations import Restore
from lance_core.format.transaction import Transaction
from lance_core.package_version import LIBRARY_VERSION
from lance_core.runtime import Runtime
from lance_core.storage.store import Put
from lance_core.transactions.apply import CommitContext, NewTable, apply, encode_transaction_file
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, load_at

_CREATES_MAX = 5


def put_detached(
    location: Location,
    base: Snapshot | NewTable,
    ours: Transaction,
    *,
    started_at: ClockReading | None,
    runtime: Runtime,
) -> CommitResult:
    """Also where there is no table yet, and there is none afterwards. `started_at` is before its first file was written."""
    before = base.manifest if isinstance(base, Snapshot) else None
    head = before or base
    assert not isinstance(head, Snapshot)
    scheme = base.scheme if isinstance(base, Snapshot) else naming.NamingScheme.V2
    operation = ours.operation
    fetched = load_at(location, operation.version).manifest if isinstance(operation, Restore) else None
    pace = Backoff(runtime)
    with CommitFence(location, ours.uuid, started_at, runtime) as watch:
        for attempt in range(_CREATES_MAX):
            occasion = CommitContext(
                now_ns=runtime.now_ns(),
                library_version=LIBRARY_VERSION,
                transaction_file=naming.transaction_name(ours.read_version, str(runtime.new_uuid())),
                version=naming.detached_version(runtime.new_uuid().int >> 65),
            )
            manifest = apply(head, ours, occasion, fetched=fetched)
            transaction_file = f"{naming.TRANSACTIONS}/{occasion.transaction_file}"
            location.store.put(transaction_file, encode_transaction_file(head, ours))
            watch.begin_attempt()
            watch.before_put(manifest, before, [transaction_file])
            # Not created: somebody has this number, or nobody knows. Another one is as good.
            if location.store.create(manifest.path, manifest.encode()) is Put.CREATED:
                return CommitResult(
                    Snapshot(location.for_manifest(manifest), manifest, scheme), operation, before, attempt + 1, ()
                )
            pace.wait()
    raise StorageError(f"{location.uri}: a detached version was put {_CREATES_MAX} times, and no put was answered")
