"""Input rows: converts the forms in which a caller may pass rows to a schema and a stream of batches."""

import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.datafiles.conform import LIST_TYPES, Conversion, conform, without_views
from lance_core.datafiles.declared_schemas import declared_schema, is_declaration, is_record, values_of
from lance_core.errors import InvalidInput

_UNNAMED_LEVEL = re.compile(r"__index_level_\d+__")
_DATASETS_OF_ARROW = "pyarrow._dataset"
"""Module of the datasets and scanners of pyarrow, which is not imported for its name."""
_NEGLIGIBLE_BYTES = 1024**2
_FRAME_METADATA_PREFIXES = (b"pandas", b"_PL_")
_IN_MEMORY_LIBRARIES = ("pandas", "polars")
"""Libraries whose objects with a stream interface hold all rows in memory."""


@runtime_checkable
class SupportsArrowStream(Protocol):
    """Object with Arrow's stream interface, such as a data frame of pandas or polars."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Rows: TypeAlias = (
    pa.Table
    | pa.RecordBatch
    | pa.RecordBatchReader
    | Iterable[pa.RecordBatch]
    | SupportsArrowStream
    | Iterable[Mapping[str, object]]
    | Iterable[object]
    | Mapping[str, object]
)
"""Rows. Objects in an iterable are instances of a dataclass or of a model of pydantic."""
DeclaredSchema: TypeAlias = pa.Schema | type
"""Schema, or the dataclass or model of pydantic that declares it."""


@dataclass(frozen=True, slots=True)
class InputRows:
    """Rows to be written."""

    schema: pa.Schema | None
    """`None` if there is not even one batch."""
    batches: Iterable[pa.RecordBatch]
    bytes: int | None = None
    """Size of rows that are in memory."""

    def materialized(self) -> "InputRows":
        """Return the rows with their batches in memory, so that they can be read more than once."""
        return InputRows(self.schema, tuple(self.batches))

    def without_views(self) -> "InputRows":
        """Return the rows with plain strings, bytes and lists instead of views, which Arrow cannot select from."""
        if self.schema is None:
            return self
        plain = pa.schema([field.with_type(without_views(field.type)) for field in self.schema], self.schema.metadata)
        if plain == self.schema:
            return self
        batches = (conform(batch, plain, conversion=Conversion.CAST, what="the data") for batch in self.batches)
        return InputRows(plain, batches, self.bytes)

    def with_columns_of(self, table: pa.Schema) -> "InputRows":
        """Return the rows; without even one batch, they have the columns of the table that receives them."""
        return self if self.schema is not None else InputRows(table, self.batches, self.bytes)

    @property
    def required_schema(self) -> pa.Schema:
        """Schema, for a caller that needs it before the first row. Raises `InvalidInput` if it is unknown."""
        if self.schema is None:
            raise InvalidInput("the columns of zero batches are unknown; pass a pyarrow Table instead")
        return self.schema


def as_declared_input(data: Rows | DeclaredSchema, schema: DeclaredSchema | None) -> tuple[InputRows, Conversion]:
    """Return the rows of a new table, and how their values are converted to the columns that `schema` declares."""
    if schema is None:
        return as_input(data), Conversion.EXACT
    declared = declared_schema(schema)
    rows = as_input(data, declared)
    return InputRows(declared, rows.batches, rows.bytes), Conversion.CAST


def as_input(data: Rows | DeclaredSchema, columns: pa.Schema | None = None) -> InputRows:
    """Convert rows to one form. A schema alone means no rows of that schema.

    `columns` are the columns of the table that receives the rows: Python values are converted to their types.
    """
    if isinstance(data, pa.Schema) or is_declaration(data):
        return InputRows(declared_schema(cast("DeclaredSchema", data)), iter(()))
    if isinstance(data, pa.RecordBatch):
        return InputRows(data.schema, iter((data,)), _bytes_of(data))
    if isinstance(data, pa.Table):
        return _input_of_table(data)
    if isinstance(data, pa.RecordBatchReader):
        return InputRows(data.schema, iter(data))
    if type(data).__module__.partition(".")[0] == "pyspark":
        raise InvalidInput(
            "rows must be in this process, not a DataFrame of Spark: write it with append(df, uri), overwrite, upsert "
            "or merge_columns of lance_assets.spark, or pass df.toArrow()"
        )
    if isinstance(data, SupportsArrowStream):
        return _input_of_stream(data, columns)
    if type(data).__module__ == _DATASETS_OF_ARROW:
        dataset = cast(Any, data)
        scanner = dataset.scanner() if hasattr(dataset, "scanner") else dataset
        return _input_of_stream(scanner.to_reader(), columns)
    rows = None if isinstance(data, type) else _input_of_items(data, columns)
    if rows is None:
        raise _no_rows_error(data)
    return rows


def _no_rows_error(data: object) -> InvalidInput:
    """Return the error for a value that is none of the forms of rows, with a way to make it one."""
    kind, remedy = type(data).__name__, ""
    if isinstance(data, str | bytes | os.PathLike):
        remedy = "; read the file first, for example with pyarrow.parquet.read_table"
    elif is_record(data):
        remedy = "; put it in a list"
    elif hasattr(data, "to_frame"):
        remedy = "; call its to_frame()"
    elif hasattr(data, "collect"):
        remedy = "; call its collect()"
    elif isinstance(data, list | tuple) and data:
        kind += f" of {type(data[0]).__name__}"
    return InvalidInput(
        "rows must be a pyarrow Table, RecordBatch, RecordBatchReader or Dataset, a data frame of pandas or polars or "
        "another object with __arrow_c_stream__, an iterable of batches, a list of dicts, a list of instances of a "
        f"dataclass or of a model of pydantic, or a dict of columns, not {kind}{remedy}"
    )


def _input_of_items(data: object, columns: pa.Schema | None) -> InputRows | None:
    """Return the rows of a dict of columns, of batches or of dicts; `None` for other values."""
    if isinstance(data, Mapping):
        return _input_of_table(_table_of_columns(data, columns)) if data else InputRows(None, iter(()))
    if not isinstance(data, Iterable) or isinstance(data, str | bytes):
        return None
    items = iter(data)
    first = next(items, None)
    if isinstance(first, pa.RecordBatch):
        return InputRows(first.schema, _each_of(pa.RecordBatch, itertools.chain((first,), items)))
    if isinstance(first, Mapping):
        rows = list(_each_of(Mapping, itertools.chain((first,), items)))
        names = dict.fromkeys(name for row in rows for name in row)
        values = {name: [row.get(name) for row in rows] for name in names}
        return _input_of_table(_table_of_columns(values, columns))
    if is_record(first):
        return _input_of_records(type(first), list(_each_of(type(first), itertools.chain((first,), items))), columns)
    return InputRows(None, iter(())) if first is None else None


def _input_of_records(declaration: type, records: list[Any], columns: pa.Schema | None) -> InputRows:
    """Return instances of a dataclass or of a model as rows, with the types of the table's columns."""
    declared = declared_schema(declaration)
    known = {field.name: field.type for field in columns or ()}
    schema = pa.schema([field.with_type(known.get(field.name, field.type)) for field in declared])
    rows = [values_of(record) for record in records]
    table = _table_of_columns({name: [row[name] for row in rows] for name in schema.names}, schema)
    return _input_of_table(
        pa.Table.from_batches(
            [
                conform(batch, schema, conversion=Conversion.CAST, what=declaration.__name__)
                for batch in table.to_batches()
            ],
            schema,
        )
    )


