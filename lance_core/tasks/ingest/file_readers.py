"""File readers: read a file, or a split of one, as batches in bounded memory, and report bad records and unreadable
content.

    Parquet     row groups whose middle lies in the split
    Arrow       record batches of the split, for the file format; a stream is read whole
    JSON lines  lines that begin in the split: a JSON text never contains a line break
    CSV         whole, or by lines if values cannot contain line breaks (`csv_files.py`)

A split is a fraction of a file, so it can be made without opening the file. Values have the types of the file.
`locate_row` and `record_text` return the position and the text of a record, for the few rows that are reported.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from lance_core.errors import InvalidInput, StorageError
from lance_core.tasks.ingest.formats import Format, detect_compression
from lance_core.tasks.ingest.line_splitter import LINE_BYTES_MAX, blocks_of_lines, open_split, open_stream
from lance_core.tasks.ingest.sources import SourceFile, SourceReader

BATCH_ROWS = 65_536
_BATCH_BYTES = 32 * 1024 * 1024
_MAGIC = b"ARROW1"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FileSplit:
    """Split `number` of `count` splits of a file, which have about equal size."""

    file: SourceFile
    number: int = 0
    count: int = 1

    def contains(self, fraction: float) -> bool:
        """Return whether what lies at this fraction of the file belongs to the split."""
        return min(math.floor(fraction * self.count), self.count - 1) == self.number


@dataclass(frozen=True, slots=True)
class Chunk:
    """A batch of records of a file."""

    batch: pa.RecordBatch
    locate_row: Callable[[int], tuple[int, int | None]]
    """Maps a row of the batch to the number of its record in the file, from 1, and to its first line in a text file."""
    record_text: Callable[[int], str]
    """Maps a row of the batch to the text of its record."""
    is_text: bool = False
    """True if the values of all columns are unparsed bytes."""


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that cannot be ingested, and the reason."""

    reason: str
    row: int | None = None
    line: int | None = None
    column: str | None = None
    record: str | None = None


RecordStream: TypeAlias = Iterator[Chunk | BadRecord]


class Unreadable(Exception):
    """The content of a file contradicts its format. Carries the reason."""


@contextmanager
def naming_unreadable_file() -> Iterator[None]:
    """Raise errors of damaged content as `Unreadable`. Arrow raises them as an `OSError` without errno; one with
    errno is an error of the disk."""
    try:
        yield
    except pa.ArrowException as error:
        raise Unreadable(_first_line(error)) from error
    except OSError as error:
        if error.errno is not None:
            raise StorageError(f"could not read: {error}") from error
        raise Unreadable(_first_line(error)) from error
    except (EOFError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise Unreadable(_first_line(error)) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:500] or type(error).__name__


def record_as_json(batch: pa.RecordBatch, row: int) -> str:
    """Return the record as JSON that can be parsed again. Values without a JSON form become text."""
    values = {name: batch.column(at).slice(row, 1).to_pylist()[0] for at, name in enumerate(batch.schema.names)}
    return json.dumps(values, default=_as_text, ensure_ascii=False)


def _as_text(value: object) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


# Parquet


def read_parquet(
    source: SourceReader, split: FileSplit, columns_to_read: Callable[[list[str]], list[str]]
) -> RecordStream:
    with source.open(needs_ranges=True) as stream, naming_unreadable_file():
        file = pq.ParquetFile(source.path_on_disk or stream, pre_buffer=True, memory_map=False)
        try:
            yield from _row_groups(file, split, columns_to_read)
        finally:
            file.close()


