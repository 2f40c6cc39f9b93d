"""Row selection: the only rows that can match a filter, known before any row is read. Indices produce selections; this
package only consumes them.

    select(predicate) -> Selection      for each fragment: the selected rows, and the condition still to be tested

Fragments without an entry are scanned. A selection may contain deleted rows.
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
"""Physical row offsets within a fragment, ascending."""

_SCAN_ONE_IN = 4
"""If at least one row in this many is selected, all rows are read: picking or filtering them is slower."""


@dataclass(frozen=True, slots=True)
class FragmentSelection:
    """Selected rows of a fragment; none of its other rows matches."""

    rows: BitMap
    """Offsets of the selected rows."""
    residual: Predicate | None = None
    """Condition that the rows still have to be tested against; with `None` all of them match."""

    def live_offsets(self, deletions: DeletionVector | None) -> Offsets:
        """Return the offsets of the selected rows that are not deleted."""
        offsets = np.frombuffer(self.rows.to_array(), dtype=np.uint32)
        if deletions and len(offsets):
            deleted = deletions.offsets
            position = np.minimum(np.searchsorted(deleted, offsets), len(deleted) - 1)
            offsets = offsets[deleted[position] != offsets]
        return offsets.astype(np.int64)

    def is_most_of(self, rows: int) -> bool:
        """Return whether the selection is so large a part of a fragment with `rows` rows that scanning is faster."""
        return len(self.rows) * _SCAN_ONE_IN >= rows


@dataclass(frozen=True, slots=True)
class Selection:
    """Selected rows of a version."""

    covered: BitMap = field(default_factory=BitMap)
    """Ids of fragments that have no matching rows except those in `fragments`."""
    fragments: Mapping[int, FragmentSelection] = field(default_factory=dict)
    """Selections by fragment id, for fragments with any selected rows."""


RowSelector: TypeAlias = Callable[[Predicate], Selection]
"""Function that answers a filter from the indices of one version; an empty selection if they do not help."""
