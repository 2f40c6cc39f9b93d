"""Blob files: opens the blobs of rows as files, whose bytes are read on demand.

The blob column records where each blob is (`datafiles/blob_locations.py`); opening one reads only that record. Start
with `open_blobs`.
"""

import io
import os
from typing import SupportsIndex

import numpy as np

from lance_core.datafiles.blob_locations import BASE_REFERENCE, BlobLocations, BlobRange, ExternalBlob
from lance_core.datafiles.column_layout import is_blob
from lance_core.errors import Corrupt, InvalidInput, NotFound
from lance_core.format import naming
from lance_core.format.fragment import DataFile, Fragment
from lance_core.format.manifest import Manifest
from lance_core.format.schema import Field
from lance_core.scan.column_resolution import unknown_column_error
from lance_core.scan.morsels import LiveFragment
from lance_core.scan.parallel import map_in_order
from lance_core.scan.plan import plan_columns
from lance_core.scan.row_reader import RowReader
from lance_core.scan.selection import Offsets
from lance_core.scan.take import By, RowNumbers, group_by_fragment, locate_rows, scan_order_keys
from lance_core.storage.store import Store
from lance_core.versions.location import Location

_UNCHECKED_BYTES_MAX = 16 * 1024**2
"""Memory for a larger read is allocated only after the store has confirmed the size of the file."""


class BlobFile(io.RawIOBase):
    """One blob, as a file that is open for reading. Every `read` reads exactly the requested bytes from the store;
    wrap it in `io.BufferedReader` for many small reads."""

    def __init__(self, store: Store, path: str, position: int, size: int | None) -> None:
        """Open bytes of a stored file from `position`; with `size` `None`, up to the end of the file."""
        super().__init__()
        self._store = store
        self._path = path
        self._start = position
        self._size = size
        self._position = 0

    def __repr__(self) -> str:
        return f"BlobFile({self._path!r}{'' if self._size is None else f', {self._size} bytes'})"

    @property
    def size(self) -> int:
        if self._size is None:
            info = self._store.head(self._path)
            if info is None:
                raise NotFound(
                    f"{self._store.description}/{self._path} does not exist, but the table refers to a blob in it"
                )
            self._size = max(0, info.size - self._start)
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check_open()
        before = self.size if whence == os.SEEK_END else self._position if whence == os.SEEK_CUR else 0
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END) or before + offset < 0:
            raise InvalidInput(f"{self!r} has no position {offset} from {whence}")
        self._position = before + offset
        return self._position

    def read(self, size: SupportsIndex | None = -1, /) -> bytes:
        self._check_open()
        requested = -1 if size is None else size.__index__()
        left = max(0, self.size - self._position)
        count = left if requested < 0 else min(requested, left)
        if not count:
            return b""
        start = self._start + self._position
        if count > _UNCHECKED_BYTES_MAX:
            info = self._store.head(self._path)
            self._check_length(count, start + count if info is None else info.size - start)
        data = self._store.read(self._path, start, count)
        self._check_length(count, len(data))
        self._position += count
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        into = memoryview(buffer).cast("B")
        data = self.read(len(into))
        into[: len(data)] = data
        return len(data)

    def write(self, data: object, /) -> int:
        raise io.UnsupportedOperation("a blob is written with its row, by the write methods of a table")

    def _check_length(self, count: int, available: int) -> None:
        if available < count:
            raise Corrupt(f"ends {count - available} bytes before its blob does", path=self._path, field="size")

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")


def open_blobs(
    location: Location, manifest: Manifest, column: str, rows: RowNumbers, *, by: By
) -> list[BlobFile | None]:
    """Open the blobs of rows, in the requested order; `None` for rows without a blob."""
    field = _blob_field(manifest, column)
    positions = locate_rows(location, manifest, rows, by=by)
    keys, order = np.unique(scan_order_keys(positions), return_inverse=True)
    reader = RowReader(location, plan_columns(manifest, [column]))

    def read_locations(fragment_rows: tuple[LiveFragment, Offsets]) -> list[BlobRange | ExternalBlob | None]:
        source, offsets = fragment_rows
        batch = reader.pick(source, offsets)
        file = _data_file_of(source.fragment, field)
        if file is None:
            return [None] * batch.num_rows
        locations = BlobLocations.of(batch.column(0), column=column, file=file)
        return [locations.location_of(row) for row in range(len(locations))]

    by_fragment = map_in_order(read_locations, group_by_fragment(location, manifest, keys))
    blobs = [blob for locations in by_fragment for blob in locations]
    return [_open_blob(location, manifest, blobs[number]) for number in order.tolist()]


def _open_blob(location: Location, manifest: Manifest, blob: BlobRange | ExternalBlob | None) -> BlobFile | None:
    if blob is None:
        return None
    if isinstance(blob, BlobRange):
        return BlobFile(location.store, blob.path, blob.position, blob.size)
    store, path = _locate_external(location, manifest, blob.uri)
    return BlobFile(store, path, blob.position if blob.size else 0, blob.size)


def _locate_external(location: Location, manifest: Manifest, uri: str) -> tuple[Store, str]:
    """Return the store and path of a file that the table only refers to: below one of its base paths, or at any
    location that the caller allowed."""
    reference = BASE_REFERENCE.fullmatch(uri)
    if reference is None:
        return location.resolve_external_blob(uri, manifest.branch)
    base = next((each for each in manifest.base_paths if each.id == int(reference[1])), None)
    if base is None or base.is_dataset_root:
        problem = "the manifest has no base path with this id" if base is None else "that is a table"
        raise Corrupt(f"a blob is in base path {reference[1]}, but {problem}", path=manifest.path, field="base_paths")
    return location.resolve(f"@{base.id}/{naming.DATA}/{reference[2]}")


def _blob_field(manifest: Manifest, column: str) -> Field:
    names = [field.name for field in manifest.schema.fields if is_blob(field)]
    if column not in manifest.schema.arrow.names:
        raise unknown_column_error(column, names or manifest.schema.arrow.names)
    if column not in names:
        raise InvalidInput(
            f"column {column!r} is not a blob column; read it with take(). "
            + (f"Blob columns are {', '.join(names)}" if names else "The table has no blob column")
        )
    return manifest.schema.field(column)


def _data_file_of(fragment: Fragment, field: Field) -> DataFile | None:
    return next((file for file in fragment.files if field.id in file.field_ids), None)


__all__ = ["BlobFile", "open_blobs"]
