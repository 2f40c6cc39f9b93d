"""Blob columns as tables declare them, and as callers hand them in.

Up to storage version 2.1 a blob column is binary values, and metadata that says what they are (v1). From 2.2 on it is a
struct of a blob's bytes, or of a reference to a file outside of the table (v2). Either way a caller may hand in bytes.
Start with `stored_schema` for what a table declares, with `as_stored` for rows; where their blobs then go is in
`blob_files.py`.
"""

from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.datafiles.blob_files import V2, is_v2
from lance_core.datafiles.blob_locations import BELOW_BASE
from lance_core.datafiles.column_layout import is_blob
from lance_core.errors import InvalidInput, Unsupported
from lance_core.format.fragment import StorageVersion
from lance_core.format.logical_types import EXTENSION_NAME
from lance_core.format.schema import Field, TableSchema
from lance_core.storage.factory import without_secrets

_FIRST_WITH_V2 = StorageVersion(2, 2)
_V1 = b"lance-encoding:blob"
_STORED = pa.struct([("data", pa.large_binary()), ("uri", pa.string())])
_GIVEN_NAMES = ("data", "uri", "position", "size")


def stored_schema(schema: pa.Schema, version: StorageVersion) -> pa.Schema:
    """What a new table declares, as it stores it: a column that says its bytes are blobs is a struct from 2.2 on."""
    fields = [_stored(field, version) for field in schema]
    return pa.schema(fields, schema.metadata)


def _stored(field: pa.Field, version: StorageVersion) -> pa.Field:
    metadata = dict(field.metadata or {})
    is_v1 = metadata.get(_V1) == b"true"
    if not (is_v1 or is_v2(field)):
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
    return pa.field(field.name, _STORED, field.nullable, metadata | {EXTENSION_NAME: V2})


def schema_as_stored(given: pa.Schema, schema: TableSchema) -> pa.Schema:
    """Of rows that were handed in, once they are `as_stored`."""
    fields = []
    for field in given:
        blob = next((each for each in schema.fields if each.name == field.name and _is_v2(each)), None)
        fields.append(pa.field(field.name, blob.arrow().type, field.nullable) if blob and _takes(field.type) else field)
    return pa.schema(fields, given.metadata)


def _is_v2(field: Field) -> bool:
    return is_blob(field) and bool(field.children)


def _takes(arrow: pa.DataType) -> bool:
    """Whether a column may be handed in for one of blobs of v2."""
    if isinstance(arrow, pa.BaseExtensionType):
        arrow = arrow.storage_type
    is_struct = pa.types.is_struct(arrow) and arrow.get_field_index("data") >= 0
    return bool(is_struct or pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow))


def as_stored(batches: Iterable[pa.RecordBatch], schema: TableSchema) -> Iterator[pa.RecordBatch]:
    """Batches whose blob columns may come as bytes, those of v2 as structs."""
    columns = {field.name: field.arrow().type for field in schema.fields if _is_v2(field)}
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
    if pa.types.is_binary(stored.type) or pa.types.is_large_binary(stored.type):
        data, mask = stored.cast(pa.large_binary()), stored.is_null() if stored.null_count else None
        children = [data if child.name == "data" else pa.nulls(len(data), child.type) for child in target]
        return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)
    if not _takes(stored.type):
        return array
    given = {child.name: stored.field(number) for number, child in enumerate(stored.type)}
    check_references(given, stored, target, name)
    children = [given[child.name].cast(child.type) if child.name in given else _none(stored, child) for child in target]
    return pa.StructArray.from_arrays(children, fields=list(target), mask=_mask(stored))


def check_references(given: Mapping[str, pa.Array], whole: pa.StructArray, target: pa.StructType, name: str) -> None:
    """A blob is its bytes, or refers to a file outside of the table; a part of it, where the column has room for it."""
    unknown = [child for child in given if child not in _GIVEN_NAMES]
    if unknown:
        raise InvalidInput(f"column {name!r} is of blobs, which have no {unknown[0]!r}; they have data or a uri")
    valid = whole.is_valid()
    has = {child: pc.and_(array.is_valid(), valid) for child, array in given.items()}
    uri = has.get("uri", pa.array([False] * len(whole), pa.bool_()))
    if pc.any(pc.and_(valid, pc.equal(has["data"], uri))).as_py():
        raise InvalidInput(f"column {name!r} has a blob with neither data nor a uri, or with both; a null is the whole")
    for child in ("position", "size"):
        if child in has and not has[child].equals(has.get("size" if child == "position" else "position", uri)):
            raise InvalidInput(f"column {name!r} has a blob with a position or a size alone; give both, or neither")
        if child in has and pc.any(pc.and_(has[child], pc.invert(uri))).as_py():
            raise InvalidInput(f"column {name!r} has a {child} beside data; it is of files that a uri names")
        if child in has and pc.any(has[child]).as_py() and target.get_field_index(child) < 0:
            raise Unsupported(
                f"column {name!r} has no {child}, so it cannot refer to a part of a file; refer to all of it, or hand "
                "in the bytes"
            )
    for text in pc.filter(given["uri"], uri).unique().to_pylist() if pc.any(uri).as_py() else ():
        _check_uri(text, name)


def _check_uri(uri: str, name: str) -> None:
    """Not whether it is there, nor whether it may be opened: whoever reads it says which places may be."""
    scheme, separator, rest = uri.partition("://")
    base = BELOW_BASE.fullmatch(uri)
    parts = (base[2] if base else unquote(rest.partition("?")[0])).split("/")
    if not (base or (separator and scheme)) or "\0" in uri or "\\" in uri or ".." in parts or not parts[-1]:
        raise InvalidInput(
            f"column {name!r} refers to {without_secrets(uri)!r}; a blob outside of the table has an absolute URI of a "
            "file, without steps upwards, as in file:///data/film.mp4"
        )


def _none(array: pa.Array, child: pa.Field) -> pa.Array:
    return pa.nulls(len(array), child.type)


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None
