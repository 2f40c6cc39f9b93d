"""The blobs of one data file on their way to where they lie (v2).

Small ones go into the data file, the others into files beside it that are named after it: many to one up to a size,
larger ones each in its own. What lies outside of the table stays there. What is written of such a column is where each
blob went. Blobs of v1 are the codec's business. Start with `BlobFiles`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.datafiles.blob_locations import BELOW_BASE, DEDICATED, EXTERNAL, INLINE, PACKED
from lance_core.errors import InvalidInput
from lance_core.format.logical_types import EXTENSION_NAME

V2 = b"lance.blob.v2"
_GIVEN = pa.struct(
    [
        ("kind", pa.uint8()),
        ("data", pa.large_binary()),
        ("uri", pa.string()),
        ("blob_id", pa.uint32()),
        ("blob_size", pa.uint64()),
        ("position", pa.uint64()),
    ]
)
"""What the codec's writer is given of a blob; it puts the inline ones into the file."""
_INLINE_MAX = 64 * 1024
_PACKED_MAX = 4 * 1024**2
_PACK_BYTES = 1024**3
_WRITE_BYTES = 8 * 1024**2
_LIMITS = (
    (b"lance-encoding:blob-inline-size-threshold", _INLINE_MAX),
    (b"lance-encoding:blob-dedicated-size-threshold", _PACKED_MAX),
    (b"lance-encoding:blob-pack-file-size-threshold", _PACK_BYTES),
)


def is_v2(field: pa.Field) -> bool:
    if isinstance(field.type, pa.BaseExtensionType):
        return bool(field.type.extension_name == V2.decode())
    return (field.metadata or {}).get(EXTENSION_NAME) == V2


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A file of blobs that is being written; `close` makes it whole."""

    write: Callable[[bytes], object]
    """Of bytes: anything else the codec would take apart one by one."""
    close: Callable[[], object]


class BlobFiles:
    """The blobs of one data file, put where they go."""

    def __init__(
        self,
        schema: pa.Schema,
        *,
        packed: Callable[[int], Sidecar],
        dedicated: Callable[[int], Sidecar],
    ) -> None:
        """`packed` and `dedicated` open the blob file of a number."""
        self._open_packed = packed
        self._open_dedicated = dedicated
        self._limits = {field.name: _limits_of(field) for field in schema if is_v2(field)}
        self._written = 0
        self._packs: dict[str, tuple[int, Sidecar, int]] = {}
        fields = [self._described(field) if field.name in self._limits else field for field in schema]
        self.schema = pa.schema(fields, schema.metadata)
        """What the file stores."""

    @property
    def blob_ids(self) -> range:
        """Of the files beside it."""
        return range(1, self._written + 1)

    def descriptors(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with its blobs written, and in their places where they are."""
        if not self._limits:
            return batch
        arrays = [
            self._written_column(name, array) if name in self._limits else array
            for name, array in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def finish(self) -> None:
        for _, pack, _ in self._packs.values():
            pack.close()

    @staticmethod
    def _described(field: pa.Field) -> pa.Field:
        return pa.field(field.name, _GIVEN, field.nullable, {EXTENSION_NAME: V2})

    def _written_column(self, name: str, array: pa.Array) -> pa.Array:
        """Small blobs are handed on; of the others, what is handed on is where they were put."""
        storage = array.storage if isinstance(array, pa.ExtensionArray) else array
        given = {child.name: storage.field(number) for number, child in enumerate(storage.type)}
        data, uri = given["data"], given["uri"]
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
            ids[row], positions[row] = self._put(name, data[row].as_buffer(), is_alone=kinds[row] == DEDICATED)
        uris: pa.Array = pa.nulls(len(storage), pa.string())
        if has_uri.any():
            texts = []
            for row, text in enumerate(uri.to_pylist()):
                base = BELOW_BASE.fullmatch(text) if text is not None and has_uri[row] else None
                ids[row] = int(base[1]) if base else ids[row]
                texts.append(base[2] if base else text if has_uri[row] else None)
            uris = pa.array(texts, pa.string())
            if "size" in given:
                positions = np.where(has_uri, _numbers(given["position"]), positions)
                lengths = np.where(has_uri, _numbers(given["size"]), lengths)
        told = [
            pa.array(kinds, pa.uint8()),
            pc.if_else(pa.array(is_inline), data, pa.scalar(None, pa.large_binary())),
            uris,
            pa.array(ids, pa.uint32()),
            pa.array(lengths, pa.uint64()),
            pa.array(positions, pa.uint64()),
        ]
        return pa.StructArray.from_arrays(told, fields=list(_GIVEN), mask=pa.array(is_null))

    def _put(self, name: str, blob: pa.Buffer, *, is_alone: bool) -> tuple[int, int]:
        """The number of the file that it is in now, and its position there."""
        if is_alone:
            number = self._next()
            alone = self._open_dedicated(number)
            for start in range(0, blob.size, _WRITE_BYTES):
                alone.write(blob.slice(start, min(_WRITE_BYTES, blob.size - start)).to_pybytes())
            alone.close()
            return number, 0
        number, pack, position = self._pack(name, self._limits[name][2])
        pack.write(blob.to_pybytes())
        self._packs[name] = (number, pack, position + blob.size)
        return number, position

    def _pack(self, name: str, pack_bytes: int) -> tuple[int, Sidecar, int]:
        if name in self._packs:
            number, pack, position = self._packs[name]
            if position < pack_bytes:
                return number, pack, position
            pack.close()
        number = self._next()
        self._packs[name] = (number, self._open_packed(number), 0)
        return self._packs[name]

    def _next(self) -> int:
        self._written += 1
        return self._written


def _numbers(array: pa.Array) -> npt.NDArray[np.uint64]:
    found: npt.NDArray[np.uint64] = pc.fill_null(array, 0).to_numpy(zero_copy_only=False).astype(np.uint64)
    return found


def _limits_of(field: pa.Field) -> tuple[int, int, int]:
    told = field.metadata or {}
    inline_max, packed_max, pack_bytes = (_whole(told.get(key), default, key) for key, default in _LIMITS)
    return inline_max, packed_max, pack_bytes


def _whole(text: bytes | None, default: int, key: bytes) -> int:
    if text is None:
        return default
    if not text.isdigit():
        raise InvalidInput(f"{key.decode()} is {text.decode(errors='replace')!r}, not a number of bytes")
    return int(text)
