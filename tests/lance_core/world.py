"""A table that is nothing but commits: in memory, with a clock and uuids that repeat, over a store that can be told
to fail.

What lives here: what commit tests and histories share. Start with `World`; the faults are `FaultyStore`.
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
VERSION = StorageVersion(2, 2)
BIRTH = NewTable(VERSION)


def runtime(seed: int = 0) -> Runtime:
    """Each call gives the next moment and the next uuid."""
    ticks = iter(range(seed * 10**6, (seed + 1) * 10**6))
    ids = iter(range(seed * 10**6, (seed + 1) * 10**6))
    return Runtime(
        now_ns=lambda: 1_790_000_000_000_000_000 + next(ticks),
        new_uuid=lambda: uuid.uuid5(uuid.NAMESPACE_OID, str(next(ids))),
        elapsed_ns=lambda: 0,
        random=lambda: 0.0,
        sleep=lambda seconds: None,
    )


def fragment(store: Store, name: str, rows: int = 1) -> Fragment:
    """One whose file exists, a byte for each row."""
    path = f"{name}.lance"
    store.put(f"{naming.DATA}/{path}", bytes(rows))
    file = DataFile.of(path=path, field_ids=[0], column_indices=[0], version=VERSION, size=rows)
    return Fragment.of(files=[file], physical_rows=rows)


def cleaned(table: Table, keep: int = 1) -> CleanupReport:
    """All versions but so many, by somebody who need not wait until nobody can be at work on their numbers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleanup, "YOUNG_VERSION_AGE", timedelta(0))
        return table.cleanup(older_than=timedelta(0), keep=keep)


class World:
    """One table and everybody who writes to it. `writer` is the number of a process: it makes other uuids."""

    def __init__(self, store: Store | None = None) -> None:
        self.store: Store = MemoryStore() if store is None else store

    def location(self) -> Location:
        return Location(uri="memory://table", store=self.store, codec=IpcCodec(self.store))

    def create(self, *names: str, writer: int = 0, intent: str | None = None) -> WriteResult:
        return self.write(Overwrite(self.fragments(*names), SCHEMA), base=BIRTH, writer=writer, intent=intent)

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
        begun = begin(self.location(), base, verb=operation.name, intent=intent, runtime=runtime(writer))
        if isinstance(begun, WriteResult):
            return begun
        return finish(begun, operation, properties={}, attempts=attempts)

    def fragments(self, *names: str) -> tuple[Fragment, ...]:
        return tuple(fragment(self.store, name) for name in names)

    def at(self, version: int | None = None) -> Snapshot:
        if version is None:
            return load_latest(self.location())
        return load_at(self.location(), Version(version))

    def names(self, version: int | None = None) -> list[str]:
        """The files of a version: which rows it has."""
        return [file.path.removesuffix(".lance") for part in self.at(version).manifest.fragments for file in part.files]


Condition = Callable[[str, str], bool]


def creating(path: str) -> Condition:
    """A manifest, an intent: whatever is created below this directory."""
    return lambda call, where: call == "create" and where.startswith(path)


def calling(name: str, path: str = "") -> Condition:
    return lambda call, where: call == name and where.startswith(path)


@dataclass
class Fault:
    """What goes wrong, once, at the first call that the condition meets."""

    when: Condition
    how: str
    """`fails`: nothing happens, StorageError. `lost`: done, the answer is unknown. `never`: not done, unknown.
    `late`: not done, unknown; done when `FaultyStore.land` is called. `stale`: a listing without the newest."""
    before: Callable[[], object] = lambda: None
    """Runs first: where others come in between."""


@dataclass
class FaultyStore:
    inner: Store = field(default_factory=MemoryStore)
    faults: list[Fault] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    _late: list[tuple[str, bytes]] = field(default_factory=list)

    description = "memory://faulty"

    def land(self) -> list[Put]:
        """What was under way arrives."""
        arriving, self._late = self._late, []
        return [self.inner.create(path, data) for path, data in arriving]

    def _fault(self, call: str, path: str) -> str:
        self.calls.append((call, path))
        for fault in self.faults:
            if fault.when(call, path):
                self.faults.remove(fault)
                fault.before()
                if fault.how == "fails":
                    raise StorageError(f"told to fail at {call} {path}")
                return fault.how
        return ""

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self._fault("read", path)
        return self.inner.read(path, start, length)

    def head(self, path: str) -> ObjectInfo | None:
        self._fault("head", path)
        return self.inner.head(path)

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        stale = self._fault("list", directory) == "stale"
        found = self.inner.list(directory, start_after)
        return found[1:] if stale else found  # names of newer manifests sort first

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        self._fault("walk", directory)
        return self.inner.walk(directory)

    def put(self, path: str, data: bytes) -> None:
        self._fault("put", path)
        self.inner.put(path, data)

    def create(self, path: str, data: bytes) -> Put:
        how = self._fault("create", path)
        if how == "late":
            self._late.append((path, data))
        if how in ("late", "never"):
            return Put.UNKNOWN
        answer = self.inner.create(path, data)
        return Put.UNKNOWN if how == "lost" else answer

    def delete(self, path: str) -> None:
        self._fault("delete", path)
        self.inner.delete(path)

    def ensure_durable(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._fault("settle", path)
        self.inner.ensure_durable(paths)
