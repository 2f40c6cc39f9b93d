"""View of a vector segment in a version: the table position of each of its rows, and which of them are live.

A position is the number of a physical row in table order, so that equal distances can be ordered by it. Rows that are
deleted, or that lie in fragments for which the segment does not answer, have no position. Positions are computed for
the partitions that searches load, and cached as long as the version is in the cache of lookups.
"""

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from lance_core.format.row_sets import Ids
from lance_core.index.index_type import RowRemap
from lance_core.index.row_remap import mask_within
from lance_core.index.table_order import NO_POSITION, TableOrder
from lance_core.index.vector.quantizers import Ints
from lance_core.index.vector.segment import LoadedPartitions, Mask, VectorSegment
from lance_core.storage.lru_cache import LruCache

_MASKS_CACHED_MAX = 4
_ROWS_AT_A_TIME = 8192
"""Rows whose positions are computed at a time: memory that is used again takes less time than new memory."""


class SegmentView:
    """Rows of one segment in one version."""

    def __init__(
        self, segment: VectorSegment, row_remap: RowRemap, fragments: BitMap, order: TableOrder, deleted: Ints
    ) -> None:
        self.segment = segment
        self._row_remap, self._order, self._deleted = row_remap, order, deleted
        self._fragments = fragments
        self._is_known: Mask = np.zeros(len(segment.lengths), dtype=np.bool_)
        self._positions: Ints = np.empty(segment.row_count, dtype=np.int64)
        """Position of each ordinal; undefined for partitions that are not known, which no search reads."""
        self._bitmap: tuple[int, npt.NDArray[np.uint8]] | None = None
        """Bitmap of the rows that have a position, and the number of partitions that were known then."""
        self._unusable = 0
        self._lock = threading.Lock()
        self._allowed: LruCache[int, tuple[Mask, int, npt.NDArray[np.uint8]]] = LruCache(_MASKS_CACHED_MAX)
        """Bitmaps of the rows that pass recent masks, in the partitions that were known then."""

    def prepare(self, loaded: LoadedPartitions, partitions: Ints) -> None:
        """Compute the positions of the rows of these partitions, which are loaded."""
        if self._is_known[partitions].all():
            return
        with self._lock:
            missing = np.unique(partitions[~self._is_known[partitions]])
            ordinals = self._ordinals(missing)
            for start in range(0, len(ordinals), _ROWS_AT_A_TIME):
                rows = ordinals[start : start + _ROWS_AT_A_TIME]
                positions = self._current_positions(loaded.row_numbers[rows])
                self._positions[rows] = positions
                self._unusable += int((positions == NO_POSITION).sum())
            self._is_known[missing] = True

    def allowed(self, partitions: Ints, selected: Mask | None) -> Any:
        """Return a bitmap of the ordinals that a search of these partitions may return; `None` if all of them.
        `selected` is a mask of positions, which is not changed later."""
        known = int(np.count_nonzero(self._is_known))
        if selected is None:
            return self._usable_bitmap(known) if self._unusable else None
        cached = self._allowed.get(id(selected))
        if cached is not None and cached[0] is selected and cached[1] == known:
            return cached[2]
        bitmap = self._allowed_bitmap(selected, self._is_known)
        self._allowed.put(id(selected), (selected, known, bitmap))
        return bitmap

    def _usable_bitmap(self, known: int) -> npt.NDArray[np.uint8]:
        """Return a bitmap of the ordinals that have a position, when at least so many partitions are known."""
        cached = self._bitmap
        if cached is None or cached[0] != known:
            cached = self._bitmap = known, np.packbits(self._positions != NO_POSITION, bitorder="little")
        return cached[1]

    def _allowed_bitmap(self, selected: Mask, is_known: Mask) -> npt.NDArray[np.uint8]:
        """Return a bitmap of the ordinals in these partitions that pass the mask of positions."""
        if is_known.all():
            passes = selected[self._positions]
            passes &= self._positions != NO_POSITION
            return np.packbits(passes, bitorder="little")
        allowed = np.zeros(len(self._positions), dtype=np.bool_)
        ordinals = self._ordinals(np.flatnonzero(is_known))
        positions = self._positions[ordinals]
        allowed[ordinals] = selected[positions] & (positions != NO_POSITION)
        return np.packbits(allowed, bitorder="little")

    def left_out(self, selected: Mask | None) -> Ints:
        """Return the positions of the rows that have no code. `selected` is a mask of positions."""
        if not len(self.segment.left_out):
            return np.empty(0, dtype=np.int64)
        positions = self._current_positions(self.segment.left_out)
        positions = positions[positions != NO_POSITION]
        return positions if selected is None else np.compress(selected[positions], positions)

    def positions(self, ordinals: Ints) -> Ints:
        """Return the positions of rows; `NO_POSITION` for the ordinal -1."""
        if not len(self._positions):
            return np.full(ordinals.shape, NO_POSITION, dtype=np.int64)
        return np.where(ordinals < 0, NO_POSITION, self._positions[ordinals])

    def _ordinals(self, partitions: Ints) -> Ints:
        starts, lengths = self.segment.offsets[partitions], self.segment.lengths[partitions]
        total = int(lengths.sum())
        if total == self.segment.row_count:
            return np.arange(total, dtype=np.int64)
        ends = np.cumsum(lengths)
        return np.repeat(starts - (ends - lengths), lengths) + np.arange(total, dtype=np.int64)

    def _current_positions(self, row_numbers: Ids) -> Ints:
        addresses, is_listed = self._row_remap.remap(row_numbers)
        positions = self._order.positions(addresses)
        is_listed = is_listed & mask_within(addresses, self._fragments) & (positions != NO_POSITION)
        if len(self._deleted):
            place = np.minimum(np.searchsorted(self._deleted, positions), len(self._deleted) - 1)
            is_listed &= self._deleted[place] != positions
        return np.where(is_listed, positions, NO_POSITION)
