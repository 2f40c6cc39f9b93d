"""Blob view: a small file through which the codec reads some columns of a data file, and the descriptors of its blobs.

The codec follows the schema inside a file. For a blob column (v1) that schema makes it return bytes where descriptors
are needed; and after a column of blobs v2 it miscounts the columns, so that it would read the following ones from the
wrong places. The view therefore has the pages of the requested columns at the positions that they have in the data
file, holes elsewhere, and at its end a correct schema. Pages and metadata are copied unchanged; blobs are not read.
Pure except for the read function that the caller passes. Start with `build_view`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lance_core.datafiles.column_layout import columns_of, is_blob
from lance_core.errors import Corrupt
from lance_core.format.file_footer import FOOTER as _FOOTER
from lance_core.format.file_footer import MAGIC as _MAGIC
from lance_core.format.file_footer import SPAN as _SPAN
from lance_core.format.fragment import StorageVersion
from lance_core.format.schema import Field, TableSchema

DESCRIPTOR_V1 = pa.struct([("position", pa.uint64()), ("size", pa.uint64())])
"""Position and size of a blob in its data file."""
DESCRIPTOR_V2 = pa.struct(
    [
        pa.field("kind", pa.uint8(), nullable=False),
        pa.field("position", pa.uint64(), nullable=False),
        pa.field("size", pa.uint64(), nullable=False),
        pa.field("blob_id", pa.uint32(), nullable=False),
        pa.field("blob_uri", pa.string(), nullable=False),
    ]
)
_ALIGNMENT = 64
_BLOB = {b"lance-encoding:blob": b"true"}
_PACKED = {b"lance-encoding:packed": b"true"}

ReadBytes = Callable[[int, int], bytes]
"""Function that reads a number of bytes of the data file from a position."""
Span = tuple[int, int]
"""Position and size."""


@dataclass(frozen=True, slots=True)
class FileView:
    """Content of a view: byte strings at their positions, with holes between them."""

    parts: tuple[tuple[int, bytes], ...]


def descriptor_schema(schema: TableSchema) -> pa.Schema:
    """Return the schema of a table's columns when blob columns return descriptors."""
    fields = [
        _descriptor_field(field, arrow) if is_blob(field) else arrow
        for field, arrow in zip(schema.fields, schema.arrow, strict=True)
    ]
    return pa.schema(fields, schema.metadata or None)


def _descriptor_field(field: Field, arrow: pa.Field) -> pa.Field:
    if field.logical_type == "struct":
        return arrow.with_type(DESCRIPTOR_V2).with_metadata(_BLOB | _PACKED)
    return arrow.with_type(DESCRIPTOR_V1)


def repair_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a file without the children of blobs v2, which the codec reports as separate columns."""
    fields = list(schema)
    if not any(map(is_misread, fields)):
        return schema
    repaired = []
    while fields:
        field = fields.pop(0)
        repaired.append(field)
        del fields[: DESCRIPTOR_V2.num_fields * _count_misread(field)]
    return pa.schema(repaired, schema.metadata)


def is_misread(field: pa.Field) -> bool:
    """Return whether the codec misreads this column of a file and the columns after it."""
    return _count_misread(field) > 0


def _count_misread(field: pa.Field) -> int:
    """Return how many blob v2 fields a column contains, itself included."""
    if _is_blob_v2(field):
        return 1
    return sum(_count_misread(field.type.field(number)) for number in range(field.type.num_fields))


def _is_blob_v2(field: pa.Field) -> bool:
    is_empty = pa.types.is_struct(field.type) and not field.type.num_fields
    return bool(is_empty and (field.metadata or {}).get(b"lance-encoding:blob") == b"true")


def build_view(
    read: ReadBytes,
    *,
    size: int,
    rows: int,
    schema: pa.Schema,
    names: Sequence[str],
    pages: Callable[[int], Iterable[Span]],
    describe: bool,
    path: str,
) -> FileView:
    """Build a view of top-level columns of a file with this (repaired) schema. `pages` returns the spans of the
    buffers of a column by its number."""
    if size < _FOOTER.size:
        raise Corrupt(f"a file of {size} bytes is too small to be a data file", path=path, field="footer")
    *_, offsets, _buffers, _count, columns, major, minor, magic = _FOOTER.unpack(
        read(size - _FOOTER.size, _FOOTER.size)
    )
    version = StorageVersion.of_file(major, minor)
    file_schema = TableSchema.from_arrow(schema, is_stored=True)
    first_column = _first_columns(file_schema, version)
    numbers = [
        number
        for name in names
        for number in range(
            first_column[name],
            first_column[name] + len(columns_of(_single_column(file_schema, name), version).field_ids),
        )
    ]
    if magic != _MAGIC or max(numbers, default=0) >= columns or offsets + columns * _SPAN.size > size:
        raise Corrupt(f"has no columns {', '.join(names)}", path=path, field="footer")
    metadata = []
    for number in numbers:
        position, length = _SPAN.unpack(read(offsets + number * _SPAN.size, _SPAN.size))
        if position + length > size:
            raise Corrupt(f"the metadata of column {number} is outside the file", path=path, field="footer")
        metadata.append(read(position, length))
    copied = [(start, read(start, count)) for number in numbers for start, count in pages(number) if count]
    fields = [_view_field(file_schema.field(name), schema.field(name), describe=describe) for name in names]
    tail_position = -(-size // _ALIGNMENT) * _ALIGNMENT
    tail = _encode_tail(
        tail_position,
        TableSchema.from_arrow(pa.schema(fields), is_stored=True),
        rows,
        metadata,
        version_stamp=(major, minor),
    )
    return FileView((*copied, (tail_position, tail)))


def _first_columns(schema: TableSchema, version: StorageVersion) -> dict[str, int]:
    first_column, number = {}, 0
    for field in schema.fields:
        first_column[field.name] = number
        number += len(columns_of(TableSchema((field,), {}), version).field_ids)
    return first_column


def _single_column(schema: TableSchema, name: str) -> TableSchema:
    return TableSchema((schema.field(name),), {})


def _view_field(field: Field, arrow: pa.Field, *, describe: bool) -> pa.Field:
    if _is_blob_v2(arrow):
        return pa.field(arrow.name, DESCRIPTOR_V2, metadata=_BLOB | _PACKED)
    if describe and is_blob(field):
        return pa.field(arrow.name, DESCRIPTOR_V1, metadata=_BLOB)
    return arrow


def _encode_tail(
    position: int, schema: TableSchema, rows: int, metadata: Sequence[bytes], *, version_stamp: tuple[int, int]
) -> bytes:
    descriptor = schema.as_file_descriptor(rows)
    metadata_position = position + len(descriptor)
    spans, end = [], metadata_position
    for column in metadata:
        spans.append(_SPAN.pack(end, len(column)))
        end += len(column)
    buffers_position = end + len(spans) * _SPAN.size
    footer = _FOOTER.pack(metadata_position, end, buffers_position, 1, len(spans), *version_stamp, _MAGIC)
    return b"".join([descriptor, *metadata, *spans, _SPAN.pack(position, len(descriptor)), footer])
