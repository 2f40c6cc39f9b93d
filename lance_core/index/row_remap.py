"""What became of rows since a segment was written, whose numbers it still has: where they are in a version.

Three ways lead from a number to an address of today: it is one; notes of compactions lead on, oldest first, the k-th
row that survived to the k-th row of the new fragments; it is a row id, which the version's fragments know. Whichever it
is, what leads to a fragment that the segment does not cover is not there to be found: the fragment was changed in
place, or somebody else answers for it. Whether a row is deleted is asked of ids alone, which only live rows have.
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
    """Numbers are addresses, and rows are where they were."""

    covered: BitMap

    def remap(self, rows: Ids) -> tuple[Ids, Mask]:
        return rows, mask_within(rows, self.covered)

    def remap_set(self, rows: RowSet) -> RowSet:
        return rows.in_fragments(self.covered)


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The segment was written a moment ago, from the version that it goes into."""

    def remap(self, rows: Ids) -> tuple[Ids, Mask]:
        return rows, np.ones(len(rows), dtype=np.bool_)

    def remap_set(self, rows: RowSet) -> RowSet:
        return rows


@dataclass(frozen=True, slots=True)
class FollowCompactions:
    """Numbers are addresses of rows that compactions moved."""

    log: "CompactionLog"
    covered: BitMap

    def remap(self, rows: Ids) -> tuple[Ids, Mask]:
        now, still = self.log.follow(rows)
        return now, still & mask_within(now, self.covered)

    def remap_set(self, rows: RowSet) -> RowSet:
        if self.log.old_fragments.isdisjoint(BitMap(rows.parts)):
            return rows.in_fragments(self.covered)
        now, still = self.remap(rows.ids())
        return RowSet.of(now[still])


@dataclass(frozen=True, slots=True)
class ResolveRowIds:
    """Numbers are row ids, and the rows are wherever the version has them."""

    row_id_index: RowIdIndex
    covered: BitMap

    def remap(self, rows: Ids) -> tuple[Ids, Mask]:
        found = self.row_id_index.locate_rows(rows)
        addresses = found.addresses
        return addresses, found.is_known & mask_within(addresses, self.covered)

    def remap_set(self, rows: RowSet) -> RowSet:
        now, still = self.remap(rows.ids())
        return RowSet.of(now[still])


@dataclass(frozen=True, slots=True)
class KeepRowIds:
    """The same, for a segment that is to hold row ids again: numbers stay, of rows that are where it covers them."""

    resolver: ResolveRowIds

    def remap(self, rows: Ids) -> tuple[Ids, Mask]:
        return rows, self.resolver.remap(rows)[1]

    def remap_set(self, rows: RowSet) -> RowSet:
        ids = rows.ids()
        return RowSet.of(ids[self.remap(ids)[1]])


class CompactionLog:
    """Compactions, oldest first. What they say is read when it is first asked for.

    >>> none = Notes(FragmentReuse.empty(), path="_versions/1.manifest")
    >>> none.followed(np.array([7], dtype=np.uint64))
    (array([7], dtype=uint64), array([ True]))
    """

    def __init__(self, reuse: FragmentReuse, *, path: str) -> None:
        self._notes = tuple(reuse.compactions())
        self._path = path
        self.old_fragments = BitMap(id for _, groups in self._notes for led in groups for id, _ in led.old)
        self.rows_under = {id: rows for _, groups in self._notes for led in groups for id, rows in led.old}
        """How many rows the fragments had that are gone."""

    def fragments_created_since(self, version: int) -> BitMap:
        """The fragments that came out of compactions which somebody who knew this version cannot have seen."""
        return BitMap(
            id for planned, groups in self._notes if planned >= version for led in groups for id, _ in led.new
        )

    def follow(self, rows: Ids) -> tuple[Ids, Mask]:
        """Their addresses now, and which of them survived."""
        still = np.ones(len(rows), dtype=np.bool_)
        for step in self._steps:
            rows, survived = step.followed(rows)
            still &= survived
        return rows, still

    @cached_property
    def _steps(self) -> "tuple[_Compaction, ...]":
        return tuple(_Compaction.of(groups, path=self._path) for _, groups in self._notes)


