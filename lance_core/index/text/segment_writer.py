"""Text segment writer: writes the files of a segment in format version 2, with its terms as an Arrow column.

    metadata.lance                     parameters and layout
    part_N_tokens.lance                terms and their numbers
    part_N_docs.lance                  row number and number of tokens of each document
    part_N_invert.lance                posting lists, impacts and positions by term number

A partition has at most about a million documents, so that the posting list of one term can be encoded in memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_core.datafiles.codec import FileReader
from lance_core.format.row_sets import Ids
from lance_core.index.segment_files import SegmentSink, SegmentSource
from lance_core.index.text.list_elements import Elements
from lance_core.index.text.parameters import TextParameters
from lance_core.index.text.posting_encoder import Corpus, PostingEncoder
from lance_core.index.text.runs import MergedRuns
from lance_core.index.text.segment_reader import ELEMENT, METADATA_FILE, TOKEN

_LAYOUT = {"format_version": "2", "posting_tail_codec": "varint_delta_v1", "posting_block_size": "128"}
_POSITIONS_LAYOUT = {"positions_layout": "shared_stream_v2", "positions_codec": "packed_delta_v1"}
_TOTAL_TOKENS = "total_tokens"
_ROWS_PER_BATCH = 1 << 16
_COPIED_ROWS = 1 << 12
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
        self._write_documents(f"part_{self._partitions}_docs.lance", documents)
        self.write_lists(documents, merged)

    def write_lists(self, documents: PartitionDocuments, merged: MergedRuns) -> None:
        """Write the terms of a partition and their posting lists, without its documents."""
        prefix = f"part_{self._partitions}_"
        self._partitions += 1
        self._write_terms(f"{prefix}tokens.lance", merged.terms)
        schema = self._postings_schema
        file = self.sink.create(f"{prefix}invert.lance", schema)
        encoder = PostingEncoder(Corpus(documents.lengths, documents.token_count))
        for lists in merged.ranges():
            columns = encoder.encode(lists)
            file.write(pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema))
        for key, value in self._layout.items():
            file.add_metadata(key, value)
        file.finish()

    def join(self, documents: PartitionDocuments, ranges: Sequence[tuple[SegmentSource, int]]) -> None:
        """Write a partition from ascending ranges of its terms, which `write_lists` has written with the same
        parameters: each is a partition of a segment, given by its number."""
        prefix = f"part_{self._partitions}_"
        self._partitions += 1
        self._write_documents(f"{prefix}docs.lance", documents)
        terms = self.sink.create(f"{prefix}tokens.lance", _TOKENS)
        first = 0
        for source, number in ranges:
            file = source.open(f"part_{number}_tokens.lance")
            for batch in _all_batches(file, [TOKEN], _ROWS_PER_BATCH):
                numbers = pa.array(np.arange(first, first + batch.num_rows, dtype=np.uint32))
                terms.write(pa.RecordBatch.from_arrays([batch.column(0), numbers], schema=_TOKENS))
                first += batch.num_rows
        terms.finish()
        schema = self._postings_schema
        lists = self.sink.create(f"{prefix}invert.lance", schema)
        for source, number in ranges:
            file = source.open(f"part_{number}_invert.lance")
            for batch in _all_batches(file, schema.names, _COPIED_ROWS):
                lists.write(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
        for key, value in self._layout.items():
            lists.add_metadata(key, value)
        lists.finish()

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
    def _postings_schema(self) -> pa.Schema:
        return pa.schema([*_POSTINGS, *_POSITIONS]) if self.parameters.with_position else _POSTINGS

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


def _all_batches(file: FileReader, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a file, this many at a time."""
    for start in range(0, file.row_count, rows):
        yield from file.read(list(columns), start, min(rows, file.row_count - start))
