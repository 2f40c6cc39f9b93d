"""Blob columns: how a table declares them, and the forms in which a caller may pass them.

Up to storage version 2.1 a blob column has binary values and metadata that marks them as blobs (v1). From 2.2 on it is
a struct with the bytes of a blob, or with a reference to a file outside the table (v2). In both cases a caller may
pass bytes. Start with `stored_schema` for the declaration, and with `to_stored` for rows; `blob_files.py` then decides
where the blobs go.
"""

from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.datafiles.blob_files import V2, is_blob_v2
from lance_core.datafiles.blob_locations import BASE_REFERENCE
from lance_core.datafiles.column_layout import is_blob
from lance_core.errors import InvalidInput, Unsupported
from lance_core.format.fragment import StorageVersion
from lance_core.format.logical_types import EXTENSION_NAME
from lance_core.format.schema import Field, TableSchema
from lance_core.storage.factory import without_secrets

_FIRST_WITH_V2 = StorageVersion(2, 2)
_V1 = b"lance-encoding:blob"
_STORED_TYPE = pa.struct([("data", pa.large_binary()), ("uri", pa.string())])
_INPUT_CHILDREN = ("data", "uri", "position", "size")


def stored_schema(schema: pa.Schema, version: StorageVersion) -> pa.Schema:
    """Return the schema that a new table stores: from 2.2 on, a column whose metadata marks its bytes as blobs
    becomes a struct."""
    fields = [_stored_field(field, version) for field in schema]
    return pa.schema(fields, schema.metadata)


def _stored_field(field: pa.Field, version: StorageVersion) -> pa.Field:
    metadata = dict(field.metadata or {})
    is_v1 = metadata.get(_V1) == b"true"
    if not (is_v1 or is_blob_v2(field)):
        return field
    if version < _FIRST_WITH_V2:
        if is_v1 and pa.types.is_large_binary(field.type):
            return field
        raise InvalidInput(
            f"column {field.name!r}: at storage version {version} a blob column is large_binary with the metadata "
            f"lance-encoding:blob=true; blob structs need storage version {_FIRST_WITH_V2}"
        )
    if is_v1 and not (pa.types.is_large_binary(field.type) or pa.types.is_binary(field.type)):
        raise InvalidInput(
            f"the metadata of column {field.name!r} marks it as a blob column, but its type is {field.type}; "
            "make it large_binary"
        )
    if not is_v1:
        return field
    metadata.pop(_V1)
    return pa.field(field.name, _STORED_TYPE, field.nullable, metadata | {EXTENSION_NAME: V2})


def schema_to_stored(input_schema: pa.Schema, schema: TableSchema) -> pa.Schema:
    """Return the schema that rows with `input_schema` have after `to_stored`."""
    fields = []
    blobs = {field.name: field for field in schema.fields if _is_blob_v2(field)}
    for field in input_schema:
        blob = blobs.get(field.name)
        fields.append(
            pa.field(field.name, blob.arrow().type, field.nullable) if blob and _accepts(field.type) else field
        )
    return pa.schema(fields, input_schema.metadata)


def _is_blob_v2(field: Field) -> bool:
    return is_blob(field) and bool(field.children)


def _accepts(arrow: pa.DataType) -> bool:
    """Return whether a column of this type can be converted to blobs v2."""
    if isinstance(arrow, pa.BaseExtensionType):
        arrow = arrow.storage_type
    is_struct = pa.types.is_struct(arrow) and arrow.get_field_index("data") >= 0
    return bool(is_struct or pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow))


def to_stored(batches: Iterable[pa.RecordBatch], schema: TableSchema) -> Iterator[pa.RecordBatch]:
    """Convert blob columns that a caller may pass as bytes to structs, if the table stores blobs v2."""
    columns = {field.name: field.arrow().type for field in schema.fields if _is_blob_v2(field)}
    return (_batch_to_stored(batch, columns) for batch in batches) if columns else iter(batches)


