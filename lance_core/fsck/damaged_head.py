"""A newest version that is damaged: the way back to the newest one that can be read, told, and gone if it is chosen.

It is never gone by itself. Whoever moves a damaged version aside decides that what it acknowledged is lost, or will be
written again; the file stays beside, under another name, for whoever can mend it.
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
    """To open a version is to look at its outline; here its fragments are read too."""
    snapshot = load_at(location, version)
    assert snapshot.manifest.message is not None
    return snapshot


def find_damaged_head(
    location: Location, by_number: Mapping[Version, str], error: LanceError, *, acting: Store
) -> Finding:
    """`acting` is the store as writers see it."""
    head, *older = sorted(by_number, reverse=True)
    path = by_number[head]
    if not isinstance(error, Corrupt):
        return unreadable_version(path, head, error)
    what = f"the newest version is damaged: {error.what}"
    aside = [head]
    for version in older:
        try:
            load_fully(location, version)
        except Corrupt:
            aside.append(version)
        except LanceError as unknown:
            repair = f"Move nothing before version {version} can be looked at, which now fails: {unknown}."
            return Finding(Severity.ERROR, "head", path, what, repair, head)
        else:
            moved = ", ".join(f"{by_number[each]} to {by_number[each]}{_DAMAGED_SUFFIX}" for each in aside)
            repair = (
                f"Read version {version} by its number and find out what was added after it. Then move aside {moved} "
                f"and write that again: the table goes on from version {version}."
            )
            does = (
                f"Move {moved}. The table goes on from version {version}, and what was committed as "
                f"{_versions_text(aside)} is no longer in it: cleanup will take its files for orphans."
            )
            mend = Repair(
                RepairKind.HEAD,
                does,
                partial(_move_aside, location, [(each, by_number[each]) for each in aside], acting),
            )
            return Finding(Severity.ERROR, "head", path, what, repair, head, mend)
    repair = (
        "No version can be read. Put this file back from a copy, and delete nothing: the rows are in the data files."
    )
    return Finding(Severity.ERROR, "head", path, what, repair, head)


def unreadable_version(path: str, version: Version, error: LanceError) -> Finding:
    if isinstance(error, Unsupported):
        what, repair = f"it was not looked at: {error}", "Look at it with a newer version of this package."
        return Finding(Severity.WARNING, "not_understood", path, what, repair, version)
    if not isinstance(error, Corrupt):
        return Finding(Severity.ERROR, "manifest", path, f"it could not be looked at: {error}", "Try again.", version)
    what = error.what
    repair = "Nothing newer depends on it. Move it aside to let cleanup go on, which stops at what it cannot read."
    return Finding(Severity.ERROR, "manifest", path, f"this version cannot be read: {what}", repair, version)


def _move_aside(location: Location, versions: Sequence[tuple[Version, str]], acting: Store) -> str:
    """The newest first: what is left of an interruption is a table whose newest version is damaged."""
    done: list[str] = []
    for version, path in versions:
        try:
            load_fully(location, version)
        except Corrupt:
            pass
        except NotFound:
            continue
        else:
            return _summary(done, f"version {version} can be read now, and stays")
        data = read_whole(location.store, path, MANIFEST_BYTES)
        beside = _copy_aside(location.store, path, data)
        acting.delete(path)
        done.append(f"{path} is {beside} now")
    return _summary(done, "it was moved already" if not done else "")


def _copy_aside(store: Store, path: str, data: bytes) -> str:
    """Where these bytes are now, under a name that nobody takes for a version."""
    for number in range(_NAMES_MAX):
        beside = f"{path}{_DAMAGED_SUFFIX}" + (f"-{number + 1}" if number else "")
        store.create(beside, data)  # whatever it answers, what is there counts
        try:
            if store.read(beside, 0, len(data) + 1) == data:
                store.ensure_durable([beside])
                return beside
        except NotFound:
            break
    raise StorageError(
        f"{store.description}: {path} could not be copied to {path}{_DAMAGED_SUFFIX}; nothing was moved, try again"
    )


def _versions_text(numbers: Sequence[Version]) -> str:
    return ("version " if len(numbers) == 1 else "versions ") + ", ".join(map(str, sorted(numbers)))


def _summary(done: Sequence[str], rest: str) -> str:
    return "; ".join([*done, *([rest] if rest else [])])
