"""A transaction put beside the line of versions: under a number that nobody has, upon the version it was planned on.

No conflict is looked for, and nobody meets such a version who does not have its number. What becomes of it is decided
in `detached.py`, where callers make one by themselves, and in `audits.py`.
"""

from lance_core.commit.fencing import Moment, Watch
from lance_core.commit.loop import Outcome
from lance_core.coordination.backoff import Pace
from lance_core.errors import StorageError
from lance_core.format import naming
from lance_core.format.operations import Restore
from lance_core.format.transaction import Transaction
from lance_core.package_version import LIBRARY_VERSION
from lance_core.runtime import Ports
from lance_core.storage.store import Put
from lance_core.transactions.apply import Birth, Occasion, apply, filed
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, load_at

_CREATES_MAX = 5


def put_beside(
    location: Location, base: Snapshot | Birth, ours: Transaction, *, begun: Moment | None, ports: Ports
) -> Outcome:
    """Also where there is no table yet, and there is none afterwards. `begun` is before its first file was written."""
    before = base.manifest if isinstance(base, Snapshot) else None
    head = before or base
    assert not isinstance(head, Snapshot)
    scheme = base.scheme if isinstance(base, Snapshot) else naming.NamingScheme.V2
    operation = ours.operation
    fetched = load_at(location, operation.version).manifest if isinstance(operation, Restore) else None
    pace = Pace(ports)
    with Watch(location, ours.uuid, begun, ports) as watch:
        for attempt in range(_CREATES_MAX):
            occasion = Occasion(
                now_ns=ports.now_ns(),
                library_version=LIBRARY_VERSION,
                transaction_file=naming.transaction_name(ours.read_version, str(ports.new_uuid())),
                version=naming.detached_version(ports.new_uuid().int >> 65),
            )
            manifest = apply(head, ours, occasion, fetched=fetched)
            transaction_file = f"{naming.TRANSACTIONS}/{occasion.transaction_file}"
            location.store.put(transaction_file, filed(head, ours))
            watch.looks()
            watch.puts(manifest, before, [transaction_file])
            # Not created: somebody has this number, or nobody knows. Another one is as good.
            if location.store.create(manifest.path, manifest.encode()) is Put.CREATED:
                return Outcome(Snapshot(location.of(manifest), manifest, scheme), operation, before, attempt + 1, ())
            pace.lost()
    raise StorageError(f"{location.uri}: a detached version was put {_CREATES_MAX} times, and no put was answered")
