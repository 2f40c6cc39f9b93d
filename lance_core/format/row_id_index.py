"""Row id index: maps a stable row id to the current location of its row, over many fragments.

The index is built from the row ids and deleted rows of the fragments; this module reads no file. Start with
`RowIdIndex`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from lance_core.errors import Corrupt
from lance_core.format.id_runs import Counts, Ids, find_overlap, last_ids, remove_positions, sort_by_first_id
from lance_core.format.ids import FragmentId
from lance_core.format.row_lineage import RowIdSequence


@dataclass(frozen=True, slots=True, eq=False)
class FragmentRowIds:
    """Row ids and deleted rows of one fragment."""

    fragment_id: FragmentId
    row_ids: RowIdSequence
    deleted: npt.NDArray[np.uint32] | None = None
    """Offsets of the deleted rows, ascending and distinct."""


@dataclass(frozen=True, slots=True, eq=False)
class RowLocations:
    """Locations of the rows of some ids, in the order of the request. If `is_known` is false, the other values are
    undefined."""

    is_known: npt.NDArray[np.bool_]
    fragment_ids: Ids
    offsets: Ids

    @property
    def addresses(self) -> Ids:
        return (self.fragment_ids << np.uint64(32)) | self.offsets


class RowIdIndex:
    """Locations of the live rows by id. A row that moved is deleted at its old location, so only the new location is
    found.

    >>> old = FragmentRowIds(FragmentId(3), RowIdSequence.of([10, 11, 12]), np.array([1], dtype=np.uint32))
    >>> new = FragmentRowIds(FragmentId(4), RowIdSequence.of([11]))
    >>> rows = RowIdIndex([old, new], path="_versions/2.manifest").locate_rows([11, 12, 99])
    >>> rows.fragment_ids.tolist()[:2], rows.offsets.tolist()[:2], rows.is_known.tolist()
    ([4, 3], [0, 2], [True, True, False])
    """

    def __init__(self, fragments: Sequence[FragmentRowIds], *, path: str) -> None:
        """Store the arguments; the index is built on first use. `path` is the path of the manifest, for error
        messages."""
        self._fragments = tuple(fragments)
        self._path = path

    def locate_rows(self, ids: npt.ArrayLike) -> RowLocations:
        starts, lengths, fragment, offsets = self._live_runs
        requested = np.asarray(ids, dtype=np.uint64)
        if not len(starts):
            unknown = np.zeros(len(requested), dtype=np.uint64)
            return RowLocations(unknown.astype(np.bool_), unknown, unknown)
        run = np.maximum(np.searchsorted(starts, requested, side="right") - 1, 0)
        within = requested - starts[run]
        is_known = (requested >= starts[run]) & (within < lengths[run].astype(np.uint64))
        return RowLocations(is_known, self._fragment_ids[fragment[run]], offsets[run].astype(np.uint64) + within)

    def locate_ascending(self, ids: Ids) -> tuple[Counts, Ids, Ids]:
        """Return which of these ascending and distinct ids are known: their positions in `ids`, their fragment ids and
        offsets. Faster than `locate_rows` if many are known, since whole runs are located at once."""
        starts, lengths, fragment, offsets = self._live_runs
        first = np.searchsorted(ids, starts)
        counts = np.searchsorted(ids, last_ids(starts, lengths), side="right") - first
        positions = np.arange(counts.sum()) + np.repeat(first - (np.cumsum(counts) - counts), counts)
        # The distance from an id to its offset wraps around zero, and adding it to the id wraps back.
        distances = offsets.astype(np.uint64) - starts
        return positions, np.repeat(self._fragment_ids[fragment], counts), ids[positions] + np.repeat(distances, counts)

    def __len__(self) -> int:
        """Return the number of live rows."""
        return int(self._live_runs[1].sum())

    @cached_property
    def _fragment_ids(self) -> Ids:
        return np.array([fragment.fragment_id for fragment in self._fragments], dtype=np.uint64)

    @cached_property
    def _live_runs(self) -> tuple[Ids, Counts, Counts, Counts]:
        """Live runs sorted by first id: first id, length, index of the fragment, first offset in it."""
        sequences = [each.row_ids for each in self._fragments]
        starts = np.concatenate([np.empty(0, dtype=np.uint64), *(each.starts for each in sequences)])
        lengths = np.concatenate([np.empty(0, dtype=np.int64), *(each.lengths for each in sequences)])
        run_counts = np.array([len(each.starts) for each in sequences], dtype=np.int64)
        row_edges = np.concatenate([[0], np.cumsum(lengths)])
        fragment_edges = row_edges[np.concatenate([[0], np.cumsum(run_counts)])]
        run, skipped, lengths = remove_positions(lengths, self._deleted_row_numbers(fragment_edges))
        fragment = np.repeat(np.arange(len(sequences)), run_counts)[run]
        offsets = row_edges[run] + skipped - fragment_edges[fragment]
        starts, lengths, order = sort_by_first_id(starts[run] + skipped.astype(np.uint64), lengths)
        fragment, offsets = fragment[order], offsets[order]
        if (overlapping := find_overlap(starts, lengths)) is not None:
            number, row_id = overlapping
            one, other = sorted(int(self._fragment_ids[each]) for each in fragment[number : number + 2])
            raise Corrupt(
                f"row id {row_id} is live in fragment {one} and in fragment {other}; lookups by row id are unreliable "
                "until one of the two rows is deleted by its address",
                path=self._path,
                field=f"fragments[id={other}].row_ids",
            )
        return starts, lengths, fragment, offsets

    def _deleted_row_numbers(self, fragment_edges: Counts) -> Counts:
        """Return the deleted rows as row numbers that are counted through all fragments."""
        deleted = [np.empty(0, dtype=np.int64)]
        for number, fragment in enumerate(self._fragments):
            if fragment.deleted is None or not len(fragment.deleted):
                continue
            rows = int(fragment_edges[number + 1] - fragment_edges[number])
            if fragment.deleted[-1] >= rows:
                raise Corrupt(
                    f"row {fragment.deleted[-1]} is deleted, but the fragment has only {rows} rows",
                    path=self._path,
                    field=f"fragments[id={fragment.fragment_id}].deletion_file",
                )
            deleted.append(fragment.deleted + fragment_edges[number])
        return np.concatenate(deleted)
