"""CSV files: reads CSV as batches of bytes. pyarrow splits records and fields, and values are parsed once their type
is known.

A record with a wrong number of fields is yielded separately. Each split of a file reads the column names from the
beginning of the file. The line at which a record begins is computed only on request.
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
    source: SourceReader, split: FileSplit, csv: CsvFormat, columns_to_read: Callable[[list[str]], list[str]]
) -> RecordStream:
    """Yield the records of a split in chunks of unparsed bytes, and those with a wrong number of fields as bad
    records."""
    names = read_column_names(source, csv)
    if names is None:
        return
    uri, compression = split.file.uri, detect_compression(split.file.uri)
    with source.open() as raw, naming_unreadable_file():
        stream, start = open_split(raw, compression, split.file.size, split.number, split.count)
        is_first = start == 0
        skip = csv.skip_rows if is_first else 0
        has_header = csv.column_names is None and is_first
        record_numbers = _RecordNumbers(source, csv, start)
        invalid_rows: list[pa_csv.InvalidRow] = []

        def on_invalid_row(row: pa_csv.InvalidRow) -> str:
            invalid_rows.append(row)
            return "skip"

        reader = _open_reader(
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
            on_invalid_row,
            columns=names,
            columns_to_read=columns_to_read(names),
        )
        if reader is None:
            return
        # pyarrow also counts skipped lines and the header; here only rows of data count as records.
        rows_ahead = skip + (1 if has_header else 0)
        next_record = 1 + (csv.skip_rows_after_names if is_first else 0)
        invalid_seen = 0
        for batch in reader:
            record_of_row, next_record, invalid_seen = _number_records(
                batch.num_rows, next_record, invalid_seen, invalid_rows, rows_ahead
            )
            if batch.num_rows:
                yield Chunk(
                    batch,
                    partial(_locate_row, record_numbers, record_of_row),
                    partial(_record_as_text, batch),
                    is_text=True,
                )
        for row in invalid_rows:
            number, line = record_numbers.locate(row.number - rows_ahead)
            reason = f"the record has {row.actual_columns} fields, but there are {row.expected_columns} columns"
            yield BadRecord(reason, number, line, record=row.text)


def _locate_row(
    record_numbers: "_RecordNumbers", record_of_row: Callable[[int], int], row: int
) -> tuple[int, int | None]:
    return record_numbers.locate(record_of_row(row))


def _record_as_text(batch: pa.RecordBatch, row: int) -> str:
    return record_as_json(_decode_batch(batch.slice(row, 1)), 0)


def is_splittable(file: SourceFile, csv: CsvFormat, requested: Format | None) -> bool:
    """Return whether splits of the file can be read independently."""
    format_ = detect_format(file.uri, requested)
    if detect_compression(file.uri) is not None and format_ in (Format.CSV, Format.JSON):
        return False
    if format_ is not Format.CSV:
        return True
    skips = csv.skip_rows or csv.skip_rows_after_names or csv.escape_char
    return not (csv.newlines_in_values or skips) and csv.encoding.lower().replace("-", "") == "utf8"


def read_column_names(source: SourceReader, csv: CsvFormat) -> list[str] | None:
    """Return the column names of the file; `None` if it is empty."""
    if csv.column_names is not None:
        return list(csv.column_names)
    with source.open() as raw, naming_unreadable_file():
        stream = open_stream(raw, detect_compression(source.file.uri))
        read_options = pa_csv.ReadOptions(
            use_threads=False, block_size=csv.block_size, skip_rows=csv.skip_rows, encoding=csv.encoding
        )
        reader = _open_reader(stream, csv, source.file.uri, read_options, lambda _row: "skip")
        return None if reader is None else list(reader.schema.names)


def infer_csv_schema(source: SourceReader, csv: CsvFormat) -> pa.Schema | None:
    """Infer the schema from the first records; `None` if the file is empty."""
    with source.open() as raw, naming_unreadable_file():
        stream = open_stream(raw, detect_compression(source.file.uri))
        read_options = pa_csv.ReadOptions(
            use_threads=False,
            block_size=csv.block_size,
            skip_rows=csv.skip_rows,
            skip_rows_after_names=csv.skip_rows_after_names,
            column_names=csv.column_names,
            encoding=csv.encoding,
        )
        reader = _open_reader(stream, csv, source.file.uri, read_options, lambda _row: "skip", guesses=True)
        return None if reader is None else reader.schema


def _open_reader(
    stream: IO[bytes],
    csv: CsvFormat,
    uri: str,
    read_options: pa_csv.ReadOptions,
    on_invalid_row: Callable[[pa_csv.InvalidRow], str],
    *,
    columns: list[str] | None = None,
    columns_to_read: list[str] | None = None,
    guesses: bool = False,
) -> pa_csv.CSVStreamingReader | None:
    parse_options = pa_csv.ParseOptions(
        delimiter=csv.delimiter_of(uri),
        quote_char=csv.quote_char,
        double_quote=csv.double_quote,
        escape_char=csv.escape_char,
        newlines_in_values=csv.newlines_in_values,
        ignore_empty_lines=csv.ignore_empty_lines,
        invalid_row_handler=on_invalid_row,
    )
    is_proper_subset = (
        columns_to_read and len(set(columns_to_read)) == len(columns_to_read) and columns_to_read != columns
    )
    convert_options = pa_csv.ConvertOptions(
        check_utf8=False,
        column_types={name: pa.binary() for name in columns or ()},
        null_values=list(csv.null_values),
        strings_can_be_null=csv.strings_can_be_null,
        quoted_strings_can_be_null=csv.quoted_strings_can_be_null,
        include_columns=columns_to_read if is_proper_subset else None,
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
        return pa_csv.open_csv(stream, read_options, parse_options, convert_options)
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error):
            return None
        if "block" in str(error):
            raise ValueError(f"{error}; set CsvFormat(block_size=) to more than the longest record") from error
        raise


def _number_records(
    count: int, next_record: int, invalid_seen: int, invalid_rows: list[pa_csv.InvalidRow], rows_ahead: int
) -> tuple[Callable[[int], int], int, int]:
    """Return a function from rows of a batch to record numbers, which skips the invalid records in between, the
    number of the next record, and the number of invalid records seen."""
    gaps = []
    last = next_record + count - 1
    while invalid_seen < len(invalid_rows) and invalid_rows[invalid_seen].number - rows_ahead <= last:
        gaps.append(invalid_rows[invalid_seen].number - rows_ahead)
        last += 1
        invalid_seen += 1

    def record_of_row(row: int) -> int:
        record = next_record + row
        for gap in gaps:
            record += gap <= record
        return record

    return record_of_row, last + 1, invalid_seen


def _decode_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        pa.array([None if value is None else value.decode(errors="backslashreplace") for value in column.to_pylist()])
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


class _RecordNumbers:
    """Record numbers and line numbers in the whole file, for records of a split. Ascending lookups continue one pass
    over the file; any other lookup starts a new one."""

    def __init__(self, source: SourceReader, csv: CsvFormat, start: int) -> None:
        self._source, self._csv, self._start = source, csv, start
        self._records_before: int | None = None
        self._pass: Iterator[tuple[int, int]] | None = None
        self._last = (0, 0)

    def locate(self, record: int) -> tuple[int, int | None]:
        """Return the record number in the whole file, and its first line; `None` if the line cannot be found out."""
        if self._csv.escape_char or self._csv.encoding.lower().replace("-", "") != "utf8":
            return record, None
        if self._records_before is None:
            self._records_before = 0
            if self._start:
                self._records_before = sum(1 for _ in self._iter_records(until=self._start))
        target = self._records_before + record
        if self._pass is None or self._last[0] > target:
            self._pass, self._last = self._iter_records(), (0, 0)
        while self._last[0] < target:
            position = next(self._pass, None)
            if position is None:
                return target, None
            self._last = position
        return self._last

    def _iter_records(self, until: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield the number and the first line of each record. A record continues while a quote is open."""
        csv = self._csv
        quote = csv.quote_char.encode() if csv.quote_char and csv.newlines_in_values else b""
        header = csv.column_names is None
        number, line, first_line, in_quotes, offset = (-1 if header else 0), 0, 0, False, 0
        with self._source.open() as raw:
            for text in iter_lines(open_stream(raw, detect_compression(self._source.file.uri))):
                if until is not None and offset >= until:
                    return
                offset += len(text)
                line += 1
                if line <= csv.skip_rows:
                    continue
                if not in_quotes:
                    if csv.ignore_empty_lines and not text.strip(b"\r\n"):
                        continue
                    first_line = line
                if quote and text.count(quote) % 2:
                    in_quotes = not in_quotes
                if not in_quotes:
                    number += 1
                    if number > 0:
                        yield number, first_line


def iter_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a stream, with their line breaks."""
    rest = b""
    while data := stream.read(BLOCK_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        yield from (line + b"\n" for line in lines)
    if rest:
        yield rest
