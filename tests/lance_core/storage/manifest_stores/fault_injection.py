"""Fault injection: a store and a manifest store with a fault in the call of a given number. No fault takes time."""

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
class FaultPlan:
    """Counts all calls of a process and injects a fault into call number `position`. `before` and `after`: the process
    is killed before or after it. `raises`: the call is not executed and raises. `fails`: it is not executed, and the
    answer is unknown. `lost`: it is executed, and the answer is unknown. `late`: like `fails`, but executed by
    `run_late_calls`. `adrift`: like `late`, and the process is killed. A killed process makes no more calls.
    """

    position: int | None = None
    outcome: str = "before"
    before_each_call: Callable[[], None] = lambda: None
    calls: list[str] = field(default_factory=list)
    is_dead: bool = False
    _late_calls: list[Callable[[], object]] = field(default_factory=list)

    def run_late_calls(self) -> None:
        late_calls, self._late_calls = self._late_calls, []
        for each in late_calls:
            each()

    def run_put(self, call: str, execute: Callable[[], Put]) -> Put:
        outcome = self._count_call(call)
        if outcome == "raises":
            raise StorageError(f"injected failure of {call}")
        if outcome in ("late", "adrift"):
            self._late_calls.append(execute)
        if outcome == "adrift":
            self._kill()
        if outcome in ("fails", "late"):
            return Put.UNKNOWN
        answer = execute()
        return Put.UNKNOWN if outcome == "lost" else self._finish_call(outcome, answer)

    def run(self, call: str, execute: Callable[[], Answer]) -> Answer:
        outcome = self._count_call(call)
        if outcome == "late" and call.startswith(("put", "delete", "move", "forget")):
            self._late_calls.append(execute)
        if outcome in ("raises", "fails", "late"):
            raise StorageError(f"injected failure of {call}")
        answer = execute()
        if outcome == "lost":
            raise StorageError(f"injected loss of the answer of {call}")
        return self._finish_call(outcome, answer)

    def _count_call(self, call: str) -> str:
        if self.is_dead:
            self._kill()
        self.before_each_call()
        self.calls.append(call)
        outcome = self.outcome if len(self.calls) - 1 == self.position else ""
        if outcome == "before":
            self._kill()
        return outcome

    def _finish_call(self, outcome: str, answer: Answer) -> Answer:
        if outcome == "after":
            self._kill()
        return answer

    def _kill(self) -> NoReturn:
        self.is_dead = True
        raise ProcessKilled(self.calls[-1])


@dataclass(eq=False)
class FaultInjectingStore:
    inner: Store
    plan: FaultPlan

    @property
    def description(self) -> str:
        return self.inner.description

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return self.plan.run(f"read {path}", lambda: self.inner.read(path, start, length))

    def head(self, path: str) -> ObjectInfo | None:
        return self.plan.run(f"head {path}", lambda: self.inner.head(path))

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        return self.plan.run(f"list {directory}", lambda: self.inner.list(directory, start_after))

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        return self.plan.run(f"walk {directory}", lambda: self.inner.walk(directory))

    def put(self, path: str, data: bytes) -> None:
        self.plan.run(f"put {path}", lambda: self.inner.put(path, data))

    def create(self, path: str, data: bytes) -> Put:
        return self.plan.run_put(f"create {path}", lambda: self.inner.create(path, data))

    def delete(self, path: str) -> None:
        self.plan.run(f"delete {path}", lambda: self.inner.delete(path))

    def ensure_durable(self, paths: Sequence[str]) -> None:
        self.inner.ensure_durable(paths)


@dataclass(eq=False)
class FaultInjectingManifestStore:
    inner: ManifestStore
    plan: FaultPlan

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
        return self.plan.run("newest", lambda: self.inner.newest_entry(key))

    def find_entry(self, key: str, version: Version) -> Entry | None:
        return self.plan.run(f"find {version}", lambda: self.inner.find_entry(key, version))

    def list_entries(self, key: str) -> Sequence[Entry]:
        return self.plan.run("listed", lambda: self.inner.list_entries(key))

    def reserve(self, key: str, entry: Entry) -> Put:
        return self.plan.run_put(f"reserve {entry.version}", lambda: self.inner.reserve(key, entry))

    def move_entry(self, key: str, entry: Entry, to: Entry) -> bool:
        return self.plan.run(f"move {entry.version}", lambda: self.inner.move_entry(key, entry, to))

    def remove_entry(self, key: str, entry: Entry) -> None:
        self.plan.run(f"forget {entry.version}", lambda: self.inner.remove_entry(key, entry))
