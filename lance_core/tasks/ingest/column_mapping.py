"""Columns of a source file as columns of the table: by name, renamed where the caller says so, from within structs too.

Nothing is converted here: what comes out has the table's names and the file's types (`row_conversion.py` goes on).
Start with `ColumnMapper`.
"""

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import SchemaMismatch
from lance_core.format.schema import TableSchema
from lance_core.tasks.ingest.formats import ReadOptions


class ColumnMapper:
    """For one file."""

    def __init__(self, schema: TableSchema, reading: ReadOptions, *, uri: str) -> None:
        self._arrow = schema.arrow
        self._mapping = dict(reading.mapping)
        self._drops = reading.drops_extra
        self._uri = uri

    def columns_to_read(self, names: list[str]) -> list[str]:
        """The source's columns, of those with these names, that are read at all."""
        if not self._drops:
            return names
        tops = {_top(source, names) for source in self._sources()}
        return [name for name in names if name in tops]

    def _sources(self) -> Iterator[str]:
        for field in self._arrow:
            yield from self._sources_of(field.name, field.type)

    def _sources_of(self, path: str, arrow: pa.DataType) -> Iterator[str]:
        if path in self._mapping:
            yield self._mapping[path]
            return
        yield path
        if self._is_rebuilt(path) and pa.types.is_struct(arrow):
            for child in arrow:
                yield from self._sources_of(f"{path}.{child.name}", child.type)

    def map_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The table's columns as far as the file has them."""
        if len(set(batch.schema.names)) != len(batch.schema.names):
            twice = next(name for name in batch.schema.names if batch.schema.names.count(name) > 1)
            raise self._misfit(twice, "one column", "two columns", f"has two columns named {twice!r}")
        used: set[str] = set()
        arrays, names = [], []
        for field in self._arrow:
            array = self._value(batch, field.name, field.name, field.type, used)
            if array is not None:
                arrays.append(self._pruned(array, field.type) if self._drops else array)
                names.append(field.name)
            elif not field.nullable:
                told = f"has no column {field.name!r}, which is not nullable in the table"
                raise self._misfit(field.name, str(field.type), "nothing", told)
        extra = [name for name in batch.schema.names if name not in used]
        if extra and not self._drops:
            many = ", ".join(map(repr, extra))
            told = (
                f"has columns that the table does not have: {many}. Add them to the table, say with mapping= which "
                "columns they are, or leave them out with extra='drop'"
            )
            raise self._misfit(extra[0], "no such column", str(batch.schema.field(extra[0]).type), told)
        if not arrays:
            told = f"has none of the table's columns, which are {', '.join(self._arrow.names)}"
            raise self._misfit("", ", ".join(self._arrow.names), "nothing", told)
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def _is_rebuilt(self, path: str) -> bool:
        return any(column.startswith(f"{path}.") for column in self._mapping)

    def _value(
        self, batch: pa.RecordBatch, path: str, source: str, arrow: pa.DataType, used: set[str]
    ) -> pa.Array | None:
        if path in self._mapping:
            source = self._mapping[path]
            found = _at(batch, source)
            if found is None:
                told = f"has no column {source!r}, from which mapping= takes {path!r}"
                raise self._misfit(path, str(arrow), "nothing", told)
            used.add(_top(source, batch.schema.names))
            return found
        found = _at(batch, source)
        if found is not None:
            used.add(_top(source, batch.schema.names))
        if not self._is_rebuilt(path) or not pa.types.is_struct(arrow):
            return found
        return self._rebuilt(batch, path, source, arrow, found, used)

    def _rebuilt(
        self,
        batch: pa.RecordBatch,
        path: str,
        source: str,
        arrow: pa.StructType,
        found: pa.Array | None,
        used: set[str],
    ) -> pa.Array:
        """A struct of which some children have another name in the file, or come from elsewhere."""
        children, fields = [], []
        for child in arrow:
            array = self._value(batch, f"{path}.{child.name}", f"{source}.{child.name}", child.type, used)
            if array is not None:
                children.append(array)
                fields.append(pa.field(child.name, array.type))
        if found is not None and not self._drops:
            meant = set(self._sources_of(path, arrow))
            left = [child.name for child in found.type if f"{source}.{child.name}" not in meant]
            if left:
                told = f"has fields in {source!r} that the table does not have: {', '.join(map(repr, left))}"
                raise self._misfit(f"{path}.{left[0]}", "no such field", "a field", told)
        mask = found.is_null() if found is not None and found.null_count else None
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)

    def _pruned(self, array: pa.Array, arrow: pa.DataType) -> pa.Array:
        """Without children of structs that the table does not have."""
        if not (pa.types.is_struct(array.type) and pa.types.is_struct(arrow)):
            return array
        known = {child.name: child.type for child in arrow}
        kept = [number for number, child in enumerate(array.type) if child.name in known]
        children = [self._pruned(array.field(number), known[array.type.field(number).name]) for number in kept]
        if len(kept) == array.type.num_fields and all(
            child.type == array.type.field(number).type for child, number in zip(children, kept, strict=True)
        ):
            return array
        fields = [pa.field(array.type.field(n).name, c.type) for n, c in zip(kept, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null() if array.null_count else None)

    def _misfit(self, column: str, expected: str, got: str, told: str) -> SchemaMismatch:
        return SchemaMismatch(f"{self._uri} {told}", column=column, expected=expected, got=got)


def map_schema(schema: pa.Schema, mapping: Mapping[str, str], *, uri: str) -> pa.Schema:
    """What a new table has of a file with this schema."""
    picked = {column: _type_at(schema, source) for column, source in mapping.items()}
    fields = []
    for column, field in picked.items():
        if field is None or "." in column:
            told = "has a dot, and a new table is given its structs by schema=" if field else "is not there"
            raise SchemaMismatch(
                f"{uri}: mapping= takes {column!r} from {mapping[column]!r}, which {told}",
                column=column,
                expected="a column",
                got="nothing" if field is None else str(field.type),
            )
        fields.append(field.with_name(column))
    tops = {_top(source, schema.names) for source in mapping.values()}
    rest = [field for field in schema if field.name not in tops and field.name not in picked]
    return pa.schema([*fields, *rest]) if fields else schema


def _type_at(schema: pa.Schema, path: str) -> pa.Field | None:
    found = _at(pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], names=schema.names), path)
    return None if found is None else pa.field(path, found.type)


def _top(path: str, names: list[str]) -> str:
    return path if path in names else path.partition(".")[0]


def _at(batch: pa.RecordBatch, path: str) -> pa.Array | None:
    if path in batch.schema.names:
        return batch.column(path)
    top, dot, rest = path.partition(".")
    if not dot or top not in batch.schema.names:
        return None
    found = batch.column(top)
    for name in rest.split("."):
        if isinstance(found, pa.ExtensionArray) or not pa.types.is_struct(found.type):
            return None
        if found.type.get_field_index(name) < 0:
            return None
        found = pc.struct_field(found, name)
    return found
