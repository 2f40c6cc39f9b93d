"""Plain reads: reads single rows of a column of vectors from a local file without the codec, which takes ten times as
long.

It serves columns whose pages consist of their values (`format/plain_values.py`). Rows that lie close together are read
with those between them. A file that was replaced since it was checked is left to the codec. Start with `read_vectors`.
"""

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lance_core.datafiles.codec import Rows
from lance_core.datafiles.file_checks import CheckedFile
from lance_core.errors import StorageError
from lance_core.format.plain_values import PlainPage
from lance_core.storage.local import LocalStore
from lance_core.storage.store import Store

_GAP_BYTES_MAX = 8192
"""Reading these bytes in between takes less time than another read."""
_RUN_BYTES_MAX = 4 << 20

Bytes = npt.NDArray[np.uint8]


def read_vectors(store: Store, path: str, checked: CheckedFile, column: int, rows: Rows) -> Bytes | None:
    """Return the bytes of the vectors at ascending rows, one vector a row; `None` if the codec has to read them."""
    pages = checked.plain_columns.get(column)
    if pages is None or not isinstance(store, LocalStore) or not len(rows):
        return None
    width = pages[0].items * pages[0].item_bytes
    if any(page.items * page.item_bytes != width for page in pages):
        return None
    positions = _positions(pages, rows, width)
    if positions is None:
        return None
    vectors = np.empty((len(rows), width), dtype=np.uint8)
    try:
        with store.open_regular_file(path) as (descriptor, _):
            if not checked.is_file(os.fstat(descriptor)):
                return None
            _read_runs(descriptor, positions, vectors, path)
    except OSError as error:
        raise StorageError(f"could not read {store.description}/{path}: {error.strerror or error}") from error
    return vectors


def _positions(pages: Sequence[PlainPage], rows: Rows, width: int) -> Rows | None:
    """Return the position of each row in the file; `None` if a row does not exist."""
    if len(pages) == 1:
        return pages[0].position + rows * width if rows[0] >= 0 and rows[-1] < pages[0].rows else None
    ends = np.cumsum([page.rows for page in pages])
    if rows[0] < 0 or rows[-1] >= ends[-1]:
        return None
    number = np.searchsorted(ends, rows, side="right")
    starts = np.array([page.position for page in pages], dtype=np.int64)
    firsts = ends - np.array([page.rows for page in pages])
    return np.asarray(starts[number] + (rows - firsts[number]) * width, dtype=np.int64)


def _read_runs(descriptor: int, positions: Rows, vectors: Bytes, path: str) -> None:
    """Read the vectors at these positions, those that lie close together in one read."""
    width = vectors.shape[1]
    gaps = np.diff(positions)
    cuts = np.flatnonzero((gaps > _GAP_BYTES_MAX + width) | (gaps < 0) | (gaps % width != 0)) + 1
    rows_max = max(1, _RUN_BYTES_MAX // (_GAP_BYTES_MAX + width))
    places, first, count = positions.tolist(), 0, 0
    for cut in (*cuts.tolist(), len(places)):
        if cut == first + 1:
            count += os.preadv(descriptor, (vectors[first],), places[first])
        else:
            for start in range(first, cut, rows_max):
                stop = min(cut, start + rows_max)
                length = places[stop - 1] - places[start] + width
                data = os.pread(descriptor, length, places[start])
                if len(data) == length:
                    rows = (positions[start:stop] - places[start]) // width
                    vectors[start:stop] = np.frombuffer(data, dtype=np.uint8).reshape(-1, width)[rows]
                    count += width * (stop - start)
        first = cut
    if count != vectors.nbytes:
        raise StorageError(f"{path} ends before its values; restore the file from a copy")


__all__ = ["read_vectors"]
