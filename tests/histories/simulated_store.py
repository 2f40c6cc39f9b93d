"""Simulated store: the stored objects in simulated time, and an observer that inspects every change when it happens.

    SimulatedStore   the store itself, with a clock that the simulation advances
    StoreObserver    the versions that were ever committed, and deletions of files that a version references

No process has access to either: they hold the true state, while a process sees the store through
`simulated_network.py`.
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

START_TIME = datetime(2026, 10, 1, tzinfo=UTC)


HOSTS = 4
"""Number of machines with a clock of their own. The first is the server of the store."""


class SimulatedClock:
    """True time of the simulation, and the clocks of its hosts, which are set back and ahead while it runs.

    `resolution` is that of the modification times of the store."""

    def __init__(self, resolution: timedelta = timedelta(microseconds=1)) -> None:
        self.now = START_TIME
        self.resolution = resolution
        self.offsets = [timedelta(0)] * HOSTS
        """Difference between the clock of each host and the true time."""

    @property
    def store_now(self) -> datetime:
        """Time of the clock of the store, as modification times have it."""
        elapsed = self.now - START_TIME + self.offsets[0]
        return START_TIME + elapsed // self.resolution * self.resolution

    def advance(self, duration: timedelta) -> None:
        self.now += duration

    @property
    def elapsed_ns(self) -> int:
        return (self.now - START_TIME) // timedelta(microseconds=1) * 1000


@dataclass
class StoreObserver:
    """Observer of one table and its branches. It collects violations, and the check of the history judges them."""

    archive: MemoryStore = field(default_factory=MemoryStore)
    """Everything that was ever written, the first content of each name; nothing is deleted here."""
    missing_files: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Manifests that referenced files that did not exist when the manifest was written, with these files."""
    deleted_files_in_use: list[tuple[str, str]] = field(default_factory=list)
    """Files that were deleted while a version referenced them, each with the manifest of that version."""
    version_count: int = 0
    live_manifests: dict[str, frozenset[str]] = field(default_factory=dict)
    """Existing manifests with the files that each references."""
    _reference_counts: Counter[str] = field(default_factory=Counter)
    excluded_manifests: set[str] = field(default_factory=set)
    """Manifests that are not, or not certainly, versions of a branch. Some were written in a gap between versions, and
    their writers received an error. A cleanup restored others because a reference to them was created while they were
    deleted: another cleanup may have deleted their files by then, so they are checked only if the creation of the
    reference was acknowledged."""

    def record_put(self, path: str, data: bytes, existing: Collection[str]) -> None:
        root, version = _parse_manifest_path(path)
        if version is None:
            self.archive.put(path, data)
            return
        if self.archive.head(path) is None:
            self.version_count += 1
            self.archive.put(path, data)
        else:
            self.excluded_manifests.add(path)
        references = frozenset(_referenced_files(root, Manifest.decode(data, path=path)))
        if (missing := tuple(sorted(references - set(existing)))) and path not in self.excluded_manifests:
            self.missing_files[path] = missing
        self._reference_counts.update(references)
        self.live_manifests[path] = references

    def record_delete(self, path: str) -> None:
        if path in self.live_manifests:
            self._reference_counts.subtract(self.live_manifests.pop(path))
        elif self._reference_counts[path] > 0:
            self.deleted_files_in_use += [
                (path, manifest)
                for manifest, references in self.live_manifests.items()
                if path in references and manifest not in self.excluded_manifests
            ]


def _parse_manifest_path(path: str) -> tuple[str, Version | None]:
    """Return the root of the branch that the manifest belongs to, from its directory, and its version."""
    directory, _, name = path.rpartition("/")
    if directory.rpartition("/")[2] != naming.VERSIONS or not (parsed := naming.parse_manifest_name(name)):
        return "", None
    return directory.removesuffix(naming.VERSIONS), parsed[0]


def _referenced_files(root: str, manifest: Manifest) -> list[str]:
    """Return the referenced files. Files in other bases belong to the main branch, because branches have no branches
    here."""
    references = references_of(manifest)
    return [f"{root}{key}" for key in references.own] + list(references.in_other_bases)


class SimulatedStore(MemoryStore, ReportsLastChange):
    """In-memory store that reports every put and delete to its observer. Its modification times are those of its clock,
    and of the resolution of its clock, like those of a file system."""

    def __init__(self, clock: SimulatedClock, observer: StoreObserver | None = None) -> None:
        super().__init__("simulated", now=lambda: clock.store_now)
        self._clock = clock
        self.observer = observer or StoreObserver()
        self._put_at: dict[str, datetime] = {}
        self._changed_at: dict[str, datetime] = {}

    def age(self, path: str) -> timedelta:
        """Return the true age of an object, which no clock shows."""
        return self._clock.now - self._put_at[path]

    def put(self, path: str, data: bytes) -> None:
        if path not in self._objects:
            self._record_change(path)
        super().put(path, data)
        self._put_at[path] = self._clock.now
        self.observer.record_put(path, data, self._objects)

    def create(self, path: str, data: bytes) -> Put:
        if path in self._objects:
            return Put.EXISTS
        self.put(path, data)
        return Put.CREATED

    def delete(self, path: str) -> None:
        if path in self._objects:
            self._record_change(path)
            self.observer.record_delete(path)
        super().delete(path)

    def put_volatile(self, path: str, data: bytes) -> None:
        super().put(path, data)
        self._record_change(path)

    def head_if_directory_unchanged(self, path: str) -> ObjectInfo | None:
        """Compare the modification times of the file and of its directory, as a local store does."""
        info = self.head(path)
        return info if info and info.modified == self._changed_at.get(path.rpartition("/")[0]) else None

    def _record_change(self, path: str) -> None:
        self._changed_at[path.rpartition("/")[0]] = self._clock.store_now
