"""Row remapping: translates the row numbers that a segment was written with to current row addresses.

There are three ways from a number to an address. The number is an address that is still valid; or it is an address
that compactions moved, which are followed oldest first, the k-th surviving row to the k-th row of the new fragments;
or it is a row id that the fragments of the version resolve. A row that ends up in a fragment that the segment does
not cover is dropped: the fragment was changed in place, or another segment answers for it. Only the resolution of row
ids drops deleted rows, since only live rows have an id.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap, BitMap64

from lance_core.format.fragment_reuse import FragmentReuse, ReuseGroup, surviving_rows
from lance_core.format.row_id_index import RowIdIndex
from lance_core.format.row_sets import HALF_BITS, LOWER_HALF, Ids, RowSet

Mask = npt.NDArray[np.bool_]
_HALF = np.uint64(HALF_BITS)
_LOWER = np.uint64(LOWER_HALF)


@dataclass(frozen=True, slots=True)
class SameAddresses:
    """Row numbers are addresses, and no row moved."""

    covered: BitMap

    def remap(self, rows: Ids) -> tuple[Ids, Mask]:
        return rows, mask_within(rows, self.covered)

    def remap_set(self, rows: RowSet) -> RowSet:
        return rows.in_fragments(self.covered)


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The segment was just written, from the version that it goes into, so every row stays."""

    def remap(self, rows: Ids) -> tuple[Ids, Mask]:
        return rows, np.ones(len(rows), dtype=np.bool_)

    def remap_set(self, rows: RowSet) -> RowSet:
        return rows


@dataclass(frozen=True, slots=True)
class FollowCompactions:
    """Row numbers are addresses of rows that compactions moved."""

    log: "CompactionLog"
    covered: BitMap

    def remap(self, rows: Ids) -> tuple[Ids, Mask]:
        addresses, found = self.log.follow(rows)
        return addresses, found & mask_within(addresses, self.covered)

    def remap_set(self, rows: RowSet) -> RowSet:
        if self.log.old_fragments.isdisjoint(BitMap(rows.parts)):
            return rows.in_fragments(self.covered)
        addresses, found = self.remap(rows.ids())
        return RowSet.of(addresses[found])


@dataclass(frozen=True, slots=True)
class ResolveRowIds:
    """Row numbers are row ids, and the version knows the address of each."""

    row_id_index: RowIdIndex
    covered: BitMap

    def remap(self, rows: Ids) -> tuple[Ids, Mask]:
        locations = self.row_id_index.locate_rows(rows)
        addresses = locations.addresses
        return addresses, locations.is_known & mask_within(addresses, self.covered)

    def remap_set(self, rows: RowSet) -> RowSet:
        addresses, found = self.remap(rows.ids())
        return RowSet.of(addresses[found])


@dataclass(frozen=True, slots=True)
class KeepRowIds:
    """Row numbers are row ids and stay row ids, for a new segment of row ids. Rows that `resolver` does not find are
    dropped."""

    resolver: ResolveRowIds

    def remap(self, rows: Ids) -> tuple[Ids, Mask]:
        return rows, self.resolver.remap(rows)[1]

    def remap_set(self, rows: RowSet) -> RowSet:
        ids = rows.ids()
        return RowSet.of(ids[self.remap(ids)[1]])


class CompactionLog:
    """Compactions that the fragment reuse index records, oldest first. The details of each are decoded on first use.

    >>> empty = CompactionLog(FragmentReuse.empty(), path="_versions/1.manifest")
    >>> empty.follow(np.array([7], dtype=np.uint64))
    (array([7], dtype=uint64), array([ True]))
    """

    def __init__(self, reuse: FragmentReuse, *, path: str) -> None:
        self._recorded = tuple(reuse.compactions())
        self._path = path
        self.old_fragments = BitMap(id for _, groups in self._recorded for group in groups for id, _ in group.old)
        self.rows_under = {id: rows for _, groups in self._recorded for group in groups for id, rows in group.old}
        """Number of rows of each replaced fragment."""

    def fragments_created_since(self, version: int) -> BitMap:
        """Return the fragments that resulted from compactions that a segment built from this version cannot have
        seen."""
        return BitMap(
            id for planned, groups in self._recorded if planned >= version for group in groups for id, _ in group.new
        )

    def follow(self, rows: Ids) -> tuple[Ids, Mask]:
        """Return the current addresses of the rows, and a mask of those that survived."""
        survived_all = np.ones(len(rows), dtype=np.bool_)
        for compaction in self._compactions:
            rows, survived = compaction.follow(rows)
            survived_all &= survived
        return rows, survived_all

    @cached_property
    def _compactions(self) -> "tuple[_Compaction, ...]":
        return tuple(_Compaction.of(groups, path=self._path) for _, groups in self._recorded)