def _row_groups(
    file: pq.ParquetFile, split: FileSplit, columns_to_read: Callable[[list[str]], list[str]]
) -> RecordStream:
    columns = columns_to_read(file.schema_arrow.names)
    metadata, first = file.metadata, 0
    size = max(1, split.file.size)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        before, first = first, first + group.num_rows
        if not group.num_rows or not split.contains(_middle_byte(group) / size):
            continue
        row_bytes = max(1, group.total_byte_size // group.num_rows)
        rows = max(1, min(BATCH_ROWS, _BATCH_BYTES // row_bytes))
        batch_start = before
        for batch in file.iter_batches(rows, row_groups=[number], columns=columns, use_threads=False):
            batch.validate(full=True)
            yield _chunk(batch, batch_start)
            batch_start += batch.num_rows


def _middle_byte(group: pq.RowGroupMetaData) -> float:
    """Return the position of the middle of the row group, in bytes."""
    starts = []
    for number in range(group.num_columns):
        column = group.column(number)
        starts.append(column.dictionary_page_offset or column.data_page_offset)
    compressed = sum(group.column(number).total_compressed_size for number in range(group.num_columns))
    return float(min(starts, default=0) + compressed / 2)


def _chunk(batch: pa.RecordBatch, before: int) -> Chunk:
    return Chunk(batch, lambda row: (before + row + 1, None), lambda row: record_as_json(batch, row))


# Arrow


def read_arrow(source: SourceReader, split: FileSplit) -> RecordStream:
    with source.open() as stream, naming_unreadable_file():
        is_file = stream.read(len(_MAGIC)) == _MAGIC
        stream.seek(0)
        if is_file:
            with source.open(needs_ranges=True) as ranged:
                yield from _arrow_file(pa.ipc.open_file(pa.PythonFile(ranged)), split)
        elif split.number == 0:
            before = 0
            reader = pa.ipc.open_stream(stream)
            _check_names(reader.schema)
            for batch in reader:
                batch.validate(full=True)
                yield from _slice_batch(batch, partial(int, before))
                before += batch.num_rows


def _arrow_file(file: pa.ipc.RecordBatchFileReader, split: FileSplit) -> RecordStream:
    count = file.num_record_batches
    _check_names(file.schema)
    for number in range(count):
        if split.contains((number + 0.5) / count):
            batch = file.get_batch(number)
            batch.validate(full=True)
            yield from _slice_batch(batch, partial(_rows_before, file, number))


def _check_names(schema: pa.Schema) -> None:
    """Raise if the column names are not valid UTF-8, which Arrow detects on access."""
    str(schema)
    schema.names  # noqa: B018


def _rows_before(file: pa.ipc.RecordBatchFileReader, number: int) -> int:
    return sum(file.get_batch(index).num_rows for index in range(number))


def _slice_batch(batch: pa.RecordBatch, before: Callable[[], int]) -> Iterator[Chunk]:
    for start in range(0, batch.num_rows, BATCH_ROWS):
        part = batch.slice(start, BATCH_ROWS)
        yield Chunk(part, partial(_locate_in_file, before, start), partial(record_as_json, part))


def _locate_in_file(before: Callable[[], int], start: int, row: int) -> tuple[int, None]:
    return before() + start + row + 1, None


# JSON lines


def read_json_lines(
    source: SourceReader, split: FileSplit, column_types: pa.Schema | None, *, ignores: bool
) -> RecordStream:
    """Yield the records of a split. `column_types` are types of known columns; other columns keep the types of the
    file, or are left out if `ignores` is set."""
    with source.open() as raw, naming_unreadable_file():
        stream, start = open_split(raw, detect_compression(split.file.uri), split.file.size, split.number, split.count)
        for block, lines_ahead in blocks_of_lines(stream, first=0):
            yield from _json_block(source, block, lines_ahead, start, column_types, ignores)


def _json_block(
    source: SourceReader, block: bytes, lines_ahead: int, start: int, column_types: pa.Schema | None, ignores: bool
) -> RecordStream:
    """Yield the records of a block. `lines_ahead` is the number of lines from `start` to the block."""
    lines = block.split(b"\n")
    numbers = [number for number, line in enumerate(lines) if line.strip()]
    texts = [lines[number] for number in numbers]
    options = pa_json.ParseOptions(
        explicit_schema=column_types,
        unexpected_field_behavior="ignore" if ignores else "infer",
        newlines_in_values=False,
    )

    def locate(row: int) -> tuple[int, int]:
        line = before() + lines_ahead + numbers[row] + 1
        return line, line

    def text(row: int) -> str:
        return texts[row].decode(errors="backslashreplace")

    def before() -> int:
        return count_lines_before(source, start) if start else 0

    for rows, parsed in _parse_lines(texts, np.arange(len(texts)), options):
        if isinstance(parsed, str):
            row = int(rows[0])
            number, line = locate(row)
            yield BadRecord(parsed, number, line, record=text(row))
        else:
            yield Chunk(parsed, partial(_call_with_row, locate, rows), partial(_call_with_row, text, rows))


def _call_with_row(function: Callable[[int], _T], rows: "_RowNumbers", index: int) -> _T:
    return function(int(rows[index]))


_RowNumbers: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"


def _parse_lines(
    texts: Sequence[bytes], rows: _RowNumbers, options: pa_json.ParseOptions
) -> Iterator[tuple[_RowNumbers, pa.RecordBatch | str]]:
    """Parse lines, each of which must be one object. Lines that do not parse together are bisected until the bad ones
    are found. Yields rows with their batch, or a bad row with the reason."""
    if not len(rows):
        return
    data = b"\n".join([texts[int(row)] for row in rows]) + b"\n"
    reason = ""
    try:
        reading = pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        table = pa_json.read_json(BytesIO(data), read_options=reading, parse_options=options)
        reason = f"the line has {table.num_rows} objects" if table.num_rows != len(rows) else ""
        if not reason:
            batches = table.combine_chunks().to_batches()
            batch = batches[0] if batches else pa.RecordBatch.from_pylist([{}] * len(rows))
            batch.validate(full=True)
            yield rows, batch
            return
    except pa.ArrowException as error:
        reason = _first_line(error).partition(" in row ")[0]
    if len(rows) == 1:
        yield rows, reason
        return
    middle = len(rows) // 2
    yield from _parse_lines(texts, rows[:middle], options)
    yield from _parse_lines(texts, rows[middle:], options)


def count_lines_before(source: SourceReader, end: int) -> int:
    """Count the lines of an uncompressed text before a position. Used for messages only."""
    count = 0
    with source.open() as stream:
        while end > 0 and (data := stream.read(min(end, LINE_BYTES_MAX))):
            count += data.count(b"\n")
            end -= len(data)
    return count


# Schemas


def infer_schema(source: SourceReader, format_: Format) -> pa.Schema | None:
    """Return the schema that the file states, or infer it from the first records; `None` if there are none."""
    with source.open(needs_ranges=format_ is Format.PARQUET) as stream, naming_unreadable_file():
        match format_:
            case Format.PARQUET:
                return pq.ParquetFile(source.path_on_disk or stream).schema_arrow
            case Format.ARROW:
                is_file = stream.read(len(_MAGIC)) == _MAGIC
                stream.seek(0)
                return pa.ipc.open_file(stream).schema if is_file else pa.ipc.open_stream(stream).schema
            case _:
                text = open_stream(stream, detect_compression(source.file.uri))
                block = next(blocks_of_lines(text, first=0), (b"", 0))[0]
                if not block.strip():
                    return None
                reading = pa_json.ReadOptions(use_threads=False, block_size=len(block) + 1)
                return pa_json.read_json(BytesIO(block), read_options=reading).schema
