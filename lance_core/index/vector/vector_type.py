"""Vector index types: IVF_FLAT, IVF_PQ and IVF_SQ, with or without a graph.

They are ranked: instead of answering a filter they return the nearest rows (`search.py`). All of them have one type
URL; the details of a segment, or its files, tell which it is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lance_core.errors import InvalidInput, LanceError, Unsupported
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.row_sets import RowSet
from lance_core.format.vector_index import VECTOR_TYPE_URL, VectorDetails
from lance_core.index.index_type import Certainty, IndexOptions, Leaf, MergeInput, Segment, SegmentExamination
from lance_core.index.segment_files import SegmentSink
from lance_core.index.vector.model import INDEX_FILE, ROW_NUMBER, STORAGE_FILE, read_model
from lance_core.index.vector.segment import VectorSegment


@dataclass(frozen=True, slots=True)
class VectorIndexType:
    """One type of vector index."""

    name: str
    type_url: str = VECTOR_TYPE_URL
    max_readable_version: int = 2
    written_version: int = 1
    supported_types: str = "no column yet: pylance builds it"

    def supports(self, column: pa.Field) -> bool:
        return False

    def parse_options(self, parameters: Mapping[str, object]) -> IndexOptions:
        raise InvalidInput(f"a {self.name} index cannot be built here; build it with pylance")

    def options_of(self, segment: Segment) -> IndexOptions:
        raise Unsupported(f"a {self.name} index cannot be built here; build it with pylance")

    def answers(self, leaf: Leaf, metadata: IndexMetadata) -> Certainty | None:
        """Answer no filter."""
        return None

    def write(
        self,
        sink: SegmentSink,
        column: pa.Field,
        rows: Iterable[pa.RecordBatch],
        inputs: Sequence[MergeInput],
        options: IndexOptions,
    ) -> bytes:
        raise Unsupported(f"a {self.name} index cannot be built here; build it with pylance")

    def open(self, segment: Segment, column: pa.Field) -> VectorSegment:
        return VectorSegment.open(segment, column)

    def examine(self, segment: Segment, column: pa.Field) -> SegmentExamination:
        """Read the row numbers and the description of the codes. Vectors without a distance are not listed."""
        path = segment.metadata.qualified_path
        storage = segment.files.open(STORAGE_FILE)
        problems: list[str] = []
        try:
            read_model(segment.files.open(INDEX_FILE), storage, path=path)
        except LanceError as error:
            problems.append(str(error))
        parts = [np.empty(0, dtype=np.uint64)]
        for batch in storage.read([ROW_NUMBER], 0, storage.row_count) if storage.row_count else ():
            parts.append(batch.column(0).drop_null().to_numpy())
        numbers = np.concatenate(parts)
        rows = RowSet.of(numbers)
        if len(rows) < len(numbers):
            problems.append(f"{len(numbers) - len(rows):,} rows are listed more than once")
        return SegmentExamination(rows, lists_every_row=False, problems=tuple(problems))


UNDECLARED = VectorIndexType("VECTOR")
"""Type of segments whose details do not tell which it is; their files do."""
VECTOR_TYPES: tuple[VectorIndexType, ...] = tuple(
    VectorIndexType(name) for name in ("IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_HNSW_FLAT", "IVF_HNSW_PQ", "IVF_HNSW_SQ")
)


def type_of(metadata: IndexMetadata) -> VectorIndexType | None:
    """Return the index type of a segment; `None` if it cannot be read."""
    details = VectorDetails.of(metadata)
    if details is None:
        return UNDECLARED
    return next((each for each in VECTOR_TYPES if each.name == details.kind), None)


def is_vector_segment(metadata: IndexMetadata) -> bool:
    """Return whether a segment belongs to a vector index, whether or not it can be read."""
    return metadata.kind == VECTOR_TYPE_URL.rpartition(".")[2]
