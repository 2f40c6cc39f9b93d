"""Chunks of a file as batches in the table's exact types, and the records that do not fit, one by one.

A batch that converts as a whole, which is nearly every one, costs one conversion. Where it does not, each column is
halved until the values are found that cannot be; the records they belong to leave the batch, and the rest goes on. What
fits no record of a file, such as a column of another kind, is no matter of records: it is refused for the file.
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
    source: SourceReader, part: FileSplit, schema: TableSchema, reading: ReadOptions
) -> Iterator[pa.RecordBatch | BadRecord]:
    """Of one file, or a part of it: batches with all columns of `schema`, and what does not become a row."""
    picker = ColumnMapper(schema, reading, uri=part.file.uri)
    done = 0
    try:
        for found in _read(source, part, schema, reading, picker):
            if isinstance(found, BadRecord):
                yield found
                continue
            for each in _converted(found, schema, reading, picker, part.file.uri):
                done += 0 if isinstance(each, BadRecord) else each.num_rows
                yield each
    except Unreadable as error:
        behind = f", behind {done:,} rows of this part that could be read" if done else ""
        yield BadRecord(f"the file cannot be read{behind}: {error}")


def _read(
    source: SourceReader, part: FileSplit, schema: TableSchema, reading: ReadOptions, picker: ColumnMapper
) -> RecordStream:
    match detect_format(part.file.uri, reading.format):
        case Format.PARQUET:
            return read_parquet(source, part, picker.columns_to_read)
        case Format.ARROW:
            return read_arrow(source, part)
        case Format.CSV:
            return read_csv(source, part, reading.csv, picker.columns_to_read)
        case Format.JSON:
            return read_json_lines(source, part, _asked(schema, reading), ignores=reading.drops_extra)


def _asked(schema: TableSchema, reading: ReadOptions) -> pa.Schema:
    """By the names that columns have in the file. What comes from within something is left to be found."""
    mapping = dict(reading.mapping)
    fields: dict[str, pa.Field] = {}
    for field in schema.arrow:
        source = mapping.get(field.name, field.name)
        inside = any(column.startswith(f"{field.name}.") for column in mapping)
        if "." in source or inside:
            continue
        fields[source] = pa.field(source, json_parse_type(field.type))
    wider = {source.partition(".")[0] for source in mapping.values() if "." in source}
    return pa.schema([field for name, field in fields.items() if name not in wider])


def _converted(
    chunk: Chunk, schema: TableSchema, reading: ReadOptions, picker: ColumnMapper, uri: str
) -> Iterator[pa.RecordBatch | BadRecord]:
    batch = picker.map_batch(chunk.batch)
    if chunk.is_text:
        present = TableSchema(tuple(each for each in schema.fields if each.name in batch.schema.names), schema.metadata)
    else:
        incoming = schema_to_stored(batch.schema, schema)
        present = columns_to_write(incoming, schema, conversion=Conversion.CAST, what=uri)
        try:
            yield _whole(conform(_stored(batch, schema), present.arrow, conversion=Conversion.CAST, what=uri), schema)
        except SchemaMismatch:
            pass  # which of the values it is about is found below
        else:
            return
    columns: list[pa.Array] = []
    bad: dict[int, tuple[str, str]] = {}
    for field in present.arrow:
        convert = partial(_text if chunk.is_text else _typed, field=field, schema=schema, reading=reading, uri=uri)
        columns.append(_apart(batch.column(field.name), convert, field, bad))
    for row in sorted(bad):
        column, reason = bad[row]
        number, line = chunk.locate_row(row)
        yield BadRecord(reason, number, line, column, chunk.record_text(row))
    stored = pa.schema([field.with_nullable(True) for field in present.arrow])
    converted = pa.RecordBatch.from_arrays(columns, schema=stored)
    if bad:
        kept = np.ones(batch.num_rows, dtype=bool)
        kept[list(bad)] = False
        converted = converted.filter(pa.array(kept))
    if converted.num_rows:
        yield _whole(pa.RecordBatch.from_arrays(converted.columns, schema=present.arrow), schema)


def _apart(
    array: pa.Array,
    convert: Callable[[pa.Array], pa.Array],
    field: pa.Field,
    bad: dict[int, tuple[str, str]],
    first: int = 0,
) -> pa.Array:
    """Converted, with nulls where it cannot be, which are noted by their row."""
    try:
        return convert(array)
    except (pa.ArrowException, SchemaMismatch) as error:
        if len(array) == 1:
            bad.setdefault(first, (field.name, _reason(error, field)))
            return pa.nulls(1, field.type)
    middle = len(array) // 2
    halves = [
        _apart(array.slice(0, middle), convert, field, bad, first),
        _apart(array.slice(middle), convert, field, bad, first + middle),
    ]
    return pa.concat_arrays(halves)


def _reason(error: Exception, field: pa.Field) -> str:
    if isinstance(error, SchemaMismatch) and error.got == "nulls":
        return f"{error.column!r} is not nullable, and there is no value"
    told = str(error).strip().partition("\n")[0]
    told = told.rpartition("without loss: ")[2] if isinstance(error, SchemaMismatch) else told
    return f"{field.name!r} does not become {field.type}: {told}"[:1000]


def _text(array: pa.Array, *, field: pa.Field, schema: TableSchema, reading: ReadOptions, uri: str) -> pa.Array:
    if array.null_count == len(array):
        return _typed(pa.nulls(len(array)), field=field, schema=schema, reading=reading, uri=uri)
    is_blob = schema_to_stored(pa.schema([(field.name, pa.binary())]), schema).field(0).type != pa.binary()
    values = array if is_blob else parse_values(array, field, reading.csv, uri=uri)
    return _typed(values, field=field, schema=schema, reading=reading, uri=uri)


def _typed(array: pa.Array, *, field: pa.Field, schema: TableSchema, reading: ReadOptions, uri: str) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    batch = _stored(pa.RecordBatch.from_arrays([array], names=[field.name]), schema)
    return conform(batch, pa.schema([field]), conversion=Conversion.CAST, what=uri).column(0)


def _stored(batch: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
    return next(to_stored([batch], schema))


def _whole(batch: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
    """With nulls for the columns that the file does not have: files with other columns go into the same fragment."""
    if batch.schema.names == schema.arrow.names:
        return batch
    present = set(batch.schema.names)
    columns = [
        batch.column(field.name) if field.name in present else _nulls(batch.num_rows, field) for field in schema.arrow
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema.arrow)


def _nulls(count: int, field: pa.Field) -> pa.Array:
    if not field.nullable:
        raise InvalidInput(f"column {field.name!r} is not nullable, and there is nothing to put into it")
    if isinstance(field.type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(field.type, pa.nulls(count, field.type.storage_type))
    return pa.nulls(count, field.type)