def _each_of(kind: type, items: Iterable[Any]) -> Iterator[Any]:
    """Yield the items; raise `InvalidInput` for one of another class."""
    for item in items:
        if not isinstance(item, kind):
            raise InvalidInput(f"rows must be of one kind: the first item is a {kind.__name__}, another {item!r:.60}")
        yield item


def _input_of_table(table: pa.Table) -> InputRows:
    return InputRows(table.schema, iter(table.to_batches()), _bytes_of(table))


def _bytes_of(rows: pa.Table | pa.RecordBatch) -> int:
    """Return the size of rows in memory; with views, which Arrow 21 does not measure, that of their
    whole buffers. Few bytes need no exact measurement, which takes 4 microseconds a column."""
    total = int(rows.get_total_buffer_size())
    if total <= _NEGLIGIBLE_BYTES:
        return total
    try:
        return int(rows.nbytes)
    except pa.ArrowTypeError:
        return int(rows.get_total_buffer_size())


def _input_of_stream(data: SupportsArrowStream, columns: pa.Schema | None) -> InputRows:
    """Return the rows of an object with Arrow's stream interface: a data frame as a whole, others batch by batch.

    Frame libraries have fewer types than a table, so values are converted to those of its columns, if none is lost.
    """
    known = {} if columns is None else {field.name: field.type for field in columns}
    reader = _open_stream(data)
    if _has_class_of(data, "pandas"):
        reader = _with_whole_numbers(_with_named_indices(reader.read_all()), known).to_reader()
    schema = _without_frame_metadata(
        pa.schema(
            [field.with_type(known.get(field.name, without_views(field.type))) for field in reader.schema],
            reader.schema.metadata,
        )
    )
    batches = (conform(batch, schema, conversion=Conversion.CAST, what="the data") for batch in reader)
    if _has_class_of(data, *_IN_MEMORY_LIBRARIES):
        return _input_of_table(pa.Table.from_batches(batches, schema))
    return InputRows(schema, batches)


