"""The port between fragments and files: whoever can write and read a file of Arrow columns can be a codec.

Two fill it: `lance_codec.py` (the product) and `ipc_codec.py` (for commits under test, in memory).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.format.fragment import StorageVersion

BATCH_ROWS = 65_536

Rows = npt.NDArray[np.int64]
"""Physical row numbers of a file, ascending and distinct."""


class FileWriter(Protocol):
    def write(self, batch: pa.RecordBatch) -> None: ...

    def attach(self, data: bytes) -> int:
        """Bytes beside the columns; the number under which the file has them."""

    def note(self, key: str, value: str) -> None:
        """Into the metadata of the file's schema."""

    def finish(self) -> int:
        """Close and make durable; the file's size in bytes."""


class FileReader(Protocol):
    @property
    def row_count(self) -> int: ...

    @property
    def schema(self) -> pa.Schema:
        """The file's own schema, with the names its columns had when it was written."""

    @property
    def notes(self) -> Mapping[str, str]:
        """The metadata of that schema."""

    def attached(self, number: int) -> bytes:
        """What was attached under this number."""

    def read(self, columns: Sequence[str], start: int, count: int) -> Iterator[pa.RecordBatch]:
        """Rows `start` to `start + count` of columns, in batches of at most `BATCH_ROWS`. A name with dots is a path
        into structs; a codec that cannot read a part of a column reads the whole."""

    def described(self) -> "FileReader":
        """The same file, but of blobs it reads where they are."""

    def take(self, columns: Sequence[str], rows: Rows) -> Iterator[pa.RecordBatch]:
        """The same of single rows."""


class DataCodec(Protocol):
    def create(self, path: str, schema: pa.Schema, version: StorageVersion) -> FileWriter: ...

    def open(self, path: str, columns: Sequence[str] = ()) -> FileReader:
        """`columns` are those that will probably be read: a codec may prepare for them. They need not be there."""
