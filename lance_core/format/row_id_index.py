"""From a stable row id to where its row is now, over many fragments.

Made from what fragments and their deletion files say; nothing is read here. Start with `RowIdIndex`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from lance_core.errors import Corrupt
from lance_core.format.id_runs import Counts, Ids, sort_by_first_id, find_overlap, remove_positions
from lance_core.format.ids import FragmentId
from lance_core.format.rowids import RowIdSequence


@dataclass(frozen=True, slots=True, eq=False)
class FragmentRowIds:
    """What the index is told of one fragment."""

    fragment_id: FragmentId
    row_ids: RowIdSequence
    deleted: npt.NDArray[np.uint32] | None = None
    """Offsets, ascending and distinct."""


@dataclass(frozen=True, slots=True, eq=False)
class RowLocations:
    """Where the rows of some ids are, in the order asked for. Where `is_known` is false the rest says nothing."""

    is_known: npt.NDArray[np.bool_]
    fragment_ids: Ids
    offsets: Ids

    @property
    def addresses(self) -> Ids:
        return (self.fragment_ids << np.uint64(32)) | self.offsets


class RowIdIndex:
    """Where the live row of an id is. An old place of a moved row is deleted there, and so not found.

    >>> old = FragmentRowIds(FragmentId(3), RowIdSequence.of([10, 11, 12]), np.array([1], dtype=np.uint32))
    >>> new = FragmentRowIds(FragmentId(4), RowIdSequence.of([11]))
    >>> places = RowIdIndex([old, new], path="_versions/2.manifest").find([11, 12, 99])
    >>> places.fragment_ids.tolist()[:2], places.offsets.tolist()[:2], places.known.tolist()
    ([4, 3], [0, 2], [True, True, False])
    """

    def __init__(self, fragments: Sequence[FragmentRowIds], *, path: str) -> None:
        """Costs nothing yet. `path` is the manifest's, for errors."""
        self._fragments = tuple(fragments)
        self._path = path

    def locate_rows(self, ids: npt.ArrayLike) -> RowLocations:
        starts, lengths, fragment, offsets = self._live_runs
        wanted = np.asarray(ids, dtype=np.uint64)
        if not len(starts):
            nowhere = np.zeros(len(wanted), dtype=np.uint64)
            return RowLocations(nowhere.astype(np.bool_), nowhere, nowhere)
        run = np.maximum(np.searchsorted(starts, wanted, side="right") - 1, 0)
        within = wanted - starts[run]
        known = (wanted >= starts[run]) & (within < lengths[run].astype(np.uint64))
        return RowLocations(known, self._fragment_ids[fragment[run]], offsets[run].astype(np.uint64) + within)

    def __len__(self) -> int:
        """Live rows."""
        return int(self._live_runs[1].sum())

    @cached_property
    def _fragment_ids(self) -> Ids:
        return np.array([each.fragment_id for each in self._fragments], dtype=np.uint64)

    @cached_property
    def _live_runs(self) -> tuple[Ids, Counts, Counts, Counts]:
        """Live runs by first id: first id, length, number of the fragment, first offset in it."""
        sequences = [each.row_ids for each in self._fragments]
        starts = np.concatenate([np.empty(0, dtype=np.uint64), *(each.starts for each in sequences)])
        lengths = np.concatenate([np.empty(0, dtype=np.int64), *(each.lengths for each in sequences)])
        run_counts = np.array([len(each.starts) for each in sequences], dtype=np.int64)
        row_edges = np.concatenate([[0], np.cumsum(lengths)])
        fragment_edges = row_edges[np.concatenate([[0], np.cumsum(run_counts)])]
        run, skip, lengths = remove_positions(lengths, self._deleted_row_numbers(fragment_edges))
        fragment = np.repeat(np.arange(len(sequences)), run_counts)[run]
        offsets = row_edges[run] + skip - fragment_edges[fragment]
        starts, lengths, order = sort_by_first_id(starts[run] + skip.astype(np.uint64), lengths)
        fragment, offsets = fragment[order], offsets[order]
        if (twice := find_overlap(starts, lengths)) is not None:
            number, row_id = twice
            one, other = sorted(int(self._fragment_ids[each]) for each in fragment[number : number + 2])
            raise Corrupt(
                f"row id {row_id} is live twice, in fragment {one} and in fragment {other}; no lookup by id can be "
                "trusted until one of the rows is deleted by its address",
                path=self._path,
                field=f"fragments[id={other}].row_ids",
            )
        return starts, lengths, fragment, offsets

    def _deleted_row_numbers(self, fragment_edges: Counts) -> Counts:
        """Row numbers counted through all fragments."""
        deleted = [np.empty(0, dtype=np.int64)]
        for number, each in enumerate(self._fragments):
            if each.deleted is None or not len(each.deleted):
                continue
            rows = int(fragment_edges[number + 1] - fragment_edges[number])
            if each.deleted[-1] >= rows:
                raise Corrupt(
                    f"row {each.deleted[-1]} is deleted, but there are {rows}",
                    path=self._path,
                    field=f"fragments[id={each.fragment_id}].deletion_file",
                )
            deleted.append(each.deleted + fragment_edges[number])
        return np.concatenate(deleted)
