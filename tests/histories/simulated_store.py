"""What is stored, in simulated time, and an eye on it that sees every change at the moment it happens.

    Stored   the store itself, by a clock that the simulation moves
    Eye      what was ever committed, and whether a file goes that a version names

No process has any of this: it is what the world is, and not what a process is told of it (`simulated_network.py`).
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.storage.memory import MemoryStore
from lance_core.storage.store import ObjectInfo, Put, ReportsLastChange
from lance_core.versions.file_inventory import references_of

BEGINNING = datetime(2026, 10, 1, tzinfo=UTC)


class Clock:
    """Of the world; each process has one of its own that is wrong by some constant."""

    def __init__(self) -> None:
        self.now = BEGINNING

    def move(self, by: timedelta) -> None:
        self.now += by

    @property
    def elapsed_ns(self) -> int:
        return (self.now - BEGINNING) // timedelta(microseconds=1) * 1000


@dataclass
class Eye:
    """On one table and its branches. What it finds wrong is collected, and judged by whoever checks the history."""

    archive: MemoryStore = field(default_factory=MemoryStore)
    """Everything that was ever written, the first of each name; nothing is deleted here."""
    missing: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Manifests that named files which were not there when they landed."""
    broken: list[tuple[str, str]] = field(default_factory=list)
    """Files that were deleted while a version named them, and its manifest."""
    versions: int = 0
    live: dict[str, frozenset[str]] = field(default_factory=dict)
    """Manifests that are there, and the files that each names."""
    _named: Counter[str] = field(default_factory=Counter)
    aside: set[str] = field(default_factory=set)
    """Manifests that are in nobody's line, or hardly. Some landed in a gap, and their writers were told. Some a cleanup
    put back, since somebody named them while they went: another cleanup may have taken their files by then, so they are
    only looked at where the name was acknowledged."""

    def comes(self, path: str, data: bytes, there: Collection[str]) -> None:
        root, version = _manifest(path)
        if version is None:
            self.archive.put(path, data)
            return
        if self.archive.head(path) is None:
            self.versions += 1
            self.archive.put(path, data)
        elif self.archive.read(path) != data:
            self.aside.add(path)
        else:
            self.aside.add(path)
        named = frozenset(_files(root, Manifest.decode(data, path=path)))
        if (gone := tuple(sorted(named - set(there)))) and path not in self.aside:
            self.missing[path] = gone
        self._named.update(named)
        self.live[path] = named

    def goes(self, path: str) -> None:
        if path in self.live:
            self._named.subtract(self.live.pop(path))
        elif self._named[path] > 0:
            self.broken += [
                (path, each) for each, named in self.live.items() if path in named and each not in self.aside
            ]


def _manifest(path: str) -> tuple[str, Version | None]:
    """Which line's it is, by its directory, and its number."""
    directory, _, name = path.rpartition("/")
    if directory.rpartition("/")[2] != naming.VERSIONS or not (parsed := naming.parse_manifest_name(name)):
        return "", None
    return directory.removesuffix(naming.VERSIONS), parsed[0]


def _files(root: str, manifest: Manifest) -> list[str]:
    """Files in other bases are the main line's: here, branches have no branches."""
    named = references_of(manifest)
    return [f"{root}{key}" for key in named.own] + list(named.in_other_bases)


class Stored(MemoryStore, ReportsLastChange):
    """`seen` is told of whatever comes and goes."""

    def __init__(self, clock: Clock, eye: Eye | None = None) -> None:
        super().__init__("simulated", now=lambda: clock.now)
        self.eye = eye or Eye()
        self._changes: Counter[str] = Counter()
        self._noted: dict[str, int] = {}

    def put(self, path: str, data: bytes) -> None:
        if path not in self._objects:
            self._changes[path.rpartition("/")[0]] += 1
        super().put(path, data)
        self.eye.comes(path, data, self._objects)

    def create(self, path: str, data: bytes) -> Put:
        if path in self._objects:
            return Put.EXISTS
        self.put(path, data)
        return Put.CREATED

    def delete(self, path: str) -> None:
        if path in self._objects:
            self._changes[path.rpartition("/")[0]] += 1
            self.eye.goes(path)
        super().delete(path)

    def put_volatile(self, path: str, data: bytes) -> None:
        super().put(path, data)
        self._noted[path] = self._changes[path.rpartition("/")[0]]

    def head_if_directory_unchanged(self, path: str) -> ObjectInfo | None:
        return self.head(path) if self._noted.get(path) == self._changes[path.rpartition("/")[0]] else None
