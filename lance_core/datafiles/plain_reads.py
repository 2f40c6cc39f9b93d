"""Plain reads: reads rows of columns of numbers or vectors from a local file without the codec, which takes ten times
as long.

It serves columns whose pages consist of their values (`format/plain_values.py`). Rows that lie close together are read
with those between them. A file that was replaced since it was checked is left to the codec. Start with `take_plain`,
for single rows, and `read_plain`, for ranges.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import numpy.typing as npt

from lance_core.datafiles.codec import RowRange, Rows
from lance_core.datafiles.file_checks import CheckedFile
from lance_core.errors import StorageError
from lance_core.format.plain_values import PlainPage
from lance_core.storage.local import LocalStore
from lance_core.storage.store import Store

_GAP_BYTES_MAX = 8192
"""Reading these bytes in between takes less time than another read."""
_RUN_BYTES_MAX = 4 << 20

Bytes = npt.NDArray[np.uint8]


def take_plain(store: Store, path: str, checked: CheckedFile, column: int, rows: Rows) -> Bytes | None:
    """Return the bytes of the values at ascending rows, one value a row; `None` if the codec has to read them."""
    pages = checked.plain_columns.get(column)
    if pages is None or not isinstance(store, LocalStore) or not len(rows):
        return None
    positions = _positions(pages, rows)
    if positions is None:
        return None
    values = np.empty((len(rows), pages[0].row_bytes), dtype=np.uint8)
    with _open_checked(store, path, checked) as descriptor:
        if descriptor is None:
            return None
        _read_runs(descriptor, positions, values, path)
    return values


def read_plain(
    store: Store, path: str, checked: CheckedFile, columns: Sequence[int], ranges: Sequence[RowRange]
) -> list[tuple[Bytes, ...]] | None:
    """Return the bytes of each column in each range of rows, one value a row; `None` if the codec has to read them."""
    pages = [checked.plain_columns.get(column) for column in columns]
    stop = max((each.start + each.count for each in ranges), default=0)
    if not isinstance(store, LocalStore) or any(each.start < 0 or each.count < 0 for each in ranges):
        return None
    if not all(each is not None and _has_rows(each, stop) for each in pages):
        return None
    with _open_checked(store, path, checked) as descriptor:
        if descriptor is None:
            return None
        return [
            tuple(_read_range(descriptor, column, each, path) for column in pages if column is not None)
            for each in ranges
        ]


@contextmanager
def _open_checked(store: LocalStore, path: str, checked: CheckedFile) -> Iterator[int | None]:
    """Open the file for a block of code; `None` if it is not the one that was checked, which the codec may still have
    open."""
    with ExitStack() as stack:
        try:
            descriptor, _ = stack.enter_context(store.open_regular_file(path))
        except OSError:
            yield None
            return
        try:
            yield descriptor if checked.is_file(os.fstat(descriptor)) else None
        except OSError as error:
            raise StorageError(f"could not read {store.description}/{path}: {error.strerror or error}") from error


def _has_rows(pages: Sequence[PlainPage], count: int) -> bool:
    """Return whether the pages store values of one size, at least so many."""
    width = pages[0].row_bytes
    return all(page.row_bytes == width for page in pages) and count <= sum(page.rows for page in pages)


def _positions(pages: Sequence[PlainPage], rows: Rows) -> Rows | None:
    """Return the position of each row in the file; `None` if a row does not exist."""
    if rows[0] < 0 or not _has_rows(pages, int(rows[-1]) + 1):
        return None
    width = pages[0].row_bytes
    if len(pages) == 1:
        return pages[0].position + rows * width
    ends = np.cumsum([page.rows for page in pages])
    number = np.searchsorted(ends, rows, side="right")
    starts = np.array([page.position for page in pages], dtype=np.int64)
    firsts = ends - np.array([page.rows for page in pages])
    return np.asarray(starts[number] + (rows - firsts[number]) * width, dtype=np.int64)


def _read_range(descriptor: int, pages: Sequence[PlainPage], rows: RowRange, path: str) -> Bytes:
    """Return the values of a range of rows, which are neighbours within a page."""
    width = pages[0].row_bytes
    values: Bytes = np.empty((rows.count, width), dtype=np.uint8)
    buffer = memoryview(values.reshape(-1).data)
    done, first = 0, 0
    for page in pages:
        begin, stop = max(rows.start, first), min(rows.start + rows.count, first + page.rows)
        if begin < stop:
            end, position = (stop - rows.start) * width, page.position + (begin - first) * width
            at = (begin - rows.start) * width
            while at < end and (more := os.preadv(descriptor, [buffer[at:end]], position)):
                at, position, done = at + more, position + more, done + more
        first += page.rows
    _check_complete(done, values, path)
    return values


def _read_runs(descriptor: int, positions: Rows, values: Bytes, path: str) -> None:
    """Read the values at these positions, those that lie close together in one read."""
    width = values.shape[1]
    gaps = np.diff(positions)
    cuts = np.flatnonzero((gaps > _GAP_BYTES_MAX + width) | (gaps < 0) | (gaps % width != 0)) + 1
    rows_max = max(1, _RUN_BYTES_MAX // (_GAP_BYTES_MAX + width))
    places, first, count = positions.tolist(), 0, 0
    for cut in (*cuts.tolist(), len(places)):
        if cut == first + 1:
            count += os.preadv(descriptor, (values[first],), places[first])
        else:
            for start in range(first, cut, rows_max):
                stop = min(cut, start + rows_max)
                length = places[stop - 1] - places[start] + width
                data = os.pread(descriptor, length, places[start])
                if len(data) == length:
                    rows = (positions[start:stop] - places[start]) // width
                    values[start:stop] = np.frombuffer(data, dtype=np.uint8).reshape(-1, width)[rows]
                    count += width * (stop - start)
        first = cut
    _check_complete(count, values, path)


def _check_complete(count: int, values: Bytes, path: str) -> None:
    if count != values.nbytes:
        raise StorageError(f"{path} ends before its values; restore the file from a copy")


__all__ = ["read_plain", "take_plain"]
