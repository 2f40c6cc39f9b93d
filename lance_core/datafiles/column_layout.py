"""Column layout: which field is stored in which column of a data file. Pure: schema and storage version in, column
numbers and paths out.

From storage version 2.1 on, a file has one column for each leaf field, depth first. Parents have no column unless they
are stored as a leaf (a packed struct, a struct without children). In 2.0 every field has a column. Column names belong
to the file: a column that was renamed since is found by its position.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lance_core.errors import Corrupt, Unsupported
from lance_core.format.fragment import DataFile, StorageVersion
from lance_core.format.logical_types import EXTENSION_NAME
from lance_core.format.schema import Field, TableSchema

_FIRST_WITH_COLUMNS = StorageVersion(2, 0)
_FIRST_WITH_LEAF_COLUMNS = StorageVersion(2, 1)
_FIRST_WITH_MAPS = StorageVersion(2, 2)
_FIRST_WITH_BLOB_FILES = StorageVersion(2, 2)
_LISTS = ("list", "list.struct", "large_list", "large_list.struct", "map")
_AMBIGUOUS_IDS = (
    "Releases near 0.10 renumbered the columns of an append if columns had been dropped before, so the fields cannot "
    "be identified: read the version before that append"
)
_TEXTS = ("string", "large_string", "binary", "large_binary")
_BLOB = b"lance-encoding:blob"
_EMPTY_BINARY = "fixed_size_binary:0"
_PLAIN_TYPES = frozenset(("bool", "int8", "int16", "int32", "int64", "float", "double", "string", "date32:day"))
"""Common types of columns that every storage version stores, if they have no metadata."""
_WITH_EMPTY_BINARY = StorageVersion(2, 2)
"""The only version whose codec stores values of no bytes; those of 2.0, 2.1 and 2.3 cannot read or write them."""
_WRITABLE = (StorageVersion(2, 0), StorageVersion(2, 1), StorageVersion(2, 2), StorageVersion(2, 3))


@dataclass(frozen=True, slots=True)
class FileColumns:
    """Field ids and column numbers in parallel, as a `DataFile` lists them."""

    field_ids: tuple[int, ...]
    column_indices: tuple[int, ...]


def columns_of(schema: TableSchema, version: StorageVersion) -> FileColumns:
    """Return the columns of a file that stores all of `schema`, in its order."""
    ids: list[int] = []
    for top in schema.fields:
        ids += (field.id for field in _stored_fields(top, version)) if top.children else (top.id,)
    return FileColumns(tuple(ids), tuple(range(len(ids))))


def stored_ids(field: Field, version: StorageVersion) -> frozenset[int]:
    """Return the ids under which a file lists this field: its leaves or, in 2.0, all of its nodes."""
    return frozenset(stored.id for stored in _stored_fields(field, version))


Path = tuple[str, ...]
"""Names from a top-level column of a file down to one of its nodes."""


def paths_of(file: DataFile, schema: TableSchema) -> dict[int, Path]:
    """Return the path inside the file for each field id of the table. `schema` is the schema of the file itself."""
    by_column = [path for top in schema.fields for _field, path in stored_with_paths(top, (), file.version)]
    last = max(file.column_indices, default=-1)
    texts = any(node.logical_type in _TEXTS for top in schema.fields for node in top.walk())
    if last >= len(by_column) and texts and file.version == _FIRST_WITH_COLUMNS:
        raise Unsupported(
            f"{file.path} was written in a draft of storage version {file.version}, by a release near 0.12 that gave "
            "every string two columns; rewrite the table with a release that can read it"
        )
    if last >= len(by_column):
        raise Corrupt(f"has no column {last}, although its fragment refers to it", path=file.path, field="fields")
    _check_empty_binary(schema, file.version)
    pairs = zip(file.field_ids, file.column_indices, strict=True)
    return {field_id: by_column[column] for field_id, column in pairs if field_id >= 0 and column >= 0}


def legacy_paths_of(file: DataFile, own: TableSchema, table: TableSchema) -> dict[int, Path]:
    """Return the same for a file of format 0.1, which lists all nodes of the schema that it contains (`own`), and no
    column numbers.

    If file and table use the same ids, the ids identify the fields. If the table renumbered its fields since, their
    order does, parents before children.
    """
    nodes = [(node, path) for top in own.fields for node, path in _walk_with_paths(top, ())]
    by_id = {node.id: (node, path) for node, path in nodes}
    listed = [field_id for field_id in file.field_ids if field_id >= 0]
    if not by_id.keys() >= set(listed):
        if len(nodes) != len(file.field_ids):
            raise Corrupt(
                f"contains {len(nodes)} fields, but the manifest lists {len(file.field_ids)}, under other ids",
                path=file.path,
                field="fields",
            )
        by_id = dict(zip(file.field_ids, nodes, strict=True))
    for node in (node for top in table.fields for node in top.walk() if node.id in listed):
        stored = by_id[node.id][0]
        if not _has_same_type(stored, node):
            raise Unsupported(
                f"{file.path} stores {stored.name!r}, a {stored.logical_type}, as field {node.id}, but in the table "
                f"that field is {node.name!r}, a {node.logical_type}. {_AMBIGUOUS_IDS}"
            )
    return {field_id: by_id[field_id][1] for field_id in listed}


def check_legacy_ids(files: Sequence[DataFile], schema: TableSchema) -> None:
    """Check that a fragment of format 0.1 stores every field of its table. A fragment that does not was
    numbered incorrectly."""
    stored = {field_id for file in files for field_id in file.field_ids}
    for node in (node for top in schema.fields for node in top.walk()):
        if node.id not in stored:
            raise Unsupported(
                f"the fragment of {files[0].path} has no field {node.id}, {node.name!r}. {_AMBIGUOUS_IDS}"
            )


def check_storable(schema: TableSchema, version: StorageVersion) -> None:
    """Reject, before any byte is written, what the file format of this version cannot store."""
    if version not in _WRITABLE:
        known = ", ".join(map(str, _WRITABLE))
        raise Unsupported(f"data files of storage version {version} cannot be written; choose one of {known}")
    _check_empty_binary(schema, version)
    for top in schema.fields:
        if top.metadata or top.logical_type not in _PLAIN_TYPES:
            _check_column_storable(top, version)


def _check_column_storable(top: Field, version: StorageVersion) -> None:
    for field in top.walk():
        if is_blob(field) and field is not top:
            raise Unsupported(f"column {top.name!r} contains blobs; only a top-level column can be a blob column")
        if is_blob(field) and bool(field.children) != (version >= _FIRST_WITH_BLOB_FILES):
            raise Unsupported(
                f"column {top.name!r} is a blob column in a form that storage version {version} cannot store"
            )
        of_structs = field.logical_type.startswith("fixed_size_list:struct")
        if (field.logical_type == "map" or of_structs) and version < _FIRST_WITH_MAPS:
            raise Unsupported(
                f"column {top.name!r} holds a {field.logical_type.partition(':')[0]} that storage version "
                f"{version} cannot store; {_FIRST_WITH_MAPS} can"
            )
        if of_structs and (field is not top or any(node.logical_type in _LISTS for node in field.walk())):
            raise Unsupported(
                f"column {top.name!r} nests a fixed-size list of structs in a struct or a list, or lists in "
                "it, which could be written but not read back; use lists of variable size"
            )


def _check_empty_binary(schema: TableSchema, version: StorageVersion) -> None:
    for top in schema.fields if version != _WITH_EMPTY_BINARY else ():
        if any(node.logical_type == _EMPTY_BINARY for node in top.walk()):
            raise Unsupported(
                f"column {top.name!r} holds binary values of no bytes, which only storage version {_WITH_EMPTY_BINARY} "
                "can store"
            )


def is_blob(field: Field) -> bool:
    return field.metadata.get(EXTENSION_NAME) == b"lance.blob.v2" or field.metadata.get(_BLOB) == b"true"


def _stored_fields(field: Field, version: StorageVersion) -> Iterator[Field]:
    return (stored for stored, _path in stored_with_paths(field, (), version))


def stored_with_paths(field: Field, above: Path, version: StorageVersion) -> Iterator[tuple[Field, Path]]:
    """Yield the fields that a file stores of a field in columns of their own, with their paths below `above`."""
    path = (*above, field.name)
    is_leaf = not field.children or field.is_packed or is_blob(field)
    if is_leaf or version < _FIRST_WITH_LEAF_COLUMNS:
        yield field, path
    if not is_leaf:
        for child in field.children:
            yield from stored_with_paths(child, path, version)


def _walk_with_paths(field: Field, above: Path) -> Iterator[tuple[Field, Path]]:
    path = (*above, field.name)
    yield field, path
    for child in field.children:
        yield from _walk_with_paths(child, path)


def _has_same_type(one: Field, other: Field) -> bool:
    """Return whether two fields have the same type, whatever name the type had when they were written."""
    if one.children or other.children:
        return one.logical_type.partition(".")[0] == other.logical_type.partition(".")[0]
    return one.logical_type == other.logical_type or one.arrow().type == other.arrow().type
