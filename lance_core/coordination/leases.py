"""Leases and sweep notices: a handshake between writers that begin to use old files and cleanups that remove them.

    lease           "version 7 is about to be restored", "these files are about to be referenced": a cleanup that reads
                    it keeps them
    sweep notice    "these versions and files will be removed": a cleanup writes it before it reads references, leases
                    and intents for the last time

Each side writes its own record first and then reads those of the other, so that at least one of the two knows both: the
cleanup keeps what is leased, and a lease on something that a notice announces is refused. A record is removed when its
work is done. A record left by a killed process is ignored after `EXPIRY`, by the store's clock.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeGuard, TypeVar

from lance_core.errors import Corrupt, LanceError, NotFound, StorageError, Unsupported
from lance_core.format import naming, size_guard
from lance_core.limits import INTENT_BYTES
from lance_core.runtime import Runtime
from lance_core.storage.concurrency import map_requests
from lance_core.storage.store import ObjectInfo, Store, load_details, read_whole

EXPIRY = timedelta(days=30)
LEASE_DIRECTORY = f"{naming.PROJECT_DIRECTORY}/holds"
NOTICE_DIRECTORY = f"{naming.PROJECT_DIRECTORY}/notices"
FILES_PER_RECORD = 100_000
"""Maximum number of names in one record, so that readers accept its size (`limits.py`)."""
_Kind = TypeVar("_Kind")
_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True)
class Lease:
    """Claim on a version, or on files that no version references yet, for a purpose."""

    purpose: str
    version: int | None = None
    files: tuple[str, ...] = ()

    def parts(self) -> "Iterator[Lease]":
        """Split the lease into records that readers accept."""
        return (replace(self, files=self.files[piece]) for piece in _slices(len(self.files)))


@dataclass(frozen=True, slots=True)
class SweepNotice:
    """Announcement of the versions and files that a cleanup will remove; paths are relative to the table's root."""

    versions: tuple[int, ...]
    files: tuple[str, ...]
    """Orphan files. Files that only the removed versions reference are not listed."""

    def parts(self) -> "Iterator[SweepNotice]":
        """Split the notice into records that readers accept."""
        for piece in _slices(max(len(self.versions), len(self.files))):
            yield SweepNotice(self.versions[piece], self.files[piece])


def _slices(count: int) -> Iterator[slice]:
    """Yield slices that cover `count` items; at least one slice."""
    return (slice(start, start + FILES_PER_RECORD) for start in range(0, max(count, 1), FILES_PER_RECORD))


def acquire(store: Store, lease: Lease, runtime: Runtime) -> str:
    """Acquire a lease and return its path, for `release`. Raise `StorageError` if a cleanup may be removing the version
    or files that it covers. Acquire it before checking that they exist."""
    path = f"{LEASE_DIRECTORY}/{runtime.new_uuid().hex}.json"
    store.put(path, json.dumps({"what": lease.purpose, "version": lease.version, "files": lease.files}).encode())
    try:
        check_not_being_swept(store, lease)
    except LanceError:
        release(store, path)
        raise
    return path


def release(store: Store, path: str) -> None:
    """Remove a lease or a notice whose work is done. Errors are ignored, since it expires."""
    with suppress(StorageError):
        store.delete(path)


def active_leases(store: Store, *, now: datetime) -> tuple[list[Lease], list[str]]:
    """Read the leases that have not expired. Return also the paths of damaged leases, whose versions and files are
    unknown."""
    active = (each for each in load_details(store.list(LEASE_DIRECTORY)) if now - each.modified <= EXPIRY)
    leases, damaged = [], []
    for listed, lease in _read_records(store, active, read_lease):
        if lease is None:
            damaged.append(listed.path)
        else:
            leases.append(lease)
    return leases, damaged


def read_lease(store: Store, path: str) -> Lease:
    record = _read_json_object(store, path)
    purpose, version, files = record.get("what"), record.get("version"), record.get("files")
    if not isinstance(purpose, str) or not (version is None or type(version) is int) or not _is_list_of(files, str):
        raise Corrupt("is not the record of a lease", path=path, field="lease")
    return Lease(purpose, version, tuple(files))


def announce_sweep(store: Store, notice: SweepNotice, runtime: Runtime) -> str:
    """Write a notice and return its path, for `release`."""
    path = f"{NOTICE_DIRECTORY}/{runtime.new_uuid().hex}.json"
    store.put(path, json.dumps({"versions": notice.versions, "files": notice.files}).encode())
    return path


def sweep_notices(store: Store) -> Iterator[tuple[ObjectInfo, SweepNotice | None]]:
    """Read all notices; a damaged one is `None`."""
    yield from _read_records(store, load_details(store.list(NOTICE_DIRECTORY)), read_notice)


def read_notice(store: Store, path: str) -> SweepNotice:
    record = _read_json_object(store, path)
    versions, files = record.get("versions"), record.get("files")
    if not (_is_list_of(versions, int) and _is_list_of(files, str)):
        raise Corrupt("is not the sweep notice of a cleanup", path=path, field="notice")
    return SweepNotice(tuple(versions), tuple(files))


def check_not_being_swept(store: Store, lease: Lease) -> None:
    """Raise `StorageError` if a cleanup has announced the removal of a version or file that the lease covers."""
    for listed, notice in sweep_notices(store):
        if notice is None:
            raise Corrupt(
                "is a damaged sweep notice, which may announce the removal of any file. Make sure that no cleanup is "
                "running, then remove it with `fsck --repair holds --apply`",
                path=f"{store.description}/{listed.path}",
                field="notice",
            )
        if lease.version in notice.versions:
            raise _swept_error(store, listed, f"version {lease.version}", lease.purpose)
        if swept := set(lease.files) & set(notice.files):
            raise _swept_error(store, listed, f"{len(swept)} of its files, such as {min(swept)},", lease.purpose)


def _read_records(
    store: Store, listed: Iterable[ObjectInfo], read: Callable[[Store, str], _Record]
) -> Iterator[tuple[ObjectInfo, _Record | None]]:
    """Read records. One that was removed is left out, and a damaged one is `None`."""

    def read_one(info: ObjectInfo) -> tuple[ObjectInfo, _Record | None] | None:
        try:
            return info, read(store, info.path)
        except NotFound:
            return None
        except (Corrupt, Unsupported):
            return info, None

    records = list(listed)
    return (found for found in map_requests(store, read_one, records) if found is not None) if records else iter(())


def _swept_error(store: Store, notice: ObjectInfo, subject: str, purpose: str) -> StorageError:
    return StorageError(
        f"{store.description}: {purpose} is not possible now, since a cleanup may be removing {subject} at this "
        f"moment: it announced so in {notice.path}. Repeat it when the cleanup has ended; the next cleanup completes "
        "one that was killed"
    )


def _read_json_object(store: Store, path: str) -> dict[str, object]:
    data = read_whole(store, path, INTENT_BYTES)
    size_guard.check_json(data, path=path)
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"is not JSON: {error}", path=path, field="record") from error
    if not isinstance(record, dict):
        raise Corrupt("is not a JSON object", path=path, field="record")
    return record


def _is_list_of(values: object, kind: type[_Kind]) -> TypeGuard[list[_Kind]]:
    """Return whether `values` is a list of exactly this type; a bool is not an int here."""
    return isinstance(values, list) and all(type(value) is kind for value in values)
