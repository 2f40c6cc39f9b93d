"""Files that lie in another place than the table's own: paths such as `@0/data/x.lance` find their way there.

`BasedStore` and `BasedCodec` stand where the table's own store and codec do, and pass everything else on to them. Only
reading follows a base; what a table writes is always its own. Which place a number means, and whether it may be
opened, is told by whoever makes them (`location.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lance_core.datafiles.codec import DataCodec, FileReader, FileWriter
from lance_core.errors import InvalidInput
from lance_core.format.base_path import split_qualified_path
from lance_core.format.fragment import StorageVersion
from lance_core.storage.store import ObjectDetails, ObjectInfo, Put, Store


@dataclass(frozen=True, slots=True)
class OpenBase:
    """A place that may be read."""

    store: Store
    codec: DataCodec
    is_dataset_root: bool

    def path(self, path: str) -> str:
        """Of a file of the table, here. Where the place is no table, files lie right in it."""
        return path if self.is_dataset_root else path.partition("/")[2]


OpenBaseById = Callable[[int], OpenBase]


@dataclass(frozen=True, slots=True)
class BasedStore:
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

    def ensure_durable(self, paths: Sequence[str]) -> None:
        self.own.ensure_durable(list(map(_check_own, paths)))

    def resolve(self, path: str) -> tuple[Store, str]:
        """The store that really has this, and what it calls it."""
        base_id, inner = split_qualified_path(path)
        if base_id is None:
            return self.own, path
        base = self.base(base_id)
        return base.store, base.path(inner)


@dataclass(frozen=True, slots=True)
class BasedCodec:
    own: DataCodec
    base: OpenBaseById

    def create(self, path: str, schema: pa.Schema, version: StorageVersion) -> FileWriter:
        return self.own.create(_check_own(path), schema, version)

    def open(self, path: str, columns: Sequence[str] = ()) -> FileReader:
        base_id, inner = split_qualified_path(path)
        if base_id is None:
            return self.own.open(path, columns)
        base = self.base(base_id)
        return base.codec.open(base.path(inner), columns)


def _with_qualified_paths(found: Sequence[ObjectInfo], inner: str, directory: str) -> Sequence[ObjectInfo]:
    if inner == directory:
        return found
    return [ObjectDetails(directory + info.path.removeprefix(inner), info.size, info.modified) for info in found]


def _check_own(path: str) -> str:
    if split_qualified_path(path)[0] is not None:
        raise InvalidInput(f"{path} lies in another place than the table, which is read and never written")
    return path
