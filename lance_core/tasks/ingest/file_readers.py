"""One file, or a part of one, as batches in bounded memory; what is no record, and what cannot be read, on the way.

    Parquet     row groups whose middle lies in the part
    Arrow       record batches of the part, of the file format; a stream is read whole
    JSON lines  lines that begin in the part: a line break is never inside of a JSON text
    CSV         whole, or by lines where values cannot hold line breaks (`csv_files.py`)

A part is a fraction of a file, so that nobody has to open it to cut it. Values come as the file has them; `locate_row` and
`record_text` tell, for the few rows that somebody asks about, where they are and what they say.
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
    """The `number`th of `count` parts of a file that are about equally large."""

    file: SourceFile
    number: int = 0
    count: int = 1

    def contains(self, place: float) -> bool:
        """Whether what lies at this fraction of the file is in it."""
        return min(math.floor(place * self.count), self.count - 1) == self.number


@dataclass(frozen=True, slots=True)
class Chunk:
    batch: pa.RecordBatch
    locate_row: Callable[[int], tuple[int, int | None]]
    """Of a row of the batch: the number of its record in the file, from 1, and the line where it begins, of text."""
    record_text: Callable[[int], str]
    is_text: bool = False
    """The values of all columns are bytes that are not parsed yet."""


@dataclass(frozen=True, slots=True)
class BadRecord:
    """What could not be taken over, and why."""

    reason: str
    row: int | None = None
    line: int | None = None
    column: str | None = None
    record: str | None = None


RecordStream: TypeAlias = Iterator[Chunk | BadRecord]


class Unreadable(Exception):
    """What a file holds is not what its format says. Carries the reason."""


@contextmanager
def naming_unreadable_file() -> Iterator[None]:
    """Arrow calls damaged bytes an `OSError` without a number; with one, it is the disk that has failed."""
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
    """For people, and to be read again: values without a JSON form as text."""
    values = {name: batch.column(at).slice(row, 1).to_pylist()[0] for at, name in enumerate(batch.schema.names)}
    return json.dumps(values, default=_as_text, ensure_ascii=False)


def _as_text(value: object) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


# Parquet


def read_parquet(source: SourceReader, part: FileSplit, wanted: Callable[[list[str]], list[str]]) -> RecordStream:
    with source.open() as stream, naming_unreadable_file():
        file = pq.ParquetFile(source.path_on_disk or stream, pre_buffer=True, memory_map=False)
        try:
            yield from _row_groups(file, part, wanted)
        finally:
            file.close()


def _row_groups(file: pq.ParquetFile, part: FileSplit, wanted: Callable[[list[str]], list[str]]) -> RecordStream:
    columns = wanted(file.schema_arrow.names)
    metadata, first = file.metadata, 0
    size = max(1, part.file.size)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        before, first = first, first + group.num_rows
        if not group.num_rows or not part.contains(_middle(group) / size):
            continue
        row_bytes = max(1, group.total_byte_size // group.num_rows)
        rows = max(1, min(BATCH_ROWS, _BATCH_BYTES // row_bytes))
        at = before
        for batch in file.iter_batches(rows, row_groups=[number], columns=columns, use_threads=False):
            batch.validate(full=True)
            yield _chunk(batch, at)
            at += batch.num_rows


def _middle(group: pq.RowGroupMetaData) -> float:
    """In bytes from the beginning of the file."""
    starts = []
    for number in range(group.num_columns):
        column = group.column(number)
        starts.append(column.dictionary_page_offset or column.data_page_offset)
    compressed = sum(group.column(number).total_compressed_size for number in range(group.num_columns))
    return float(min(starts, default=0) + compressed / 2)


def _chunk(batch: pa.RecordBatch, before: int) -> Chunk:
    return Chunk(batch, lambda row: (before + row + 1, None), lambda row: record_as_json(batch, row))


# Arrow


def read_arrow(source: SourceReader, part: FileSplit) -> RecordStream:
    with source.open() as stream, naming_unreadable_file():
        is_file = stream.read(len(_MAGIC)) == _MAGIC
        stream.seek(0)
        if is_file:
            yield from _arrow_file(pa.ipc.open_file(pa.PythonFile(stream)), part)
        elif part.number == 0:
            before = 0
            reader = pa.ipc.open_stream(stream)
            _check_names(reader.schema)
            for batch in reader:
                batch.validate(full=True)
                yield from _slices(batch, partial(int, before))
                before += batch.num_rows


def _arrow_file(file: pa.ipc.RecordBatchFileReader, part: FileSplit) -> RecordStream:
    count = file.num_record_batches
    _check_names(file.schema)
    for number in range(count):
        if part.contains((number + 0.5) / count):
            batch = file.get_batch(number)
            batch.validate(full=True)
            yield from _slices(batch, partial(_rows_before, file, number))


def _check_names(schema: pa.Schema) -> None:
    """Arrow finds out that they are no text when they are asked for."""
    str(schema)
    schema.names  # noqa: B018


def _rows_before(file: pa.ipc.RecordBatchFileReader, number: int) -> int:
    return sum(file.get_batch(each).num_rows for each in range(number))


def _slices(batch: pa.RecordBatch, before: Callable[[], int]) -> Iterator[Chunk]:
    for start in range(0, batch.num_rows, BATCH_ROWS):
        piece = batch.slice(start, BATCH_ROWS)
        yield Chunk(piece, partial(_place, before, start), partial(record_as_json, piece))


def _place(before: Callable[[], int], start: int, row: int) -> tuple[int, None]:
    return before() + start + row + 1, None


# JSON lines


def read_json_lines(source: SourceReader, part: FileSplit, asked: pa.Schema | None, *, ignores: bool) -> RecordStream:
    """`asked` are types of columns that are known; others come as they are, or are left out where it `ignores` them."""
    with source.open() as raw, naming_unreadable_file():
        stream, start = open_split(raw, detect_compression(part.file.uri), part.file.size, part.number, part.count)
        for block, place in blocks_of_lines(stream, first=0):
            yield from _json_block(source, block, place, start, asked, ignores)


def _json_block(
    source: SourceReader, block: bytes, place: int, start: int, asked: pa.Schema | None, ignores: bool
) -> RecordStream:
    """`place` is the number of lines before the block, from `start` on."""
    lines = block.split(b"\n")
    numbers = [number for number, line in enumerate(lines) if line.strip()]
    texts = [lines[number] for number in numbers]
    options = pa_json.ParseOptions(
        explicit_schema=asked, unexpected_field_behavior="ignore" if ignores else "infer", newlines_in_values=False
    )

    def told(row: int) -> tuple[int, int]:
        line = before() + place + numbers[row] + 1
        return line, line

    def text(row: int) -> str:
        return texts[row].decode(errors="backslashreplace")

    def before() -> int:
        return count_lines_before(source, start) if start else 0

    for rows, parsed in _parsed(texts, np.arange(len(texts)), options):
        if isinstance(parsed, str):
            row = int(rows[0])
            number, line = told(row)
            yield BadRecord(parsed, number, line, record=text(row))
        else:
            yield Chunk(parsed, partial(_of_row, told, rows), partial(_of_row, text, rows))


def _of_row(told: Callable[[int], _T], rows: "_Numbers", at: int) -> _T:
    return told(int(rows[at]))


_Numbers: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"


def _parsed(
    texts: Sequence[bytes], rows: _Numbers, options: pa_json.ParseOptions
) -> Iterator[tuple[_Numbers, pa.RecordBatch | str]]:
    """Halves of what does not parse, until it is one line; a line is one object."""
    if not len(rows):
        return
    data = b"\n".join([texts[int(row)] for row in rows]) + b"\n"
    why = ""
    try:
        reading = pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        table = pa_json.read_json(BytesIO(data), read_options=reading, parse_options=options)
        why = f"there are {table.num_rows} objects in the line" if table.num_rows != len(rows) else ""
        if not why:
            batches = table.combine_chunks().to_batches()
            batch = batches[0] if batches else pa.RecordBatch.from_pylist([{}] * len(rows))
            batch.validate(full=True)
            yield rows, batch
            return
    except pa.ArrowException as error:
        why = _first_line(error).partition(" in row ")[0]
    if len(rows) == 1:
        yield rows, why
        return
    middle = len(rows) // 2
    yield from _parsed(texts, rows[:middle], options)
    yield from _parsed(texts, rows[middle:], options)


def count_lines_before(source: SourceReader, end: int) -> int:
    """Of a text that is not compressed, up to a byte: read for messages alone."""
    found = 0
    with source.open() as stream:
        while end > 0 and (data := stream.read(min(end, LINE_BYTES_MAX))):
            found += data.count(b"\n")
            end -= len(data)
    return found


# Schemas


def infer_schema(source: SourceReader, kind: Format) -> pa.Schema | None:
    """As the file says it, or as its first records look; None where there are none."""
    with source.open() as stream, naming_unreadable_file():
        match kind:
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