@dataclass(frozen=True, slots=True)
class _Compaction:
    """One compaction. Surviving rows are counted through all of its groups: `place` is such a number."""

    old: Ids
    """Fragment ids, ascending."""
    rows: Ids
    """Physical, of each."""
    first_place: Ids
    """Of each fragment's first row, had it survived."""
    dead: Ids
    """Addresses of rows that did not survive, ascending."""
    dead_before: npt.NDArray[np.int64]
    """How many of them lie in fragments before each."""
    new: Ids
    new_first: Ids
    """The place of the first row of each new fragment, ascending."""
    new_rows: Ids

    @classmethod
    def of(cls, groups: Sequence[ReuseGroup], *, path: str) -> "_Compaction":
        old: list[tuple[int, int, int]] = []
        new: list[tuple[int, int, int]] = []
        dead: dict[int, Ids] = {}
        place = 0
        for led in groups:
            surviving = surviving_rows(led, path=path)
            new += _counted(led.new, place)
            for id, rows in sorted(led.old):
                old.append((id, rows, place))
                gone = BitMap64(range(id << HALF_BITS, (id << HALF_BITS) + rows)) - surviving
                dead[id] = np.frombuffer(gone.to_array(), dtype=np.uint64)
                place += rows - len(gone)
        old.sort()
        ids = [id for id, _, _ in old]
        gone_in = np.array([len(dead[id]) for id in ids], dtype=np.int64)
        return cls(
            _numbers(ids),
            _numbers(rows for _, rows, _ in old),
            _numbers(first for _, _, first in old),
            np.concatenate([_numbers(()), *(dead[id] for id in ids)]),
            np.cumsum(gone_in) - gone_in,
            _numbers(id for id, _, _ in new),
            _numbers(first for _, _, first in new),
            _numbers(rows for _, rows, _ in new),
        )

    def followed(self, rows: Ids) -> tuple[Ids, Mask]:
        survived = np.ones(len(rows), dtype=np.bool_)
        if not len(self.old) or not len(rows):
            return rows, survived
        fragment = rows >> _HALF
        number = np.minimum(np.searchsorted(self.old, fragment), len(self.old) - 1)
        moved = np.flatnonzero(self.old[number] == fragment)
        if not len(moved):
            return rows, survived
        addresses, of = rows[moved], number[moved]
        offsets = addresses & _LOWER
        before = np.searchsorted(self.dead, addresses)
        there = offsets < self.rows[of]
        if len(self.dead):
            there &= self.dead[np.minimum(before, len(self.dead) - 1)] != addresses
        survived[moved] = there
        now = rows.copy()
        if len(self.new):
            place = self.first_place[of] + offsets - (before - self.dead_before[of]).astype(np.uint64)
            into = np.maximum(np.searchsorted(self.new_first, place, side="right") - 1, 0)
            now[moved] = (self.new[into] << _HALF) | (place - self.new_first[into])
        return now, survived


def _counted(fragments: Sequence[tuple[int, int]], place: int) -> Iterable[tuple[int, int, int]]:
    for id, rows in fragments:
        if rows:
            yield id, rows, place
        place += rows


def mask_within(addresses: Ids, fragments: BitMap) -> Mask:
    """Which of them are in one of these fragments."""
    covered = np.frombuffer(fragments.to_array(), dtype=np.uint32)
    upper = addresses >> _HALF
    if not len(covered):
        return np.zeros(len(addresses), dtype=np.bool_)
    place = np.minimum(np.searchsorted(covered, upper), len(covered) - 1)
    found: Mask = covered[place] == upper
    return found


def _numbers(of: Iterable[int]) -> Ids:
    return np.fromiter(of, dtype=np.uint64)
