"""What a manifest store answers: which version is the newest, who has reserved a version, and which file that is.

An entry only *reserves* a version for one file, whose name nobody else uses. The version exists once that file's bytes
are at the name that every reader derives from the number; the entry is then moved there. No etag is kept: two helpers
that finish the same version see different ones. Paths are from the table's root. Start with `ManifestStore`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from lance_core.errors import Corrupt
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.storage.store import Put

COMMITTER = "lance_assets"
_STAGED = re.compile(r"(.+)-[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Entry:
    version: Version
    path: str
    size: int | None = None
    """None where an old writer did not note it."""

    @property
    def final(self) -> str:
        """Where the manifest is once the version is finished."""
        return final_of(self.path)

    @property
    def is_final(self) -> bool:
        return self.path == self.final


@runtime_checkable
class ManifestStore(Protocol):
    @property
    def description(self) -> str:
        """For messages: never with credentials."""

    @property
    def kind(self) -> str:
        """What a table notes of it, so that nobody commits past it."""

    def named_in(self, uri: str) -> str:
        """The URI of this table that names its manifest store too; as it is where no URI can."""

    def key(self, uri: str) -> str:
        """By which the entries of the table at this place are kept."""

    def newest(self, key: str) -> Entry | None:
        """As of now, not of a moment ago; the same for `find`."""

    def find(self, key: str, version: Version) -> Entry | None: ...

    def listed(self, key: str) -> Sequence[Entry]:
        """All there are, the oldest version first, for whoever looks a table over."""

    def reserve(self, key: str, entry: Entry) -> Put:
        """If there is no entry of this version: of any number of callers at most one is ever answered CREATED. Raises
        only what definitely did not happen; where that is not known the answer is UNKNOWN."""

    def move(self, key: str, entry: Entry, to: Entry) -> bool:
        """Only if the entry still is where it is said to be."""

    def forget(self, key: str, entry: Entry) -> None:
        """Only if the entry still is where it is said to be."""


def final_of(path: str) -> str:
    """
    >>> final_of("_versions/7.manifest-0b5a3c9e-0000-4000-8000-000000000000")
    '_versions/7.manifest'
    """
    staged = _STAGED.fullmatch(path)
    return staged[1] if staged else path


def checked(entry: Entry, *, what: str) -> Entry:
    """What a manifest store says is believed only of files that can be this version's."""
    directory, _, name = entry.final.rpartition("/")
    parsed = naming.parse_manifest_name(name)
    if directory != naming.VERSIONS or parsed is None or parsed[0] != entry.version:
        raise Corrupt(
            f"says that version {entry.version} is at {entry.path!r}, where it cannot be; correct the entry, or remove "
            "it if the table has a manifest of this version",
            path=what,
            field="path",
        )
    return entry
