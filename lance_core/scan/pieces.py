"""What is read in one go: pieces of fragments, so many rows that a few of them fit in memory, and turns of pieces, one
for a thread at a time. Of small fragments several are a turn; where a few matching rows are wanted, the first pieces
are small.

Nothing is read here but the deletions of a fragment whose live rows are counted. Start with `turns`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lance_core.data.open_fragment import OpenFragment
from lance_core.data.read import FragmentReader, load_deletions
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest
from lance_core.location import Location
from lance_core.scan.plan import PIECE_BYTES, ScanPlan, ScanTask
from lance_core.scan.row_columns import RowFacts

_TURN_ROWS = 65_536
_TURN_PIECES = 16
_FIRST_ROWS = 16_384
_GROWTH = 4

Offsets = npt.NDArray[np.int64]
"""Physical rows of a fragment, ascending."""


class LiveFragment:
    """A fragment, and what all pieces of it need once."""

    def __init__(self, location: Location, manifest: Manifest, fragment: Fragment) -> None:
        self._location = location
        self.fragment = fragment
        self.facts = RowFacts(manifest, fragment, path=manifest_path(location, manifest))
        self._deletions: tuple[DeletionVector | None] | None = None
        self._open: dict[FragmentReader, OpenFragment] = {}

    def opened(self, reader: FragmentReader) -> OpenFragment:
        """Twice, where two threads come at once, which does no harm."""
        if reader not in self._open:
            self._open[reader] = reader.open(self.fragment)
        return self._open[reader]

    @property
    def deletions(self) -> DeletionVector | None:
        if self._deletions is None:
            self._deletions = (load_deletions(self._location.store, self.fragment),)
        return self._deletions[0]

    def physical(self, live: int) -> int:
        """Where the live row of this number is; the end of the fragment for the number after the last."""
        rows, deleted = self.fragment.physical_rows, self.deletions
        if not deleted or live >= rows - len(deleted):
            return min(live, rows) if not deleted else rows
        return int(deleted.physical(np.array([live]))[0])


@dataclass(frozen=True, slots=True)
class Piece:
    """Physical rows of a fragment, read in one go."""

    of: LiveFragment
    start: int
    count: int


def turns(location: Location, plan: ScanPlan) -> Iterator[list[Piece]]:
    turn: list[Piece] = []
    rows, size = 0, 0
    sizes = plan.piece_sizes()
    stops_early = plan.predicate is not None and plan.limit is not None
    for task in plan.tasks:
        width = sizes.row_bytes(task.fragment)
        for piece in _pieces(location, plan, task, sizes.rows(width), grows=stops_early):
            turn.append(piece)
            rows, size = rows + piece.count, size + piece.count * width
            if stops_early or rows >= _TURN_ROWS or size >= PIECE_BYTES or len(turn) == _TURN_PIECES:
                yield turn
                turn, rows, size = [], 0, 0
    if turn:
        yield turn


def _pieces(location: Location, plan: ScanPlan, task: ScanTask, rows_max: int, *, grows: bool) -> Iterator[Piece]:
    """Small ones first, where the wanted rows may be among them."""
    of = LiveFragment(location, plan.manifest, task.fragment)
    start, stop = 0, task.fragment.physical_rows
    if not task.is_whole:
        start = of.physical(task.skip)
        stop = stop if task.take is None else of.physical(task.skip + task.take)
    if not stop:  # a fragment that says it is empty: its files must agree
        yield Piece(of, 0, 0)
    step = min(rows_max, _FIRST_ROWS) if grows else rows_max
    while start < stop:
        yield Piece(of, start, min(step, stop - start))
        start += step
        step = min(rows_max, step * _GROWTH)


def manifest_path(location: Location, manifest: Manifest) -> str:
    """Fit for messages."""
    return f"{location.uri}/{manifest.path}"
