"""Idempotency records: one small record per `intent=` (idempotency key), written before any other file of the write.

    _lance_assets/intents/{sha256 of the intent}.json

The record contains the version on which the work began and the transaction uuid under which every later attempt
continues, be it a retry, another process or a run a week later. The history is searched from *that* version, since a
repetition opens a newer table and would not see the first attempt. After the commit, the record names the version, and
stays when the version is removed. Start with `claim`.
"""

import hashlib
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from lance_core.errors import Corrupt, InvalidInput, LanceError, NotFound, StorageError, Unsupported
from lance_core.format import naming, size_guard
from lance_core.format.ids import Version
from lance_core.limits import INTENT_BYTES
from lance_core.storage.concurrency import map_requests
from lance_core.storage.store import ObjectInfo, Put, Store, load_details, read_decoded

DIRECTORY = f"{naming.PROJECT_DIRECTORY}/intents"
PERMANENT_PREFIX = "for good: "
"""Prefix of intents whose records stay as long as the table. Cleanup removes the records of other intents that are
committed, 30 days after their last change, and of those that were claimed and are in no version."""
FOR_GOOD = PERMANENT_PREFIX
"""The name of `PERMANENT_PREFIX` before version 0.2.0. Deprecated; removed in 0.3.0."""
_PERMANENT_SUFFIX = ".kept.json"
_COMMITTED_SIZE_UNIT = 2048
"""Records with a commit are filled with spaces to a multiple of this size, and no other record has such a size. So a
listing tells them apart."""
_MARK_BYTES = 8
_FRESH_NS = 10 * 60 * 10**9
"""A sixth of the minimum age at which a cleanup removes a file that no version references."""
_CREATES_MAX = 5
_INTENT_CHARACTERS_MAX = 4096


@dataclass(frozen=True, slots=True)
class CommitSummary:
    """Result of a committed write. It answers a repetition after the version itself was cleaned up. The field names are
    JSON keys."""

    version: int
    operation: str
    rows_added: int
    rows_removed: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class IntentRecord:
    """Record of one intent. The field names are JSON keys."""

    intent: str
    verb: str
    """Name of the change. An intent is used for one verb only."""
    base_version: int
    transaction_uuid: str
    begun_ns: int
    heartbeat_ns: int
    files: tuple[str, ...] = ()
    """Data files written so far, and directories of index segments, as registered by `heartbeat`. A cleanup keeps
    them."""
    landing: CommitSummary | None = None
    """The commit; None until it is recorded."""

    @property
    def base(self) -> Version:
        """Version on which the work began."""
        return Version(self.base_version)

    def wrote(self, key: str) -> bool:
        """Return whether a file belongs to this write: the record lists it, or its name has the mark of the write."""
        return key in self.file_keys or key.endswith(f"{_file_mark(self.transaction_uuid).hex()}.lance")

    def new_file_uuid(self, new_uuid: Callable[[], uuid.UUID]) -> uuid.UUID:
        """Return a new uuid for the name of a data file, with the mark of this write: half of its bits. The other half
        stays random, since each attempt writes other files."""
        return uuid.UUID(bytes=new_uuid().bytes[:_MARK_BYTES] + _file_mark(self.transaction_uuid))

    def is_fresh(self, now_ns: int) -> bool:
        """Return whether the record was written so recently that no file of the write can be old enough for a cleanup
        to remove it."""
        return 0 <= now_ns - self.heartbeat_ns < _FRESH_NS

    @property
    def file_keys(self) -> frozenset[str]:
        """Paths of `files` from the table's root, as in `versions/file_inventory.py`."""
        return frozenset(file if file.startswith(_SEGMENT_PREFIX) else f"{naming.DATA}/{file}" for file in self.files)


def _file_mark(transaction_uuid: str) -> bytes:
    return hashlib.sha256(f"data files of {transaction_uuid}".encode()).digest()[:_MARK_BYTES]


_SEGMENT_PREFIX = f"{naming.INDICES}/"
_RECORD_FIELDS = [field.name for field in fields(IntentRecord)]
_SUMMARY_FIELDS = [field.name for field in fields(CommitSummary)]
_LARGEST_SUMMARY = json.dumps(dict.fromkeys(_SUMMARY_FIELDS, 2**63) | {"operation": "x" * 64}).encode()


def path_of(intent: str) -> str:
    suffix = _PERMANENT_SUFFIX if intent.startswith(PERMANENT_PREFIX) else ".json"
    return f"{DIRECTORY}/{hashlib.sha256(intent.encode()).hexdigest()}{suffix}"


def is_permanent(path: str) -> bool:
    """Return whether a record is permanent, by its path alone, so that a cleanup need not read it."""
    return path.endswith(_PERMANENT_SUFFIX)


def is_committed(listed: ObjectInfo) -> bool:
    """Return whether a record certainly has a commit, by its size alone, so that a cleanup need not read it. Older
    releases wrote committed records of any size."""
    return listed.size > 0 and listed.size % _COMMITTED_SIZE_UNIT == 0


