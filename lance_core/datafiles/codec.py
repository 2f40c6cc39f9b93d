"""Codec port: what the fragment code needs from a library that writes and reads files of Arrow columns.

Two codecs implement it: `lance_codec.py` (production) and `ipc_codec.py` (Arrow IPC files, for tests of commits).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.format.file_checksum import FileChecksum
from lance_core.format.fragment import StorageVersion

BATCH_ROWS = 65_536

Rows = npt.NDArray[np.int64]
"""Physical row numbers of a file, ascending and distinct."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """Consecutive physical rows of a file."""

    start: int
    count: int


class FileWriter(Protocol):
    """Writer for one file."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    def add_buffer(self, data: bytes) -> int:
        """Store bytes apart from the columns, and return the number of the buffer."""

    def add_metadata(self, key: str, value: str) -> None:
        """Add an entry to the metadata of the file's schema."""

    def finish(self, unsynced: list[str] | None = None) -> FileChecksum:
        """Close the file, make it durable, and return its size and hash. With `unsynced`, paths that need a sync are
        added to that list, and the caller makes them durable."""


class FileReader(Protocol):
    """Reader for one file."""

    @property
    def row_count(self) -> int: ...

    @property
    def schema(self) -> pa.Schema:
        """Schema of the file, with the names that its columns had when it was written."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """Metadata of that schema."""

    def read_buffer(self, number: int) -> bytes:
        """Return the buffer with this number."""

    def read(self, columns: Sequence[str], start: int, count: int) -> Iterator[pa.RecordBatch]:
        """Read rows `start` to `start + count` of columns, in batches of at most `BATCH_ROWS`.

        A name with dots is a path into structs; a codec that cannot read a part of a column reads the whole
        column.
        """

    def with_descriptors(self) -> "FileReader":
        """Return a reader for the same file that returns the locations of blobs instead of their bytes."""

    def take(self, columns: Sequence[str], rows: Rows) -> Iterator[pa.RecordBatch]:
        """Read single rows of columns."""

    def take_plain(self, column: int, rows: Rows) -> npt.NDArray[np.uint8] | None:
        """Return the bytes of single values of the column with this number, one value a row; `None` if the file does
        not store them unchanged, so that only `take` can read them."""

    def read_plain(
        self, columns: Sequence[int], ranges: Sequence[RowRange]
    ) -> list[tuple[npt.NDArray[np.uint8], ...]] | None:
        """Return the bytes of each column in each range of rows; `None` if only `read` can read one of them."""


class JoinedFiles(FileReader, Protocol):
    """Reader for the rows of several files, one after another."""

    @property
    def row_counts(self) -> Sequence[int]:
        """Number of rows of each file."""


@dataclass(frozen=True, slots=True)
class FileToRead:
    """A file with what the table records about it."""

    path: str
    size: int | None
    field_count: int = 0
    """Number of fields that it stores; 0 if unknown."""


class DataCodec(Protocol):
    """Factory for writers and readers."""

    def create(self, path: str, schema: pa.Schema, version: StorageVersion) -> FileWriter: ...

    def verify(self, path: str, checksum: FileChecksum | None) -> None:
        """Compare a file with its recorded checksum, if the table was opened so, and raise `Corrupt` if it differs."""

    def join(self, files: "Sequence[FileToRead]", columns: Sequence[str]) -> "JoinedFiles | None":
        """Read columns of several files, to be decoded in one call; `None` if the files have to be opened one by
        one."""

    def open(
        self,
        path: str,
        columns: Sequence[str] = (),
        *,
        size: int | None = None,
        is_vouched: bool = False,
    ) -> FileReader:
        """Open a file. `columns` are the ones that will probably be read, so that a codec can prepare for them; they
        need not exist. `size` is the recorded one, if it is known. `is_vouched` says that this library wrote the file,
        in a version whose metadata the codec checks well enough."""
