"""Which files a version names, whose a file on the store is, and what other lines of a table name.

A file belongs to a *key*: its own path, or, for what lies beside something else, the path of that: the directory of
an index segment, the data file of a blob. A version names keys. What has no key is of a kind that nobody here knows,
and is left alone by everybody. What is done about files is decided in `maintenance/` and in `fsck/`.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from lance_core.errors import NotFound
from lance_core.format import ingest_records, naming, refs
from lance_core.format.manifest import Manifest
from lance_core.limits import MANIFEST_BYTES
from lance_core.storage.store import ObjectInfo, Store, read_whole
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot

_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_ITSELF = re.compile(
    rf"{naming.DATA}/(?:[^/]+/)*[^/]+\.lance"
    rf"|{naming.DELETIONS}/[^/]+\.(?:arrow|bin)"
    rf"|{naming.TRANSACTIONS}/[^/]+\.txn"
    rf"|{ingest_records.DIRECTORY}/[^/]+\.arrow"
)
_OF_AN_INDEX = re.compile(rf"({naming.INDICES}/{_UUID})/.+")
_BESIDE_DATA = re.compile(rf"({naming.DATA}/[^/]+)/[01]{{32}}\.blob")
_UNFINISHED = re.compile(
    rf"(?:{naming.VERSIONS}|{naming.TRANSACTIONS}|{naming.DELETIONS}|{naming.DATA}(?:/[^/]+)*)/\.tmp[^/]*"
    rf"|{naming.VERSIONS}/[^/]+\.manifest(?:#\d+|-{_UUID})"
)
_WALKED = (
    naming.DATA,
    naming.DELETIONS,
    naming.INDICES,
    naming.TRANSACTIONS,
    naming.VERSIONS,
    ingest_records.DIRECTORY,
)


@dataclass(frozen=True, slots=True)
class FileReferences:
    """The keys that a version names."""

    own: frozenset[str]
    """In the table's own root."""
    elsewhere: frozenset[str]
    """In another base. For whoever cleans that one up: which base it is, and under which spelling, is not asked."""
    without_files: frozenset[str] = frozenset()
    """Of `own`, where there may be nothing: an index of the library's own lies in the manifest if it is small."""

    @property
    def there(self) -> frozenset[str]:
        """Where something must be, if the version is whole."""
        return self.own - self.without_files


def references_of(manifest: Manifest) -> FileReferences:
    own: set[str] = set()
    elsewhere: set[str] = set()
    without_files: set[str] = set()
    for fragment in manifest.message.fragments:
        for file in (*fragment.files, *(overlay.data_file for overlay in fragment.overlays)):
            (elsewhere if file.HasField("base_id") else own).add(f"{naming.DATA}/{file.path}")
        if fragment.HasField("deletion_file"):
            deleted = fragment.deletion_file
            suffix = "bin" if deleted.file_type else "arrow"
            path = f"{naming.DELETIONS}/{fragment.id}-{deleted.read_version}-{deleted.id}.{suffix}"
            (elsewhere if deleted.HasField("base_id") else own).add(path)
    for index in manifest.indices:
        key = f"{naming.INDICES}/{index.uuid}"
        (elsewhere if index.message.HasField("base_id") else own).add(key)
        if index.is_system and not index.file_names:
            without_files.add(key)
    if manifest.transaction_file:
        own.add(f"{naming.TRANSACTIONS}/{manifest.transaction_file}")
    for segment in ingest_records.segments_of(manifest.config, path=manifest.path):
        (own if manifest.branch is None else elsewhere).add(segment.path)  # of all lines, they are with the main one
    return FileReferences(frozenset(own), frozenset(elsewhere), frozenset(without_files))


def file_exists(store: Store, key: str) -> bool:
    """Whether anything of a key of that store is."""
    return bool(store.list(key)) if key.startswith(naming.INDICES) else store.head(key) is not None


def file_key(path: str) -> str | None:
    """
    >>> key_of("_indices/0b5a3c9e-0000-4000-8000-000000000000/index.idx")
    '_indices/0b5a3c9e-0000-4000-8000-000000000000'
    >>> key_of("data/notes.txt") is None
    True
    """
    if _ITSELF.fullmatch(path) or _UNFINISHED.fullmatch(path):
        return path
    if matched := _OF_AN_INDEX.fullmatch(path):
        return matched[1]
    if matched := _BESIDE_DATA.fullmatch(path):
        return f"{matched[1]}.lance"
    return None


def list_files(location: Location) -> Iterator[tuple[str, ObjectInfo]]:
    """Every file of a known kind with its key. Manifests are not among them: they name, and are not named."""
    for directory in _WALKED:
        for info in location.store.walk(directory):
            if (key := file_key(info.path)) is not None:
                yield key, info


@dataclass(frozen=True, slots=True)
class BranchFiles:
    """Versions that follow each other: the main line of a table, or a branch of it."""

    location: Location
    root: Store
    """Of the main line, where the references of all lines lie."""
    branch: str | None

    @property
    def own_directory(self) -> str:
        """From the main line's root; empty for the main line itself."""
        return refs.branch_directory(self.branch) if self.branch else ""


def branch_files_of(base: Snapshot) -> BranchFiles:
    location = base.location.with_bases((), None, path=base.manifest.path)
    branch = base.manifest.branch
    return BranchFiles(location, location.main_line(branch).store, branch)


def references_of_other_branches(line: BranchFiles, *, but: Collection[str] = ()) -> set[str]:
    """Keys that versions of other lines name outside their own directory, and detached versions of this one anywhere.
    `but` are manifests of this line that do not count.

    A directory below `tree/` counts as a branch when it holds a manifest, whether or not a reference says so: a branch
    in the making has none yet.
    """
    found: set[str] = set()
    for store, path in _other_manifests(line):
        if store is line.location.store and path in but:
            continue
        try:
            named = references_of(Manifest.decode(read_whole(store, path, MANIFEST_BYTES), path=path))
        except NotFound:
            continue
        found |= named.elsewhere
        if store is line.location.store:
            found |= named.own
    return found


def _other_manifests(line: BranchFiles) -> Iterator[tuple[Store, str]]:
    for listed in line.location.store.list(naming.VERSIONS):
        name = listed.path.rpartition("/")[2]
        if name.startswith("d") and name.endswith(".manifest"):
            yield line.location.store, listed.path
    own = f"{line.own_directory}/{naming.VERSIONS}"
    if line.branch is not None:
        for listed in line.root.list(naming.VERSIONS):
            if _is_manifest(listed.path):
                yield line.root, listed.path
    for listed in line.root.walk(refs.TREE):
        directory = listed.path.rpartition("/")[0]
        if directory.endswith(f"/{naming.VERSIONS}") and directory != own and _is_manifest(listed.path):
            yield line.root, listed.path


def _is_manifest(path: str) -> bool:
    name = path.rpartition("/")[2]
    return naming.parse_manifest_name(name) is not None or (name.startswith("d") and name.endswith(".manifest"))
