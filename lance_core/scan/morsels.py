"""What is read in one go: pieces of fragments, so many rows that a few of them fit in memory, and turns of pieces, one
for a thread at a time. Of small fragments several are a turn; where a few matching rows are wanted, the first pieces
are small.

Nothing is read here but the deletions of a fragment whose live rows are counted. Start with `morsel_groups`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lance_core.datafiles.fragment_reader import FragmentReader, load_deletions
from lance_core.datafiles.open_fragment import OpenFragment
from lance_core.expressions import Predicate
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest
from lance_core.scan.plan import MORSEL_BYTES, ScanPlan, ScanTask
from lance_core.scan.selection import FragmentSelection, Offsets
from lance_core.scan.system_columns import SystemColumns
from lance_core.versions.location import Location

_GROUP_ROWS = 65_536
_GROUP_MORSELS = 16
_FIRST_MORSEL_ROWS = 16_384
_GROWTH = 4
_OPEN_READERS_MAX = 6
"""Of a fragment: sets of columns that are read together."""
PICK_ONE_IN = 50
"""A row is picked by its number where at most one in so many is wanted. Measured on 16 columns of mixed types: picking
1 % takes half as long as reading all, picking 10 % twice as long."""
_RUN_ROWS_MIN = 256
_RUN_GAP_MAX = 1024
"""Rows apart that are not one stretch."""


class LiveFragment:
    """A fragment, and what all pieces of it need once."""

    def __init__(self, location: Location, manifest: Manifest, fragment: Fragment) -> None:
        self._location = location
        self.fragment = fragment
        self.system_columns = SystemColumns(manifest, fragment, path=manifest_path(location, manifest))
        self._deletions: tuple[DeletionVector | None] | None = None
        self._open: dict[FragmentReader, OpenFragment] = {}

    def open_with(self, reader: FragmentReader) -> OpenFragment:
        """Twice, where two threads come at once, which does no harm."""
        found = self._open.get(reader)
        if found is None:
            found = reader.open(self.fragment)
            if len(self._open) >= _OPEN_READERS_MAX:
                self._open = {}
            self._open[reader] = found
        return found

    @property
    def deletions(self) -> DeletionVector | None:
        if self._deletions is None:
            self._deletions = (load_deletions(self._location.store, self.fragment),)
        return self._deletions[0]

    def physical_offset(self, live: int) -> int:
        """Where the live row of this number is; the end of the fragment for the number after the last."""
        rows, deleted = self.fragment.physical_rows, self.deletions
        if not deleted or live >= rows - len(deleted):
            return min(live, rows) if not deleted else rows
        return int(deleted.to_physical_offsets(np.array([live]))[0])


@dataclass(frozen=True, slots=True)
class Morsel:
    """Physical rows of a fragment, read in one go."""

    source: LiveFragment
    start: int
    count: int
    picked: "PickedRows | None" = None
    """Where only these of them are read."""


@dataclass(frozen=True, slots=True)
class PickedRows:
    """Live rows, and what they have to be looked at for."""

    offsets: Offsets
    residual: Predicate | None

    @property
    def is_dense(self) -> bool:
        """Whether reading all rows between the first and the last is faster than picking them."""
        count = len(self.offsets)
        return count >= _RUN_ROWS_MIN and bool(_is_run(count, self.offsets[-1:] - self.offsets[:1])[0])


def morsel_groups(
    location: Location, plan: ScanPlan, opened: Callable[[Fragment], LiveFragment] | None = None
) -> Iterator[list[Morsel]]:
    """`open_with` are fragments that somebody keeps, to pick rows from."""
    turn: list[Morsel] = []
    rows, size = 0, 0
    sizes = plan.morsel_sizes()
    stops_early = plan.predicate is not None and plan.limit is not None
    for task in plan.tasks:
        width = sizes.row_bytes(task.fragment)
        for piece in _morsels_of_task(location, plan, task, sizes.rows_per_morsel(width), opened, grows=stops_early):
            turn.append(piece)
            read = piece.count if piece.picked is None else len(piece.picked.offsets)
            rows, size = rows + read, size + read * width
            if stops_early or rows >= _GROUP_ROWS or size >= MORSEL_BYTES or len(turn) == _GROUP_MORSELS:
                yield turn
                turn, rows, size = [], 0, 0
    if turn:
        yield turn


def _morsels_of_task(
    location: Location,
    plan: ScanPlan,
    task: ScanTask,
    rows_max: int,
    opened: Callable[[Fragment], LiveFragment] | None,
    *,
    grows: bool,
) -> Iterator[Morsel]:
    """Small ones first, where the wanted rows may be among them."""
    picks = task.selection is not None and not task.selection.is_most_of(task.fragment.physical_rows)
    of = opened(task.fragment) if picks and opened else LiveFragment(location, plan.manifest, task.fragment)
    if picks:
        assert task.selection is not None
        yield from _morsels_of_selection(of, task.selection, rows_max, grows=grows)
        return
    start, stop = 0, task.fragment.physical_rows
    if not task.is_whole:
        start = of.physical_offset(task.skip)
        stop = stop if task.take is None else of.physical_offset(task.skip + task.take)
    if not stop:  # a fragment that says it is empty: its files must agree
        yield Morsel(of, 0, 0)
    step = min(rows_max, _FIRST_MORSEL_ROWS) if grows else rows_max
    while start < stop:
        yield Morsel(of, start, min(step, stop - start))
        start += step
        step = min(rows_max, step * _GROWTH)


def _morsels_of_selection(of: LiveFragment, chosen: FragmentSelection, rows_max: int, *, grows: bool) -> Iterator[Morsel]:
    """Stretches with many of the rows by themselves, and the scattered ones between them together. Where rows have to
    be looked at, a stretch is a piece like any other: the whole condition is evaluated."""
    offsets = chosen.live_offsets(of.deletions)
    step = min(rows_max, _FIRST_MORSEL_ROWS) if grows else rows_max
    start = 0
    for stop in _run_boundaries(offsets):
        is_run = PickedRows(offsets[start:stop], None).is_dense
        while start < stop:
            few = offsets[start : min(stop, start + step)]
            if is_run:
                few = few[: np.searchsorted(few, few[0] + step)]
            picked = PickedRows(few, chosen.residual)
            first, count = int(few[0]), int(few[-1]) + 1 - int(few[0])
            yield Morsel(of, first, count, None if picked.is_dense and chosen.residual is not None else picked)
            start += len(few)
            step = min(rows_max, step * _GROWTH)


def _run_boundaries(offsets: Offsets) -> Sequence[int]:
    """Where stretches begin and end that are read as a whole, and the end."""
    if len(offsets) < _RUN_ROWS_MIN:
        return (len(offsets),)
    ends = np.append(np.flatnonzero(np.diff(offsets) > _RUN_GAP_MAX) + 1, len(offsets))
    starts = np.concatenate([[0], ends[:-1]])
    is_run = _is_run(ends - starts, offsets[ends - 1] - offsets[starts])
    cuts: list[int] = np.unique(np.concatenate([starts[is_run], ends[is_run], [len(offsets)]])).tolist()
    return cuts if cuts[0] else cuts[1:]


def _is_run(count: Offsets | int, span: Offsets) -> npt.NDArray[np.bool_]:
    return np.asarray((count >= _RUN_ROWS_MIN) & (count * PICK_ONE_IN >= span))


def manifest_path(location: Location, manifest: Manifest) -> str:
    """Fit for messages."""
    return f"{location.uri}/{manifest.path}"
