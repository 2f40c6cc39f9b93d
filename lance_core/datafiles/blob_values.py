"""Blob columns as values, for whoever writes rows again: so many rows at a time that their blobs fit in memory.

Of each column first comes where its blobs are; then they are read, those that lie side by side at once. What lies
outside of the table is not opened: its reference goes with the row. Start with `BlobValues`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.blob_locations import BlobLocations, ExternalBlob
from lance_core.errors import Corrupt, NotFound, Unsupported
from lance_core.format.fragment import DataFile
from lance_core.storage.store import Store

PIECE_BYTES = 64 * 1024**2
_GAP_BYTES = 64 * 1024
"""Blobs that are no further apart are read at once: a call costs more than reading over this."""
_READ_BYTES = 16 * 1024**2

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BlobValues:
    """Makes batches with descriptors into batches with blobs."""

    store: Store
    arrow: pa.Schema
    """Of what comes out."""
    files: Mapping[str, DataFile]
    """For each column of blobs the file that has it; columns that no file has are left out."""
    piece_bytes: int = field(default=PIECE_BYTES)

    def pieces(self, batch: pa.RecordBatch) -> Iterator[tuple[slice, pa.RecordBatch]]:
        """In order. A row whose blobs are larger than a piece comes alone."""
        places = [BlobLocations.of(batch.column(name), column=name, file=file) for name, file in self.files.items()]
        for each in places:
            _check_there(self.store, each)
        widths = sum((each.sizes for each in places), np.zeros(batch.num_rows, dtype=np.int64))
        for part in cut(widths, self.piece_bytes):
            yield part, self._filled(batch.slice(part.start, part.stop - part.start), places, part)

    def _filled(self, batch: pa.RecordBatch, places: Sequence[BlobLocations], part: slice) -> pa.RecordBatch:
        blobs = {each.column: each.slice(part.start, part.stop) for each in places}
        columns = []
        for target, column in zip(self.arrow, batch.columns, strict=True):
            if target.name in blobs:
                columns.append(_as(target.type, read_values(self.store, blobs[target.name], _storage(target.type))))
            elif column.type != target.type:
                columns.append(_as(target.type, pa.nulls(batch.num_rows, _storage(target.type))))
            else:
                columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)


def _storage(arrow: pa.DataType) -> pa.DataType:
    """Somebody may have registered the extension type of blobs."""
    return arrow.storage_type if isinstance(arrow, pa.BaseExtensionType) else arrow


def _as(arrow: pa.DataType, array: pa.Array) -> pa.Array:
    return pa.ExtensionArray.from_storage(arrow, array) if isinstance(arrow, pa.BaseExtensionType) else array


def cut(widths: Ints, bytes_max: int) -> Iterator[slice]:
    """Rows in runs of at most so many bytes, and of one row at least. No rows are one run."""
    ends, start = np.cumsum(widths), 0
    while start < len(widths) or not start:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + bytes_max, side="right")))
        yield slice(start, min(stop, len(widths)))
        start = stop


def read_values(store: Store, places: BlobLocations, target: pa.DataType) -> pa.Array:
    """Binary for v1, for v2 the struct that the table declares."""
    is_struct = pa.types.is_struct(target)
    outside = dict(places.outside())
    empty = places.is_null.copy()
    empty[list(outside)] = True
    data = _read(store, places, empty)
    if not is_struct:
        return data.cast(target)
    if target.get_field_index("size") < 0 and any(found.size is not None for found in outside.values()):
        raise Unsupported(
            f"{places.file.path}: column {places.column!r} refers to parts of files outside of the table, and has no "
            "room to say so of a row that is written again"
        )
    children = [data if child.name == "data" else _reference(child, outside, places) for child in target]
    mask = pa.array(places.is_null) if places.is_null.any() else None
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)


def _check_there(store: Store, places: BlobLocations) -> None:
    """Before memory is taken for what a descriptor says to be there."""
    for path, rows in places.by_path():
        info, end = store.head(path), int((places.positions[rows] + places.sizes[rows]).max())
        if info is None:
            raise NotFound(f"{store.description}/{path} does not exist, and blobs of {places.column!r} are to be there")
        if info.size < end:
            raise Corrupt(f"ends {end - info.size} bytes before its blobs do", path=path, field="size")


def _read(store: Store, places: BlobLocations, empty: npt.NDArray[np.bool_]) -> pa.Array:
    ends = np.cumsum(places.sizes)
    starts = ends - places.sizes
    values = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    into = values.data
    for path, rows in places.by_path():
        for run in _runs(places, rows):
            first = int(places.positions[run[0]])
            last = int((places.positions[run] + places.sizes[run]).max())
            data = memoryview(store.read(path, first, last - first))
            if len(data) != last - first:
                raise Corrupt(f"ends {last - first - len(data)} bytes before its blobs do", path=path, field="size")
            at, to, sizes = (places.positions[run] - first).tolist(), starts[run].tolist(), places.sizes[run].tolist()
            for begin, target, size in zip(at, to, sizes, strict=True):
                into[target : target + size] = data[begin : begin + size]
    offsets = np.concatenate([[0], ends]).astype(np.int64)
    valid = None if not empty.any() else pa.array(~empty).buffers()[1]
    return pa.Array.from_buffers(
        pa.large_binary(), len(places), [valid, pa.py_buffer(offsets), pa.py_buffer(values)], int(empty.sum())
    )


def _runs(places: BlobLocations, rows: Ints) -> Iterator[Ints]:
    """Rows in the order of their bytes, cut where reading on would not pay."""
    begins, ends = places.positions[rows], places.positions[rows] + places.sizes[rows]
    start, gaps = 0, begins[1:] - np.maximum.accumulate(ends)[:-1]
    for stop in (*(np.flatnonzero(gaps > _GAP_BYTES) + 1).tolist(), len(rows)):
        for part in cut(places.sizes[rows[start:stop]], _READ_BYTES):
            yield rows[start + part.start : start + part.stop]
        start = stop


def _reference(child: pa.Field, outside: Mapping[int, ExternalBlob], places: BlobLocations) -> pa.Array:
    values: list[str | int | None] = [None] * len(places)
    for row, found in outside.items():
        if child.name == "uri":
            values[row] = found.uri
        elif found.size is not None:
            values[row] = found.position if child.name == "position" else found.size
    return pa.array(values, child.type)
