"""Recorded files: the data, deletion and index files of versions, with the checksums that any of them records.

Names of files are never reused, so a checksum that one version records is valid for all versions. A commit of another
engine drops checksums, and the versions before it still have them. Start with `RecordedFiles`.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from lance_core.datafiles.checksums import compute_checksum
from lance_core.errors import Corrupt, LanceError, NotFound, Unsupported
from lance_core.format.file_checksum import FileChecksum
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.format.overlay import overlays_of
from lance_core.progress import track
from lance_core.storage.concurrency import map_requests
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, list_versions, load_at

_THREADS = 8


@dataclass(slots=True)
class RecordedFile:
    """A file that versions reference."""

    path: str
    """Path relative to the table's root, prefixed with the id of its base."""
    owner: str
    """The fragment or index that the file belongs to, for messages: `fragment 3`."""
    checksum: FileChecksum | None
    """`None` if no version records its hash."""
    location: Location
    """Location of a version with the file, which has its base."""
    first: Version
    last: Version
    """Oldest and newest version with the file, among those that were added."""

    @property
    def description(self) -> str:
        """The file's owner and versions."""
        versions = f"version {self.first}" if self.first == self.last else f"versions {self.first} to {self.last}"
        return f"{self.owner}, {versions}"


class RecordedFiles:
    """Files of versions, each once."""

    def __init__(self) -> None:
        self._files: dict[str, RecordedFile] = {}

    def __iter__(self) -> Iterator[RecordedFile]:
        return iter(self._files.values())

    def __len__(self) -> int:
        return len(self._files)

    def add(self, snapshot: Snapshot) -> None:
        """Add the files of a version."""
        for path, owner, checksum in files_of(snapshot.manifest):
            known = self._files.get(path)
            if known is None:
                version = snapshot.version
                self._files[path] = RecordedFile(path, owner, checksum, snapshot.location, version, version)
                continue
            known.first, known.last = min(known.first, snapshot.version), max(known.last, snapshot.version)
            known.checksum = known.checksum or checksum


def files_of(manifest: Manifest) -> Iterator[tuple[str, str, FileChecksum | None]]:
    """Yield the path, the owner and the checksum of each file of a version. Files without a valid path are left out."""
    for fragment in manifest.fragments:
        owner = f"fragment {fragment.id}"
        for file in (*fragment.files, *(overlay.file for overlay in overlays_of(fragment))):
            try:
                yield file.qualified_path, owner, file.checksum
            except Corrupt:
                continue
        if fragment.deletion_file is not None:
            yield fragment.deletion_file.qualified_path, owner, fragment.deletion_file.checksum
    try:
        indices = [(index, index.qualified_path, index.files) for index in manifest.indices]
    except Corrupt:  # fsck reports the index section
        return
    for index, directory, files in indices:
        for each in files:
            yield f"{directory}/{each.path}", f"index {index.name!r}", each.checksum


def find_referenced(files: Iterable[RecordedFile]) -> set[str]:
    """Return the paths of the files that an existing version still references, since a cleanup may have removed
    versions after the files were recorded. A version that cannot be read counts as one that references all files that
    it may have."""
    remaining = {file.path: file for file in files}
    if not remaining:
        return set()
    location = next(iter(remaining.values())).location
    referenced: set[str] = set()
    for version in reversed(list_versions(location).numbers):
        candidates = {path for path, file in remaining.items() if file.first <= version <= file.last}
        if not candidates:
            continue
        try:
            candidates &= {path for path, _owner, _checksum in files_of(load_at(location, version).manifest)}
        except NotFound:  # removed since the listing
            continue
        except LanceError:
            pass
        referenced |= candidates
        for path in candidates:
            del remaining[path]
    return referenced


def find_missing_checksums(base: Snapshot) -> Mapping[str, FileChecksum]:
    """Return the checksums of files for which a version records none, by path.

    If an older version records a checksum, which a commit of another engine dropped, it is taken from there. Other
    files are read and hashed as they are now, so damage that happened before stays undetected."""
    missing = {path for path, _owner, checksum in files_of(base.manifest) if checksum is None}
    if not missing:
        return {}
    files = RecordedFiles()
    files.add(base)
    older = [version for version in list_versions(base.location).numbers if version < base.version]
    for snapshot in map_requests(base.location.store, lambda version: _load_if_readable(base.location, version), older):
        if snapshot is not None:
            files.add(snapshot)
    without_checksum = [file for file in files if file.path in missing]
    with ThreadPoolExecutor(_THREADS) as pool:
        computed = pool.map(_compute, without_checksum)
        files_in_order = track(without_checksum, "hash files", "files")
        return {file.path: checksum for file, checksum in zip(files_in_order, computed, strict=True)}


def _load_if_readable(location: Location, version: Version) -> Snapshot | None:
    with suppress(NotFound, Unsupported, Corrupt):  # removed by a cleanup, or not readable
        return load_at(location, version)
    return None


def _compute(file: RecordedFile) -> FileChecksum:
    store, path = file.location.resolve(file.path)
    return file.checksum or compute_checksum(store, path)
