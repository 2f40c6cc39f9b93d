"""Auxiliary records: intent records, leases and sweep notices, transaction files, and the version hint.

Rows do not depend on them. They affect repeated writes, other engines and the time to open a table.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from lance_core.commit.write_protocol import StartedWrite, find_committed
from lance_core.coordination import idempotency, leases
from lance_core.coordination.idempotency import IntentRecord
from lance_core.errors import Corrupt, LanceError, NotFound
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.format.transaction import Transaction
from lance_core.fsck.report import Finding, Repair, RepairKind, Severity
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.storage.concurrency import map_requests
from lance_core.storage.store import ReportsLastChange, Store
from lance_core.versions import version_hint
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, list_versions, load_latest

_LOST_COMMIT_REPAIR = (
    "Check whether its rows exist. If they do not, write them with another intent; then remove this record."
)


def check_intents(location: Location, version_by_uuid: Mapping[str, Version], newest: Snapshot) -> Iterator[Finding]:
    """Check the intent records. `version_by_uuid` maps the uuids of transactions, and of their parts, to versions, for
    all versions that can be read."""
    existing = set(version_by_uuid.values())
    listed = location.store.list(idempotency.DIRECTORY)
    records = map_requests(location.store, lambda info: _read_or_error(location.store, info.path), listed)
    for info, record in zip(listed, records, strict=True):
        if isinstance(record, NotFound):
            continue
        if isinstance(record, LanceError):
            error = record
            what = error.what if isinstance(error, Corrupt) else f"it could not be read: {error}"
            repair = (
                "Cleanup removes no orphan files while it is younger than their grace period. Find out whether its "
                "change was committed, then remove it."
            )
            yield Finding(Severity.ERROR, "intent", info.path, what, repair)
            continue
        committed, subject = (
            version_by_uuid.get(record.transaction_uuid),
            f"the {record.verb} of the intent {record.intent!r}",
        )
        if record.landing is None:
            if committed is not None:
                what = f"{subject} was committed as version {committed}, but its record does not say so"
                repair = "A repeated call finds the commit as long as that version exists, and completes the record."
                action = f"Record in {info.path} that {subject} was committed as version {committed}."
                fix = Repair(RepairKind.INTENTS, action, partial(_record_commit, location, newest, record))
                yield Finding(Severity.INFO, "intent_landed", info.path, what, repair, committed, fix)
            continue
        recorded = Version(record.landing.version)
        if recorded > newest.version:
            what = (
                f"{subject} was committed as version {recorded}, but the newest version is {newest.version}: "
                "the table was reset"
            )
            yield Finding(Severity.WARNING, "intent_elsewhere", info.path, what, _LOST_COMMIT_REPAIR)
        elif recorded in existing and committed != recorded:
            what = f"{subject} was committed as version {recorded}, which is now another change: the table was reset"
            yield Finding(Severity.WARNING, "intent_elsewhere", info.path, what, _LOST_COMMIT_REPAIR)


def _read_or_error(store: Store, path: str) -> IntentRecord | LanceError:
    try:
        return idempotency.read_record(store, path)
    except LanceError as error:
        return error


def check_leases(location: Location) -> Iterator[Finding]:
    """Check the leases and sweep notices (`coordination/leases.py`)."""
    readers: Mapping[str, Callable[[Store, str], object]] = {
        leases.LEASE_DIRECTORY: leases.read_lease,
        leases.NOTICE_DIRECTORY: leases.read_notice,
    }
    store = location.store
    for directory, read in readers.items():
        for info in store.list(directory):
            fix = None
            try:
                read(store, info.path)
                continue
            except NotFound:
                continue
            except Corrupt as error:
                what = error.what
                action = f"Delete {info.path}, which is neither a lease nor a sweep notice."
                fix = Repair(RepairKind.HOLDS, action, partial(_delete_record, store, info.path, read))
            except LanceError as error:
                what = f"it could not be read: {error}"
            repair = (
                "Until it expires, a cleanup keeps what it may protect, and a damaged notice blocks writes that need a "
                "lease. Make sure that no process is working on this table, then remove it."
            )
            yield Finding(Severity.ERROR, "work_under_way", info.path, what, repair, automatic_repair=fix)


def check_transaction_file(
    location: Location, manifest: Manifest, transaction: Transaction | None, sizes: Mapping[str, int]
) -> Iterator[Finding]:
    """Check that the transaction file exists, for a version whose manifest contains a copy of the transaction."""
    name = manifest.transaction_file
    if transaction is None or name is None or (copy := manifest.inline_transaction) is None:
        return
    path = f"{naming.TRANSACTIONS}/{name}"
    if not naming.is_confined(name):
        what = "the name of its transaction file points outside its directory"
        repair = "The copy in the manifest is read, and is correct."
        yield Finding(Severity.WARNING, "transaction_file", manifest.path, what, repair, manifest.version)
    elif path not in sizes and location.store.head(path) is None:
        what = (
            f"it does not exist; the manifest of version {manifest.version} contains a copy, which engines before 2025 "
            "ignore"
        )
        fix = Repair(
            RepairKind.TRANSACTIONS,
            f"Write {path} from the copy in the manifest of version {manifest.version}.",
            partial(_restore_file, location.store, path, copy),
        )
        repair = "Such engines may refuse to commit until it is restored."
        yield Finding(Severity.INFO, "transaction_file", path, what, repair, manifest.version, fix)


def check_hint(store: Store, newest: Version, location: Location) -> Iterator[Finding]:
    """Check the version hint of a store that keeps one: a wrong hint is harmless, but costs a listing at every open."""
    if not isinstance(store, ReportsLastChange) or store.head(version_hint.HINT) is None:
        return
    hinted = version_hint.read_hint(store)
    if hinted != newest:
        content = "contains no version" if hinted is None else f"names version {hinted}"
        what = f"it {content}, but the newest is {newest}: opening the table has to list all versions"
        fix = Repair(
            RepairKind.HINT,
            f"Write the newest version to {version_hint.HINT}.",
            partial(_rewrite_hint, location, store),
        )
        yield Finding(
            Severity.INFO,
            "stale_hint",
            version_hint.HINT,
            what,
            "The next commit rewrites it.",
            automatic_repair=fix,
        )


def _record_commit(location: Location, newest: Snapshot, record: IntentRecord) -> str:
    try:
        current = idempotency.read_record(location.store, idempotency.path_of(record.intent))
    except NotFound:
        return "the record is already deleted"
    if current.landing is not None:
        return f"it already records the commit as version {current.landing.version}"
    write = StartedWrite(location, load_latest(location), current.transaction_uuid, current, SYSTEM_RUNTIME)
    result = find_committed(write)
    if result is None:
        return f"no version up to {newest.version} contains the change any more; the record was not changed"
    return f"it now records the commit as version {result.summary.version}"


def _delete_record(store: Store, path: str, read: Callable[[Store, str], object]) -> str:
    try:
        read(store, path)
    except NotFound:
        return f"{path} is already deleted"
    except Corrupt:
        store.delete(path)
        return f"{path} was deleted"
    return f"{path} can be read now and was not deleted"


def _restore_file(store: Store, path: str, data: bytes) -> str:
    store.create(path, data)  # the read below decides, whatever the store answers
    try:
        stored = store.read(path, 0, len(data) + 1)
    except LanceError as error:
        return f"it is unknown whether {path} exists: {error}"
    return f"{path} exists" if stored == data else f"another process wrote {path} meanwhile; it was not changed"


def _rewrite_hint(location: Location, store: Store) -> str:
    newest = list_versions(location).numbers[-1]
    version_hint.write_hint(store, newest)
    return f"it now names version {newest}"
