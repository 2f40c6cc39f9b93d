"""File inventory: determines the files that a version references, the key of a stored file, and the files that the
other branches of a table reference.

A file belongs to a *key*. The key is the path of the file itself or, for a file of an index segment, the directory of
the segment and, for a blob file, the data file that refers to it. Versions reference keys. A file without a key has an
unknown format, and neither cleanup nor fsck touches it. `maintenance/` and `fsck/` decide what happens to files.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from lance_core.errors import NotFound
from lance_core.format import ingest_records, naming, refs
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest
from lance_core.limits import MANIFEST_BYTES
from lance_core.storage.concurrency import ConcurrentCalls, map_requests
from lance_core.storage.store import ObjectInfo, Store, read_whole
from lance_core.storage.tree_operations import list_temporary_files
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot

_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_SELF_KEYED = re.compile(
    rf"{naming.DATA}/(?:[^/]+/)*[^/]+\.lance"
    rf"|{naming.DELETIONS}/[^/]+\.(?:arrow|bin)"
    rf"|{naming.TRANSACTIONS}/[^/]+\.txn"
    rf"|{ingest_records.DIRECTORY}/[^/]+\.arrow"
)
_INDEX_FILE = re.compile(rf"({naming.INDICES}/{_UUID})/.+")
_BLOB_FILE = re.compile(rf"({naming.DATA}/[^/]+)/[01]{{32}}\.blob")
_TEMPORARY_FILE = re.compile(
    rf"(?:(?:{naming.VERSIONS}|{naming.TRANSACTIONS}|{naming.DELETIONS}|{naming.DATA}|{refs.REFERENCES}"
    rf"|{naming.PROJECT_DIRECTORY})(?:/[^/]+)*/)?\.tmp[^/]*"
    rf"|{naming.VERSIONS}/[^/]+\.manifest(?:#\d+|-{_UUID})"
)
_DIRECTORIES = (
    naming.DATA,
    naming.DELETIONS,
    naming.INDICES,
    naming.TRANSACTIONS,
    naming.VERSIONS,
    ingest_records.DIRECTORY,
)


@dataclass(frozen=True, slots=True)
class FileReferences:
    """Keys that a version references."""

    own: frozenset[str]
    """Keys below the root of the table itself."""
    in_other_bases: frozenset[str]
    """Keys in other bases. Only a cleanup of such a base needs them. The keys do not identify the base."""
    optional: frozenset[str] = frozenset()
    """Subset of `own` for which no file needs to exist: a small system index is stored in the manifest itself."""

    @property
    def required(self) -> frozenset[str]:
        """Keys for which a file must exist if the version is complete."""
        return self.own - self.optional


def references_of(manifest: Manifest) -> FileReferences:
    """Return the keys that a manifest references."""
    return _references(manifest, manifest.fragments)


def added_references(manifest: Manifest, before: Manifest | None) -> FileReferences:
    """Return the keys that a manifest references and the one before it does not. Only fragments in which they differ
    are read; `None` means that there is no version before."""
    if before is None:
        return references_of(manifest)
    difference = manifest.difference_from(before)
    after, known = _references(manifest, difference.added), _references(before, difference.removed)
    return FileReferences(after.own - known.own, after.in_other_bases - known.in_other_bases, after.optional)


def _references(manifest: Manifest, fragments: Iterable[Fragment]) -> FileReferences:
    """Return the keys that these fragments of a manifest and everything else in it reference."""
    own: set[str] = set()
    in_other_bases: set[str] = set()
    optional: set[str] = set()
    _add_files(fragments, own, in_other_bases)
    for index in manifest.indices:
        key = f"{naming.INDICES}/{index.uuid}"
        (in_other_bases if index.message.HasField("base_id") else own).add(key)
        if index.is_system and not index.file_names:
            optional.add(key)
    if manifest.transaction_file:
        own.add(f"{naming.TRANSACTIONS}/{manifest.transaction_file}")
    for segment in ingest_records.segments_of(manifest.config, path=manifest.path):
        (own if manifest.branch is None else in_other_bases).add(segment.path)  # the main branch stores all segments
    return FileReferences(frozenset(own), frozenset(in_other_bases), frozenset(optional))


def _add_files(fragments: Iterable[Fragment], own: set[str], in_other_bases: set[str]) -> None:
    """Add the keys of the files of fragments to the set of their base."""
    for fragment in (each.message for each in fragments):
        for file in (*fragment.files, *(overlay.data_file for overlay in fragment.overlays)):
            (in_other_bases if file.HasField("base_id") else own).add(f"{naming.DATA}/{file.path}")
        if fragment.HasField("deletion_file"):
            deleted = fragment.deletion_file
            suffix = "bin" if deleted.file_type else "arrow"
            path = f"{naming.DELETIONS}/{fragment.id}-{deleted.read_version}-{deleted.id}.{suffix}"
            (in_other_bases if deleted.HasField("base_id") else own).add(path)


def file_exists(store: Store, key: str) -> bool:
    """Return whether the store has any file of this key."""
    return bool(store.list(key)) if key.startswith(naming.INDICES) else store.head(key) is not None


def file_key(path: str) -> str | None:
    """Return the key of a file, or `None` if its format is unknown.

    >>> file_key("_indices/0b5a3c9e-0000-4000-8000-000000000000/index.idx")
    '_indices/0b5a3c9e-0000-4000-8000-000000000000'
    >>> file_key("data/notes.txt") is None
    True
    """
    if _SELF_KEYED.fullmatch(path) or _TEMPORARY_FILE.fullmatch(path):
        return path
    if matched := _INDEX_FILE.fullmatch(path):
        return matched[1]
    if matched := _BLOB_FILE.fullmatch(path):
        return f"{matched[1]}.lance"
    return None


def list_files(location: Location) -> Iterator[tuple[str, ObjectInfo]]:
    """Yield every file that has a key, with its key. Manifests have none: they reference files, and nothing
    references them."""
    for listed in map_requests(location.store, location.store.walk, _DIRECTORIES):
        for info in listed:
            if (key := file_key(info.path)) is not None:
                yield key, info
    for info in list_temporary_files(location.own_store, (refs.REFERENCES, naming.PROJECT_DIRECTORY)):
        yield info.path, info


@dataclass(frozen=True, slots=True)
class BranchFiles:
    """Storage of one branch: the main branch of a table, or a named one."""

    location: Location
    root: Store
    """Store of the main branch, which holds the references of all branches."""
    branch: str | None

    @property
    def own_directory(self) -> str:
        """Directory of the branch below the root of the main branch; empty for the main branch."""
        return refs.branch_directory(self.branch) if self.branch else ""


def branch_files_of(base: Snapshot) -> BranchFiles:
    location = base.location.with_bases((), None, path=base.manifest.path)
    branch = base.manifest.branch
    return BranchFiles(location, location.locate_main_branch(branch).store, branch)


def references_of_other_branches(branch_files: BranchFiles, *, ignored: Collection[str] = ()) -> set[str]:
    """Return the keys that a cleanup of this branch must keep for others: those that versions of other branches
    reference outside their own directory, and all that detached versions of this branch reference. Manifests of this
    branch in `ignored` do not count.

    A directory below `tree/` counts as a branch if it holds a manifest, with or without a reference: a branch that is
    being created has no reference yet.
    """
    own_store = branch_files.location.store

    def read(manifest: tuple[Store, ObjectInfo]) -> set[str]:
        store, listed = manifest
        try:
            data = read_whole(store, listed.path, MANIFEST_BYTES)
        except NotFound:
            return set()
        references = references_of(Manifest.decode(data, path=listed.path))
        return {*references.in_other_bases, *(references.own if store is own_store else ())}

    manifests = (
        (store, listed)
        for store, listed in _other_manifests(branch_files)
        if store is not own_store or listed.path not in ignored
    )
    keys: set[str] = set()
    for found in map_requests(own_store, read, manifests):
        keys |= found
    return keys


def _other_manifests(branch_files: BranchFiles) -> Iterator[tuple[Store, ObjectInfo]]:
    store, root = branch_files.location.store, branch_files.root
    with ConcurrentCalls(store) as calls:
        listed_own = calls.start(lambda: store.list(naming.VERSIONS))
        listed_main = calls.start(lambda: root.list(naming.VERSIONS) if branch_files.branch is not None else ())
        listed_tree = calls.start(lambda: root.walk(refs.TREE))
        own, main, tree = listed_own(), listed_main(), listed_tree()
    for listed in own:
        name = listed.path.rpartition("/")[2]
        if name.startswith("d") and name.endswith(".manifest"):
            yield store, listed
    for listed in main:
        if _is_manifest(listed.path):
            yield root, listed
    own_directory = f"{branch_files.own_directory}/{naming.VERSIONS}"
    for listed in tree:
        directory = listed.path.rpartition("/")[0]
        if directory.endswith(f"/{naming.VERSIONS}") and directory != own_directory and _is_manifest(listed.path):
            yield root, listed


def _is_manifest(path: str) -> bool:
    name = path.rpartition("/")[2]
    return naming.parse_manifest_name(name) is not None or (name.startswith("d") and name.endswith(".manifest"))
