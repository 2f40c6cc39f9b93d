"""Resident rows: keeps the rows of a fragment in memory once taking single rows of it has cost more than reading all.

A search returns a few columns of a few rows, and repeats this for each query. The codec takes .1 ms for each column of
a take, and about a millisecond for a megabyte that it reads in one pass. So `ResidentRows` counts the takes of one set
of columns of an open fragment, and reads all rows when the takes so far would have paid for it. At worst the two
together cost twice what the better of them costs.
"""

import itertools
from collections.abc import Callable

import pyarrow as pa

from lance_core.datafiles.codec import Rows
from lance_core.datafiles.open_fragment import OpenFragment
from lance_core.storage.lru_cache import LruCache

RESIDENT_BYTES_MAX = 64 << 20
"""Bytes of the rows of all fragments of the process that are kept."""
_FRAGMENT_BYTES_MAX = 16 << 20
_TAKE_BYTES, _ROW_BYTES = 300_000, 2_000
"""Bytes that can be read in one pass in the time of a take, and of each row that it returns."""

_resident: LruCache[int, pa.RecordBatch] = LruCache(RESIDENT_BYTES_MAX, "resident rows")
_numbers = itertools.count()


class ResidentRows:
    """Rows of one open fragment. Several threads may take from it."""

    def __init__(self, opened: OpenFragment) -> None:
        self.opened = opened
        self._number = next(_numbers)
        self._paid = self._taken_rows = self._taken_bytes = 0
        self._can_stay = opened.blobs is None and not any(_has_dictionary(field.type) for field in opened.arrow)

    def begin_take(self, rows: Rows) -> Callable[[], pa.RecordBatch]:
        """Begin to read the rows at these physical offsets, deleted or not, and return the function that waits."""
        if not self._can_stay or not self.opened.arrow.names:
            return self.opened.begin_take(rows)
        resident = _resident.get(self._number)
        if resident is None and self._is_paid:
            resident = self._read_all()
        if resident is not None:
            batch = resident
            return lambda: batch.take(pa.array(rows))
        finish = self.opened.begin_take(rows)

        def counted() -> pa.RecordBatch:
            batch = finish()
            self._paid += _TAKE_BYTES + _ROW_BYTES * batch.num_rows
            self._taken_rows += batch.num_rows
            self._taken_bytes += batch.nbytes
            return batch

        return counted

    @property
    def _is_paid(self) -> bool:
        """True if all rows are few bytes, judged by those that were taken, and the takes cost as much as they do."""
        if not self._taken_rows:
            return False
        total = self._taken_bytes * self.opened.physical_rows // self._taken_rows
        return total <= min(self._paid, _FRAGMENT_BYTES_MAX)

    def _read_all(self) -> pa.RecordBatch | None:
        batches = [rows.batch for rows in self.opened.read_live(None)]
        (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
        if batch.nbytes > 2 * _FRAGMENT_BYTES_MAX:  # the rows that were taken are small ones
            self._can_stay = False
        else:
            _resident.put(self._number, batch, batch.nbytes)
        return batch


def resident_bytes() -> int:
    """Return the bytes of the rows that are kept."""
    return _resident.weight


def _has_dictionary(arrow: pa.DataType) -> bool:
    if isinstance(arrow, pa.BaseExtensionType):
        arrow = arrow.storage_type
    return pa.types.is_dictionary(arrow) or any(
        _has_dictionary(arrow.field(index).type) for index in range(arrow.num_fields)
    )


__all__ = ["ResidentRows", "resident_bytes"]
