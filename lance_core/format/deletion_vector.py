"""Which rows of a fragment are deleted: a sorted set of physical offsets, and its two encodings.

Readers follow the file type that the fragment names; what is in the file is always the complete set.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_core.errors import Corrupt

_ARRAY_ROWS_MAX = 5000
_ARROW_SCHEMA = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])


@dataclass(frozen=True, slots=True)
class DeletionVector:
    offsets: npt.NDArray[np.uint32]
    """Ascending and distinct."""

    def __len__(self) -> int:
        return len(self.offsets)

    @classmethod
    def decode_arrow(cls, data: bytes, *, path: str) -> "DeletionVector":
        try:
            table = pa.ipc.open_file(data).read_all()
        except (pa.ArrowException, OSError) as error:
            raise Corrupt("is not an Arrow IPC file", path=path, field="deletion_file") from error
        if not table.schema.equals(_ARROW_SCHEMA):
            raise Corrupt(f"has the columns {table.schema}, not row_id: uint32 not null", path=path, field="schema")
        if table.column(0).null_count:
            raise Corrupt("holds nulls, and a deleted row has a number", path=path, field="row_id")
        return cls(np.unique(table.column(0).to_numpy()))

    @classmethod
    def decode_bitmap(cls, data: bytes, *, path: str) -> "DeletionVector":
        try:
            offsets = BitMap.deserialize(data).to_array()
        except (ValueError, IndexError) as error:
            raise Corrupt("is not a Roaring bitmap", path=path, field="deletion_file") from error
        return cls(np.frombuffer(offsets, dtype=np.uint32))

    @classmethod
    def of(cls, offsets: npt.ArrayLike) -> "DeletionVector":
        """From offsets in any order."""
        return cls(np.unique(np.asarray(offsets, dtype=np.uint32)))

    def union(self, other: "DeletionVector") -> "DeletionVector":
        return DeletionVector(np.union1d(self.offsets, other.offsets))

    @property
    def is_best_as_bitmap(self) -> bool:
        """Which of the two encodings Lance chooses for this many rows."""
        return len(self) > _ARRAY_ROWS_MAX

    def goes_on_as_bitmap(self, *, was_bitmap: bool | None) -> bool:
        """The same where a file is there already (None: there is none). A bitmap stays one, however small; 5,000 rows
        become one only if they are the first."""
        return was_bitmap or self.is_best_as_bitmap or (was_bitmap is None and len(self) == _ARRAY_ROWS_MAX)

    def encode(self, *, as_bitmap: bool) -> bytes:
        if as_bitmap:
            return bytes(BitMap(self.offsets).serialize())
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(sink, _ARROW_SCHEMA, options=options) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays([pa.array(self.offsets)], schema=_ARROW_SCHEMA))
        return bytes(sink.getvalue())

    def physical(self, live: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where the live rows of these numbers are."""
        before = self.offsets.astype(np.int64) - np.arange(len(self.offsets))
        return live + np.searchsorted(before, live, side="right")

    def alive(self, start: int, count: int) -> npt.NDArray[np.bool_]:
        """For the rows at `start`, `start + 1`, …: which ones are still there."""
        first, last = np.searchsorted(self.offsets, [start, start + count])
        mask = np.ones(count, dtype=np.bool_)
        mask[self.offsets[first:last] - start] = False
        return mask
