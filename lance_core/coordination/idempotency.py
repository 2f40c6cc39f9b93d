"""The memory of intentions: one small record per `intent=`, made before anything else is written.

    _lance_assets/intents/{sha256 of the intent}.json

It says on which version the work began and under which transaction uuid it goes on, whoever does it: a retry,
another process, a run a week later. Its history is searched from *that* version, since a re-run opens a newer
table and would not see the first attempt. Once landed, the record names the version and outlives it.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from lance_core.errors import Corrupt, InvalidInput, NotFound, StorageError
from lance_core.format import naming, size_guard
from lance_core.format.ids import Version
from lance_core.limits import INTENT_BYTES
from lance_core.storage.store import ObjectInfo, Put, Store, load_details, read_whole

DIRECTORY = f"{naming.PROJECT_DIRECTORY}/intents"
PERMANENT_PREFIX = "for good: "
"""An intent that begins so is remembered for as long as its table; others are forgotten a month after they landed."""
_PERMANENT_SUFFIX = ".kept.json"
_CREATES_MAX = 5
_INTENT_CHARACTERS_MAX = 4096


@dataclass(frozen=True, slots=True)
class CommitSummary:
    """What the intention became; kept so that a repetition can be
    answered after the version itself is cleaned up."""

    version: int
    operation: str
    rows_added: int
    rows_removed: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class IntentRecord:
    intent: str
    verb: str
    """What was to be done: one intent is one change, and cannot be asked to be another."""
    base_version: int
    transaction_uuid: str
    begun_ns: int
    heartbeat_ns: int
    files: tuple[str, ...] = ()
    """Data files written for it so far, and directories of index segments, as far as its holders have told: cleanup
    must not touch them."""
    landing: CommitSummary | None = None

    @property
    def base(self) -> Version:
        return Version(self.base_version)

    @property
    def file_keys(self) -> frozenset[str]:
        """The same from the table's root, as `versions/file_inventory.py` names what lies there."""
        return frozenset(file if file.startswith(_SEGMENT) else f"{naming.DATA}/{file}" for file in self.files)


_SEGMENT = f"{naming.INDICES}/"
_FIELDS = [field.name for field in fields(IntentRecord)]
_FIELDS_OF_LANDING = [field.name for field in fields(CommitSummary)]


def path_of(intent: str) -> str:
    ending = _PERMANENT_SUFFIX if intent.startswith(PERMANENT_PREFIX) else ".json"
    return f"{DIRECTORY}/{hashlib.sha256(intent.encode()).hexdigest()}{ending}"


def is_permanent(path: str) -> bool:
    """By its name alone, so that a cleanup need not read what it leaves."""
    return path.endswith(_PERMANENT_SUFFIX)


def claim(store: Store, intent: str, *, verb: str, base: Version, uuid: str, now_ns: int) -> IntentRecord:
    """The record of this intention: a new one, or the one that an earlier attempt left."""
    if not intent or len(intent) > _INTENT_CHARACTERS_MAX:
        raise InvalidInput(f"an intent is a text of 1 to {_INTENT_CHARACTERS_MAX} characters, not one of {len(intent)}")
    fresh = IntentRecord(intent, verb, base, uuid, begun_ns=now_ns, heartbeat_ns=now_ns)
    path = path_of(intent)
    for _ in range(_CREATES_MAX):
        if store.create(path, _encode(fresh)) is Put.CREATED:
            return fresh
        # "exists" may be our own create, its answer lost; either way the record that is there counts.
        try:
            record = _decode(read_whole(store, path, INTENT_BYTES), path, intent)
        except NotFound:
            continue
        if record.verb != verb:
            raise InvalidInput(
                f"the intent {intent!r} stands for another change already ({record.verb}, and this is {verb}); give "
                "each change an intent of its own"
            )
        return record
    raise StorageError(f"could not record the intent {intent!r} at {store.description}: no create was answered")


def heartbeat(store: Store, record: IntentRecord, *, files: Sequence[str], now_ns: int) -> None:
    """Tell that the work is alive and which files it has written; a landing noted meanwhile stays. One that is
    noted between the look and the put is lost here, and found in the history by the commit that follows."""
    path = path_of(record.intent)
    if _decode(read_whole(store, path, INTENT_BYTES), path, record.intent).landing:
        return
    store.put(path, _encode(replace(record, files=tuple(files), heartbeat_ns=now_ns)))


def move_base(store: Store, record: IntentRecord, base: Version) -> None:
    """All that was committed up to here is known not to be it: later attempts need not look there."""
    path = path_of(record.intent)
    current = _decode(read_whole(store, path, INTENT_BYTES), path, record.intent)
    if current.landing is None and current.base_version < base:
        store.put(path, _encode(replace(current, base_version=base)))


def record_commit(store: Store, record: IntentRecord, landing: CommitSummary, *, now_ns: int) -> None:
    store.put(path_of(record.intent), _encode(replace(record, landing=landing, heartbeat_ns=now_ns)))


def read_records(store: Store, wanted: Callable[[ObjectInfo], bool]) -> Sequence[tuple[ObjectInfo, IntentRecord]]:
    """Those that are wanted by their name and by when the store last heard of them; the others are not read. One that
    went meanwhile is left out."""
    found = []
    for listed in filter(wanted, load_details(store.list(DIRECTORY))):
        try:
            found.append((listed, _decode(read_whole(store, listed.path, INTENT_BYTES), listed.path)))
        except NotFound:
            continue
    return found


def read_record(store: Store, path: str) -> IntentRecord:
    return _decode(read_whole(store, path, INTENT_BYTES), path)


def _encode(record: IntentRecord) -> bytes:
    landing = record.landing
    members = {name: getattr(record, name) for name in _FIELDS}
    members["landing"] = landing and {name: getattr(landing, name) for name in _FIELDS_OF_LANDING}
    return json.dumps(members).encode()


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
        raise TypeError("a field is of another type")
    if min(numbers) < 0:
        raise ValueError("a number is negative")