def _open_stream(data: SupportsArrowStream) -> pa.RecordBatchReader:
    try:
        return pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        if hasattr(data, "to_frame"):  # a single column
            raise _no_rows_error(data) from error
        reason = "; ".join(map(str, error.args))
        raise InvalidInput(f"the {type(data).__name__} cannot be converted to Arrow: {reason}") from error


def _with_whole_numbers(rows: pa.Table, known: Mapping[str, pa.DataType]) -> pa.Table:
    """Return the rows of a data frame of pandas with whole floats as integers in the columns that store integers:
    pandas makes floats of integers if one of them is missing.

    A column remains one of floats, whose type is refused later, if pandas may have rounded one of its numbers."""
    for at, field in enumerate(rows.schema):
        stored = known.get(field.name, field.type)
        if pa.types.is_floating(field.type) and pa.types.is_integer(stored) and _has_exact_integers(rows.column(at)):
            with suppress(pa.ArrowInvalid):  # the type is refused later, with the name of the table
                rows = rows.set_column(at, field.with_type(stored), rows.column(at).cast(stored))
    return rows


def _has_exact_integers(floats: pa.ChunkedArray) -> bool:
    """Return whether no number is as large as the first integer that the type of the floats cannot represent."""
    limit = 2 ** (np.finfo(floats.type.to_pandas_dtype()).nmant + 1)
    largest = pc.max(pc.abs(floats.cast(pa.float64()))).as_py()
    return largest is None or largest < limit


def _has_class_of(value: object, *libraries: str) -> bool:
    """Return whether the class of a value, or a class that it extends, is one of these libraries."""
    return any(each.__module__.partition(".")[0] in libraries for each in type(value).__mro__)


def _with_named_indices(rows: pa.Table) -> pa.Table:
    """Return the rows of a data frame of pandas with the levels of its index that have a name as columns.

    pandas numbers the rows of every frame. A filtered or sorted frame has these numbers in an index without a name,
    which pandas gives as the column `__index_level_0__`; they are no data. An index with a name is, such as the one
    that `set_index` or `groupby` makes.
    """
    described = json.loads((rows.schema.metadata or {}).get(b"pandas", b"{}"))
    for level in described.get("index_columns", ()):
        if isinstance(level, str):
            if _UNNAMED_LEVEL.fullmatch(level):
                rows = rows.drop_columns([level])
        elif level.get("kind") == "range" and level.get("name") is not None:
            numbers = range(level["start"], level["stop"], level["step"])
            rows = rows.append_column(str(level["name"]), pa.array(numbers, pa.int64()))
    return rows


def _without_frame_metadata(schema: pa.Schema) -> pa.Schema:
    """Return the schema without the metadata that pandas and polars store for their own use."""

    def other(metadata: Mapping[bytes, bytes] | None) -> dict[bytes, bytes]:
        return {key: value for key, value in (metadata or {}).items() if not key.startswith(_FRAME_METADATA_PREFIXES)}

    return pa.schema([field.with_metadata(other(field.metadata)) for field in schema], other(schema.metadata))


