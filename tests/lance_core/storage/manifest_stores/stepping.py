"""A store and a manifest store that can be stopped between any two calls. What goes wrong is said by the number of the
call, and never waited for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

from lance_core.errors import StorageError
from lance_core.format.ids import Version
from lance_core.storage.manifest_stores.manifest_store import Entry, ManifestStore
from lance_core.storage.store import ObjectInfo, Put, Store
from tests.histories.cooperative_scheduler import ProcessKilled

Answer = TypeVar("Answer")


@dataclass
class Steps:
    """All calls of one process, counted. At call `at` something happens: `before` or `after` it the process is killed;
    `raises`, it is not done; `fails`, it is not done, and nobody knows; `lost`, it is done, and nobody hears; `late`,
    it is done when `land` is called; `adrift`, the same, and the process is killed. Who was killed calls nobody."""

    at: int | None = None
    how: str = "before"
    taking_turns: Callable[[], None] = lambda: None
    calls: list[str] = field(default_factory=list)
    is_dead: bool = False
    _late: list[Callable[[], object]] = field(default_factory=list)

    def land(self) -> None:
        arriving, self._late = self._late, []
        for each in arriving:
            each()

    def put(self, call: str, do: Callable[[], Put]) -> Put:
        how = self._how(call)
        if how == "raises":
            raise StorageError(f"told to fail at {call}")
        if how in ("late", "adrift"):
            self._late.append(do)
        if how == "adrift":
            self._die()
        if how in ("fails", "late"):
            return Put.UNKNOWN
        answer = do()
        return Put.UNKNOWN if how == "lost" else self._done(how, answer)

    def other(self, call: str, do: Callable[[], Answer]) -> Answer:
        how = self._how(call)
        if how == "late" and call.startswith(("put", "delete", "move", "forget")):
            self._late.append(do)
        if how in ("raises", "fails", "late"):
            raise StorageError(f"told to fail at {call}")
        answer = do()
        if how == "lost":
            raise StorageError(f"told to lose the answer of {call}")
        return self._done(how, answer)

    def _how(self, call: str) -> str:
        if self.is_dead:
            self._die()
        self.taking_turns()
        self.calls.append(call)
        how = self.how if len(self.calls) - 1 == self.at else ""
        if how == "before":
            self._die()
        return how

    def _done(self, how: str, answer: Answer) -> Answer:
        if how == "after":
            self._die()
        return answer

    def _die(self) -> NoReturn:
        self.is_dead = True
        raise ProcessKilled(self.calls[-1])


@dataclass(eq=False)
class SteppedStore:
    inner: Store
    steps: Steps

    @property
    def description(self) -> str:
        return self.inner.description

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return self.steps.other(f"read {path}", lambda: self.inner.read(path, start, length))

    def head(self, path: str) -> ObjectInfo | None:
        return self.steps.other(f"head {path}", lambda: self.inner.head(path))

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        return self.steps.other(f"list {directory}", lambda: self.inner.list(directory, start_after))

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        return self.steps.other(f"walk {directory}", lambda: self.inner.walk(directory))

    def put(self, path: str, data: bytes) -> None:
        self.steps.other(f"put {path}", lambda: self.inner.put(path, data))

    def create(self, path: str, data: bytes) -> Put:
        return self.steps.put(f"create {path}", lambda: self.inner.create(path, data))

    def delete(self, path: str) -> None:
        self.steps.other(f"delete {path}", lambda: self.inner.delete(path))

    def ensure_durable(self, paths: Sequence[str]) -> None:
        self.inner.ensure_durable(paths)


@dataclass(eq=False)
class SteppedManifests:
    inner: ManifestStore
    steps: Steps

    @property
    def description(self) -> str:
        return self.inner.description

    @property
    def kind(self) -> str:
        return self.inner.kind

    def qualify_uri(self, uri: str) -> str:
        return self.inner.qualify_uri(uri)

    def table_key(self, uri: str) -> str:
        return self.inner.table_key(uri)

    def newest_entry(self, key: str) -> Entry | None:
        return self.steps.other("newest", lambda: self.inner.newest_entry(key))

    def find_entry(self, key: str, version: Version) -> Entry | None:
        return self.steps.other(f"find {version}", lambda: self.inner.find_entry(key, version))

    def list_entries(self, key: str) -> Sequence[Entry]:
        return self.steps.other("listed", lambda: self.inner.list_entries(key))

    def reserve(self, key: str, entry: Entry) -> Put:
        return self.steps.put(f"reserve {entry.version}", lambda: self.inner.reserve(key, entry))

    def move_entry(self, key: str, entry: Entry, to: Entry) -> bool:
        return self.steps.other(f"move {entry.version}", lambda: self.inner.move_entry(key, entry, to))

    def remove_entry(self, key: str, entry: Entry) -> None:
        self.steps.other(f"forget {entry.version}", lambda: self.inner.remove_entry(key, entry))
