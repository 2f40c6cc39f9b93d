"""Blobs as files: opened by row, read when somebody reads.

Where a blob is, its column tells: in the data file itself (v1, and small ones of v2), or in a file of blobs beside it,
one (dedicated) or many (packed) to a file. Only that is read to open one.
"""

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np

from lance_core.data.layout import is_blob
from lance_core.errors import Corrupt, InvalidInput, Unsupported
from lance_core.format import naming
from lance_core.format.fragment import DataFile, Fragment
from lance_core.format.manifest import Manifest
from lance_core.format.schema import Field
from lance_core.location import Location
from lance_core.scan.columns import unknown_column
from lance_core.scan.parallel import in_order
from lance_core.scan.plan import plan_columns
from lance_core.scan.read import LiveFragment, Offsets, Reading
from lance_core.scan.take import By, RowNumbers, by_fragment, keyed, placed
from lance_core.storage.store import Store

_INLINE, _PACKED, _DEDICATED, _EXTERNAL, _MANAGED = range(5)
_NULL_IN_2_0 = (1, 0)
"""Position and size that stand for null, where the format had no other way to say it."""


@dataclass(frozen=True, slots=True)
class _Place:
    path: str
    position: int
    size: int


class BlobFile(io.RawIOBase):
    """One blob, as a file that is open for reading. Every `read` reads so much of it from the store, and no more; wrap
    it in `io.BufferedReader` for many small ones."""

    def __init__(self, store: Store, path: str, position: int, size: int) -> None:
        super().__init__()
        self._store = store
        self._path = path
        self._start = position
        self._size = size
        self._position = 0

    def __repr__(self) -> str:
        return f"BlobFile({self._path!r}, {self._size} bytes)"

    @property
    def size(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        before = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}
        if whence not in before or before[whence] + offset < 0:
            raise InvalidInput(f"{self!r} has no place {offset} from {whence}")
        self._position = before[whence] + offset
        return self._position

    def read(self, size: SupportsIndex | None = -1, /) -> bytes:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        wanted = -1 if size is None else size.__index__()
        left = max(0, self._size - self._position)
        count = left if wanted < 0 else min(wanted, left)
        if not count:
            return b""
        data = self._store.read(self._path, self._start + self._position, count)
        if len(data) != count:
            raise Corrupt(f"ends {count - len(data)} bytes before its blob does", path=self._path, field="size")
        self._position += count
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def blobs(location: Location, manifest: Manifest, column: str, rows: RowNumbers, *, by: By) -> list[BlobFile | None]:
    """In the order asked for; None where a row has none."""
    field = _blob_field(manifest, column)
    places = placed(location, manifest, rows, by=by)
    keys, order = np.unique(keyed(places), return_inverse=True)
    reading = Reading(location, plan_columns(manifest, [column]))

    def located(each: tuple[LiveFragment, Offsets]) -> list[_Place | None]:
        of, offsets = each
        batch = reading.picked(of, offsets)
        if batch.column(0).null_count == batch.num_rows:
            return [None] * batch.num_rows
        file = _file_of(of.fragment, field)
        return [_place(file, found, field) for found in batch.column(0).to_pylist()]

    found = [place for places in in_order(located, by_fragment(location, manifest, keys)) for place in places]
    return [_opened(location.store, found[number]) for number in order.tolist()]


def _opened(store: Store, place: _Place | None) -> BlobFile | None:
    return None if place is None else BlobFile(store, place.path, place.position, place.size)


def _blob_field(manifest: Manifest, column: str) -> Field:
    names = [field.name for field in manifest.schema.fields if is_blob(field)]
    if column not in manifest.schema.arrow.names:
        raise unknown_column(column, names or manifest.schema.arrow.names)
    if column not in names:
        raise InvalidInput(
            f"column {column!r} is no blob column; read it with `take`. "
            + (f"Blob columns are {', '.join(names)}" if names else "The table has none")
        )
    return manifest.schema.field(column)


def _file_of(fragment: Fragment, field: Field) -> DataFile:
    return next(file for file in fragment.files if field.id in file.field_ids)


def _place(file: DataFile, found: Mapping[str, int | str | None] | None, field: Field) -> _Place | None:
    if found is None:
        return None
    position, size = _number(found, "position"), _number(found, "size")
    if "kind" not in found:
        return None if (position, size) == _NULL_IN_2_0 else _Place(file.place, position, size)
    kind = _number(found, "kind")
    if kind == _INLINE:
        return _Place(file.place, position, size)
    if kind in (_PACKED, _DEDICATED):
        name = naming.blob_file_name(_number(found, "blob_id"))
        return _Place(f"{file.place.removesuffix('.lance')}/{name}", position, size)
    if kind == _EXTERNAL:
        raise Unsupported(
            f"column {field.name!r} has a blob outside of the table, at {found['blob_uri']!r}; this version opens none "
            "of those, read it from there"
        )
    what = "managed by the table" if kind == _MANAGED else f"of an unknown kind, {kind}"
    raise Unsupported(f"column {field.name!r} has a blob that is {what}, which this version does not open")


def _number(found: Mapping[str, int | str | None], name: str) -> int:
    value = found[name]
    assert isinstance(value, int)
    return value


__all__ = ["BlobFile", "blobs"]
