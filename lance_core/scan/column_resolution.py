"""The columns that a reader asked for: columns of the table, paths into its structs (`s.x`), and those that every table
has besides. Pure: names and a schema in, what to read and how to show it out.

A path comes back as a column of that name, null where a struct on its way is. Only the children on the way are read.
How a path is written is told in `format/field_paths.py`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.datafiles.blob_view import described
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
    arrow: pa.Field
    """As it comes back, under the name that was asked for."""
    path: Path
    """From a top-level column down to it."""
    is_stored: bool = True
    """Not one of those that every table has besides."""

    @property
    def name(self) -> str:
        return str(self.arrow.name)

    def extract_from(self, batch: pa.RecordBatch) -> pa.Array:
        array = batch.column(self.path[0])
        return pc.struct_field(array, list(self.path[1:])) if len(self.path) > 1 else array


def resolve_columns(
    schema: TableSchema, names: Sequence[str] | None, *, also: Iterable[str] = (), describe_blobs: bool = True
) -> tuple[ResolvedColumn, ...]:
    """All of the table's columns where none are named. `also` come last, where they are not among the names."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names or ()):
        raise InvalidInput(f"columns={names!r}: it is a list of names, such as ['id', 'address.city']")
    arrow = described(schema) if describe_blobs else schema.arrow
    asked = list(schema.arrow.names if names is None else names)
    asked += [name for name in also if name not in asked]
    if len(set(asked)) != len(asked):
        raise InvalidInput(f"a column is named twice in {asked}")
    return tuple(_resolve_column(schema, arrow, name) for name in asked)


def filterable_schema(manifest: Manifest) -> pa.Schema:
    """What a condition on rows may read. Of a blob that is where it is, and whether it is null; where files do not tell
    that, conditions do without (`check_condition`)."""
    return with_metadata_columns(described(manifest.schema))


def check_condition(manifest: Manifest, columns: Iterable[str], *, what: str) -> None:
    told = manifest.storage_version >= _FIRST_WITH_NULL_BLOBS
    for name in columns if not told else ():
        if any(field.name == name and is_blob(field) for field in manifest.schema.fields):
            raise InvalidInput(
                f"{what} reads {name!r}, a blob column, and files of storage version {manifest.storage_version} do not "
                "tell a null there from a blob without bytes; use the other columns"
            )


def prune_schema(schema: TableSchema, columns: Iterable[ResolvedColumn]) -> TableSchema:
    """The fields to read for these columns: of structs only the children that are asked for."""
    paths: dict[str, list[Path]] = {}
    for column in columns:
        if column.is_stored:
            paths.setdefault(column.path[0], []).append(column.path[1:])
    if all(() in below for below in paths.values()):
        return schema.select(paths)
    return TableSchema(tuple(_prune_field(schema.field(top), below) for top, below in paths.items()), schema.metadata)


def unknown_column_error(name: str, names: Sequence[str]) -> InvalidInput:
    return InvalidInput(unknown_column_message(name, names))


def _resolve_column(schema: TableSchema, arrow: pa.Schema, name: str) -> ResolvedColumn:
    names = arrow.names
    if name in names:
        return ResolvedColumn(arrow.field(name), (name,))
    if name in METADATA_COLUMNS.names:
        return ResolvedColumn(METADATA_COLUMNS.field(name), (name,), is_stored=False)
    top, *below = find_field(schema, name, can_enter=_is_struct)
    found, parent = arrow.field(top.name), top
    for child in below:
        found, parent = found.type.field(parent.children.index(child)), child
    if below:
        found = found.with_nullable(True)
    return ResolvedColumn(found.with_name(name), (top.name, *(child.name for child in below)))


def _is_struct(field: Field) -> bool:
    return field.logical_type == "struct" and not is_blob(field)


def _prune_field(field: Field, paths: Sequence[Path]) -> Field:
    if () in paths or field.is_packed:
        return field
    below: dict[str, list[Path]] = {}
    for first, *rest in paths:
        below.setdefault(first, []).append(tuple(rest))
    kept = (_prune_field(child, below[child.name]) for child in field.children if child.name in below)
    return replace(field, children=tuple(kept))
