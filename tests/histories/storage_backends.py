"""Places that a table can be in: in memory, on this disk, in an object store, and each with its versions reserved
somewhere else. What is in a place outlives the processes that open it, can be kept, and set back.

A process is what calls with one `Steps`: it can be stopped at any of its calls. Verbs find their stores by themselves,
so for as long as a process is at work the place stands where stores are opened. Start with `PLACES`.
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
from tests.histories.memory_bucket import MemoryBucket, bucket_store, emulated_store
from tests.histories.stepped_local_store import SteppedLocalStore, copied, put_back, rows_of
from tests.lance_core.storage.gcs_server import Gcs
from tests.lance_core.storage.manifest_stores.memory import MemoryManifestStore
from tests.lance_core.storage.manifest_stores.stepping import SteppedManifests, SteppedStore, Steps
from tests.lance_core.storage.servers import gcs

K = TypeVar("K")
V = TypeVar("V")


class Place(Protocol):
    @property
    def uri(self) -> str:
        """Of the table in it; there is room beside it."""

    @property
    def manifests(self) -> ManifestStore | None: ...

    def store(self, uri: str, steps: Steps) -> Store: ...

    def codec(self, store: Store) -> DataCodec: ...

    def kept(self) -> Callable[[], None]:
        """What brings back everything as it is now."""

    def close(self) -> None:
        """Nothing of it is left."""


@contextmanager
def process(place: Place, steps: Steps | None = None) -> Iterator[ManifestStore | None]:
    """Whoever opens a table meanwhile is this process. Yields what to give as `manifest_store=`."""
    counted = steps or Steps()

    def opened(uri: str, *, storage_options: Mapping[str, str], durable: bool) -> Store:
        return place.store(uri, counted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(location, "open_store", opened)
        patch.setattr(location, "LanceCodec", place.codec)
        _forget_stores()
        try:
            yield None if place.manifests is None else SteppedManifests(place.manifests, counted)
        finally:
            _forget_stores()


def _forget_stores() -> None:
    """A new process knows nothing of the stores."""
    forget_verified_buckets()
    forget_unconditional_stores()


@dataclass(frozen=True)
class InMemory:
    stored: MemoryStore = field(default_factory=MemoryStore)
    manifests: ManifestStore | None = None
    uri: str = "/memory/table"

    def store(self, uri: str, steps: Steps) -> Store:
        return SteppedStore(Below(self.stored, uri), steps)

    def codec(self, store: Store) -> DataCodec:
        return IpcCodec(store)

    def kept(self) -> Callable[[], None]:
        return _kept(self.stored._objects)

    def close(self) -> None:
        """It goes by itself."""


@dataclass(frozen=True)
class Below:
    """A directory of a store as a store."""

    inner: Store
    description: str

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return self.inner.read(self._there(path), start, length)

    def head(self, path: str) -> ObjectInfo | None:
        found = self.inner.head(self._there(path))
        return None if found is None else self._here(found)

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        return [self._here(info) for info in self.inner.list(self._there(directory), start_after)]

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        return [self._here(info) for info in self.inner.walk(self._there(directory))]

    def put(self, path: str, data: bytes) -> None:
        self.inner.put(self._there(path), data)

    def create(self, path: str, data: bytes) -> Put:
        return self.inner.create(self._there(path), data)

    def delete(self, path: str) -> None:
        self.inner.delete(self._there(path))

    def ensure_durable(self, paths: Sequence[str]) -> None:
        self.inner.ensure_durable([self._there(path) for path in paths])

    def _there(self, path: str) -> str:
        return f"{self.description}/{path}"

    def _here(self, info: ObjectInfo) -> ObjectInfo:
        return ObjectDetails(info.path.removeprefix(f"{self.description}/"), info.size, info.modified)


@dataclass(frozen=True)
class OnDisk:
    """With the product's own codec."""

    root: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="place-")))
    with_database: bool = False
    durable: bool = False

    @property
    def uri(self) -> str:
        return str(self.root / "tables" / "table")

    @property
    def manifests(self) -> ManifestStore | None:
        return SqlManifestStore(f"sqlite:///{self.root}/manifests.db") if self.with_database else None

    def store(self, uri: str, steps: Steps) -> Store:
        return SteppedLocalStore(Path(uri), durable=self.durable, steps=steps)

    def codec(self, store: Store) -> DataCodec:
        assert isinstance(store, LocalStore)
        return LanceCodec(store)

    def kept(self) -> Callable[[], None]:
        tables = self.root / "tables"
        copy = Path(tempfile.mkdtemp(prefix="kept-", dir=self.root)) / "tables"
        tables.mkdir(exist_ok=True)
        copied(tables, copy)
        entries = rows_of(self.root / "manifests.db") if self.with_database else None

        def back() -> None:
            shutil.rmtree(tables)
            copied(copy, tables)
            if entries is not None:
                put_back(self.root / "manifests.db", entries)

        return back

    def close(self) -> None:
        shutil.rmtree(self.root)


@dataclass(frozen=True)
class InBucket:
    """The product's object store, request by request."""

    bucket: MemoryBucket = field(default_factory=MemoryBucket)
    manifests: ManifestStore | None = None
    uri: str = "s3://bucket/table"

    def store(self, uri: str, steps: Steps) -> Store:
        return bucket_store(uri, self.bucket, steps)

    def codec(self, store: Store) -> DataCodec:
        return IpcCodec(store)

    def kept(self) -> Callable[[], None]:
        objects = _kept(self.bucket.objects)
        entries = _kept(self.manifests._entries) if isinstance(self.manifests, MemoryManifestStore) else None

        def back() -> None:
            objects()
            if entries is not None:
                entries()

        return back

    def close(self) -> None:
        """It goes by itself."""


class InEmulator:
    """The product's object store and its codec, over HTTP, in a bucket on this machine."""

    manifests = None

    def __init__(self) -> None:
        self._held = Gcs()
        self._stack = ExitStack()
        self._bucket = self._stack.enter_context(gcs(self._held)).bucket()
        self.uri = f"{self._bucket.uri}/table"

    def store(self, uri: str, steps: Steps) -> Store:
        return emulated_store(uri, self._bucket.options, steps)

    def codec(self, store: Store) -> DataCodec:
        assert isinstance(store, ObjectStore)
        return LanceCodec(store)

    def kept(self) -> Callable[[], None]:
        (objects,) = self._held.buckets.values()
        return _kept(objects)

    def close(self) -> None:
        self._stack.close()


PLACES: Mapping[str, Callable[[], Place]] = {
    "memory": InMemory,
    "disk": OnDisk,
    "bucket": InBucket,
    "bucket with manifest store": lambda: InBucket(manifests=MemoryManifestStore(), uri="s3://bucket/published"),
    "careless bucket with manifest store": lambda: InBucket(
        MemoryBucket(honours_conditions=False), MemoryManifestStore(), "s3://careless/table"
    ),
    "bucket of an emulator": InEmulator,
    "disk with database": lambda: OnDisk(with_database=True),
}


def _kept(held: dict[K, V]) -> Callable[[], None]:
    copy = dict(held)

    def back() -> None:
        held.clear()
        held.update(copy)

    return back