def _batch_to_stored(batch: pa.RecordBatch, columns: dict[str, pa.StructType]) -> pa.RecordBatch:
    arrays, fields = [], []
    for field, array in zip(batch.schema, batch.columns, strict=True):
        if field.name in columns:
            array = _to_struct(array, columns[field.name], field.name)
            field = pa.field(field.name, array.type, field.nullable)
        arrays.append(array)
        fields.append(field)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, batch.schema.metadata))


def _to_struct(array: pa.Array, target: pa.StructType, name: str) -> pa.Array:
    stored = array.storage if isinstance(array, pa.ExtensionArray) else array
    if pa.types.is_binary(stored.type) or pa.types.is_large_binary(stored.type):
        data, mask = stored.cast(pa.large_binary()), stored.is_null() if stored.null_count else None
        children = [data if child.name == "data" else pa.nulls(len(data), child.type) for child in target]
        return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)
    if not _accepts(stored.type):
        return array
    children_by_name = {child.name: stored.field(number) for number, child in enumerate(stored.type)}
    check_references(children_by_name, stored, target, name)
    children = [
        children_by_name[child.name].cast(child.type) if child.name in children_by_name else _null_child(stored, child)
        for child in target
    ]
    return pa.StructArray.from_arrays(children, fields=list(target), mask=_null_mask(stored))


def check_references(
    children: Mapping[str, pa.Array], structs: pa.StructArray, target: pa.StructType, name: str
) -> None:
    """Check that each blob has either its bytes or a reference to a file outside the table, and that a reference to a
    part of a file is one that the column can store."""
    unknown = [child for child in children if child not in _INPUT_CHILDREN]
    if unknown:
        raise InvalidInput(
            f"column {name!r} is a blob column, whose struct has no child {unknown[0]!r}; pass data or a uri"
        )
    valid = structs.is_valid()
    has = {child: pc.and_(array.is_valid(), valid) for child, array in children.items()}
    uri = has.get("uri", pa.array([False] * len(structs), pa.bool_()))
    if pc.any(pc.and_(valid, pc.equal(has["data"], uri))).as_py():
        raise InvalidInput(
            f"column {name!r} has a blob with neither data nor a uri, or with both; for a null, make the struct null"
        )
    for child in ("position", "size"):
        if child in has and not has[child].equals(has.get("size" if child == "position" else "position", uri)):
            raise InvalidInput(f"column {name!r} has a blob with only one of position and size; pass both, or neither")
        if child in has and pc.any(pc.and_(has[child], pc.invert(uri))).as_py():
            raise InvalidInput(
                f"column {name!r} has a blob with data and a {child}; a {child} belongs to a file that a uri names"
            )
        if child in has and pc.any(has[child]).as_py() and target.get_field_index(child) < 0:
            raise Unsupported(
                f"column {name!r} has no {child}, so it cannot refer to a part of a file; refer to the whole file, or "
                "pass the bytes"
            )
    for text in pc.filter(children["uri"], uri).unique().to_pylist() if pc.any(uri).as_py() else ():
        _check_uri(text, name)


def _check_uri(uri: str, name: str) -> None:
    """Check the form of a reference. The file need not exist, and the location need not be allowed: the reader of the
    blob decides which locations it may open."""
    scheme, separator, rest = uri.partition("://")
    base = BASE_REFERENCE.fullmatch(uri)
    parts = (base[2] if base else unquote(rest.partition("?")[0])).split("/")
    if not (base or (separator and scheme)) or "\0" in uri or "\\" in uri or ".." in parts or not parts[-1]:
        raise InvalidInput(
            f"column {name!r} refers to {without_secrets(uri)!r}; a blob outside the table needs the absolute URI of a "
            "file, without '..', such as file:///data/film.mp4"
        )


def _null_child(array: pa.Array, child: pa.Field) -> pa.Array:
    return pa.nulls(len(array), child.type)


def _null_mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None
