"""Storage backends: memory, local disk and object stores, each also with a manifest store. Their contents outlive the
processes that open them, and can be saved and restored.

A process is the owner of one `FaultPlan` value and can be stopped at any of its calls. Operations open their stores by
themselves, so `simulated_process` replaces the function that opens stores while the process runs. Start with
`STORAGE_BACKENDS`.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from lance_core.datafiles.codec import DataCodec
from lance_core.datafiles.ipc_codec import IpcCodec
from lance_core.datafiles.lance_codec import LanceCodec
from lance_core.storage.local import LocalStore
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from lance_core.storage.manifest_stores.sql import SqlManifestStore
from lance_core.storage.manifest_stores.two_phase import forget_unconditional_stores
from lance_core.storage.memory import MemoryStore
from lance_core.storage.object_store import ObjectStore, forget_verified_buckets
from lance_core.storage.store import ObjectDetails, ObjectInfo, Put, Store
from lance_core.versions import location
from tests.histories.memory_bucket import MemoryBucket, open_emulator_store, open_memory_bucket_store
from tests.histories.stepped_local_store import (
    SteppedLocalStore,
    copy_directory,
    read_manifest_rows,
    restore_manifest_rows,
)
from tests.lance_core.storage.gcs_server import GcsEmulator
from tests.lance_core.storage.manifest_stores.fault_injection import (
    FaultInjectingManifestStore,
    FaultInjectingStore,
    FaultPlan,
)
from tests.lance_core.storage.manifest_stores.in_memory import InMemoryManifestStore
from tests.lance_core.storage.object_servers import gcs

K = TypeVar("K")
V = TypeVar("V")


class StorageBackend(Protocol):
    @property
    def uri(self) -> str:
        """URI of the table; other tables can exist in its parent directory."""

    @property
    def manifest_store(self) -> ManifestStore | None: ...

    def store(self, uri: str, steps: FaultPlan) -> Store: ...

    def codec(self, store: Store, *_settings: object) -> DataCodec: ...

    def take_snapshot(self) -> Callable[[], None]:
        """Save the contents, and return a function that restores them."""

    def close(self) -> None:
        """Delete the contents."""


@contextmanager
def simulated_process(backend: StorageBackend, steps: FaultPlan | None = None) -> Iterator[ManifestStore | None]:
    """Open every table in this block as one process, whose store calls `steps` counts and stops.

    Yields the argument for `manifest_store=`. The process knows nothing of the store when it starts, and what it learns
    ends with it.
    """
    process_steps = steps or FaultPlan()

    def open_backend_store(uri: str, *, storage_options: Mapping[str, str], durable: bool) -> Store:
        return backend.store(uri, process_steps)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(location, "open_store", open_backend_store)
        patch.setattr(location, "open_codec", lambda store, *_settings: backend.codec(store))
        _forget_stores()
        try:
            yield (
                None
                if backend.manifest_store is None
                else FaultInjectingManifestStore(backend.manifest_store, process_steps)
            )
        finally:
            _forget_stores()


def _forget_stores() -> None:
    forget_verified_buckets()
    forget_unconditional_stores()


@dataclass(frozen=True)
class MemoryBackend:
    memory_store: MemoryStore = field(default_factory=MemoryStore)
    manifest_store: ManifestStore | None = None
    uri: str = "/memory/table"

    def store(self, uri: str, steps: FaultPlan) -> Store:
        return FaultInjectingStore(StoreDirectory(self.memory_store, uri, description=uri), steps)

    def codec(self, store: Store, *_settings: object) -> DataCodec:
        return IpcCodec(store)

    def take_snapshot(self) -> Callable[[], None]:
        return _snapshot_dict(self.memory_store._objects)

    def close(self) -> None:
        """Do nothing: the contents end with the process."""


@dataclass(frozen=True)
class StoreDirectory:
    """Directory of a store, as a store."""

    inner: Store
    directory: str
    description: str

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return self.inner.read(self._inner_path(path), start, length)

    def head(self, path: str) -> ObjectInfo | None:
        info = self.inner.head(self._inner_path(path))
        return None if info is None else self._relative_info(info)

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        return [self._relative_info(info) for info in self.inner.list(self._inner_path(directory), start_after)]

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        return [self._relative_info(info) for info in self.inner.walk(self._inner_path(directory))]

    def put(self, path: str, data: bytes) -> None:
        self.inner.put(self._inner_path(path), data)

    def create(self, path: str, data: bytes) -> Put:
        return self.inner.create(self._inner_path(path), data)

    def delete(self, path: str) -> None:
        self.inner.delete(self._inner_path(path))

    def ensure_durable(self, paths: Sequence[str]) -> None:
        self.inner.ensure_durable([self._inner_path(path) for path in paths])

    def _inner_path(self, path: str) -> str:
        return f"{self.directory}/{path}"

    def _relative_info(self, info: ObjectInfo) -> ObjectInfo:
        return ObjectDetails(info.path.removeprefix(f"{self.directory}/"), info.size, info.modified)


@dataclass(frozen=True)
class LocalDiskBackend:
    """Local disk with the codec of the product."""

    root: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="backend-")))
    uses_database: bool = False
    durable: bool = False

    @property
    def uri(self) -> str:
        return str(self.root / "tables" / "table")

    @property
    def manifest_store(self) -> ManifestStore | None:
        return SqlManifestStore(f"sqlite:///{self.root}/manifests.db") if self.uses_database else None

    def store(self, uri: str, steps: FaultPlan) -> Store:
        return SteppedLocalStore(Path(uri), durable=self.durable, steps=steps)

    def codec(self, store: Store, *_settings: object) -> DataCodec:
        assert isinstance(store, LocalStore)
        return LanceCodec(store)

    def take_snapshot(self) -> Callable[[], None]:
        tables = self.root / "tables"
        copy = Path(tempfile.mkdtemp(prefix="snapshot-", dir=self.root)) / "tables"
        tables.mkdir(exist_ok=True)
        copy_directory(tables, copy)
        entries = read_manifest_rows(self.root / "manifests.db") if self.uses_database else None

        def restore() -> None:
            shutil.rmtree(tables)
            copy_directory(copy, tables)
            if entries is not None:
                restore_manifest_rows(self.root / "manifests.db", entries)

        return restore

    def close(self) -> None:
        shutil.rmtree(self.root)


@dataclass(frozen=True)
class BucketBackend:
    """Object store of the product over an in-memory bucket, which can be stopped at every request."""

    bucket: MemoryBucket = field(default_factory=MemoryBucket)
    manifest_store: ManifestStore | None = None
    uri: str = "s3://bucket/table"

    def store(self, uri: str, steps: FaultPlan) -> Store:
        return open_memory_bucket_store(uri, self.bucket, steps)

    def codec(self, store: Store, *_settings: object) -> DataCodec:
        return IpcCodec(store)

    def take_snapshot(self) -> Callable[[], None]:
        restore_objects = _snapshot_dict(self.bucket.objects)
        restore_entries = (
            _snapshot_dict(self.manifest_store._entries)
            if isinstance(self.manifest_store, InMemoryManifestStore)
            else None
        )

        def restore() -> None:
            restore_objects()
            if restore_entries is not None:
                restore_entries()

        return restore

    def close(self) -> None:
        """Do nothing: the contents end with the process."""


class EmulatorBackend:
    """Object store of the product and its codec, over HTTP, with an emulator on this machine."""

    manifest_store = None

    def __init__(self) -> None:
        self._server = GcsEmulator()
        self._stack = ExitStack()
        self._bucket = self._stack.enter_context(gcs(self._server)).bucket()
        self.uri = f"{self._bucket.uri}/table"

    def store(self, uri: str, steps: FaultPlan) -> Store:
        return open_emulator_store(uri, self._bucket.options, steps)

    def codec(self, store: Store, *_settings: object) -> DataCodec:
        assert isinstance(store, ObjectStore)
        return LanceCodec(store)

    def take_snapshot(self) -> Callable[[], None]:
        (objects,) = self._server.buckets.values()
        return _snapshot_dict(objects)

    def close(self) -> None:
        self._stack.close()


STORAGE_BACKENDS: Mapping[str, Callable[[], StorageBackend]] = {
    "memory": MemoryBackend,
    "disk": LocalDiskBackend,
    "bucket": BucketBackend,
    "bucket with manifest store": lambda: BucketBackend(
        manifest_store=InMemoryManifestStore(), uri="s3://bucket/published"
    ),
    "careless bucket with manifest store": lambda: BucketBackend(
        MemoryBucket(honours_conditions=False), InMemoryManifestStore(), "s3://careless/table"
    ),
    "bucket of an emulator": EmulatorBackend,
    "disk with database": lambda: LocalDiskBackend(uses_database=True),
}


def _snapshot_dict(contents: dict[K, V]) -> Callable[[], None]:
    """Copy a dictionary, and return a function that restores it."""
    copy = dict(contents)

    def restore() -> None:
        contents.clear()
        contents.update(copy)

    return restore