def _table_of_columns(values: Mapping[str, object], columns: pa.Schema | None) -> pa.Table:
    """Return Python values as a table: with the types of the table's columns if these hold the values exactly."""
    known = {} if columns is None else {field.name: field.type for field in columns}
    arrays = {}
    for name, column in values.items():
        if not isinstance(name, str):
            raise InvalidInput(f"the names of columns must be strings, not {name!r}")
        try:
            array = _array(column, known.get(name))
            # Without values there is no type to infer.
            arrays[name] = (
                array if not pa.types.is_null(array.type) else pa.nulls(len(array), known.get(name, pa.null()))
            )
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidInput(f"column {name!r}: the values cannot be converted: {error}") from error
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidInput(f"the columns have different lengths: {lengths}")
    table = pa.table(arrays)
    widened = [field.with_type(_with_doubles(known.get(field.name, field.type))) for field in table.schema]
    exact = pa.Table.from_batches(
        [
            conform(batch, pa.schema(widened), conversion=Conversion.CAST, what="the data")
            for batch in table.to_batches()
        ],
        pa.schema(widened),
    )
    stored = pa.schema([field.with_type(known.get(field.name, field.type)) for field in table.schema])
    return _round_doubles(exact, stored)


def _array(values: Any, stored: pa.DataType | None) -> pa.Array:
    """Return Python values as an array of the type that pyarrow infers, or of the stored type if it has maps, which
    cannot be told from structs."""
    if isinstance(values, SupportsArrowStream) and not isinstance(values, pa.Array):
        return pa.chunked_array(values).combine_chunks()
    if isinstance(values, np.ndarray) and values.ndim > 1:
        return _array_of_rows(values)
    if stored is None or isinstance(values, pa.Array) or not _has_map(stored):
        return pa.array(values)
    return pa.array([_with_pairs(value, stored) for value in values], stored)


def _array_of_rows(values: np.ndarray[Any, Any]) -> pa.Array:
    """Return a matrix, or an array of more dimensions, as one list of fixed size for each row."""
    array = pa.array(values.reshape(-1))  # keeps the mask of a masked array
    for size in reversed(values.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array


def _has_map(arrow: pa.DataType) -> bool:
    return pa.types.is_map(arrow) or any(_has_map(arrow.field(at).type) for at in range(arrow.num_fields))


def _with_pairs(value: Any, arrow: pa.DataType) -> Any:
    """Return a value of this type with the pairs of keys and values instead of dicts where it has a map."""
    if value is None or not _has_map(arrow):
        return value
    if pa.types.is_map(arrow):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(key, _with_pairs(each, arrow.item_type)) for key, each in pairs]
    if pa.types.is_struct(arrow):
        if not isinstance(value, Mapping):
            raise pa.ArrowInvalid(f"the {type(value).__name__} is no mapping, which {arrow} needs")
        return {field.name: _with_pairs(value.get(field.name), field.type) for field in arrow}
    return [_with_pairs(each, arrow.value_type) for each in value]


def _with_doubles(arrow: pa.DataType) -> pa.DataType:
    """Return the type with doubles instead of narrower floats: a float of Python has no narrower type."""
    if pa.types.is_float16(arrow) or pa.types.is_float32(arrow):
        return pa.float64()
    if pa.types.is_struct(arrow):
        return pa.struct([field.with_type(_with_doubles(field.type)) for field in arrow])
    if pa.types.is_fixed_size_list(arrow):
        return pa.list_(arrow.value_field.with_type(_with_doubles(arrow.value_type)), arrow.list_size)
    for is_list, make_list in LIST_TYPES:
        if is_list(arrow):
            return make_list(arrow.value_field.with_type(_with_doubles(arrow.value_type)))
    return arrow


def _round_doubles(rows: pa.Table, stored: pa.Schema) -> pa.Table:
    """Return the rows with doubles rounded to the stored floats. Raise `InvalidInput` for a number out of range."""
    columns = []
    for column, field in zip(rows.columns, stored, strict=True):
        rounded = column if column.type == field.type else column.cast(field.type)
        if rounded is not column and _infinite_numbers(rounded) > _infinite_numbers(column):
            raise InvalidInput(f"column {field.name!r} is stored as {field.type}, and a number is out of its range")
        columns.append(rounded)
    return pa.Table.from_arrays(columns, schema=stored)


def _infinite_numbers(values: pa.ChunkedArray) -> int:
    """Count the infinite floats in the values and in their lists and children."""
    if pa.types.is_floating(values.type):
        return int(pc.sum(pc.is_inf(values.cast(pa.float64()))).as_py() or 0)
    if pa.types.is_struct(values.type):
        children = (
            pa.chunked_array([chunk.field(at) for chunk in values.chunks], field.type)
            for at, field in enumerate(values.type)
        )
        return sum(map(_infinite_numbers, children))
    if pa.types.is_nested(values.type) and not pa.types.is_map(values.type):
        return _infinite_numbers(pc.list_flatten(values))
    return 0
