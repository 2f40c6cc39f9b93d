"""Tags and branches: can they be read, and is there what they name."""

from collections.abc import Iterator
from functools import partial

from lance_core.errors import Corrupt, LanceError, NotFound
from lance_core.format import naming, refs
from lance_core.format.ids import Version
from lance_core.format.refs import Tag
from lance_core.fsck.report import Finding, Repair, RepairKind, Severity
from lance_core.limits import REFERENCE_BYTES
from lance_core.storage.store import Store, read_whole
from lance_core.versions.file_inventory import BranchFiles
from lance_core.versions.refs import list_references, read_clone


def check_references(line: BranchFiles) -> Iterator[Finding]:
    """Of all lines, when this is the main one; of a branch, those to itself."""
    versions: dict[str | None, set[Version]] = {}
    for name, path in list_references(line.root, refs.TAGS):
        try:
            data = read_whole(line.root, path, REFERENCE_BYTES)
            tag = refs.decode_tag(data, path=path)
        except LanceError as error:
            yield _unreadable_reference(path, error)
            continue
        if line.branch not in (None, tag.branch):
            continue
        if tag.branch not in versions:
            versions[tag.branch] = _versions_of(line, tag.branch)
        if tag.version not in versions[tag.branch]:
            on = "" if tag.branch is None else f" of branch {tag.branch}"
            what = f"tag {name!r} names version {tag.version}{on}, which does not exist"
            does = f"Delete the tag {name!r}, of version {tag.version}{on}."
            mend = Repair(RepairKind.TAGS, does, partial(_delete_tag, line, path, data, tag))
            yield Finding(Severity.WARNING, "dangling_tag", path, what, "Delete the tag.", automatic_repair=mend)
    for name, path in list_references(line.root, refs.BRANCHES):
        try:
            refs.decode_branch(read_whole(line.root, path, REFERENCE_BYTES), name=name, path=path)
        except LanceError as error:
            yield _unreadable_reference(path, error)
            continue
        if line.branch is None and all(map(naming.is_detached, _versions_of(line, name))):
            what = f"branch {name!r} has no version"
            yield Finding(Severity.WARNING, "empty_branch", path, what, "Delete the branch.")


def check_clones(store: Store) -> Iterator[Finding]:
    """What other tables begin at versions of this line."""
    for info in store.list(refs.CLONES):
        try:
            read_clone(store, info.path)
        except NotFound:
            continue
        except LanceError as error:
            yield _unreadable_reference(info.path, error)


def _unreadable_reference(path: str, error: LanceError) -> Finding:
    if isinstance(error, Corrupt):
        repair = "Remove this file, and make the reference again."
        return Finding(Severity.ERROR, "reference", path, error.what, repair)
    return Finding(Severity.ERROR, "reference", path, f"it could not be looked at: {error}", "Try again.")


def _versions_of(line: BranchFiles, branch: str | None) -> set[Version]:
    """Those beside the line included."""
    found = set()
    for info in line.root.list(f"{refs.branch_directory(branch)}/{naming.VERSIONS}" if branch else naming.VERSIONS):
        name = info.path.rpartition("/")[2]
        if parsed := naming.parse_manifest_name(name):
            found.add(parsed[0])
        elif (beside := naming.parse_detached_name(name)) is not None:
            found.add(beside)
    return found


def _delete_tag(line: BranchFiles, path: str, data: bytes, tag: Tag) -> str:
    try:
        if read_whole(line.root, path, REFERENCE_BYTES) != data:
            return f"{path} says something else now, and stays"
    except NotFound:
        return f"{path} is gone already"
    if tag.version in _versions_of(line, tag.branch):
        return f"version {tag.version} is there now, and {path} stays"
    line.root.delete(path)
    return f"{path} is deleted"
