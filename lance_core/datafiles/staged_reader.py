"""Staged readers: read rows from pages that are in memory (`staged_pages.py`).

`JoinedReader` reads the rows of several files one after another. `ObjectReader` reads one file of an object store: it
requests whole pages by itself, and leaves reads of a small part of a page to the codec, which opens the file then.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.codec import FileReader, RowRange, Rows
from lance_core.datafiles.file_checks import CheckedFile
from lance_core.datafiles.staged_pages import ReadRange, StagedPages, stage_object_range, stage_object_rows
from lance_core.format.page_view import FetchedRange, PageSelection
from lance_core.storage.store import Store

_READ_BYTES_MAX = 64 << 20
_ROWS_MAX = 65_536
"""A read of more rows is one of whole pages, or of most of a page."""
_WHOLE_BYTES_MAX = 512 * 1024
"""Bytes of pages that may be read in vain, which takes less time than another request that depends on the first."""


class ViewDecoder(Protocol):
    """Decoder of views, by the codec."""

    def schema_of(self, checked: CheckedFile) -> pa.Schema:
        """Return the schema that a checked file declares."""

    def read(
        self, view: Sequence[FetchedRange], columns: Sequence[str], start: int, count: int
    ) -> Iterator[pa.RecordBatch]:
        """Read a range of the rows of a view."""

    def take(self, view: Sequence[FetchedRange], columns: Sequence[str], rows: Rows) -> Iterator[pa.RecordBatch]:
        """Read single rows of a view."""


@dataclass(frozen=True, slots=True)
class JoinedReader:
    """Reader for the rows of files with one schema, in the order of the files, of the columns that were staged."""

    row_counts: Sequence[int]
    schema: pa.Schema
    _staged: StagedPages
    _decoder: ViewDecoder

    @property
    def row_count(self) -> int:
        return sum(self.row_counts)

    @property
    def byte_count(self) -> int:
        """Bytes of the pages in memory."""
        return sum(len(data) for _, data in self._staged.view)

    @property
    def metadata(self) -> Mapping[str, str]:
        return _metadata_of(self.schema)

    def read_buffer(self, number: int) -> bytes:
        raise NotImplementedError("joined files have no buffers")

    def read(self, columns: Sequence[str], start: int, count: int) -> Iterator[pa.RecordBatch]:
        return self._decoder.read(self._staged.view, columns, start, count)

    def take(self, columns: Sequence[str], rows: Rows) -> Iterator[pa.RecordBatch]:
        return self._decoder.take(self._staged.view, columns, rows)

    def with_descriptors(self) -> FileReader:
        raise NotImplementedError("files with blobs are not joined")

    def take_plain(self, column: int, rows: Rows) -> npt.NDArray[np.uint8] | None:
        return None

    def read_plain(
        self, columns: Sequence[int], ranges: Sequence[RowRange]
    ) -> list[tuple[npt.NDArray[np.uint8], ...]] | None:
        return None


@dataclass(slots=True)
class ObjectReader:
    """Reader for one file of an object store."""

    _store: Store
    _path: str
    _checked: CheckedFile
    _tail: FetchedRange | None
    """End of the file, if it was read to check the file. Small files are complete in it."""
    _read: ReadRange
    _concurrency: int
    _decoder: ViewDecoder
    _open_by_codec: Callable[[], FileReader]
    _whole_bytes_max: int = _WHOLE_BYTES_MAX
    _opened: list[FileReader] = field(default_factory=list, init=False)

    @property
    def row_count(self) -> int:
        return 0 if self._checked.pages is None else self._checked.pages.rows

    @property
    def schema(self) -> pa.Schema:
        return self._decoder.schema_of(self._checked)

    @property
    def metadata(self) -> Mapping[str, str]:
        return _metadata_of(self.schema)

    def read_buffer(self, number: int) -> bytes:
        return self._by_codec().read_buffer(number)

    def read(self, columns: Sequence[str], start: int, count: int) -> Iterator[pa.RecordBatch]:
        def is_worth_it(selection: PageSelection) -> bool:
            needed = selection.byte_count * count // max(1, selection.rows)
            return selection.byte_count <= min(2 * needed + self._whole_bytes_max, _READ_BYTES_MAX)

        staged = self._stage(columns, start, count, is_worth_it)
        if staged is None and count <= _ROWS_MAX:
            staged = self._stage_rows(columns, np.arange(start, start + count))
        if staged is None:
            return self._by_codec().read(columns, start, count)
        return self._decoder.read(staged.view, columns, start - staged.first_row, count)

    def take(self, columns: Sequence[str], rows: Rows) -> Iterator[pa.RecordBatch]:
        if not len(rows):
            return self._by_codec().take(columns, rows)
        first = int(rows[0])
        staged = self._stage(
            columns, first, int(rows[-1]) + 1 - first, lambda selection: selection.byte_count <= self._whole_bytes_max
        ) or self._stage_rows(columns, rows)
        if staged is None:
            return self._by_codec().take(columns, rows)
        return self._decoder.take(staged.view, columns, rows - staged.first_row)

    @property
    def is_opened_by_codec(self) -> bool:
        """`True` if a read was left to the codec."""
        return bool(self._opened)

    def with_descriptors(self) -> FileReader:
        return self._by_codec().with_descriptors()

    def take_plain(self, column: int, rows: Rows) -> npt.NDArray[np.uint8] | None:
        return None

    def read_plain(
        self, columns: Sequence[int], ranges: Sequence[RowRange]
    ) -> list[tuple[npt.NDArray[np.uint8], ...]] | None:
        return None

    def _stage(
        self, columns: Sequence[str], start: int, count: int, is_worth_it: Callable[[PageSelection], bool]
    ) -> StagedPages | None:
        if self._opened or start < 0 or count <= 0 or start + count > self.row_count:
            return None
        return stage_object_range(
            self._store,
            self._path,
            self._checked,
            self._tail,
            tuple(columns),
            (start, count),
            is_worth_it,
            self._read,
            self._concurrency,
        )

    def _stage_rows(self, columns: Sequence[str], rows: Rows) -> StagedPages | None:
        if self._opened or not len(rows) or rows[0] < 0 or rows[-1] >= self.row_count:
            return None
        return stage_object_rows(
            self._store, self._path, self._checked, self._tail, tuple(columns), rows, self._read, self._concurrency
        )

    def _by_codec(self) -> FileReader:
        """Return the reader of the codec, which takes a request more to open the file."""
        if not self._opened:
            self._opened.append(self._open_by_codec())
        return self._opened[0]


def _metadata_of(schema: pa.Schema) -> Mapping[str, str]:
    return {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}


__all__ = ["JoinedReader", "ObjectReader", "ViewDecoder"]
