"""The columns that a reader asked for: columns of the table, paths into its structs (`s.x`), and those that every table
has besides. Pure: names and a schema in, what to read and how to show it out.

A path comes back as a column of that name, null where a struct on its way is. Only the children on the way are read.
"""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.data.blob_view import described
from lance_core.data.layout import is_blob
from lance_core.errors import InvalidInput
from lance_core.expressions import METADATA_COLUMNS
from lance_core.format.schema import Field, TableSchema

Path = tuple[str, ...]


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
    arrow = described(schema) if describe_blobs else schema.arrow
    asked = list(schema.arrow.names if names is None else names)
    asked += [name for name in also if name not in asked]
    if len(set(asked)) != len(asked):
        raise InvalidInput(f"a column is named twice in {asked}")
    return tuple(_resolved(schema, arrow, name) for name in asked)


def pruned(schema: TableSchema, columns: Iterable[Column]) -> TableSchema:
    """The fields to read for these columns: of structs only the children that are asked for."""
    paths: dict[str, list[Path]] = {}
    for column in columns:
        if column.is_stored:
            paths.setdefault(column.path[0], []).append(column.path[1:])
    return TableSchema(tuple(_pruned(schema.field(top), below) for top, below in paths.items()), schema.metadata)


def unknown_column(name: str, names: Sequence[str]) -> InvalidInput:
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names)}"
    return InvalidInput(f"there is no column {name!r}{hint}")


def _resolved(schema: TableSchema, arrow: pa.Schema, name: str) -> Column:
    names = arrow.names
    if name in names:
        return Column(arrow.field(name), (name,))
    if name in METADATA_COLUMNS.names:
        return Column(METADATA_COLUMNS.field(name), (name,), is_stored=False)
    for top in schema.fields:
        if name.startswith(f"{top.name}."):
            found = next(_descended(top, arrow.field(top.name), name.removeprefix(f"{top.name}.")), None)
            if found is None:
                raise unknown_column(name, [f"{top.name}.{path}" for path in _below(top)] or names)
            path, below = found
            return Column(below.with_name(name).with_nullable(True), (top.name, *path))
    raise unknown_column(name, names)


def _descended(field: Field, arrow: pa.Field, rest: str) -> Iterator[tuple[Path, pa.Field]]:
    """The names of children may have dots in them: whichever way leads somewhere."""
    if not _is_open(field):
        return
    for child, child_arrow in zip(field.children, arrow.type, strict=True):
        if rest == child.name:
            yield (child.name,), child_arrow
        elif rest.startswith(f"{child.name}."):
            for path, found in _descended(child, child_arrow, rest.removeprefix(f"{child.name}.")):
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
