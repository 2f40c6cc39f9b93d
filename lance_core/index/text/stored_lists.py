"""Stored lists: reads the posting lists of many terms of a partition at once, past the page cache of searches."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lance_core.datafiles.codec import FileReader
from lance_core.errors import Corrupt
from lance_core.index.index_type import IncompatibleSegments
from lance_core.index.segment_files import SegmentSource
from lance_core.index.text.bit_packing import Ints
from lance_core.index.text.list_decoder import decode_lists
from lance_core.index.text.posting_decoder import DamagedList, Tail
from lance_core.index.text.posting_encoder import PostingLists
from lance_core.index.text.segment_reader import (
    LENGTH,
    POSITION_OFFSETS,
    POSTING,
    SHARED_POSITIONS,
    TextPartition,
)


@dataclass(frozen=True, slots=True)
class StoredLists:
    """Posting lists of a partition."""

    file: FileReader
    path: str
    columns: tuple[str, ...]
    documents: int

    @classmethod
    def of(cls, partition: TextPartition, files: SegmentSource, path: str, *, with_position: bool) -> "StoredLists":
        """Open the lists of a partition. Raise `IncompatibleSegments` if their layout is not the one that is written,
        or if positions are requested that they do not have."""
        name = f"part_{partition.number}_invert.lance"
        columns = (POSTING, LENGTH, *((SHARED_POSITIONS, POSITION_OFFSETS) if with_position else ()))
        file = files.open(name, columns)
        tail, layout = file.metadata.get("posting_tail_codec"), file.metadata.get("positions_codec")
        has_blocks = file.metadata.get("posting_block_size", "128") == "128"
        is_known = has_blocks and tail == Tail.VARINT.value and (not with_position or layout == "packed_delta_v1")
        if not is_known or any(column not in file.schema.names for column in columns):
            raise IncompatibleSegments(f"{path}/{name}: its posting lists have another layout, or no positions")
        return cls(file, f"{path}/{name}", columns, len(partition.documents.row_numbers))

    def read(self, numbers: Ints) -> PostingLists:
        """Return the lists of terms, in the order of their numbers."""
        first, count = int(numbers[0]), len(numbers)
        if int(numbers[-1]) - first == count - 1:
            batches = self.file.read(self.columns, first, count)
        else:
            batches = self.file.take(self.columns, numbers)
        rows = pa.Table.from_batches(batches).combine_chunks()
        (batch,) = rows.to_batches()
        if batch.num_rows != count or batch[LENGTH].null_count:
            raise Corrupt(f"has {batch.num_rows} of {count} posting lists", path=self.path, field=POSTING)
        positions, offsets = (
            batch[name] if name in self.columns else None for name in (SHARED_POSITIONS, POSITION_OFFSETS)
        )
        lengths = np.asarray(batch[LENGTH]).astype(np.int64)
        try:
            return decode_lists(batch[POSTING], lengths, positions, offsets, self.documents)
        except DamagedList as error:
            raise Corrupt(str(error), path=self.path, field=POSTING) from error
