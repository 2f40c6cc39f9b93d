"""File targets: directories for exported files, on the local disk, on an object store, or wherever fsspec writes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lance_core.storage.factory import TableStore, open_store
from lance_core.storage.fsspec_files import FsspecLocation
from lance_core.storage.local import LocalStore
from lance_core.storage.tree_operations import copy_file
from lance_core.tasks.ingest.source_options import SourceClient, SourceKind, SourceOptions, check_shared


class FileTarget(Protocol):
    """Directory that receives files."""

    def names(self) -> Sequence[str]:
        """Return the names of the files in the directory; none if it does not exist."""

    def send(self, source: Path, name: str) -> None:
        """Write a local file to the directory, under this name."""

    def delete(self, name: str) -> None: ...


def open_target(uri: str, options: SourceOptions) -> FileTarget:
    """Return the directory at a location. Raise `InvalidInput` if other processes cannot reach the location."""
    check_shared([uri], argument="to")
    client = SourceClient.of(uri.rstrip("/"), options, argument="target_options")
    if client.kind is SourceKind.FSSPEC:
        return FsspecLocation(client.uri, client.options)
    return _StoreTarget(open_store(client.uri, storage_options=client.store_options))


@dataclass(frozen=True, slots=True)
class _StoreTarget:
    store: TableStore

    def names(self) -> Sequence[str]:
        return [info.path.lstrip("/") for info in self.store.list("")]

    def send(self, source: Path, name: str) -> None:
        copy_file(LocalStore(source.parent), source.name, self.store, name)

    def delete(self, name: str) -> None:
        self.store.delete(name)
