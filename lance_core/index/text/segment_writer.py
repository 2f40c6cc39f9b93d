"""Text segment writer: writes the files of a segment in format version 2, with its terms as an Arrow column.

    metadata.lance                     parameters and layout
    part_N_tokens.lance                terms and their numbers
    part_N_docs.lance                  row number and number of tokens of each document
    part_N_invert.lance                posting lists, impacts and positions by term number

A partition has at most about a million documents, so that the posting list of one term can be encoded in memory.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_core.format.row_sets import Ids
from lance_core.index.segment_files import SegmentSink, SegmentSource
from lance_core.index.text.list_elements import Elements
from lance_core.index.text.parameters import TextParameters
from lance_core.index.text.posting_encoder import Corpus, PostingEncoder
from lance_core.index.text.runs import MergedRuns
from lance_core.index.text.segment_reader import ELEMENT, METADATA_FILE

_LAYOUT = {"format_version": "2", "posting_tail_codec": "varint_delta_v1", "posting_block_size": "128"}
_POSITIONS_LAYOUT = {"positions_layout": "shared_stream_v2", "positions_codec": "packed_delta_v1"}
_PARTITION_FILES = ("tokens.lance", "docs.lance", "invert.lance")
_TOTAL_TOKENS = "total_tokens"
_COPIED_KEYS = frozenset({*_LAYOUT, *_POSITIONS_LAYOUT, _TOTAL_TOKENS})
_ROWS_PER_BATCH = 1 << 16
_COPIED_ROWS = 1 << 13
_BLOCKS = pa.list_(pa.large_binary())
_TOKENS = pa.schema(
    [pa.field("_token", pa.string(), nullable=False), pa.field("_token_id", pa.uint32(), nullable=False)]
)
_DOCUMENTS = pa.schema(
    [pa.field("_rowid", pa.uint64(), nullable=False), pa.field("_num_tokens", pa.uint32(), nullable=False)]
)
_ELEMENT_DOCUMENTS = _DOCUMENTS.append(pa.field(ELEMENT, pa.uint32(), nullable=False))
_POSTINGS = pa.schema(
    [
        pa.field("_posting", _BLOCKS, nullable=False),
        pa.field("_max_score", pa.float32(), nullable=False),
        pa.field("_length", pa.uint32(), nullable=False),
        pa.field("_impacts", _BLOCKS, nullable=False),
    ]
)
_POSITIONS = pa.schema(
    [
        pa.field("_compressed_position", pa.large_binary(), nullable=False),
        pa.field("_position_block_offset", pa.list_(pa.uint32()), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class PartitionDocuments:
    """Documents of a partition, numbered in their order."""

    rows: Ids
    lengths: npt.NDArray[np.uint32]
    elements: Elements | None = None
    """Place of each document in the list of its row; `None` if rows are documents."""

    @property
    def token_count(self) -> int:
        return int(self.lengths.sum(dtype=np.int64))


@dataclass(slots=True)
class SegmentWriter:
    """Writer for the files of a segment."""

    sink: SegmentSink
    parameters: TextParameters
    _partitions: int = 0

    def write_partition(self, documents: PartitionDocuments, merged: MergedRuns) -> None:
        prefix = f"part_{self._partitions}_"
        self._partitions += 1
        self._write_terms(f"{prefix}tokens.lance", merged.terms)
        self._write_documents(f"{prefix}docs.lance", documents)
        schema = pa.schema([*_POSTINGS, *_POSITIONS]) if self.parameters.with_position else _POSTINGS
        file = self.sink.create(f"{prefix}invert.lance", schema)
        encoder = PostingEncoder(Corpus(documents.lengths, documents.token_count))
        for lists in merged.ranges():
            columns = encoder.encode(lists)
            file.write(pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema))
        for key, value in self._layout.items():
            file.add_metadata(key, value)
        file.finish()

    def copy_partition(self, source: SegmentSource, number: int) -> None:
        """Write a partition of another segment that this library has written with the same parameters."""
        for name in _PARTITION_FILES:
            file = source.open(f"part_{number}_{name}")
            names = file.schema.names
            copy = self.sink.create(f"part_{self._partitions}_{name}", pa.schema(list(file.schema)))
            for start in range(0, file.row_count, _COPIED_ROWS):
                for batch in file.read(names, start, min(_COPIED_ROWS, file.row_count - start)):
                    copy.write(batch)
            for key, value in file.metadata.items():
                if key in _COPIED_KEYS:
                    copy.add_metadata(key, value)
            copy.finish()
        self._partitions += 1

    def finish(self) -> None:
        """Write the metadata of the segment."""
        schema = pa.schema([pa.field("deleted_fragments", pa.binary(), nullable=False)])
        file = self.sink.create(METADATA_FILE, schema)
        file.write(pa.RecordBatch.from_arrays([pa.array([BitMap().serialize()], pa.binary())], schema=schema))
        partitions = ",".join(map(str, range(self._partitions)))
        layout = {"partitions": f"[{partitions}]", "token_set_format": "arrow", "params": self.parameters.to_json()}
        for key, value in (layout | self._layout).items():
            file.add_metadata(key, value)
        file.finish()

    @property
    def _layout(self) -> dict[str, str]:
        return _LAYOUT | _POSITIONS_LAYOUT if self.parameters.with_position else _LAYOUT

    def _write_terms(self, name: str, terms: pa.LargeStringArray) -> None:
        file = self.sink.create(name, _TOKENS)
        for start in range(0, len(terms), _ROWS_PER_BATCH):
            batch = terms.slice(start, _ROWS_PER_BATCH).cast(pa.string())
            numbers = pa.array(np.arange(start, start + len(batch), dtype=np.uint32))
            file.write(pa.RecordBatch.from_arrays([batch, numbers], schema=_TOKENS))
        file.finish()

    def _write_documents(self, name: str, documents: PartitionDocuments) -> None:
        columns: list[npt.NDArray[np.unsignedinteger[Any]]] = [documents.rows, documents.lengths]
        schema = _DOCUMENTS
        if documents.elements is not None:
            columns, schema = [*columns, documents.elements], _ELEMENT_DOCUMENTS
        file = self.sink.create(name, schema)
        for start in range(0, len(documents.rows), _ROWS_PER_BATCH):
            portion = [pa.array(column[start:][:_ROWS_PER_BATCH]) for column in columns]
            file.write(pa.RecordBatch.from_arrays(portion, schema=schema))
        file.add_metadata(_TOTAL_TOKENS, str(documents.token_count))
        file.finish()
