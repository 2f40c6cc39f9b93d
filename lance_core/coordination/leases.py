"""What those who remove old things and those who begin to use them tell each other.

    hold     "version 7 is about to be restored", "these files are about to be named": a cleanup that reads it leaves
             them alone
    notice   "these versions go, and these files": written by a cleanup before it looks at names, holds and intents for
             the last time

Each writes its own word first and only then looks for the other's, so that of two who meet at least one sees the other:
the cleanup spares what is held, and who comes to hold what was given notice of is refused. A word is taken back when
its work is done. One that a killed process left behind counts for `EXPIRY`, by the store's clock.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeGuard, TypeVar

from lance_core.errors import Corrupt, LanceError, NotFound, StorageError
from lance_core.format import naming, size_guard
from lance_core.limits import INTENT_BYTES
from lance_core.runtime import Runtime
from lance_core.storage.store import ObjectInfo, Store, load_details, read_whole

EXPIRY = timedelta(days=30)
LEASE_DIRECTORY = f"{naming.PROJECT_DIRECTORY}/holds"
NOTICE_DIRECTORY = f"{naming.PROJECT_DIRECTORY}/notices"
_FILES_PER_RECORD = 100_000
"""Names in one hold or notice, so that whoever has to read it may (`limits.py`)."""
_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class Lease:
    """Work that is about to use what is there, and no version names for it yet."""

    purpose: str
    version: int | None = None
    files: tuple[str, ...] = ()

    def parts(self) -> "Iterator[Lease]":
        """One that may be too long for its readers, as several."""
        return (replace(self, files=self.files[piece]) for piece in _slices(len(self.files)))


@dataclass(frozen=True, slots=True)
class SweepNotice:
    """What a cleanup is about to remove, from its table's root."""

    versions: tuple[int, ...]
    files: tuple[str, ...]
    """Those that no version names; what only the versions name goes with them."""

    def parts(self) -> "Iterator[SweepNotice]":
        for piece in _slices(max(len(self.versions), len(self.files))):
            yield SweepNotice(self.versions[piece], self.files[piece])


def _slices(count: int) -> Iterator[slice]:
    """At least one."""
    return (slice(start, start + _FILES_PER_RECORD) for start in range(0, max(count, 1), _FILES_PER_RECORD))


def acquire(store: Store, lease: Lease, runtime: Runtime) -> str:
    """The name of the hold, for `release`. Refused where a cleanup may be removing what is wanted: ask for it before
    looking whether it is there."""
    path = f"{LEASE_DIRECTORY}/{runtime.new_uuid().hex}.json"
    store.put(path, json.dumps({"what": lease.purpose, "version": lease.version, "files": lease.files}).encode())
    try:
        check_not_being_swept(store, lease)
    except LanceError:
        release(store, path)
        raise
    return path


def release(store: Store, path: str) -> None:
    """Of a hold or a notice: it is done. At best effort, since it is forgotten by itself."""
    with suppress(StorageError):
        store.delete(path)


def active_leases(store: Store, *, now: datetime) -> Iterator[Lease]:
    for listed in load_details(store.list(LEASE_DIRECTORY)):
        if now - listed.modified <= EXPIRY:
            with suppress(NotFound):
                yield read_lease(store, listed.path)


def read_lease(store: Store, path: str) -> Lease:
    record = _read_json_object(store, path)
    what, version, files = record.get("what"), record.get("version"), record.get("files")
    if not isinstance(what, str) or not (version is None or type(version) is int) or not _is_list_of(files, str):
        raise Corrupt("is not the record of a hold", path=path, field="hold")
    return Lease(what, version, tuple(files))


def announce_sweep(store: Store, notice: SweepNotice, runtime: Runtime) -> str:
    """The name of the notice, for `release`."""
    path = f"{NOTICE_DIRECTORY}/{runtime.new_uuid().hex}.json"
    store.put(path, json.dumps({"versions": notice.versions, "files": notice.files}).encode())
    return path


def sweep_notices(store: Store) -> Iterator[tuple[ObjectInfo, SweepNotice]]:
    for listed in load_details(store.list(NOTICE_DIRECTORY)):
        with suppress(NotFound):
            yield listed, read_notice(store, listed.path)


def read_notice(store: Store, path: str) -> SweepNotice:
    record = _read_json_object(store, path)
    versions, files = record.get("versions"), record.get("files")
    if not (_is_list_of(versions, int) and _is_list_of(files, str)):
        raise Corrupt("is not the notice of a cleanup", path=path, field="notice")
    return SweepNotice(tuple(versions), tuple(files))


def check_not_being_swept(store: Store, lease: Lease) -> None:
    """That no cleanup has given notice of it."""
    for listed, notice in sweep_notices(store):
        if lease.version in notice.versions:
            raise _swept_error(store, listed, f"version {lease.version}", lease.purpose)
        if going := set(lease.files) & set(notice.files):
            raise _swept_error(store, listed, f"{len(going)} of its files, {min(going)} for one,", lease.purpose)


def _swept_error(store: Store, notice: ObjectInfo, thing: str, what: str) -> StorageError:
    return StorageError(
        f"{store.description}: {what} cannot be done, since {thing} may be going at this moment: a cleanup gave notice "
        f"of it ({notice.path}). Repeat it when the cleanup is over; one that was killed is finished by the next one"
    )


def _read_json_object(store: Store, path: str) -> dict[str, object]:
    data = read_whole(store, path, INTENT_BYTES)
    size_guard.check_json(data, path=path)
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"is no JSON: {error}", path=path, field="record") from error
    if not isinstance(record, dict):
        raise Corrupt("is no JSON object", path=path, field="record")
    return record


def _is_list_of(values: object, kind: type[_Kind]) -> TypeGuard[list[_Kind]]:
    """A truth value is no number here."""
    return isinstance(values, list) and all(type(value) is kind for value in values)
