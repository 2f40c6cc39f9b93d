"""Damaged head: reports a damaged newest version, and offers to go back to the newest readable one.

The table never goes back by itself. A person who moves a damaged version aside decides that its committed rows are
lost or will be written again. The manifest is kept under another name, for anyone who can restore it.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from lance_core.errors import Corrupt, LanceError, NotFound, StorageError, Unsupported
from lance_core.format.ids import Version
from lance_core.fsck.report import Finding, Repair, RepairKind, Severity
from lance_core.limits import MANIFEST_BYTES
from lance_core.storage.store import Store, read_whole
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, load_at

_DAMAGED_SUFFIX = ".damaged"
_NAMES_MAX = 100


def load_fully(location: Location, version: Version) -> Snapshot:
    """Load a version including its fragments; opening alone reads only the manifest header."""
    snapshot = load_at(location, version)
    assert snapshot.manifest.message is not None
    return snapshot


def find_damaged_head(
    location: Location, by_number: Mapping[Version, str], error: LanceError, *, writer_store: Store
) -> Finding:
    """Return the finding for an unreadable newest version. `writer_store` is the store as writers use it."""
    head, *older = sorted(by_number, reverse=True)
    path = by_number[head]
    if not isinstance(error, Corrupt):
        return unreadable_version(path, head, error)
    what = f"the newest version is damaged: {error.what}"
    versions_to_move = [head]
    for version in older:
        try:
            load_fully(location, version)
        except Corrupt:
            versions_to_move.append(version)
        except LanceError as unknown:
            repair = f"Move nothing before version {version} can be examined, which currently fails: {unknown}."
            return Finding(Severity.ERROR, "head", path, what, repair, head)
        else:
            moves = ", ".join(
                f"{by_number[number]} to {by_number[number]}{_DAMAGED_SUFFIX}" for number in versions_to_move
            )
            repair = (
                f"Open version {version} by its number and find out what was added after it. Then move aside {moves} "
                f"and write that again: the table continues from version {version}."
            )
            action = (
                f"Move {moves}. The table continues from version {version}, without the changes committed as "
                f"{_versions_text(versions_to_move)}: cleanup will treat their files as orphan files."
            )
            fix = Repair(
                RepairKind.HEAD,
                action,
                partial(
                    _move_aside, location, [(number, by_number[number]) for number in versions_to_move], writer_store
                ),
            )
            return Finding(Severity.ERROR, "head", path, what, repair, head, fix)
    repair = (
        "No version can be read. Restore this file from a copy, and delete nothing: the rows are in the data files."
    )
    return Finding(Severity.ERROR, "head", path, what, repair, head)


def unreadable_version(path: str, version: Version, error: LanceError) -> Finding:
    """Return the finding for a version that cannot be read."""
    if isinstance(error, Unsupported):
        what, repair = f"it was not examined: {error}", "Examine it with a newer release of this package."
        return Finding(Severity.WARNING, "not_understood", path, what, repair, version)
    if not isinstance(error, Corrupt):
        return Finding(Severity.ERROR, "manifest", path, f"it could not be examined: {error}", "Try again.", version)
    what = error.what
    repair = "Newer versions do not depend on it. Move it aside, since cleanup stops at manifests that it cannot read."
    return Finding(Severity.ERROR, "manifest", path, f"this version cannot be read: {what}", repair, version)


def _move_aside(location: Location, versions: Sequence[tuple[Version, str]], writer_store: Store) -> str:
    """Move damaged versions aside, newest first: after an interruption, the newest version is still a damaged one."""
    outcomes: list[str] = []
    for version, path in versions:
        try:
            load_fully(location, version)
        except Corrupt:
            pass
        except NotFound:
            continue
        else:
            return _summary(outcomes, f"version {version} can be read now and was not moved")
        data = read_whole(location.store, path, MANIFEST_BYTES)
        new_path = _copy_aside(location.store, path, data)
        writer_store.delete(path)
        outcomes.append(f"{path} was moved to {new_path}")
    return _summary(outcomes, "it was already moved" if not outcomes else "")


def _copy_aside(store: Store, path: str, data: bytes) -> str:
    """Copy these bytes to a name that denotes no version, and return the path."""
    for number in range(_NAMES_MAX):
        new_path = f"{path}{_DAMAGED_SUFFIX}" + (f"-{number + 1}" if number else "")
        store.create(new_path, data)  # the read below decides, whatever the store answers
        try:
            if store.read(new_path, 0, len(data) + 1) == data:
                store.ensure_durable([new_path])
                return new_path
        except NotFound:
            break
    raise StorageError(
        f"{store.description}: {path} could not be copied to {path}{_DAMAGED_SUFFIX}; nothing was moved. Try again"
    )


def _versions_text(numbers: Sequence[Version]) -> str:
    return ("version " if len(numbers) == 1 else "versions ") + ", ".join(map(str, sorted(numbers)))


def _summary(outcomes: Sequence[str], rest: str) -> str:
    return "; ".join([*outcomes, *([rest] if rest else [])])
