"""The columns that a reader asked for: columns of the table, paths into its structs (`s.x`), and those that every table
has besides. Pure: names and a schema in, what to read and how to show it out.

A path comes back as a column of that name, null where a struct on its way is. Only the children on the way are read.
Names may stand in back-ticks, as they must where a name with dots in it could be taken for a path.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.data.blob_view import described
from lance_core.data.layout import is_blob
from lance_core.errors import InvalidInput
from lance_core.expressions import METADATA_COLUMNS, with_metadata_columns
from lance_core.format.field_paths import unknown
from lance_core.format.fragment import StorageVersion
from lance_core.format.manifest import Manifest
from lance_core.format.schema import Field, TableSchema

Path = tuple[str, ...]
_FIRST_WITH_NULL_BLOBS = StorageVersion(2, 1)


@dataclass(frozen=True, slots=True)
class Column:
    arrow: pa.Field
    """As it comes back, under the name that was asked for."""
    path: Path
    """From a top-level column down to it."""
    is_stored: bool = True
    """Not one of those that every table has besides."""

    @property
    def name(self) -> str:
        return str(self.arrow.name)

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        array = batch.column(self.path[0])
        return pc.struct_field(array, list(self.path[1:])) if len(self.path) > 1 else array


def resolved(
    schema: TableSchema, names: Sequence[str] | None, *, also: Iterable[str] = (), describe_blobs: bool = True
) -> tuple[Column, ...]:
    """All of the table's columns where none are named. `also` come last, where they are not among the names."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names or ()):
        raise InvalidInput(f"columns={names!r}: it is a list of names, such as ['id', 'address.city']")
    arrow = described(schema) if describe_blobs else schema.arrow
    asked = list(schema.arrow.names if names is None else names)
    asked += [name for name in also if name not in asked]
    if len(set(asked)) != len(asked):
        raise InvalidInput(f"a column is named twice in {asked}")
    return tuple(_resolved(schema, arrow, name) for name in asked)


def conditional(manifest: Manifest) -> pa.Schema:
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


def pruned(schema: TableSchema, columns: Iterable[Column]) -> TableSchema:
    """The fields to read for these columns: of structs only the children that are asked for."""
    paths: dict[str, list[Path]] = {}
    for column in columns:
        if column.is_stored:
            paths.setdefault(column.path[0], []).append(column.path[1:])
    return TableSchema(tuple(_pruned(schema.field(top), below) for top, below in paths.items()), schema.metadata)


def unknown_column(name: str, names: Sequence[str]) -> InvalidInput:
    return InvalidInput(unknown(name, names))


def _resolved(schema: TableSchema, arrow: pa.Schema, name: str) -> Column:
    names = arrow.names
    if name in names:
        return Column(arrow.field(name), (name,))
    if name in METADATA_COLUMNS.names:
        return Column(METADATA_COLUMNS.field(name), (name,), is_stored=False)
    top, rest = _top_of(schema, name)
    if top is None:
        raise unknown_column(name, names)
    if rest is None:
        return Column(arrow.field(top.name).with_name(name), (top.name,))
    routes = list(_descended(top, arrow.field(top.name), rest))
    # Where names of children have dots in them, what is written without back-ticks means none of those.
    plain = [route for route in routes if "`" in rest or not any("." in each for each in route[0])] or routes
    if not plain:
        raise unknown_column(name, [f"{top.name}.{path}" for path in _below(top)] or names)
    if len(plain) > 1:
        quoted = " or ".join(repr(".".join([top.name, *map(_quoted, path)])) for path, _ in plain)
        raise InvalidInput(f"column {name!r} could be either of several; write {quoted}")
    path, below = plain[0]
    return Column(below.with_name(name).with_nullable(True), (top.name, *path))


def _top_of(schema: TableSchema, name: str) -> tuple[Field | None, str | None]:
    """The top-level column that a name begins with, and what follows it."""
    for top in schema.fields:
        for spelt in (top.name, f"`{top.name}`"):
            if name == spelt:
                return top, None
            if name.startswith(f"{spelt}."):
                return top, name.removeprefix(f"{spelt}.")
    return None, None


def _quoted(name: str) -> str:
    return f"`{name}`" if "." in name else name


def _descended(field: Field, arrow: pa.Field, rest: str) -> Iterator[tuple[Path, pa.Field]]:
    """Every way that leads somewhere: the names of children may have dots in them."""
    if not _is_open(field):
        return
    for child, child_arrow in zip(field.children, arrow.type, strict=True):
        for spelt in (child.name, f"`{child.name}`"):
            if rest == spelt:
                yield (child.name,), child_arrow
            elif rest.startswith(f"{spelt}."):
                for path, found in _descended(child, child_arrow, rest.removeprefix(f"{spelt}.")):
                    yield (child.name, *path), found


def _below(field: Field) -> Iterator[str]:
    if _is_open(field):
        for child in field.children:
            yield child.name
            yield from (f"{child.name}.{path}" for path in _below(child))


def _is_open(field: Field) -> bool:
    return field.logical_type == "struct" and not is_blob(field)


def _pruned(field: Field, paths: Sequence[Path]) -> Field:
    if () in paths or field.is_packed:
        return field
    below: dict[str, list[Path]] = {}
    for first, *rest in paths:
        below.setdefault(first, []).append(tuple(rest))
    kept = (_pruned(child, below[child.name]) for child in field.children if child.name in below)
    return replace(field, children=tuple(kept))
