"""Blob values: loads the blobs of rows that are rewritten, in chunks of rows whose blobs fit in memory.

The reader first reads the location of every blob of a column; then blobs that are next to each other are read in one
call. External blobs are not opened: their reference is passed on with the row. Start with `BlobValues`.
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

CHUNK_BYTES = 64 * 1024**2
_GAP_BYTES = 64 * 1024
"""Blobs that are no further apart are read in one call: another call costs more than reading the gap."""
READ_BYTES_MAX = 16 * 1024**2

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BlobValues:
    """Replaces the descriptors in batches by the blobs."""

    store: Store
    arrow: pa.Schema
    """Schema of the resulting batches."""
    files: Mapping[str, DataFile]
    """File that stores each blob column; columns that no file stores are absent."""
    chunk_bytes: int = field(default=CHUNK_BYTES)

    def load_chunks(self, batch: pa.RecordBatch) -> Iterator[tuple[slice, pa.RecordBatch]]:
        """Yield chunks of the batch in order. A row whose blobs are larger than a chunk comes alone."""
        columns = [BlobLocations.of(batch.column(name), column=name, file=file) for name, file in self.files.items()]
        for locations in columns:
            _check_files_exist(self.store, locations)
        widths = sum((locations.sizes for locations in columns), np.zeros(batch.num_rows, dtype=np.int64))
        for part in split_by_bytes(widths, self.chunk_bytes):
            yield part, self._load_rows(batch.slice(part.start, part.stop - part.start), columns, part)

    def _load_rows(self, batch: pa.RecordBatch, locations: Sequence[BlobLocations], part: slice) -> pa.RecordBatch:
        blobs = {each.column: each.slice(part.start, part.stop) for each in locations}
        columns = []
        for target, column in zip(self.arrow, batch.columns, strict=True):
            if target.name in blobs:
                columns.append(
                    _as_type(target.type, read_values(self.store, blobs[target.name], _storage_type(target.type)))
                )
            elif column.type != target.type:
                columns.append(_as_type(target.type, pa.nulls(batch.num_rows, _storage_type(target.type))))
            else:
                columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)


def _storage_type(arrow: pa.DataType) -> pa.DataType:
    """Return the storage type of an extension type: an application may have registered one for blobs."""
    return arrow.storage_type if isinstance(arrow, pa.BaseExtensionType) else arrow


def _as_type(arrow: pa.DataType, array: pa.Array) -> pa.Array:
    return pa.ExtensionArray.from_storage(arrow, array) if isinstance(arrow, pa.BaseExtensionType) else array


def split_by_bytes(widths: Ints, bytes_max: int) -> Iterator[slice]:
    """Yield ranges of rows of at most `bytes_max` bytes, and of at least one row. No rows are one empty range."""
    ends, start = np.cumsum(widths), 0
    while start < len(widths) or not start:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + bytes_max, side="right")))
        yield slice(start, min(stop, len(widths)))
        start = stop


def read_values(store: Store, locations: BlobLocations, target: pa.DataType) -> pa.Array:
    """Return the blobs: binary values for v1, for v2 the struct that the table declares."""
    is_struct = pa.types.is_struct(target)
    external = dict(locations.external_blobs())
    has_no_bytes = locations.is_null.copy()
    has_no_bytes[list(external)] = True
    data = _read_blobs(store, locations, has_no_bytes)
    if not is_struct:
        return data.cast(target)
    if target.get_field_index("size") < 0 and any(blob.size is not None for blob in external.values()):
        raise Unsupported(
            f"{locations.file.path}: column {locations.column!r} refers to parts of files outside the table, and its "
            "type cannot store such a reference when a row is rewritten"
        )
    children = [data if child.name == "data" else _reference_values(child, external, locations) for child in target]
    mask = pa.array(locations.is_null) if locations.is_null.any() else None
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)


def _check_files_exist(store: Store, locations: BlobLocations) -> None:
    """Check that the files have as many bytes as the descriptors claim, before memory is allocated for them."""
    for path, rows in locations.rows_by_path():
        info, end = store.head(path), int((locations.positions[rows] + locations.sizes[rows]).max())
        if info is None:
            raise NotFound(
                f"{store.description}/{path} does not exist, but column {locations.column!r} has blobs in it"
            )
        if info.size < end:
            raise Corrupt(f"ends {end - info.size} bytes before its blobs do", path=path, field="size")


def _read_blobs(store: Store, locations: BlobLocations, is_null: npt.NDArray[np.bool_]) -> pa.Array:
    ends = np.cumsum(locations.sizes)
    starts = ends - locations.sizes
    values = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    target_view = values.data
    for path, rows in locations.rows_by_path():
        for run in _read_runs(locations, rows):
            first = int(locations.positions[run[0]])
            last = int((locations.positions[run] + locations.sizes[run]).max())
            data = memoryview(store.read(path, first, last - first))
            if len(data) != last - first:
                raise Corrupt(f"ends {last - first - len(data)} bytes before its blobs do", path=path, field="size")
            sources, targets, sizes = (
                (locations.positions[run] - first).tolist(),
                starts[run].tolist(),
                locations.sizes[run].tolist(),
            )
            for begin, target, size in zip(sources, targets, sizes, strict=True):
                target_view[target : target + size] = data[begin : begin + size]
    offsets = np.concatenate([[0], ends]).astype(np.int64)
    valid = None if not is_null.any() else pa.array(~is_null).buffers()[1]
    return pa.Array.from_buffers(
        pa.large_binary(), len(locations), [valid, pa.py_buffer(offsets), pa.py_buffer(values)], int(is_null.sum())
    )


def _read_runs(locations: BlobLocations, rows: Ints) -> Iterator[Ints]:
    """Yield rows in the order of their bytes, split where reading across a gap would not pay."""
    begins, ends = locations.positions[rows], locations.positions[rows] + locations.sizes[rows]
    start, gaps = 0, begins[1:] - np.maximum.accumulate(ends)[:-1]
    for stop in (*(np.flatnonzero(gaps > _GAP_BYTES) + 1).tolist(), len(rows)):
        for part in split_by_bytes(locations.sizes[rows[start:stop]], READ_BYTES_MAX):
            yield rows[start + part.start : start + part.stop]
        start = stop


def _reference_values(child: pa.Field, external: Mapping[int, ExternalBlob], locations: BlobLocations) -> pa.Array:
    values: list[str | int | None] = [None] * len(locations)
    for row, blob in external.items():
        if child.name == "uri":
            values[row] = blob.uri
        elif blob.size is not None:
            values[row] = blob.position if child.name == "position" else blob.size
    return pa.array(values, child.type)
