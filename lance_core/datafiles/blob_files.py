"""Blob writer (blobs v2): puts each blob of a data file where it belongs, and describes in the column where it went.

Small blobs go into the data file, others into blob files in a directory named after it. Up to a size limit many blobs
share a blob file; a larger one has a file of its own. External blobs stay where they are. Blobs v1 are written by the
codec. Start with `BlobFiles`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.datafiles.blob_locations import BASE_REFERENCE, DEDICATED, EXTERNAL, INLINE, PACKED
from lance_core.errors import InvalidInput
from lance_core.format.logical_types import EXTENSION_NAME

V2 = b"lance.blob.v2"
_WRITER_TYPE = pa.struct(
    [
        ("kind", pa.uint8()),
        ("data", pa.large_binary()),
        ("uri", pa.string()),
        ("blob_id", pa.uint32()),
        ("blob_size", pa.uint64()),
        ("position", pa.uint64()),
    ]
)
"""Struct that the writer of the codec expects for a blob; it puts inline blobs into the file."""
_INLINE_MAX = 64 * 1024
_PACKED_MAX = 4 * 1024**2
_PACK_BYTES = 1024**3
_WRITE_BYTES = 8 * 1024**2
LIMIT_KEYS = (
    (b"lance-encoding:blob-inline-size-threshold", _INLINE_MAX),
    (b"lance-encoding:blob-dedicated-size-threshold", _PACKED_MAX),
    (b"lance-encoding:blob-pack-file-size-threshold", _PACK_BYTES),
)
"""Metadata keys of a blob column for the sizes of its files, and their defaults in bytes."""


def is_blob_v2(field: pa.Field) -> bool:
    if isinstance(field.type, pa.BaseExtensionType):
        return bool(field.type.extension_name == V2.decode())
    return (field.metadata or {}).get(EXTENSION_NAME) == V2


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A blob file that is being written; `close` completes it."""

    write: Callable[[bytes], object]
    """Takes bytes: the codec would iterate over any other value byte by byte."""
    close: Callable[[], object]


