"""In-memory manifest store: passes the same contract as the others and serves thousands of races and crashes without a
disk.
"""

import threading
from collections.abc import Sequence

from lance_core.format.ids import Version
from lance_core.storage.manifest_stores.manifest_store import Entry
from lance_core.storage.store import Put


class InMemoryManifestStore:
    description = "entries in memory"
    kind = "memory"

    def __init__(self) -> None:
        self._entries: dict[tuple[str, Version], Entry] = {}
        self._lock = threading.Lock()

    def qualify_uri(self, uri: str) -> str:
        return uri

    def table_key(self, uri: str) -> str:
        return uri

    def newest_entry(self, key: str) -> Entry | None:
        with self._lock:
            return max((self._entries[at] for at in self._entries if at[0] == key), key=_version, default=None)

    def find_entry(self, key: str, version: Version) -> Entry | None:
        with self._lock:
            return self._entries.get((key, version))

    def list_entries(self, key: str) -> Sequence[Entry]:
        with self._lock:
            return sorted((self._entries[at] for at in self._entries if at[0] == key), key=_version)

    def reserve(self, key: str, entry: Entry) -> Put:
        with self._lock:
            if (key, entry.version) in self._entries:
                return Put.EXISTS
            self._entries[key, entry.version] = entry
            return Put.CREATED

    def move_entry(self, key: str, entry: Entry, to: Entry) -> bool:
        with self._lock:
            existing = self._entries.get((key, entry.version))
            if existing is None or existing.path != entry.path:
                return False
            self._entries[key, entry.version] = to
            return True

    def remove_entry(self, key: str, entry: Entry) -> None:
        with self._lock:
            existing = self._entries.get((key, entry.version))
            if existing is not None and existing.path == entry.path:
                del self._entries[key, entry.version]


def _version(entry: Entry) -> Version:
    return entry.version
