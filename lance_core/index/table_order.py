"""Table order: the number of each physical row of a version, by which ranked indices order equal results."""

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from lance_core.datafiles.fragment_reader import read_deletions
from lance_core.format.fragment import Fragment
from lance_core.format.row_sets import HALF_BITS, LOWER_HALF, Ids
from lance_core.scan.parallel import map_in_order
from lance_core.scan.take import RowPositions
from lance_core.versions.snapshot import Snapshot

Ints = npt.NDArray[np.int64]
NO_POSITION = -1


class TableOrder:
    """Positions of the physical rows of a version."""

    def __init__(self, base: Snapshot) -> None:
        fragments = base.manifest.message.fragments
        self._base = base
        ids = np.fromiter((each.id for each in fragments), dtype=np.int64, count=len(fragments))
        rows = np.fromiter((each.physical_rows for each in fragments), dtype=np.int64, count=len(fragments))
        self.row_count = int(rows.sum())
        self._ids, self._starts = ids, np.cumsum(rows) - rows
        self._rows, self._ends = rows, np.cumsum(rows)
        self._order = np.argsort(ids, kind="stable")

    def positions(self, addresses: Ids) -> Ints:
        """Return the position of each address; `NO_POSITION` if no such row exists."""
        if not len(self._ids) or not len(addresses):
            return np.full(len(addresses), NO_POSITION, dtype=np.int64)
        fragments = (addresses >> np.uint64(HALF_BITS)).astype(np.int64)
        offsets = (addresses & np.uint64(LOWER_HALF)).astype(np.int64)
        number = self._order[np.minimum(np.searchsorted(self._ids[self._order], fragments), len(self._ids) - 1)]
        exists = (self._ids[number] == fragments) & (offsets < self._rows[number])
        return np.where(exists, self._starts[number] + offsets, NO_POSITION)

    def addresses(self, positions: Ints) -> Ids:
        """Return the addresses of rows that exist."""
        found = self.locate(positions)
        fragments, offsets = self._ids[found.fragments].astype(np.uint64), found.offsets.astype(np.uint64)
        return (fragments << np.uint64(HALF_BITS)) | offsets

    def locate(self, positions: Ints) -> RowPositions:
        """Return the fragments and offsets of rows that exist."""
        number = np.searchsorted(self._ends, positions, side="right")
        return RowPositions(number, positions - self._starts[number])

    def start_of(self, fragment_id: int) -> int:
        """Return the position of the first row of a fragment."""
        return int(self._starts[np.flatnonzero(self._ids == fragment_id)[0]])


def read_deleted_positions(base: Snapshot, order: TableOrder, fragments: BitMap) -> Ints:
    """Return the positions of the deleted rows of these fragments, ascending."""
    damaged = [
        fragment
        for fragment in base.manifest.fragments
        if fragment.id in fragments and fragment.deletion_file is not None
    ]

    def deleted(fragment: Fragment) -> Ints:
        vector = read_deletions(base.location.store, fragment)
        offsets = np.empty(0, dtype=np.int64) if vector is None else vector.offsets.astype(np.int64)
        return offsets + order.start_of(fragment.id)

    return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *map_in_order(deleted, damaged)]))