class BlobFiles:
    """Writer for the blobs of one data file."""

    def __init__(
        self,
        schema: pa.Schema,
        *,
        packed: Callable[[int], Sidecar],
        dedicated: Callable[[int], Sidecar],
    ) -> None:
        """Prepare the blob columns of `schema`. `packed` and `dedicated` open the blob file with a number."""
        self._open_packed = packed
        self._open_dedicated = dedicated
        self._limits = {field.name: _size_limits(field) for field in schema if is_blob_v2(field)}
        self._file_count = 0
        self._packs: dict[str, tuple[int, Sidecar, int]] = {}
        self.schema = schema
        if self._limits:
            fields = [self._writer_field(field) if field.name in self._limits else field for field in schema]
            self.schema = pa.schema(fields, schema.metadata)
        """Schema of the batches that the data file stores."""

    @property
    def blob_ids(self) -> range:
        """Numbers of the blob files that were written."""
        return range(1, self._file_count + 1)

    def write_blobs(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Write the blobs of a batch, and return the batch with their locations."""
        if not self._limits:
            return batch
        arrays = [
            self._write_column(name, array) if name in self._limits else array
            for name, array in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def finish(self) -> None:
        """Complete the open blob files."""
        for _, pack, _ in self._packs.values():
            pack.close()

    @staticmethod
    def _writer_field(field: pa.Field) -> pa.Field:
        return pa.field(field.name, _WRITER_TYPE, field.nullable, {EXTENSION_NAME: V2})

    def _write_column(self, name: str, array: pa.Array) -> pa.Array:
        """Write the blobs of a column, and return its descriptors. Small blobs stay in the descriptors
        as inline data."""
        storage = array.storage if isinstance(array, pa.ExtensionArray) else array
        children = {child.name: storage.field(number) for number, child in enumerate(storage.type)}
        data, uri = children["data"], children["uri"]
        is_null, has_uri = (
            np.asarray(each) for each in (storage.is_null(), pc.and_(uri.is_valid(), storage.is_valid()))
        )
        sizes = pc.fill_null(pc.binary_length(data), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        inline_max, packed_max, _ = self._limits[name]
        is_inline = ~is_null & ~has_uri & (sizes <= inline_max)
        kinds = np.where(
            has_uri, EXTERNAL, np.where(is_inline, INLINE, np.where(sizes > packed_max, DEDICATED, PACKED))
        )
        ids, lengths, positions = (np.zeros(len(storage), dtype=np.uint64) for _ in range(3))
        for row in np.flatnonzero(~is_null & ~has_uri & ~is_inline).tolist():
            lengths[row] = sizes[row]
            ids[row], positions[row] = self._write_blob(name, data[row].as_buffer(), is_alone=kinds[row] == DEDICATED)
        uris: pa.Array = pa.nulls(len(storage), pa.string())
        if has_uri.any():
            texts = []
            for row, text in enumerate(uri.to_pylist()):
                base = BASE_REFERENCE.fullmatch(text) if text is not None and has_uri[row] else None
                ids[row] = int(base[1]) if base else ids[row]
                texts.append(base[2] if base else text if has_uri[row] else None)
            uris = pa.array(texts, pa.string())
            if "size" in children:
                positions = np.where(has_uri, _to_uint64(children["position"]), positions)
                lengths = np.where(has_uri, _to_uint64(children["size"]), lengths)
        descriptors = [
            pa.array(kinds, pa.uint8()),
            pc.if_else(pa.array(is_inline), data, pa.scalar(None, pa.large_binary())),
            uris,
            pa.array(ids, pa.uint32()),
            pa.array(lengths, pa.uint64()),
            pa.array(positions, pa.uint64()),
        ]
        return pa.StructArray.from_arrays(descriptors, fields=list(_WRITER_TYPE), mask=pa.array(is_null))

    def _write_blob(self, name: str, blob: pa.Buffer, *, is_alone: bool) -> tuple[int, int]:
        """Write a blob, and return the number of its file and its position there."""
        if is_alone:
            number = self._next_number()
            alone = self._open_dedicated(number)
            for start in range(0, blob.size, _WRITE_BYTES):
                alone.write(blob.slice(start, min(_WRITE_BYTES, blob.size - start)).to_pybytes())
            alone.close()
            return number, 0
        number, pack, position = self._current_pack(name, self._limits[name][2])
        pack.write(blob.to_pybytes())
        self._packs[name] = (number, pack, position + blob.size)
        return number, position

    def _current_pack(self, name: str, pack_bytes: int) -> tuple[int, Sidecar, int]:
        """Return the number, file and end of the open packed file; begin a new one if it is full."""
        if name in self._packs:
            number, pack, position = self._packs[name]
            if position < pack_bytes:
                return number, pack, position
            pack.close()
        number = self._next_number()
        self._packs[name] = (number, self._open_packed(number), 0)
        return self._packs[name]

    def _next_number(self) -> int:
        self._file_count += 1
        return self._file_count


def _to_uint64(array: pa.Array) -> npt.NDArray[np.uint64]:
    numbers: npt.NDArray[np.uint64] = pc.fill_null(array, 0).to_numpy(zero_copy_only=False).astype(np.uint64)
    return numbers


def _size_limits(field: pa.Field) -> tuple[int, int, int]:
    metadata = field.metadata or {}
    inline_max, packed_max, pack_bytes = (
        _parse_byte_count(metadata.get(key), default, key) for key, default in LIMIT_KEYS
    )
    return inline_max, packed_max, pack_bytes


def _parse_byte_count(text: bytes | None, default: int, key: bytes) -> int:
    if text is None:
        return default
    if not text.isdigit():
        raise InvalidInput(f"{key.decode()} must be a number of bytes, not {text.decode(errors='replace')!r}")
    return int(text)
