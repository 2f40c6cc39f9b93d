"""Recorded files: the data, deletion and index files of versions, with the checksums that any of them records.

Names of files are never reused, so a checksum that one version records is valid for all versions. A commit of another
engine drops checksums, and the versions before it still have them. Start with `RecordedFiles`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from lance_core.errors import Corrupt
from lance_core.format.file_checksum import FileChecksum
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot


@dataclass(slots=True)
class RecordedFile:
    """A file that versions reference."""

    path: str
    """Path relative to the table's root, prefixed with the id of its base."""
    owner: str
    """What the file belongs to, for messages: `fragment 3`."""
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
    """Yield the path, the owner and the checksum of each file of a version. Paths that leave the table are left out."""
    for fragment in manifest.fragments:
        owner = f"fragment {fragment.id}"
        for file in fragment.files:
            try:
                yield file.qualified_path, owner, file.checksum
            except Corrupt:
                continue
        if fragment.deletion_file is not None:
            yield fragment.deletion_file.qualified_path, owner, fragment.deletion_file.checksum
    for index in manifest.indices:
        try:
            files = index.files
        except Corrupt:
            continue
        for each in files:
            yield f"{index.qualified_path}/{each.path}", f"index {index.name!r}", each.checksum
