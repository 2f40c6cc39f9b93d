"""The port between fragments and files: whoever can write and read a file of Arrow columns can be a codec.

Two fill it: `lance_codec.py` (the product) and `ipc_codec.py` (for commits under test, in memory).
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from lance_core.format.fragment import StorageVersion

BATCH_ROWS = 65_536


class FileWriter(Protocol):
    def write(self, batch: pa.RecordBatch) -> None: ...

    def finish(self) -> int:
        """Close and make durable; the file's size in bytes."""


class FileReader(Protocol):
    @property
    def row_count(self) -> int: ...

    @property
    def schema(self) -> pa.Schema:
        """The file's own schema, with the names its columns had when it was written."""

    def read(self, columns: Sequence[str], start: int, count: int) -> Iterator[pa.RecordBatch]:
        """Rows `start` to `start + count` of top-level columns, in batches of at most `BATCH_ROWS`."""


class DataCodec(Protocol):
    def create(self, path: str, schema: pa.Schema, version: StorageVersion) -> FileWriter: ...

    def open(self, path: str) -> FileReader: ...
