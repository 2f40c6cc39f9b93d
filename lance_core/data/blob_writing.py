"""Blob columns on their way into files.

Up to storage version 2.1 the codec takes a blob column as it is: binary values, and metadata that says what they are
(v1). From 2.2 on a blob is a struct of its bytes (v2); small ones go into the data file, the others into files beside
it that are named after it: many to one up to a size, larger ones each in its own. What is written of such a column is
where each blob went. Start with `stored_schema` for what a table declares, with `BlobFiles` for what a file does.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from lance_core.data.layout import is_blob
from lance_core.errors import InvalidInput, Unsupported
from lance_core.format.fragment import StorageVersion
from lance_core.format.logical_types import EXTENSION_NAME
from lance_core.format.schema import TableSchema

_FIRST_WITH_V2 = StorageVersion(2, 2)
_V1 = b"lance-encoding:blob"
_V2 = b"lance.blob.v2"
_STORED = pa.struct([("data", pa.large_binary()), ("uri", pa.string())])
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
_INLINE, _PACKED, _DEDICATED = range(3)
_INLINE_MAX = 64 * 1024
_PACKED_MAX = 4 * 1024**2
_PACK_BYTES = 1024**3
_LIMITS = (
    (b"lance-encoding:blob-inline-size-threshold", _INLINE_MAX),
    (b"lance-encoding:blob-dedicated-size-threshold", _PACKED_MAX),
    (b"lance-encoding:blob-pack-file-size-threshold", _PACK_BYTES),
)


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A file of blobs that is being written; `close` makes it whole."""

    write: Callable[[bytes], object]
    close: Callable[[], object]


def stored_schema(schema: pa.Schema, version: StorageVersion) -> pa.Schema:
    """What a new table declares, as it stores it: a column that says its bytes are blobs is a struct from 2.2 on."""
    fields = [_stored(field, version) for field in schema]
    return pa.schema(fields, schema.metadata)


def _stored(field: pa.Field, version: StorageVersion) -> pa.Field:
    metadata = dict(field.metadata or {})
    is_v1 = metadata.get(_V1) == b"true"
    if not (is_v1 or _is_v2(field)):
        return field
    if version < _FIRST_WITH_V2:
        if is_v1 and pa.types.is_large_binary(field.type):
            return field
        raise InvalidInput(
            f"column {field.name!r}: at storage version {version} a blob column is large_binary with the metadata "
            f"lance-encoding:blob=true; {_FIRST_WITH_V2} takes the other kind"
        )
    if is_v1 and not (pa.types.is_large_binary(field.type) or pa.types.is_binary(field.type)):
        raise InvalidInput(f"column {field.name!r} says that it is of blobs, and is {field.type}; make it large_binary")
    if not is_v1:
        return field
    metadata.pop(_V1)
    return pa.field(field.name, _STORED, field.nullable, metadata | {EXTENSION_NAME: _V2})


def _is_v2(field: pa.Field) -> bool:
    if isinstance(field.type, pa.BaseExtensionType):
        return bool(field.type.extension_name == _V2.decode())
    return (field.metadata or {}).get(EXTENSION_NAME) == _V2


def as_stored(batches: Iterable[pa.RecordBatch], schema: TableSchema) -> Iterator[pa.RecordBatch]:
    """Batches whose blob columns may come as bytes, those of v2 as structs."""
    columns = {field.name: field.arrow().type for field in schema.fields if is_blob(field) and field.children}
    return (_batch_as_stored(batch, columns) for batch in batches) if columns else iter(batches)


def _batch_as_stored(batch: pa.RecordBatch, columns: dict[str, pa.StructType]) -> pa.RecordBatch:
    arrays, fields = [], []
    for field, array in zip(batch.schema, batch.columns, strict=True):
        if field.name in columns:
            array = _struct_of(array, columns[field.name], field.name)
            field = pa.field(field.name, array.type, field.nullable)
        arrays.append(array)
        fields.append(field)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, batch.schema.metadata))


def _struct_of(array: pa.Array, target: pa.StructType, name: str) -> pa.Array:
    stored = array.storage if isinstance(array, pa.ExtensionArray) else array
    if pa.types.is_struct(stored.type) and stored.type.get_field_index("data") >= 0:
        for child in stored.type:
            if child.name != "data" and stored.field(child.name).null_count < len(stored) - stored.null_count:
                raise Unsupported(
                    f"column {name!r} refers to blobs outside of the table by their {child.name}, which are not "
                    "written here; hand in their bytes"
                )
        data = stored.field("data").cast(pa.large_binary())
        mask = stored.is_null() if stored.null_count else None
    elif pa.types.is_binary(stored.type) or pa.types.is_large_binary(stored.type):
        data, mask = stored.cast(pa.large_binary()), stored.is_null() if stored.null_count else None
    else:
        return array
    children = [data if child.name == "data" else pa.nulls(len(data), child.type) for child in target]
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)


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
        self._limits = {field.name: _limits_of(field) for field in schema if _is_v2(field)}
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
        return pa.field(field.name, _GIVEN, field.nullable, {EXTENSION_NAME: _V2})

    def _written_column(self, name: str, array: pa.Array) -> pa.Array:
        storage = array.storage if isinstance(array, pa.ExtensionArray) else array
        inline_max, packed_max, pack_bytes = self._limits[name]
        found: list[dict[str, int | bytes] | None] = []
        for is_valid, value in zip(storage.is_valid().to_pylist(), storage.field("data"), strict=True):
            buffer = value.as_buffer() if is_valid else None
            if buffer is None:
                found.append(None)
            elif buffer.size <= inline_max:
                found.append({"kind": _INLINE, "data": buffer.to_pybytes()})
            elif buffer.size > packed_max:
                number = self._next()
                alone = self._open_dedicated(number)
                alone.write(buffer.to_pybytes())
                alone.close()
                found.append({"kind": _DEDICATED, "blob_id": number, "blob_size": buffer.size})
            else:
                number, pack, position = self._pack(name, pack_bytes)
                pack.write(buffer.to_pybytes())
                self._packs[name] = (number, pack, position + buffer.size)
                place = {"blob_id": number, "blob_size": buffer.size, "position": position}
                found.append({"kind": _PACKED, **place})
        return pa.array(found, _GIVEN)

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
