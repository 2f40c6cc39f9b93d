"""Deletion vector: the sorted physical offsets of a fragment's deleted rows, and their two encodings.

Readers follow the file type that the fragment names. A deletion file always holds the complete set.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from lance_core.errors import Corrupt
from lance_core.format import deletion_arrow
from lance_core.format.row_sets import bitmap_of
from lance_core.format.sorted_unique import sorted_unique
from lance_core.limits import DELETED_ROWS

_ARRAY_ROWS_MAX = 5000
"""The largest number of rows that Lance writes as an Arrow array."""


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
        return cls(np.frombuffer(decode_offsets(data, path=path).to_array(), dtype=np.uint32))

    @classmethod
    def of(cls, offsets: npt.ArrayLike) -> "DeletionVector":
        """Return the vector of offsets in any order."""
        return cls(sorted_unique(np.asarray(offsets, dtype=np.uint32)))

    def union(self, other: "DeletionVector") -> "DeletionVector":
        return DeletionVector(sorted_unique(np.concatenate([self.offsets, other.offsets])))

    @property
    def prefers_bitmap(self) -> bool:
        """True if Lance chooses the bitmap encoding for this number of rows."""
        return len(self) > _ARRAY_ROWS_MAX

    def should_use_bitmap(self, *, was_bitmap: bool | None) -> bool:
        """Return whether Lance writes this vector as a bitmap, given the encoding of the existing file (`None` if
        there is none). A bitmap stays a bitmap, however small. Exactly 5,000 rows become a bitmap only if no file
        exists yet."""
        return was_bitmap or self.prefers_bitmap or (was_bitmap is None and len(self) == _ARRAY_ROWS_MAX)

    def encode(self, *, as_bitmap: bool) -> bytes:
        if as_bitmap:
            return bytes(bitmap_of(self.offsets).serialize())
        return deletion_arrow.encode(self.offsets)

    def to_physical_offsets(self, live: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Convert numbers of live rows to physical offsets."""
        before = self.offsets.astype(np.int64) - np.arange(len(self.offsets))
        return live + np.searchsorted(before, live, side="right")

    def live_mask(self, start: int, count: int) -> npt.NDArray[np.bool_]:
        """Return, for the rows `start`, `start + 1`, …, whether they are live."""
        first, last = np.searchsorted(self.offsets, [start, start + count])
        mask = np.ones(count, dtype=np.bool_)
        mask[self.offsets[first:last] - start] = False
        return mask


def decode_offsets(data: bytes, *, path: str) -> BitMap:
    """Decode the offsets of rows of a fragment."""
    try:
        bitmap = BitMap.deserialize(data)
    except (ValueError, IndexError) as error:
        raise Corrupt("is not a Roaring bitmap", path=path, field="deletion_file") from error
    DELETED_ROWS.check(len(bitmap), path=path)  # eight bytes can encode a run of four billion rows
    return bitmap
