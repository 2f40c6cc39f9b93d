"""File writers: batches of Arrow to a local file of Parquet, CSV, JSON lines or Arrow IPC."""

import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from lance_core.errors import InvalidInput
from lance_core.tasks.ingest.formats import Format

SUFFIXES = {Format.PARQUET: "parquet", Format.CSV: "csv", Format.JSON: "jsonl", Format.ARROW: "arrow"}


def write_file(path: Path, format_: Format, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Write the batches, and return the number of rows."""
    rows = 0
    try:
        match format_:
            case Format.PARQUET:
                with pq.ParquetWriter(path, schema, compression="zstd") as parquet:
                    for batch in batches:
                        parquet.write_batch(batch)
                        rows += batch.num_rows
            case Format.CSV:
                with pa_csv.CSVWriter(path, schema) as csv:
                    for batch in batches:
                        csv.write_batch(batch)
                        rows += batch.num_rows
            case Format.ARROW:
                with pa.ipc.new_file(path, schema) as arrow:
                    for batch in batches:
                        arrow.write_batch(batch)
                        rows += batch.num_rows
            case Format.JSON:
                rows = _write_json_lines(path, batches)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidInput(
            f"rows cannot be exported as {SUFFIXES[format_]}: {error}; choose columns that this format can hold, or "
            "format='parquet'"
        ) from error
    return rows


def _write_json_lines(path: Path, batches: Iterable[pa.RecordBatch]) -> int:
    rows = 0
    with path.open("w", encoding="utf-8") as lines:
        for batch in batches:
            for row in batch.to_pylist():
                lines.write(json.dumps(row, default=_as_json, ensure_ascii=False) + "\n")
            rows += batch.num_rows
    return rows


def _as_json(value: object) -> str:
    """Return a value without a JSON form as text: times as ISO 8601, decimals and others as they print."""
    if isinstance(value, bytes):
        raise InvalidInput(
            "rows cannot be exported as jsonl, since JSON has no binary values; leave the column out, or choose "
            "another format"
        )
    isoformat = getattr(value, "isoformat", None)
    return str(isoformat()) if callable(isoformat) else str(value)
