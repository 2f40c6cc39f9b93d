"""Column mapping: maps the columns of a source file to columns of the table, by name or by the mapping of the caller,
also within structs.

Nothing is converted here: the result has the names of the table and the types of the file; `row_conversion.py`
converts it. Start with `ColumnMapper`.
"""

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import SchemaMismatch
from lance_core.format.schema import TableSchema
from lance_core.tasks.ingest.formats import ReadOptions


class ColumnMapper:
    """Maps the columns of one file."""

    def __init__(self, schema: TableSchema, read_options: ReadOptions, *, uri: str) -> None:
        self._arrow = schema.arrow
        self._mapping = dict(read_options.mapping)
        self._drops = read_options.drops_extra
        self._uri = uri

    def columns_to_read(self, names: list[str]) -> list[str]:
        """Return the columns of the file that must be read."""
        if not self._drops:
            return names
        needed = {_top_level_name(source, names) for source in self._sources()}
        return [name for name in names if name in needed]

    def _sources(self) -> Iterator[str]:
        for field in self._arrow:
            yield from self._sources_of(field.name, field.type)

    def _sources_of(self, path: str, arrow: pa.DataType) -> Iterator[str]:
        if path in self._mapping:
            yield self._mapping[path]
            return
        yield path
        if self._has_mapped_children(path) and pa.types.is_struct(arrow):
            for child in arrow:
                yield from self._sources_of(f"{path}.{child.name}", child.type)

    def map_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of the table that the file has. Raises if the columns do not match."""
        if len(set(batch.schema.names)) != len(batch.schema.names):
            duplicate = next(name for name in batch.schema.names if batch.schema.names.count(name) > 1)
            raise self._mismatch_error(duplicate, "one column", "two columns", f"has two columns named {duplicate!r}")
        used: set[str] = set()
        arrays, names = [], []
        for field in self._arrow:
            array = self._resolve_column(batch, field.name, field.name, field.type, used)
            if array is not None:
                arrays.append(self._prune_struct(array, field.type) if self._drops else array)
                names.append(field.name)
            elif not field.nullable:
                message = f"has no column {field.name!r}, which is not nullable in the table"
                raise self._mismatch_error(field.name, str(field.type), "nothing", message)
        extra = [name for name in batch.schema.names if name not in used]
        if extra and not self._drops:
            listed = ", ".join(map(repr, extra))
            message = (
                f"has columns that the table does not have: {listed}. Add them to the table, map them to "
                "its columns with mapping=, or leave them out with extra='drop'"
            )
            raise self._mismatch_error(extra[0], "no such column", str(batch.schema.field(extra[0]).type), message)
        if not arrays:
            message = f"has none of the table's columns, which are {', '.join(self._arrow.names)}"
            raise self._mismatch_error("", ", ".join(self._arrow.names), "nothing", message)
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def _has_mapped_children(self, path: str) -> bool:
        return any(column.startswith(f"{path}.") for column in self._mapping)

    def _resolve_column(
        self, batch: pa.RecordBatch, path: str, source: str, arrow: pa.DataType, used: set[str]
    ) -> pa.Array | None:
        if path in self._mapping:
            source = self._mapping[path]
            array = _column_at(batch, source)
            if array is None:
                message = f"has no column {source!r}, from which mapping= takes {path!r}"
                raise self._mismatch_error(path, str(arrow), "nothing", message)
            used.add(_top_level_name(source, batch.schema.names))
            return array
        array = _column_at(batch, source)
        if array is not None:
            used.add(_top_level_name(source, batch.schema.names))
        if not self._has_mapped_children(path) or not pa.types.is_struct(arrow):
            return array
        return self._rebuild_struct(batch, path, source, arrow, array, used)

    def _rebuild_struct(
        self,
        batch: pa.RecordBatch,
        path: str,
        source: str,
        arrow: pa.StructType,
        original: pa.Array | None,
        used: set[str],
    ) -> pa.Array:
        """Build a struct from children that have another name in the file, or that come from another column."""
        children, fields = [], []
        for child in arrow:
            array = self._resolve_column(batch, f"{path}.{child.name}", f"{source}.{child.name}", child.type, used)
            if array is not None:
                children.append(array)
                fields.append(pa.field(child.name, array.type))
        if original is not None and not self._drops:
            sources = set(self._sources_of(path, arrow))
            unmapped = [child.name for child in original.type if f"{source}.{child.name}" not in sources]
            if unmapped:
                message = f"has fields in {source!r} that the table does not have: {', '.join(map(repr, unmapped))}"
                raise self._mismatch_error(f"{path}.{unmapped[0]}", "no such field", "a field", message)
        mask = original.is_null() if original is not None and original.null_count else None
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)

    def _prune_struct(self, array: pa.Array, arrow: pa.DataType) -> pa.Array:
        """Return the array without children of structs that the table does not have."""
        if not (pa.types.is_struct(array.type) and pa.types.is_struct(arrow)):
            return array
        known = {child.name: child.type for child in arrow}
        known_positions = [number for number, child in enumerate(array.type) if child.name in known]
        children = [
            self._prune_struct(array.field(number), known[array.type.field(number).name]) for number in known_positions
        ]
        if len(known_positions) == array.type.num_fields and all(
            child.type == array.type.field(number).type for child, number in zip(children, known_positions, strict=True)
        ):
            return array
        fields = [pa.field(array.type.field(n).name, c.type) for n, c in zip(known_positions, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null() if array.null_count else None)

    def _mismatch_error(self, column: str, expected: str, got: str, message: str) -> SchemaMismatch:
        return SchemaMismatch(f"{self._uri} {message}", column=column, expected=expected, got=got)


def map_schema(schema: pa.Schema, mapping: Mapping[str, str], *, uri: str) -> pa.Schema:
    """Return the schema that a new table gets from a file with this schema."""
    source_fields = {column: _field_at(schema, source) for column, source in mapping.items()}
    fields = []
    for column, field in source_fields.items():
        if field is None or "." in column:
            problem = "has a dot, which needs schema= to define the struct" if field else "does not exist"
            raise SchemaMismatch(
                f"{uri}: mapping= takes {column!r} from {mapping[column]!r}, which {problem}",
                column=column,
                expected="a column",
                got="nothing" if field is None else str(field.type),
            )
        fields.append(field.with_name(column))
    mapped_names = {_top_level_name(source, schema.names) for source in mapping.values()}
    rest = [field for field in schema if field.name not in mapped_names and field.name not in source_fields]
    return pa.schema([*fields, *rest]) if fields else schema


def _field_at(schema: pa.Schema, path: str) -> pa.Field | None:
    array = _column_at(
        pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], names=schema.names), path
    )
    return None if array is None else pa.field(path, array.type)


def _top_level_name(path: str, names: list[str]) -> str:
    return path if path in names else path.partition(".")[0]


def _column_at(batch: pa.RecordBatch, path: str) -> pa.Array | None:
    if path in batch.schema.names:
        return batch.column(path)
    top, dot, rest = path.partition(".")
    if not dot or top not in batch.schema.names:
        return None
    array = batch.column(top)
    for name in rest.split("."):
        if isinstance(array, pa.ExtensionArray) or not pa.types.is_struct(array.type):
            return None
        if array.type.get_field_index(name) < 0:
            return None
        array = pc.struct_field(array, name)
    return array