@dataclass(frozen=True, slots=True)
class _Compaction:
    """One compaction. Its surviving rows are numbered through all of its groups; such a number is an `ordinal`."""

    old: Ids
    """Fragment ids, ascending."""
    rows: Ids
    """Physical rows of each."""
    first_ordinal: Ids
    """Ordinal of the first row of each, had it survived."""
    deleted: Ids
    """Addresses of rows that did not survive, ascending."""
    deleted_before: npt.NDArray[np.int64]
    """Number of these rows in the fragments before each."""
    new: Ids
    new_first_ordinal: Ids
    """Ordinal of the first row of each new fragment, ascending."""

    @classmethod
    def of(cls, groups: Sequence[ReuseGroup], *, path: str) -> "_Compaction":
        old: list[tuple[int, int, int]] = []
        new: list[tuple[int, int]] = []
        deleted_by_fragment: dict[int, Ids] = {}
        ordinal = 0
        for group in groups:
            surviving = surviving_rows(group, path=path)
            new += _with_first_ordinals(group.new, ordinal)
            for id, rows in sorted(group.old):
                old.append((id, rows, ordinal))
                deleted_rows = BitMap64(range(id << HALF_BITS, (id << HALF_BITS) + rows)) - surviving
                deleted_by_fragment[id] = np.frombuffer(deleted_rows.to_array(), dtype=np.uint64)
                ordinal += rows - len(deleted_rows)
        old.sort()
        ids = [id for id, _, _ in old]
        deleted_counts = np.array([len(deleted_by_fragment[id]) for id in ids], dtype=np.int64)
        return cls(
            _uint64_array(ids),
            _uint64_array(rows for _, rows, _ in old),
            _uint64_array(first for _, _, first in old),
            np.concatenate([_uint64_array(()), *(deleted_by_fragment[id] for id in ids)]),
            np.cumsum(deleted_counts) - deleted_counts,
            _uint64_array(id for id, _ in new),
            _uint64_array(first for _, first in new),
        )

    def follow(self, rows: Ids) -> tuple[Ids, Mask]:
        """Return the addresses of the rows after this compaction, and a mask of those that survived it."""
        survived = np.ones(len(rows), dtype=np.bool_)
        if not len(self.old) or not len(rows):
            return rows, survived
        fragment = rows >> _HALF
        position = np.minimum(np.searchsorted(self.old, fragment), len(self.old) - 1)
        moved = np.flatnonzero(self.old[position] == fragment)
        if not len(moved):
            return rows, survived
        addresses, source = rows[moved], position[moved]
        offsets = addresses & _LOWER
        deleted_below = np.searchsorted(self.deleted, addresses)
        is_live = offsets < self.rows[source]
        if len(self.deleted):
            is_live &= self.deleted[np.minimum(deleted_below, len(self.deleted) - 1)] != addresses
        survived[moved] = is_live
        followed = rows.copy()
        if len(self.new):
            deleted_in_fragment = (deleted_below - self.deleted_before[source]).astype(np.uint64)
            ordinal = self.first_ordinal[source] + offsets - deleted_in_fragment
            target = np.maximum(np.searchsorted(self.new_first_ordinal, ordinal, side="right") - 1, 0)
            followed[moved] = (self.new[target] << _HALF) | (ordinal - self.new_first_ordinal[target])
        return followed, survived


def _with_first_ordinals(fragments: Sequence[tuple[int, int]], ordinal: int) -> Iterable[tuple[int, int]]:
    """Yield each fragment that has rows with the ordinal of its first row."""
    for id, rows in fragments:
        if rows:
            yield id, ordinal
        ordinal += rows


def mask_within(addresses: Ids, fragments: BitMap) -> Mask:
    """Return which of the addresses lie in one of these fragments."""
    covered = np.frombuffer(fragments.to_array(), dtype=np.uint32)
    upper = addresses >> _HALF
    if not len(covered):
        return np.zeros(len(addresses), dtype=np.bool_)
    position = np.minimum(np.searchsorted(covered, upper), len(covered) - 1)
    mask: Mask = covered[position] == upper
    return mask


def _uint64_array(values: Iterable[int]) -> Ids:
    return np.fromiter(values, dtype=np.uint64)
