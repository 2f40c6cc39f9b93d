"""Rows that are known to be the only ones that can match, before any row is read. Who knows that is told by nobody
here: selections are handed in.

    select(predicate) -> Selection      by fragment: these rows, and what of them is left to be looked at

A fragment of which nothing is said is scanned. Rows that are deleted may be among those that are named.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from lance_core.expressions import Predicate
from lance_core.format.deletion_vector import DeletionVector

Offsets = npt.NDArray[np.int64]
"""Physical rows of a fragment, ascending."""

_SCANNED_SHARE = 4
"""Where at least one row in so many is chosen, all are read: picking is slower, and so is cutting down."""


@dataclass(frozen=True, slots=True)
class FragmentSelection:
    """No other row of the fragment matches."""

    rows: BitMap
    """By offset."""
    residual: Predicate | None = None
    """What they have to be looked at for; without it, they match."""

    def live(self, deletions: DeletionVector | None) -> Offsets:
        offsets = np.frombuffer(self.rows.to_array(), dtype=np.uint32)
        if deletions and len(offsets):
            gone = deletions.offsets
            place = np.minimum(np.searchsorted(gone, offsets), len(gone) - 1)
            offsets = offsets[gone[place] != offsets]
        return offsets.astype(np.int64)

    def is_most_of(self, rows: int) -> bool:
        """Of so many rows that a fragment has."""
        return len(self.rows) * _SCANNED_SHARE >= rows


@dataclass(frozen=True, slots=True)
class Selection:
    known: BitMap = field(default_factory=BitMap)
    """Ids of fragments of the version that have no matching rows but those of `fragments`."""
    fragments: Mapping[int, FragmentSelection] = field(default_factory=dict)
    """By fragment id, of those that have any."""


Select: TypeAlias = Callable[[Predicate], Selection]
"""Of one version. A condition that it knows nothing of gets an empty selection."""
