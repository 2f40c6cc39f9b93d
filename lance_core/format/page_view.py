"""Page view: a file in memory with pages of some columns of one or of several data files, which the codec decodes in
one call.

    data files     [a][b][c][metadata]   [a][b][c][metadata]
    view of a, c   [a][c] [a][c] [schema of a and c] [metadata of two columns, each with two pages] [footer]

Opening and reading a small file takes the codec several times as long as decoding it, and it asks an object store for
the size of each file. A page needs nothing but its own buffers, so a view has them unchanged, at other positions.
Only files of version 2.1 and later, whose pages consist of whole rows, have views. Pure. Start with `select_pages`.
"""

from bisect import bisect_right
from collections.abc import Sequence, Set
from dataclasses import dataclass

from lance_core.format._pb import columns_pb2
from lance_core.format.file_footer import FOOTER, MAGIC, SPAN
from lance_core.format.fragment import StorageVersion

FIRST_VERSION = StorageVersion(2, 1)
"""First version whose pages consist of whole rows."""
_ALIGNMENT = 64
_LENGTH_TAG = b"\x10"

Span = tuple[int, int]
"""Position and size."""
FetchedRange = tuple[int, bytes]
"""Position in a data file, and the bytes from there on."""


@dataclass(frozen=True, slots=True)
class FilePages:
    """Pages of a data file, as its metadata describes them."""

    version: StorageVersion
    schema_bytes: bytes
    rows: int
    columns: tuple[bytes, ...]
    """Encoded metadata of each column."""


@dataclass(frozen=True, slots=True)
class PageSelection:
    """Pages of a file that contain a range of rows."""

    first_row: int
    """Row of the file with which the pages begin."""
    rows: int
    columns: tuple[columns_pb2.ColumnMetadata, ...]
    """Metadata of each column with these pages alone. `build_view` consumes them."""
    spans: tuple[Span, ...]
    """Buffers of the pages, by position."""

    @property
    def byte_count(self) -> int:
        return sum(size for _, size in self.spans)


def select_pages(
    file: FilePages, columns: Sequence[int], start: int, stop: int, *, left_out: Set[int] = frozenset()
) -> PageSelection | None:
    """Return the pages of columns that contain rows `start` to `stop`; `None` if a view cannot have them: the pages of
    the columns begin at different rows, or share buffers. A view has columns in `left_out` without pages."""
    selected, spans, first_rows = [], [], set()
    last_row = file.rows
    for number in columns:
        if number >= len(file.columns):
            return None
        column = columns_pb2.ColumnMetadata.FromString(file.columns[number])
        if column.buffer_sizes:
            return None
        if number in left_out:
            del column.pages[:]
            selected.append(column)
            continue
        if start > 0 or stop < file.rows:
            first_row, end_row = _keep_pages(column, start, stop)
            first_rows.add(first_row)
            last_row = min(last_row, end_row)
        for page in column.pages:
            spans += [span for span in zip(page.buffer_offsets, page.buffer_sizes, strict=True) if span[1]]
        selected.append(column)
    if len(first_rows) > 1:
        return None
    first = first_rows.pop() if first_rows else 0
    return PageSelection(first, last_row - first, tuple(selected), tuple(sorted(spans)))


def _keep_pages(column: columns_pb2.ColumnMetadata, start: int, stop: int) -> Span:
    """Remove the pages outside a range of rows, and return the first and the last row of the others."""
    at, begin, end = 0, start, start
    kept: list[columns_pb2.ColumnMetadata.Page] = []
    for page in column.pages:
        if at < stop and at + page.length > start:
            begin = begin if kept else at
            end = at + page.length
            kept.append(page)
        at += page.length
    copies = [columns_pb2.ColumnMetadata.Page.FromString(page.SerializeToString()) for page in kept]
    del column.pages[:]
    column.pages.extend(copies)
    return begin, end


def merge_spans(spans: Sequence[Span], gap_max: int) -> list[Span]:
    """Join spans, ascending by position, that are at most `gap_max` bytes apart."""
    merged: list[Span] = []
    for position, size in spans:
        if merged and position <= sum(merged[-1]) + gap_max:
            first = merged[-1][0]
            merged[-1] = first, max(sum(merged[-1]), position + size) - first
        else:
            merged.append((position, size))
    return merged


def build_view(
    schema_bytes: bytes,
    version: StorageVersion,
    parts: Sequence[tuple[PageSelection, Sequence[FetchedRange]]],
    *,
    keeps_positions: bool = False,
) -> list[FetchedRange]:
    """Return the content of a view with this schema, ascending by position. The ranges of each part contain all of its
    buffers. Files of several parts are complete, with the same schema. With `keeps_positions` the buffers of a single
    part stay where they are in the file, and the ranges may leave out what will not be read."""
    pieces: list[FetchedRange] = []
    end, rows = 0, 0
    merged: list[columns_pb2.ColumnMetadata] = []
    for selection, ranges in parts:
        starts, shifts = [], []
        for position, data in ranges:
            end = position if keeps_positions else end + (position - end) % _ALIGNMENT
            starts.append(position)
            shifts.append(end - position)
            pieces.append((end, data))
            end += len(data)
        for column in selection.columns:
            _move_pages(column, starts, shifts, rows - selection.first_row)
        if merged:
            for target, column in zip(merged, selection.columns, strict=True):
                target.pages.extend(column.pages)
        else:
            merged = list(selection.columns)
        rows += selection.rows
    if keeps_positions:
        end = max([end, *(sum(span) for selection, _ in parts for span in selection.spans)])
    end += -end % _ALIGNMENT
    descriptor = schema_bytes + _LENGTH_TAG + _encode_varint(rows)
    metadata = [column.SerializeToString() for column in merged]
    return [*pieces, (end, _encode_tail(end, descriptor, metadata, version))]


def schema_view(schema_bytes: bytes, version: StorageVersion) -> list[FetchedRange]:
    """Return a view without columns, by which the codec decodes the schema of a file."""
    return [(0, _encode_tail(0, schema_bytes, [], version))]


def _move_pages(
    column: columns_pb2.ColumnMetadata, starts: Sequence[int], shifts: Sequence[int], row_shift: int
) -> None:
    for page in column.pages:
        offsets = page.buffer_offsets
        for number, size in enumerate(page.buffer_sizes):
            if not size:
                offsets[number] = 0
            elif len(shifts) == 1:
                offsets[number] += shifts[0]
            else:
                offsets[number] += shifts[max(0, bisect_right(starts, offsets[number]) - 1)]
        page.priority = max(0, page.priority + row_shift)


def _encode_tail(position: int, descriptor: bytes, metadata: Sequence[bytes], version: StorageVersion) -> bytes:
    start = position + len(descriptor)
    spans, end = [], start
    for column in metadata:
        spans.append(SPAN.pack(end, len(column)))
        end += len(column)
    footer = FOOTER.pack(start, end, end + len(spans) * SPAN.size, 1, len(spans), version.major, version.minor, MAGIC)
    return b"".join([descriptor, *metadata, *spans, SPAN.pack(position, len(descriptor)), footer])


def _encode_varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*encoded, number))


__all__ = [
    "FetchedRange",
    "FilePages",
    "PageSelection",
    "build_view",
    "merge_spans",
    "schema_view",
    "select_pages",
]
