"""Segment search: writes an index segment without a table, opens it and compares its searches with the evaluator."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.ipc_codec import IpcCodec
from lance_core.expressions.predicate import Predicate
from lance_core.expressions.tree import And, Node
from lance_core.format._pb import table_pb2
from lance_core.format.fragment import StorageVersion
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.row_sets import Ids, RowSet
from lance_core.index.index_type import (
    ROW,
    VALUE,
    Certainty,
    IndexType,
    Leaf,
    MergeInput,
    RangeCondition,
    Searcher,
    Segment,
    SegmentBuild,
)
from lance_core.index.segment_files import NewSegment, OpenSegment
from lance_core.storage.memory import MemoryStore
from lance_core.versions.location import Location, locate

ROWS_PER_FRAGMENT = 1 << 20
"""Physical rows that each fragment is assumed to have."""


@dataclass(frozen=True, slots=True)
class IdentityRemap:
    """Row remap that keeps every row at its address."""

    def remap(self, rows: Ids) -> tuple[Ids, npt.NDArray[np.bool_]]:
        return rows, np.ones(len(rows), np.bool_)

    def remap_set(self, rows: RowSet) -> RowSet:
        return rows


@dataclass(frozen=True, slots=True)
class DictionaryRemap:
    """Row remap by a dictionary; a row without an entry is dropped."""

    new_rows: Mapping[int, int] = field(default_factory=dict)

    def remap(self, rows: Ids) -> tuple[Ids, npt.NDArray[np.bool_]]:
        is_kept = np.array([int(row) in self.new_rows for row in rows], np.bool_)
        return np.array([self.new_rows.get(int(row), 0) for row in rows], np.uint64), is_kept

    def remap_set(self, rows: RowSet) -> RowSet:
        return RowSet.of(np.array([self.new_rows[row] for row in rows if row in self.new_rows], np.uint64))


def row_batches(values: pa.Array, rows: Sequence[int] | None = None, *, batch: int = 1000) -> list[pa.RecordBatch]:
    numbers = pa.array(range(len(values)) if rows is None else rows, pa.uint64())
    table = pa.table({VALUE: values, ROW: numbers})
    return table.to_batches(max_chunksize=batch)


def write_segment(
    directory: Path | None,
    index_type: IndexType,
    column: pa.Field,
    rows: Iterable[pa.RecordBatch] = (),
    parts: Sequence[MergeInput] = (),
    options: Mapping[str, object] | None = None,
) -> Segment:
    """Write a segment into Lance files, or into memory if no directory is given, which is faster."""
    if directory is None:
        store = MemoryStore()
        location = Location(uri="memory://table", store=store, codec=IpcCodec(store))
    else:
        location = locate(directory, durable=False)
    files = NewSegment(location, uuid.uuid4(), StorageVersion(2, 2))
    details = index_type.write(files, SegmentBuild(column, rows, parts, index_type.parse_options(options or {})))
    sizes = (table_pb2.IndexFile(path=file.path, size_bytes=file.size) for file in files.files)
    message = table_pb2.IndexMetadata(name="test", fields=[0], files=sizes)
    message.uuid.uuid = files.segment_uuid.bytes
    message.index_details.type_url = index_type.type_url
    message.index_details.value = details
    message.index_version = index_type.written_version
    metadata = IndexMetadata(message)
    return Segment(metadata, OpenSegment(location, metadata), lambda high: ROWS_PER_FRAGMENT)


def check_search(
    index_type: IndexType,
    segment: Segment,
    values: pa.Array,
    leaf: Leaf,
    rows: Sequence[int] | None = None,
    *,
    searcher: Searcher | None = None,
) -> bool:
    """Check that a search finds the rows that the evaluator finds; return whether the index supports the condition."""
    expected = set(matching_rows(values, leaf, rows))
    result = (searcher or index_type.open(segment, pa.field(VALUE, values.type))).search(leaf)
    certainty = index_type.answers(leaf, segment.metadata)
    if result is None:
        return False
    assert certainty is not None, f"{leaf} is answered, although `answers` declares it unsupported"
    found_rows = set(result.rows)
    if result.certainty is Certainty.EXACT:
        assert certainty is Certainty.EXACT
        assert found_rows == expected, leaf
    else:
        assert found_rows >= expected, leaf
    return True


def matching_rows(values: pa.Array, leaf: Node | RangeCondition, rows: Sequence[int] | None = None) -> list[int]:
    batch = pa.RecordBatch.from_arrays([values], names=[VALUE])
    node = And((leaf.low, leaf.high)) if isinstance(leaf, RangeCondition) else leaf
    mask = Predicate.from_node(node, batch.schema).mask(batch).to_pylist()
    numbers = range(len(values)) if rows is None else rows
    return [number for number, matches in zip(numbers, mask, strict=True) if matches]