def claim(store: Store, intent: str, *, verb: str, base: Version, uuid: str, now_ns: int) -> IntentRecord:
    """Create the record of an intent, or return the one of an earlier attempt."""
    if not intent or len(intent) > _INTENT_CHARACTERS_MAX:
        raise InvalidInput(f"an intent is a text of 1 to {_INTENT_CHARACTERS_MAX} characters, not of {len(intent)}")
    fresh = IntentRecord(intent, verb, base, uuid, begun_ns=now_ns, heartbeat_ns=now_ns)
    path = path_of(intent)
    for _ in range(_CREATES_MAX):
        if store.create(path, _encode(fresh)) is Put.CREATED:
            return fresh
        # "exists" may be our own create whose answer was lost; either way the existing record counts.
        try:
            record = read_decoded(store, path, INTENT_BYTES, lambda data: _decode(data, path, intent))
        except NotFound:
            continue
        if record.verb != verb:
            raise InvalidInput(
                f"the intent {intent!r} belongs to another change already ({record.verb}, and this is {verb}); give "
                "each change an intent of its own"
            )
        return record
    raise StorageError(
        f"{store.description}: could not record the intent {intent!r}, since the store confirmed no create; repeat the "
        "call"
    )


def heartbeat(store: Store, record: IntentRecord, *, files: Sequence[str] | None = None, now_ns: int) -> None:
    """Record that the work is in progress, and the files that it has written; `None` keeps those that are recorded.

    If a commit is recorded already, the record stays unchanged. If another holder records its commit between the read
    and the put, the put overwrites it, and the commit that follows finds it in the history.

    Raise `StorageError` if the record is gone, or belongs to another attempt: a cleanup has removed it because the work
    was idle for 30 days or more.
    """
    path = path_of(record.intent)
    try:
        current = read_decoded(store, path, INTENT_BYTES, lambda data: _decode(data, path, record.intent))
    except NotFound:
        current = None
    if current is None or current.transaction_uuid != record.transaction_uuid:
        raise StorageError(
            f"{store.description}: the claim of the intent {record.intent!r} has expired, because this {record.verb} "
            "was idle for so long that a cleanup took it for abandoned. Nothing was committed; repeat the call"
        )
    if current.landing:
        return
    recorded_files = current.files if files is None else tuple(files)
    store.put(path, _encode(replace(record, files=recorded_files, heartbeat_ns=now_ns)))


def move_base(store: Store, record: IntentRecord, base: Version) -> None:
    """Move the version after which later attempts search the history to `base`, since no version up to it contains the
    write."""
    path = path_of(record.intent)
    current = read_decoded(store, path, INTENT_BYTES, lambda data: _decode(data, path, record.intent))
    if current.landing is None and current.base_version < base:
        store.put(path, _encode(replace(current, base_version=base)))


def record_commit(store: Store, record: IntentRecord, summary: CommitSummary, *, now_ns: int) -> None:
    store.put(path_of(record.intent), _encode(replace(record, landing=summary, heartbeat_ns=now_ns)))


def read_records(
    store: Store, is_wanted: Callable[[ObjectInfo], bool]
) -> tuple[Sequence[tuple[ObjectInfo, IntentRecord]], Sequence[str]]:
    """Read the records that `is_wanted` selects by path, size and time of the last change. Return also the paths of
    those that are damaged. A record that is removed meanwhile is left out."""

    def read_one(listed: ObjectInfo) -> IntentRecord | LanceError:
        try:
            return read_record(store, listed.path)
        except (Corrupt, NotFound, Unsupported) as error:
            return error

    wanted = list(filter(is_wanted, load_details(store.list(DIRECTORY))))
    records, damaged = [], []
    for listed, found in zip(wanted, map_requests(store, read_one, wanted), strict=True):
        if isinstance(found, IntentRecord):
            records.append((listed, found))
        elif not isinstance(found, NotFound):
            damaged.append(listed.path)
    return records, damaged


def read_record(store: Store, path: str) -> IntentRecord:
    return read_decoded(store, path, INTENT_BYTES, lambda data: _decode(data, path))


def _encode(record: IntentRecord) -> bytes:
    summary = record.landing
    members = {name: getattr(record, name) for name in _RECORD_FIELDS}
    members["landing"] = summary and {name: getattr(summary, name) for name in _SUMMARY_FIELDS}
    data = json.dumps(members).encode()
    if summary is not None:
        filled_size = -(-len(data) // _COMMITTED_SIZE_UNIT) * _COMMITTED_SIZE_UNIT
        return data.ljust(filled_size) if filled_size <= INTENT_BYTES.maximum else data
    # The commit is added to it later, and a record must never be too large to be read.
    path = path_of(record.intent)
    INTENT_BYTES.check(len(data) + len(_LARGEST_SUMMARY), path=path)
    size_guard.check_json(data + _LARGEST_SUMMARY, path=path)
    return data if len(data) % _COMMITTED_SIZE_UNIT else data + b" "


def _decode(data: bytes, path: str, intent: str | None = None) -> IntentRecord:
    size_guard.check_json(data, path=path)
    try:
        members = json.loads(data)
        landing = members.pop("landing")
        files = tuple(members.pop("files"))
        record = IntentRecord(**members, files=files, landing=CommitSummary(**landing) if landing else None)
        _check_types(record)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Corrupt(f"is not the record of an intent: {error}", path=path, field="intent") from error
    if intent is not None and record.intent != intent:
        raise Corrupt(f"is the record of {record.intent!r}, not of {intent!r}", path=path, field="intent")
    return record


def _check_types(record: IntentRecord) -> None:
    numbers = [record.base_version, record.begun_ns, record.heartbeat_ns]
    texts = [record.intent, record.verb, record.transaction_uuid, *record.files]
    if record.landing:
        landing = record.landing
        numbers += [landing.version, landing.rows_added, landing.rows_removed, landing.files, landing.bytes]
        texts.append(landing.operation)
    if not all(isinstance(text, str) for text in texts) or not all(type(number) is int for number in numbers):
        raise TypeError("a field has the wrong type")
    if min(numbers) < 0:
        raise ValueError("a number is negative")
