"""What is kept beside the versions to help those who commit: records of intents and of work under way, transaction
files, the hint. Rows do not depend on them; a repetition, an older engine or the time to open does.
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
from lance_core.storage.store import ReportsLastChange, Store
from lance_core.versions import version_hint
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, list_versions, load_latest

_LOST_COMMIT_REPAIR = (
    "Look whether its rows are there. If they are not, write them under another intent; then remove this record."
)


def check_intents(location: Location, made: Mapping[str, Version], newest: Snapshot) -> Iterator[Finding]:
    """`made` says which transaction, or part of one, is in which version, of all versions that can be read."""
    kept = set(made.values())
    for info in location.store.list(idempotency.DIRECTORY):
        try:
            record = idempotency.read(location.store, info.path)
        except NotFound:
            continue
        except LanceError as error:
            what = error.what if isinstance(error, Corrupt) else f"it could not be looked at: {error}"
            repair = "Cleanup stops at it. Find out whether what it was about landed, and remove it."
            yield Finding(Severity.ERROR, "intent", info.path, what, repair)
            continue
        landed, named = made.get(record.transaction_uuid), f"the {record.verb} of the intent {record.intent!r}"
        if record.landing is None:
            if landed is not None:
                what = f"{named} landed as version {landed}, and its record does not say so"
                repair = "A repetition finds it as long as that version is kept, and notes it."
                does = f"Note in {info.path} that {named} landed as version {landed}."
                mend = Repair(RepairKind.INTENTS, does, partial(_record_commit, location, newest, record))
                yield Finding(Severity.INFO, "intent_landed", info.path, what, repair, landed, mend)
            continue
        noted = Version(record.landing.version)
        if noted > newest.version:
            what = f"{named} landed as version {noted}, and the table ends at {newest.version}: it was put back"
            yield Finding(Severity.WARNING, "intent_elsewhere", info.path, what, _LOST_COMMIT_REPAIR)
        elif noted in kept and landed != noted:
            what = f"{named} landed as version {noted}, which is another change now: the table was put back"
            yield Finding(Severity.WARNING, "intent_elsewhere", info.path, what, _LOST_COMMIT_REPAIR)


def check_leases(location: Location) -> Iterator[Finding]:
    """What those who remove and those who use have told each other (`coordination/leases.py`)."""
    reading: Mapping[str, Callable[[Store, str], object]] = {
        leases.HOLDS: leases.read_lease,
        leases.NOTICES: leases.read_notice,
    }
    store = location.store
    for directory, read in reading.items():
        for info in store.list(directory):
            mend = None
            try:
                read(store, info.path)
                continue
            except NotFound:
                continue
            except Corrupt as error:
                what = error.what
                does = f"Delete {info.path}, which is no hold and no notice."
                mend = Repair(RepairKind.HOLDS, does, partial(_delete_record, store, info.path, read))
            except LanceError as error:
                what = f"it could not be looked at: {error}"
            repair = "Cleanup stops at it. See to it that nobody is at work on this table, and remove it."
            yield Finding(Severity.ERROR, "work_under_way", info.path, what, repair, automatic_repair=mend)


def check_transaction_file(
    location: Location, manifest: Manifest, transaction: Transaction | None, sizes: Mapping[str, int]
) -> Iterator[Finding]:
    """Of a version that has a copy of what made it: is the file there that it names besides."""
    name = manifest.transaction_file
    if transaction is None or name is None or (copy := manifest.inline_transaction) is None:
        return
    path = f"{naming.TRANSACTIONS}/{name}"
    if not naming.is_confined(name):
        what, repair = "the name of its transaction file leaves its directory", "The copy inside is read, and is right."
        yield Finding(Severity.WARNING, "transaction_file", manifest.path, what, repair, manifest.version)
    elif path not in sizes and location.store.head(path) is None:
        what = f"it is gone; version {manifest.version} has a copy inside, where engines of before 2025 do not look"
        mend = Repair(
            RepairKind.TRANSACTIONS,
            f"Write {path}, from the copy inside version {manifest.version}.",
            partial(_restore_file, location.store, path, copy),
        )
        repair = "Those may refuse to commit, until it is put back."
        yield Finding(Severity.INFO, "transaction_file", path, what, repair, manifest.version, mend)


def check_hint(store: Store, newest: Version, location: Location) -> Iterator[Finding]:
    """Of a store that keeps one: a wrong one is never believed, and costs a listing at every opening."""
    if not isinstance(store, ReportsLastChange) or store.head(version_hint.HINT) is None:
        return
    said = version_hint.read_hint(store)
    if said != newest:
        says = "says nothing" if said is None else f"says version {said}"
        what = f"it {says}, and the newest is {newest}: whoever opens the table has to list all versions"
        mend = Repair(
            RepairKind.HINT,
            f"Write into {version_hint.HINT} which version is the newest.",
            partial(_rewrite_hint, location, store),
        )
        yield Finding(
            Severity.INFO,
            "stale_hint",
            version_hint.HINT,
            what,
            "The next commit writes it anew.",
            automatic_repair=mend,
        )


def _record_commit(location: Location, newest: Snapshot, record: IntentRecord) -> str:
    try:
        current = idempotency.read(location.store, idempotency.path_of(record.intent))
    except NotFound:
        return "the record is gone already"
    if current.landing is not None:
        return f"it says already that it landed as version {current.landing.version}"
    begun = StartedWrite(location, load_latest(location), current.transaction_uuid, current, SYSTEM_RUNTIME)
    written = find_committed(begun)
    if written is None:
        return f"it is in no version up to {newest.version} any more, and stays as it is"
    return f"it says now that it landed as version {written.landing.version}"


def _delete_record(store: Store, path: str, read: Callable[[Store, str], object]) -> str:
    try:
        read(store, path)
    except NotFound:
        return f"{path} is gone already"
    except Corrupt:
        store.delete(path)
        return f"{path} is deleted"
    return f"{path} can be read now, and stays"


def _restore_file(store: Store, path: str, data: bytes) -> str:
    store.create(path, data)  # whatever it answers, what is there counts
    try:
        there = store.read(path, 0, len(data) + 1)
    except LanceError as error:
        return f"{path} is not known to be there: {error}"
    return f"{path} is there" if there == data else f"somebody else wrote {path} meanwhile, and it stays"


def _rewrite_hint(location: Location, store: Store) -> str:
    newest = list_versions(location).numbers[-1]
    version_hint.write_hint(store, newest)
    return f"it says version {newest} now"
