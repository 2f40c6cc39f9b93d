"""CSV as batches of bytes: pyarrow cuts records and fields, and no value is parsed before it is known what it is to be.

A record with a wrong number of fields comes out on its own. Where a file is cut into parts, the names of columns are
read from its beginning by each. Which line a record begins at is only found out where somebody asks.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import IO

import pyarrow as pa
import pyarrow.csv as pa_csv

from lance_core.tasks.ingest.file_readers import (
    BadRecord,
    Chunk,
    FileSplit,
    RecordStream,
    naming_unreadable_file,
    record_as_json,
)
from lance_core.tasks.ingest.formats import CsvFormat, Format, detect_compression, detect_format
from lance_core.tasks.ingest.line_splitter import BLOCK_BYTES, open_split, open_stream
from lance_core.tasks.ingest.sources import SourceFile, SourceReader


def read_csv(
    source: SourceReader, part: FileSplit, csv: CsvFormat, wanted: Callable[[list[str]], list[str]]
) -> RecordStream:
    names = read_column_names(source, csv)
    if names is None:
        return
    uri, compression = part.file.uri, detect_compression(part.file.uri)
    with source.open() as raw, naming_unreadable_file():
        stream, start = open_split(raw, compression, part.file.size, part.number, part.count)
        is_first = start == 0
        skip = csv.skip_rows if is_first else 0
        has_header = csv.column_names is None and is_first
        places = _RecordNumbers(source, csv, start)
        failed: list[pa_csv.InvalidRow] = []

        def odd(row: pa_csv.InvalidRow) -> str:
            failed.append(row)
            return "skip"

        reader = _opened(
            stream,
            csv,
            uri,
            pa_csv.ReadOptions(
                use_threads=False,
                block_size=csv.block_size,
                skip_rows=skip,
                skip_rows_after_names=csv.skip_rows_after_names if is_first else 0,
                column_names=None if has_header else names,
                encoding=csv.encoding,
            ),
            odd,
            columns=names,
            wanted=wanted(names),
        )
        if reader is None:
            return
        # pyarrow counts lines that were skipped, the header, and records; here a record is a row of data.
        ahead = skip + (1 if has_header else 0)
        following = 1 + (csv.skip_rows_after_names if is_first else 0)
        told = 0
        for batch in reader:
            rows, following, told = _numbered(batch.num_rows, following, told, failed, ahead)
            if batch.num_rows:
                yield Chunk(batch, partial(_place, places, rows), partial(_record, batch), is_text=True)
        for row in failed:
            number, line = places.of(row.number - ahead)
            reason = f"it has {row.actual_columns} fields, and there are {row.expected_columns} columns"
            yield BadRecord(reason, number, line, record=row.text)


def _place(places: "_RecordNumbers", rows: Callable[[int], int], at: int) -> tuple[int, int | None]:
    return places.of(rows(at))


def _record(batch: pa.RecordBatch, at: int) -> str:
    return record_as_json(_as_text(batch.slice(at, 1)), 0)


def is_splittable(file: SourceFile, csv: CsvFormat, asked: Format | None) -> bool:
    """Whether parts of it can be read by themselves."""
    kind = detect_format(file.uri, asked)
    if detect_compression(file.uri) is not None and kind in (Format.CSV, Format.JSON):
        return False
    if kind is not Format.CSV:
        return True
    skips = csv.skip_rows or csv.skip_rows_after_names or csv.escape_char
    return not (csv.newlines_in_values or skips) and csv.encoding.lower().replace("-", "") == "utf8"


def read_column_names(source: SourceReader, csv: CsvFormat) -> list[str] | None:
    """None of a file in which there is nothing."""
    if csv.column_names is not None:
        return list(csv.column_names)
    with source.open() as raw, naming_unreadable_file():
        stream = open_stream(raw, detect_compression(source.file.uri))
        reading = pa_csv.ReadOptions(
            use_threads=False, block_size=csv.block_size, skip_rows=csv.skip_rows, encoding=csv.encoding
        )
        reader = _opened(stream, csv, source.file.uri, reading, lambda _row: "skip")
        return None if reader is None else list(reader.schema.names)


def infer_csv_schema(source: SourceReader, csv: CsvFormat) -> pa.Schema | None:
    """As the first records look."""
    with source.open() as raw, naming_unreadable_file():
        stream = open_stream(raw, detect_compression(source.file.uri))
        reading = pa_csv.ReadOptions(
            use_threads=False,
            block_size=csv.block_size,
            skip_rows=csv.skip_rows,
            skip_rows_after_names=csv.skip_rows_after_names,
            column_names=csv.column_names,
            encoding=csv.encoding,
        )
        reader = _opened(stream, csv, source.file.uri, reading, lambda _row: "skip", guesses=True)
        return None if reader is None else reader.schema


def _opened(
    stream: IO[bytes],
    csv: CsvFormat,
    uri: str,
    reading: pa_csv.ReadOptions,
    odd: Callable[[pa_csv.InvalidRow], str],
    *,
    columns: list[str] | None = None,
    wanted: list[str] | None = None,
    guesses: bool = False,
) -> pa_csv.CSVStreamingReader | None:
    parsing = pa_csv.ParseOptions(
        delimiter=csv.delimiter_of(uri),
        quote_char=csv.quote_char,
        double_quote=csv.double_quote,
        escape_char=csv.escape_char,
        newlines_in_values=csv.newlines_in_values,
        ignore_empty_lines=csv.ignore_empty_lines,
        invalid_row_handler=odd,
    )
    converting = pa_csv.ConvertOptions(
        check_utf8=False,
        column_types={name: pa.binary() for name in columns or ()},
        null_values=list(csv.null_values),
        strings_can_be_null=csv.strings_can_be_null,
        quoted_strings_can_be_null=csv.quoted_strings_can_be_null,
        include_columns=wanted if wanted and len(set(wanted)) == len(wanted) and wanted != columns else None,
        **(
            {
                "true_values": list(csv.true_values),
                "false_values": list(csv.false_values),
                "decimal_point": csv.decimal_point,
                "timestamp_parsers": [*csv.timestamp_parsers, pa_csv.ISO8601],
            }
            if guesses
            else {}
        ),
    )
    try:
        return pa_csv.open_csv(stream, reading, parsing, converting)
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error):
            return None
        if "block" in str(error):
            raise ValueError(f"{error}; give CsvFormat(block_size=) more than its longest record has") from error
        raise


def _numbered(
    count: int, following: int, told: int, failed: list[pa_csv.InvalidRow], ahead: int
) -> tuple[Callable[[int], int], int, int]:
    """The numbers of the records of a batch, between those that failed; and where the next one begins."""
    gaps = []
    last = following + count - 1
    while told < len(failed) and failed[told].number - ahead <= last:
        gaps.append(failed[told].number - ahead)
        last += 1
        told += 1

    def number(row: int) -> int:
        found = following + row
        for gap in gaps:
            found += gap <= found
        return found

    return number, last + 1, told


def _as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        pa.array([None if each is None else each.decode(errors="backslashreplace") for each in column.to_pylist()])
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


class _RecordNumbers:
    """Numbers of records in the whole file, and lines, for rows of a part of it. Asked for rising numbers it reads on;
    for another it begins again."""

    def __init__(self, source: SourceReader, csv: CsvFormat, start: int) -> None:
        self._source, self._csv, self._start = source, csv, start
        self._before: int | None = None
        self._walk: Iterator[tuple[int, int]] | None = None
        self._last = (0, 0)

    def of(self, number: int) -> tuple[int, int | None]:
        if self._csv.escape_char or self._csv.encoding.lower().replace("-", "") != "utf8":
            return number, None
        if self._before is None:
            self._before = 0
            if self._start:
                self._before = sum(1 for _ in self._records(until=self._start))
        wanted = self._before + number
        if self._walk is None or self._last[0] > wanted:
            self._walk, self._last = self._records(), (0, 0)
        while self._last[0] < wanted:
            found = next(self._walk, None)
            if found is None:
                return wanted, None
            self._last = found
        return self._last

    def _records(self, until: int | None = None) -> Iterator[tuple[int, int]]:
        """Number and first line of each; a record goes on while a quote is open."""
        csv = self._csv
        quote = csv.quote_char.encode() if csv.quote_char and csv.newlines_in_values else b""
        header = csv.column_names is None
        number, line, begun, is_open, at = (-1 if header else 0), 0, 0, False, 0
        with self._source.open() as raw:
            for text in iter_lines(open_stream(raw, detect_compression(self._source.file.uri))):
                if until is not None and at >= until:
                    return
                at += len(text)
                line += 1
                if line <= csv.skip_rows:
                    continue
                if not is_open:
                    if csv.ignore_empty_lines and not text.strip(b"\r\n"):
                        continue
                    begun = line
                if quote and text.count(quote) % 2:
                    is_open = not is_open
                if not is_open:
                    number += 1
                    if number > 0:
                        yield number, begun


def iter_lines(stream: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while data := stream.read(BLOCK_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        yield from (line + b"\n" for line in lines)
    if rest:
        yield rest
