"""Which rows of a fragment are deleted: a sorted set of physical offsets, and its two encodings.

Readers follow the file type that the fragment names; what is in the file is always the complete set.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from lance_core.errors import Corrupt
from lance_core.format import deletion_arrow
from lance_core.format.sorted_unique import sorted_unique
from lance_core.limits import DELETED_ROWS

_ARRAY_ROWS_MAX = 5000


@dataclass(frozen=True, slots=True)
class DeletionVector:
    offsets: npt.NDArray[np.uint32]
    """Ascending and distinct."""

    def __len__(self) -> int:
        return len(self.offsets)

    @classmethod
    def decode_arrow(cls, data: bytes, *, path: str) -> "DeletionVector":
        return cls(sorted_unique(deletion_arrow.decode(data, path=path)))

    @classmethod
    def decode_bitmap(cls, data: bytes, *, path: str) -> "DeletionVector":
        try:
            bitmap = BitMap.deserialize(data)
        except (ValueError, IndexError) as error:
            raise Corrupt("is not a Roaring bitmap", path=path, field="deletion_file") from error
        DELETED_ROWS.check(len(bitmap), path=path)  # a run of four billion is eight bytes
        return cls(np.frombuffer(bitmap.to_array(), dtype=np.uint32))

    @classmethod
    def of(cls, offsets: npt.ArrayLike) -> "DeletionVector":
        """From offsets in any order."""
        return cls(sorted_unique(np.asarray(offsets, dtype=np.uint32)))

    def union(self, other: "DeletionVector") -> "DeletionVector":
        return DeletionVector(sorted_unique(np.concatenate([self.offsets, other.offsets])))

    @property
    def prefers_bitmap(self) -> bool:
        """Which of the two encodings Lance chooses for this many rows."""
        return len(self) > _ARRAY_ROWS_MAX

    def should_use_bitmap(self, *, was_bitmap: bool | None) -> bool:
        """The same where a file is there already (None: there is none). A bitmap stays one, however small; 5,000 rows
        become one only if they are the first."""
        return was_bitmap or self.prefers_bitmap or (was_bitmap is None and len(self) == _ARRAY_ROWS_MAX)

    def encode(self, *, as_bitmap: bool) -> bytes:
        if as_bitmap:
            return bytes(BitMap(self.offsets).serialize())
        return deletion_arrow.encode(self.offsets)

    def to_physical_offsets(self, live: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where the live rows of these numbers are."""
        before = self.offsets.astype(np.int64) - np.arange(len(self.offsets))
        return live + np.searchsorted(before, live, side="right")

    def live_mask(self, start: int, count: int) -> npt.NDArray[np.bool_]:
        """For the rows at `start`, `start + 1`, …: which ones are still there."""
        first, last = np.searchsorted(self.offsets, [start, start + count])
        mask = np.ones(count, dtype=np.bool_)
        mask[self.offsets[first:last] - start] = False
        return mask
