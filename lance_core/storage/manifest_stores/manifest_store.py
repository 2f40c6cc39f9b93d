"""Manifest store interface: the entries that reserve versions, and the file that each entry names.

An entry only *reserves* a version for one file with a unique name. The version exists once the bytes of that file are
at the name that every reader derives from the version number; the entry is then moved there. Entries have no etag,
because two processes that finish the same version see different ones. Paths are relative to the root of the branch.
Start at `ManifestStore`.
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
    """Reservation of a version for the manifest file at `path`, staged or final."""

    version: Version
    path: str
    size: int | None = None
    """Size of the manifest; `None` if an old writer did not record it."""

    @property
    def final_path(self) -> str:
        """Path of the manifest once the version is finished."""
        return final_path_of(self.path)

    @property
    def is_final(self) -> bool:
        return self.path == self.final_path


@runtime_checkable
class ManifestStore(Protocol):
    """Database of entries, at most one for each version of a table."""

    @property
    def description(self) -> str:
        """Name of the store for messages, without credentials."""

    @property
    def kind(self) -> str:
        """Kind of the store, which the config of a table records so that no writer commits without it."""

    def qualify_uri(self, uri: str) -> str:
        """Return the URI of a table that also names this store; the given URI if no URI scheme can name it."""

    def table_key(self, uri: str) -> str:
        """Return the key under which the entries of the table at this URI are stored."""

    def newest_entry(self, key: str) -> Entry | None:
        """Return the entry of the highest version, with a strongly consistent read."""

    def find_entry(self, key: str, version: Version) -> Entry | None:
        """Return the entry of a version, with a strongly consistent read."""

    def list_entries(self, key: str) -> Sequence[Entry]:
        """Return all entries, the oldest version first, for consistency checks."""

    def reserve(self, key: str, entry: Entry) -> Put:
        """Create the entry unless its version has one. At most one of any number of callers is ever answered CREATED.

        An error means that the entry was definitely not created. If that is not known, the answer is UNKNOWN.
        """

    def move_entry(self, key: str, entry: Entry, to: Entry) -> bool:
        """Replace an entry, if it is still unchanged (compare-and-swap), and return whether it is `to` now."""

    def remove_entry(self, key: str, entry: Entry) -> None:
        """Delete an entry, if it is still unchanged."""


def final_path_of(path: str) -> str:
    """Return the final path of a manifest for its staged or final path.

    >>> final_path_of("_versions/7.manifest-0b5a3c9e-0000-4000-8000-000000000000")
    '_versions/7.manifest'
    """
    staged = _STAGED.fullmatch(path)
    return staged[1] if staged else path


def check_entry(entry: Entry, *, what: str) -> Entry:
    """Return the entry, or raise if its path cannot be the manifest of its version. Entries are untrusted input."""
    directory, _, name = entry.final_path.rpartition("/")
    parsed = naming.parse_manifest_name(name)
    if directory != naming.VERSIONS or parsed is None or parsed[0] != entry.version:
        raise Corrupt(
            f"version {entry.version} is at {entry.path!r}, which cannot be its manifest; correct the entry, or delete "
            "it if the table has a manifest of this version",
            path=what,
            field="path",
        )
    return entry
