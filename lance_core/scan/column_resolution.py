"""Column resolution: maps requested names to columns of the table, paths into its structs (`s.x`) and system columns.
Pure: names and a schema in, the columns to read and to return out.

A path is returned as a column of that name; it is null where a struct on the path is null. Only the children on the
path are read. `format/field_paths.py` defines how a path is written. Start with `resolve_columns`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.datafiles.blob_view import descriptor_schema
from lance_core.datafiles.column_layout import is_blob
from lance_core.errors import InvalidInput
from lance_core.expressions import METADATA_COLUMNS, with_metadata_columns
from lance_core.format.field_paths import find_field, unknown_column_message
from lance_core.format.fragment import StorageVersion
from lance_core.format.manifest import Manifest
from lance_core.format.schema import Field, TableSchema

Path = tuple[str, ...]
_FIRST_WITH_NULL_BLOBS = StorageVersion(2, 1)


@dataclass(frozen=True, slots=True)
class ResolvedColumn:
    """One requested column."""

    arrow: pa.Field
    """Field of the result, under the requested name."""
    path: Path
    """Names from a top-level column down to the requested field."""
    is_stored: bool = True
    """`False` for a system column."""

    @property
    def name(self) -> str:
        return str(self.arrow.name)

    def extract_from(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the values of the column from a batch of top-level columns."""
        array = batch.column(self.path[0])
        return pc.struct_field(array, list(self.path[1:])) if len(self.path) > 1 else array


def resolve_columns(
    schema: TableSchema, names: Sequence[str] | None, *, also: Iterable[str] = (), describe_blobs: bool = True
) -> tuple[ResolvedColumn, ...]:
    """Resolve names, or all columns of the table if `names` is `None`. Columns in `also` come last, unless they are
    already requested."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names or ()):
        raise InvalidInput(f"columns={names!r} must be a list of names, such as ['id', 'address.city']")
    arrow = descriptor_schema(schema) if describe_blobs else schema.arrow
    requested = list(schema.arrow.names if names is None else names)
    requested += [name for name in also if name not in requested]
    if len(set(requested)) != len(requested):
        raise InvalidInput(f"columns= names a column twice: {requested}")
    top_level = frozenset(arrow.names)
    return tuple(
        ResolvedColumn(arrow.field(name), (name,)) if name in top_level else _resolve_other(schema, arrow, name)
        for name in requested
    )


def filterable_schema(manifest: Manifest) -> pa.Schema:
    """Return the columns that a filter may read. A filter can read the location of a blob, and whether it is null.
    Older files do not record the latter, and `check_condition` then rejects such filters."""
    return with_metadata_columns(descriptor_schema(manifest.schema))


def check_condition(manifest: Manifest, columns: Iterable[str], *, what: str) -> None:
    """Raise `InvalidInput` if a filter reads blob columns of files that cannot tell a null from an empty blob."""
    records_nulls = manifest.storage_version >= _FIRST_WITH_NULL_BLOBS
    for name in columns if not records_nulls else ():
        if any(field.name == name and is_blob(field) for field in manifest.schema.fields):
            raise InvalidInput(
                f"{what} reads {name!r}, a blob column, and files of storage version {manifest.storage_version} do not "
                "distinguish a null from an empty blob; filter by other columns"
            )


def prune_schema(schema: TableSchema, columns: Iterable[ResolvedColumn]) -> TableSchema:
    """Return the fields to read for these columns; of structs, only the requested children."""
    paths: dict[str, list[Path]] = {}
    for column in columns:
        if column.is_stored:
            paths.setdefault(column.path[0], []).append(column.path[1:])
    if all(() in below for below in paths.values()):
        return schema.select(paths)
    return TableSchema(tuple(_prune_field(schema.field(top), below) for top, below in paths.items()), schema.metadata)


def unknown_column_error(name: str, names: Sequence[str]) -> InvalidInput:
    return InvalidInput(unknown_column_message(name, names))


def _resolve_other(schema: TableSchema, arrow: pa.Schema, name: str) -> ResolvedColumn:
    """Resolve a name that is not the one of a top-level column."""
    if name in METADATA_COLUMNS.names:
        return ResolvedColumn(METADATA_COLUMNS.field(name), (name,), is_stored=False)
    top, *below = find_field(schema, name, can_enter=_is_struct)
    arrow_field, parent = arrow.field(top.name), top
    for child in below:
        arrow_field, parent = arrow_field.type.field(parent.children.index(child)), child
    if below:
        arrow_field = arrow_field.with_nullable(True)
    return ResolvedColumn(arrow_field.with_name(name), (top.name, *(child.name for child in below)))


def _is_struct(field: Field) -> bool:
    return field.logical_type == "struct" and not is_blob(field)


def _prune_field(field: Field, paths: Sequence[Path]) -> Field:
    if () in paths or field.is_packed:
        return field
    below: dict[str, list[Path]] = {}
    for first, *rest in paths:
        below.setdefault(first, []).append(tuple(rest))
    children = (_prune_field(child, below[child.name]) for child in field.children if child.name in below)
    return replace(field, children=tuple(children))
