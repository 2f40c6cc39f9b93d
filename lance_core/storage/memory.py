"""In-memory store: a `Store` for tests of commits.

No user table lives here: the codec cannot read data files from it, and its contents end with the process.
"""

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from lance_core.errors import NotFound
from lance_core.storage.store import ObjectDetails, ObjectInfo, Put


def _utc_now() -> datetime:
    return datetime.now(UTC)


class MemoryStore:
    """Store in the memory of this process. `now` is its clock."""

    def __init__(self, name: str = "memory", *, now: Callable[[], datetime] = _utc_now) -> None:
        self._name = name
        self._now = now
        self._objects: dict[str, tuple[bytes, datetime]] = {}
        self._lock = threading.Lock()

    @property
    def description(self) -> str:
        return f"memory://{self._name}"

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        with self._lock:
            if path not in self._objects:
                raise NotFound(f"{self.description}/{path} does not exist")
            data = self._objects[path][0]
        return data[start : None if length is None else start + length]

    def head(self, path: str) -> ObjectInfo | None:
        with self._lock:
            stored = self._objects.get(path)
        return ObjectDetails(path, len(stored[0]), stored[1]) if stored else None

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        prefix = f"{directory}/"
        with self._lock:
            names = [
                path
                for path in self._objects
                if path.startswith(prefix) and "/" not in path[len(prefix) :] and path[len(prefix) :] > start_after
            ]
            return [ObjectDetails(path, len(self._objects[path][0]), self._objects[path][1]) for path in sorted(names)]

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        with self._lock:
            prefix = f"{directory}/" if directory else ""
            paths = sorted(path for path in self._objects if path.startswith(prefix))
            return [ObjectDetails(path, len(self._objects[path][0]), self._objects[path][1]) for path in paths]

    def put(self, path: str, data: bytes) -> None:
        with self._lock:
            self._objects[path] = (bytes(data), self._now())

    def create(self, path: str, data: bytes) -> Put:
        with self._lock:
            if path in self._objects:
                return Put.EXISTS
            self._objects[path] = (bytes(data), self._now())
            return Put.CREATED

    def delete(self, path: str) -> None:
        with self._lock:
            self._objects.pop(path, None)

    def ensure_durable(self, paths: Sequence[str]) -> None:
        """Do nothing: the contents end with the process."""
