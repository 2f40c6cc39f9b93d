"""In-memory table: commits without row data, with a repeatable clock and repeatable uuids, over a store that can fail.

Tests of commits and histories share it. Start with `InMemoryTable`; `FaultyStore` injects the faults.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import pyarrow as pa
import pytest

from lance_core import StorageError, Table
from lance_core.commit.loop import ATTEMPTS
from lance_core.commit.write_protocol import WriteResult, begin, finish
from lance_core.datafiles.ipc_codec import IpcCodec
from lance_core.format import naming
from lance_core.format.fragment import DataFile, Fragment, StorageVersion
from lance_core.format.ids import Version
from lance_core.format.operations import Append, Operation, Overwrite
from lance_core.format.schema import TableSchema
from lance_core.maintenance import cleanup
from lance_core.maintenance.cleanup import CleanupReport
from lance_core.runtime import Runtime
from lance_core.storage.memory import MemoryStore
from lance_core.storage.store import ObjectInfo, Put, Store
from lance_core.transactions.apply import NewTable
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, load_at, load_latest

SCHEMA = TableSchema.from_arrow(pa.schema([pa.field("id", pa.int64())]))
STORAGE_VERSION = StorageVersion(2, 2)
NEW_TABLE = NewTable(STORAGE_VERSION)


def deterministic_runtime(seed: int = 0) -> Runtime:
    """Return a runtime whose clock advances by one nanosecond per call and whose uuids follow from `seed`."""
    ticks = iter(range(seed * 10**6, (seed + 1) * 10**6))
    ids = iter(range(seed * 10**6, (seed + 1) * 10**6))
    return Runtime(
        now_ns=lambda: 1_790_000_000_000_000_000 + next(ticks),
        new_uuid=lambda: uuid.uuid5(uuid.NAMESPACE_OID, str(next(ids))),
        elapsed_ns=lambda: 0,
        random=lambda: 0.0,
        sleep=lambda seconds: None,
    )


def put_fragment(store: Store, name: str, rows: int = 1) -> Fragment:
    """Write a data file with one byte per row and return a fragment that references it."""
    path = f"{name}.lance"
    store.put(f"{naming.DATA}/{path}", bytes(rows))
    file = DataFile.of(path=path, field_ids=[0], column_indices=[0], version=STORAGE_VERSION, size=rows)
    return Fragment.of(files=[file], physical_rows=rows)


def clean_up(table: Table, keep: int = 1) -> CleanupReport:
    """Remove all versions but the newest `keep`, without the age that protects young versions from a cleanup."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleanup, "YOUNG_VERSION_AGE", timedelta(0))
        return table.cleanup(older_than=timedelta(0), keep=keep)


class InMemoryTable:
    """One table and its writers. `writer` is the number of a process: each process draws other uuids."""

    def __init__(self, store: Store | None = None) -> None:
        self.store: Store = MemoryStore() if store is None else store

    def location(self) -> Location:
        return Location(uri="memory://table", store=self.store, codec=IpcCodec(self.store))

    def create(self, *names: str, writer: int = 0, intent: str | None = None) -> WriteResult:
        return self.write(Overwrite(self.fragments(*names), SCHEMA), base=NEW_TABLE, writer=writer, intent=intent)

    def append(self, *names: str, base: int | None = None, writer: int = 1, intent: str | None = None) -> WriteResult:
        return self.write(Append(self.fragments(*names)), base=self.at(base), writer=writer, intent=intent)

    def overwrite(self, *names: str, base: int | None = None, writer: int = 1) -> WriteResult:
        return self.write(Overwrite(self.fragments(*names), SCHEMA), base=self.at(base), writer=writer)

    def write(
        self,
        operation: Operation,
        *,
        base: Snapshot | NewTable,
        writer: int = 1,
        intent: str | None = None,
        attempts: int = ATTEMPTS,
    ) -> WriteResult:
        started = begin(
            self.location(), base, verb=operation.name, intent=intent, runtime=deterministic_runtime(writer)
        )
        if isinstance(started, WriteResult):
            return started
        return finish(started, operation, properties={}, attempts=attempts)

    def fragments(self, *names: str) -> tuple[Fragment, ...]:
        return tuple(put_fragment(self.store, name) for name in names)

    def at(self, version: int | None = None) -> Snapshot:
        if version is None:
            return load_latest(self.location())
        return load_at(self.location(), Version(version))

    def file_names(self, version: int | None = None) -> list[str]:
        """Return the names of the files of a version, which stand for its rows."""
        return [file.path.removesuffix(".lance") for part in self.at(version).manifest.fragments for file in part.files]


Condition = Callable[[str, str], bool]


def on_create(path: str) -> Condition:
    """Match the creation of an object whose path starts with `path`, such as a manifest or the record of an intent."""
    return lambda call, called_path: call == "create" and called_path.startswith(path)


def on_call(name: str, path: str = "") -> Condition:
    """Match the call of a store method for a path that starts with `path`."""
    return lambda call, called_path: call == name and called_path.startswith(path)


@dataclass
class Fault:
    """A fault that is injected once, at the first call that meets the condition."""

    condition: Condition
    outcome: str
    """`fails`: nothing is stored, `StorageError`. `lost`: stored, but the answer is unknown. `never`: not stored, and
    the answer is unknown. `late`: like `never`, but stored once `FaultyStore.deliver_late_puts` is called. `stale`: a
    listing without the newest manifest. An empty text: the call succeeds."""
    before: Callable[[], object] = lambda: None
    """Runs before the call, for instance a commit of another writer."""


@dataclass
class FaultyStore:
    """A store that records its calls and injects faults into them."""

    inner: Store = field(default_factory=MemoryStore)
    faults: list[Fault] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    _late_puts: list[tuple[str, bytes]] = field(default_factory=list)

    description = "memory://faulty"

    def deliver_late_puts(self) -> list[Put]:
        """Store the late puts and return the answer to each."""
        puts, self._late_puts = self._late_puts, []
        return [self.inner.create(path, data) for path, data in puts]

    def _inject(self, call: str, path: str) -> str:
        self.calls.append((call, path))
        for fault in self.faults:
            if fault.condition(call, path):
                self.faults.remove(fault)
                fault.before()
                if fault.outcome == "fails":
                    raise StorageError(f"injected failure of {call} {path}")
                return fault.outcome
        return ""

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self._inject("read", path)
        return self.inner.read(path, start, length)

    def head(self, path: str) -> ObjectInfo | None:
        self._inject("head", path)
        return self.inner.head(path)

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        is_stale = self._inject("list", directory) == "stale"
        infos = self.inner.list(directory, start_after)
        return infos[1:] if is_stale else infos  # the name of the newest manifest sorts first

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        self._inject("walk", directory)
        return self.inner.walk(directory)

    def put(self, path: str, data: bytes) -> None:
        self._inject("put", path)
        self.inner.put(path, data)

    def create(self, path: str, data: bytes) -> Put:
        outcome = self._inject("create", path)
        if outcome == "late":
            self._late_puts.append((path, data))
        if outcome in ("late", "never"):
            return Put.UNKNOWN
        answer = self.inner.create(path, data)
        return Put.UNKNOWN if outcome == "lost" else answer

    def delete(self, path: str) -> None:
        self._inject("delete", path)
        self.inner.delete(path)

    def ensure_durable(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._inject("ensure_durable", path)
        self.inner.ensure_durable(paths)
