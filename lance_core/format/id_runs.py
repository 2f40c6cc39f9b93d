"""Run-length arithmetic: operations on runs of consecutive ids, for sequences of row ids and of row versions.

A run is its first id and its length; runs are stored in row order, in two arrays. This module knows no fragments,
messages or files.
"""

import numpy as np
import numpy.typing as npt

from lance_core.errors import InvalidInput
from lance_core.format.ids import RowId

Ids = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]
Positions = npt.NDArray[np.integer]
"""Row numbers within a fragment, from 0."""

END_MAX = 2**64 - 1


def check_positions(positions: Positions, rows: int) -> Counts:
    """Return the positions as signed integers, after checking that they are rows of a fragment with `rows` rows."""
    if len(positions) and not (positions.min() >= 0 and positions.max() < rows):
        raise InvalidInput(f"rows {positions.min()} to {positions.max()} were requested from a sequence of {rows} rows")
    return positions.astype(np.int64)


def remove_positions(lengths: Counts, deleted: Counts) -> tuple[Counts, Counts, Counts]:
    """Return what remains of runs after rows are deleted. Each remaining piece is given by its run, its offset in
    that run and its length."""
    ends = np.cumsum(lengths)
    if not len(deleted):
        return np.arange(len(lengths)), np.zeros_like(lengths), lengths
    # Every deleted row ends one piece and starts the next, so the n-th start in order belongs to the n-th end.
    piece_starts = np.sort(np.concatenate([ends - lengths, deleted + 1]), kind="stable")
    piece_ends = np.sort(np.concatenate([ends, deleted]), kind="stable")
    is_kept = piece_ends > piece_starts
    piece_starts, piece_ends = piece_starts[is_kept], piece_ends[is_kept]
    run = np.searchsorted(ends, piece_starts, side="right")
    return run, piece_starts - (ends - lengths)[run], piece_ends - piece_starts


def clip_runs(lengths: Counts, start: int, stop: int) -> tuple[Counts, Counts, Counts]:
    """Return the part of runs between two rows, in the form of `remove_positions`."""
    ends = np.cumsum(lengths)
    begins = np.maximum(ends - lengths, start)
    run = np.flatnonzero(np.minimum(ends, stop) > begins)
    return run, (begins - (ends - lengths))[run], (np.minimum(ends, stop) - begins)[run]


def is_ascending(values: Ids) -> bool:
    return bool((values[1:] > values[:-1]).all())


def one_run(start: int, count: int) -> tuple[Ids, Counts]:
    if not count:
        return np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)
    return np.array([start], dtype=np.uint64), np.array([count], dtype=np.int64)


def runs_of(ids: Ids) -> tuple[Ids, Counts]:
    if not len(ids):
        return ids, np.empty(0, dtype=np.int64)
    first = np.concatenate([[0], np.flatnonzero(~is_successor(ids[1:], ids[:-1])) + 1])
    return ids[first], np.diff(first, append=len(ids))


def is_successor(ids: Ids, before: Ids) -> npt.NDArray[np.bool_]:
    """Return, for each id, whether it directly follows the id in `before`. No id follows the highest one, although
    adding 1 to it wraps to 0."""
    follows: npt.NDArray[np.bool_] = (ids == before + np.uint64(1)) & (ids != 0)
    return follows


def last_ids(starts: Ids, lengths: Counts) -> Ids:
    """Return the last id of each run, inclusive, because the exclusive end may need more than 64 bits."""
    return starts + (lengths - 1).astype(np.uint64)


def expand_runs(starts: Ids, lengths: Counts) -> Ids:
    ends = np.cumsum(lengths)
    rows = int(ends[-1]) if len(ends) else 0
    expanded: Ids = np.arange(rows, dtype=np.uint64)
    expanded += np.repeat(starts - (ends - lengths).astype(np.uint64), lengths)
    return expanded


def sort_by_first_id(starts: Ids, lengths: Counts) -> tuple[Ids, Counts, Counts]:
    if is_ascending(starts):
        return starts, lengths, np.arange(len(starts))
    order = np.argsort(starts, kind="stable")
    return starts[order], lengths[order], order


def find_overlap(starts: Ids, lengths: Counts) -> tuple[int, RowId] | None:
    """Return the first overlap of runs that are sorted by first id: the index of the earlier run and the shared id."""
    lasts = last_ids(starts, lengths)
    overlapping = np.flatnonzero(starts[1:] <= lasts[:-1])
    return (int(overlapping[0]), RowId(int(starts[overlapping[0] + 1]))) if len(overlapping) else None
