"""Base paths: resolves paths such as `@0/data/x.lance`, whose files are in another location than the table's own.

`BasedStore` and `BasedCodec` wrap the store and the codec of a table, and delegate to them. Only reads follow a base;
a table always writes to its own location. `versions/location.py` decides which location a base id means, and whether
it may be opened.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lance_core.datafiles.codec import DataCodec, FileReader, FileToRead, FileWriter, JoinedFiles
from lance_core.errors import InvalidInput
from lance_core.format.file_checksum import FileChecksum
from lance_core.format.fragment import StorageVersion
from lance_core.format.naming import split_qualified_path
from lance_core.storage.concurrency import delete_all, requests_max
from lance_core.storage.store import (
    ObjectDetails,
    ObjectInfo,
    Put,
    Store,
    SupportsBatchDelete,
    SupportsConcurrency,
)


@dataclass(frozen=True, slots=True)
class OpenBase:
    """A location that may be read."""

    store: Store
    codec: DataCodec
    is_dataset_root: bool

    def path(self, path: str) -> str:
        """Return the path of a file in this location. If the location is not a table, its files are at its root."""
        return path if self.is_dataset_root else path.partition("/")[2]


OpenBaseById = Callable[[int], OpenBase]


@dataclass(frozen=True, slots=True)
class BasedStore(SupportsConcurrency, SupportsBatchDelete):
    """Store of a table that also reads from the bases of a version."""

    own: Store
    base: OpenBaseById

    @property
    def description(self) -> str:
        return self.own.description

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        store, inner = self.resolve(path)
        return store.read(inner, start, length)

    def head(self, path: str) -> ObjectInfo | None:
        store, inner = self.resolve(path)
        return store.head(inner)

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        store, inner = self.resolve(directory)
        return _with_qualified_paths(store.list(inner, start_after), inner, directory)

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        store, inner = self.resolve(directory)
        return _with_qualified_paths(store.walk(inner), inner, directory)

    def put(self, path: str, data: bytes) -> None:
        self.own.put(_check_own(path), data)

    def create(self, path: str, data: bytes) -> Put:
        return self.own.create(_check_own(path), data)

    def delete(self, path: str) -> None:
        self.own.delete(_check_own(path))

    def delete_all(self, paths: Sequence[str]) -> None:
        delete_all(self.own, map(_check_own, paths))

    @property
    def requests_max(self) -> int:
        return requests_max(self.own)

    def ensure_durable(self, paths: Sequence[str]) -> None:
        self.own.ensure_durable(list(map(_check_own, paths)))

    def resolve(self, path: str) -> tuple[Store, str]:
        """Return the store that has a file, and the path of the file there."""
        base_id, inner = split_qualified_path(path)
        if base_id is None:
            return self.own, path
        base = self.base(base_id)
        return base.store, base.path(inner)


@dataclass(frozen=True, slots=True)
class BasedCodec:
    """Codec of a table that also reads from the bases of a version."""

    own: DataCodec
    base: OpenBaseById

    def create(self, path: str, schema: pa.Schema, version: StorageVersion) -> FileWriter:
        return self.own.create(_check_own(path), schema, version)

    def verify(self, path: str, checksum: FileChecksum | None) -> None:
        base_id, inner = split_qualified_path(path)
        if base_id is None:
            self.own.verify(path, checksum)
        else:
            base = self.base(base_id)
            base.codec.verify(base.path(inner), checksum)

    def join(self, files: Sequence[FileToRead], columns: Sequence[str]) -> JoinedFiles | None:
        """Join files of the table itself."""
        if any(split_qualified_path(file.path)[0] is not None for file in files):
            return None
        return self.own.join(files, columns)

    def open(
        self,
        path: str,
        columns: Sequence[str] = (),
        *,
        size: int | None = None,
        is_vouched: bool = False,
    ) -> FileReader:
        base_id, inner = split_qualified_path(path)
        if base_id is None:
            return self.own.open(path, columns, size=size, is_vouched=is_vouched)
        base = self.base(base_id)
        return base.codec.open(base.path(inner), columns, size=size, is_vouched=is_vouched)


def _with_qualified_paths(listed: Sequence[ObjectInfo], inner: str, directory: str) -> Sequence[ObjectInfo]:
    if inner == directory:
        return listed
    return [ObjectDetails(directory + info.path.removeprefix(inner), info.size, info.modified) for info in listed]


def _check_own(path: str) -> str:
    if split_qualified_path(path)[0] is not None:
        raise InvalidInput(f"{path} is outside the table, in a base that can only be read")
    return path
