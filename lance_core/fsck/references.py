"""Reference checks: tags and branches can be read, and the versions that they name exist."""

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


def check_references(branch_files: BranchFiles) -> Iterator[Finding]:
    """Check all references from the main branch; from another branch, only those to itself."""
    versions: dict[str | None, set[Version]] = {}
    for name, path in list_references(branch_files.root, refs.TAGS):
        try:
            data = read_whole(branch_files.root, path, REFERENCE_BYTES)
            tag = refs.decode_tag(data, path=path)
        except LanceError as error:
            yield _unreadable_reference(path, error)
            continue
        if branch_files.branch not in (None, tag.branch):
            continue
        if tag.branch not in versions:
            versions[tag.branch] = _versions_of(branch_files, tag.branch)
        if tag.version not in versions[tag.branch]:
            on = "" if tag.branch is None else f" of branch {tag.branch}"
            what = f"tag {name!r} names version {tag.version}{on}, which does not exist"
            action = f"Delete the tag {name!r}, of version {tag.version}{on}."
            fix = Repair(RepairKind.TAGS, action, partial(_delete_tag, branch_files, path, data, tag))
            yield Finding(Severity.WARNING, "dangling_tag", path, what, "Delete the tag.", automatic_repair=fix)
    for name, path in list_references(branch_files.root, refs.BRANCHES):
        try:
            refs.decode_branch(read_whole(branch_files.root, path, REFERENCE_BYTES), name=name, path=path)
        except LanceError as error:
            yield _unreadable_reference(path, error)
            continue
        if branch_files.branch is None and all(map(naming.is_detached, _versions_of(branch_files, name))):
            what = f"branch {name!r} has no version"
            yield Finding(Severity.WARNING, "empty_branch", path, what, "Delete the branch.")


def check_clones(store: Store) -> Iterator[Finding]:
    """Check the records of clones that begin at versions of this branch."""
    for info in store.list(refs.CLONES):
        try:
            read_clone(store, info.path)
        except NotFound:
            continue
        except LanceError as error:
            yield _unreadable_reference(info.path, error)


def _unreadable_reference(path: str, error: LanceError) -> Finding:
    if isinstance(error, Corrupt):
        repair = "Remove this file, and create the reference again."
        return Finding(Severity.ERROR, "reference", path, error.what, repair)
    return Finding(Severity.ERROR, "reference", path, f"it could not be read: {error}", "Try again.")


def _versions_of(branch_files: BranchFiles, branch: str | None) -> set[Version]:
    """Return the versions of a branch, detached ones included."""
    versions = set()
    for info in branch_files.root.list(
        f"{refs.branch_directory(branch)}/{naming.VERSIONS}" if branch else naming.VERSIONS
    ):
        name = info.path.rpartition("/")[2]
        if parsed := naming.parse_manifest_name(name):
            versions.add(parsed[0])
        elif (detached := naming.parse_detached_name(name)) is not None:
            versions.add(detached)
    return versions


def _delete_tag(branch_files: BranchFiles, path: str, data: bytes, tag: Tag) -> str:
    try:
        if read_whole(branch_files.root, path, REFERENCE_BYTES) != data:
            return f"{path} has changed and was not deleted"
    except NotFound:
        return f"{path} is already deleted"
    if tag.version in _versions_of(branch_files, tag.branch):
        return f"version {tag.version} exists now, and {path} was not deleted"
    branch_files.root.delete(path)
    return f"{path} was deleted"
