"""Row conversion: converts chunks of a file to batches in the types of the table, and finds the records that do not
fit.

Nearly every batch converts as a whole, by one conversion. Otherwise each column is bisected until the values that
cannot be converted are found; their records leave the batch, and the rest continues. A mismatch of a whole file, such
as a column of an incompatible type, does not concern single records, and raises an error.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from lance_core.datafiles.blob_writing import schema_to_stored, to_stored
from lance_core.datafiles.conform import Conversion, columns_to_write, conform
from lance_core.errors import InvalidInput, SchemaMismatch
from lance_core.format.schema import TableSchema
from lance_core.tasks.ingest.column_mapping import ColumnMapper
from lance_core.tasks.ingest.csv_files import read_csv
from lance_core.tasks.ingest.csv_values import json_parse_type, parse_values
from lance_core.tasks.ingest.file_readers import (
    BadRecord,
    Chunk,
    FileSplit,
    RecordStream,
    Unreadable,
    read_arrow,
    read_json_lines,
    read_parquet,
)
from lance_core.tasks.ingest.formats import Format, ReadOptions, detect_format
from lance_core.tasks.ingest.sources import SourceReader


def read_rows(
    source: SourceReader, split: FileSplit, schema: TableSchema, read_options: ReadOptions
) -> Iterator[pa.RecordBatch | BadRecord]:
    """Yield the rows of a split as batches with all columns of `schema`, and the records that do not become rows."""
    mapper = ColumnMapper(schema, read_options, uri=split.file.uri)
    rows_read = 0
    try:
        for chunk in _open_split(source, split, schema, read_options, mapper):
            if isinstance(chunk, BadRecord):
                yield chunk
                continue
            for converted in _convert_chunk(chunk, schema, read_options, mapper, split.file.uri):
                rows_read += 0 if isinstance(converted, BadRecord) else converted.num_rows
                yield converted
    except Unreadable as error:
        progress = f", after {rows_read:,} rows of this split that could be read" if rows_read else ""
        yield BadRecord(f"the file cannot be read{progress}: {error}")


def _open_split(
    source: SourceReader, split: FileSplit, schema: TableSchema, read_options: ReadOptions, mapper: ColumnMapper
) -> RecordStream:
    match detect_format(split.file.uri, read_options.format):
        case Format.PARQUET:
            return read_parquet(source, split, mapper.columns_to_read)
        case Format.ARROW:
            return read_arrow(source, split)
        case Format.CSV:
            return read_csv(source, split, read_options.csv, mapper.columns_to_read)
        case Format.JSON:
            return read_json_lines(
                source, split, _json_column_types(schema, read_options), ignores=read_options.drops_extra
            )


def _json_column_types(schema: TableSchema, read_options: ReadOptions) -> pa.Schema:
    """Return the types of columns that JSON is parsed into, by their names in the file. Sources within a struct are
    inferred."""
    mapping = dict(read_options.mapping)
    fields: dict[str, pa.Field] = {}
    for field in schema.arrow:
        source = mapping.get(field.name, field.name)
        has_mapped_child = any(column.startswith(f"{field.name}.") for column in mapping)
        if "." in source or has_mapped_child:
            continue
        fields[source] = pa.field(source, json_parse_type(field.type))
    inferred = {source.partition(".")[0] for source in mapping.values() if "." in source}
    return pa.schema([field for name, field in fields.items() if name not in inferred])


def _convert_chunk(
    chunk: Chunk, schema: TableSchema, read_options: ReadOptions, mapper: ColumnMapper, uri: str
) -> Iterator[pa.RecordBatch | BadRecord]:
    batch = mapper.map_batch(chunk.batch)
    if chunk.is_text:
        names = frozenset(batch.schema.names)
        present = TableSchema(tuple(field for field in schema.fields if field.name in names), schema.metadata)
    else:
        incoming = schema_to_stored(batch.schema, schema)
        present = columns_to_write(incoming, schema, conversion=Conversion.CAST, what=uri)
        try:
            yield _with_all_columns(
                conform(_as_stored(batch, schema), present.arrow, conversion=Conversion.CAST, what=uri), schema
            )
        except SchemaMismatch:
            pass  # the values that cannot be converted are found below
        else:
            return
    columns: list[pa.Array] = []
    bad_rows: dict[int, tuple[str, str]] = {}
    for field in present.arrow:
        convert = partial(
            _convert_text if chunk.is_text else _convert_values,
            field=field,
            schema=schema,
            read_options=read_options,
            uri=uri,
        )
        columns.append(_convert_by_bisection(batch.column(field.name), convert, field, bad_rows))
    for row in sorted(bad_rows):
        column, reason = bad_rows[row]
        number, line = chunk.locate_row(row)
        yield BadRecord(reason, number, line, column, chunk.record_text(row))
    stored = pa.schema([field.with_nullable(True) for field in present.arrow])
    converted = pa.RecordBatch.from_arrays(columns, schema=stored)
    if bad_rows:
        is_good = np.ones(batch.num_rows, dtype=bool)
        is_good[list(bad_rows)] = False
        converted = converted.filter(pa.array(is_good))
    if converted.num_rows:
        yield _with_all_columns(pa.RecordBatch.from_arrays(converted.columns, schema=present.arrow), schema)


def _convert_by_bisection(
    array: pa.Array,
    convert: Callable[[pa.Array], pa.Array],
    field: pa.Field,
    bad_rows: dict[int, tuple[str, str]],
    first: int = 0,
) -> pa.Array:
    """Convert values. Invalid ones become null, and their rows are added to `bad_rows`."""
    try:
        return convert(array)
    except (pa.ArrowException, SchemaMismatch) as error:
        if len(array) == 1:
            bad_rows.setdefault(first, (field.name, _reason(error, field)))
            return pa.nulls(1, field.type)
    middle = len(array) // 2
    halves = [
        _convert_by_bisection(array.slice(0, middle), convert, field, bad_rows, first),
        _convert_by_bisection(array.slice(middle), convert, field, bad_rows, first + middle),
    ]
    return pa.concat_arrays(halves)


def _reason(error: Exception, field: pa.Field) -> str:
    if isinstance(error, SchemaMismatch) and error.got == "nulls":
        return f"{error.column!r} is not nullable, and the record has no value"
    message = str(error).strip().partition("\n")[0]
    message = message.rpartition("without loss: ")[2] if isinstance(error, SchemaMismatch) else message
    return f"{field.name!r} cannot be converted to {field.type}: {message}"[:1000]


def _convert_text(
    array: pa.Array, *, field: pa.Field, schema: TableSchema, read_options: ReadOptions, uri: str
) -> pa.Array:
    if array.null_count == len(array):
        return _convert_values(pa.nulls(len(array)), field=field, schema=schema, read_options=read_options, uri=uri)
    is_blob = schema_to_stored(pa.schema([(field.name, pa.binary())]), schema).field(0).type != pa.binary()
    values = array if is_blob else parse_values(array, field, read_options.csv, uri=uri)
    return _convert_values(values, field=field, schema=schema, read_options=read_options, uri=uri)


def _convert_values(
    array: pa.Array, *, field: pa.Field, schema: TableSchema, read_options: ReadOptions, uri: str
) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    batch = _as_stored(pa.RecordBatch.from_arrays([array], names=[field.name]), schema)
    return conform(batch, pa.schema([field]), conversion=Conversion.CAST, what=uri).column(0)


def _as_stored(batch: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
    return next(to_stored([batch], schema))


def _with_all_columns(batch: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
    """Return the batch with nulls for columns that the file does not have, since other files with them go into the
    same fragment."""
    if batch.schema.names == schema.arrow.names:
        return batch
    present = set(batch.schema.names)
    columns = [
        batch.column(field.name) if field.name in present else _null_column(batch.num_rows, field)
        for field in schema.arrow
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema.arrow)


def _null_column(count: int, field: pa.Field) -> pa.Array:
    if not field.nullable:
        raise InvalidInput(f"column {field.name!r} is not nullable, and the file does not have it")
    if isinstance(field.type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(field.type, pa.nulls(count, field.type.storage_type))
    return pa.nulls(count, field.type)
