"""Segments of an index without a table: written by a kind into a directory, opened again, and asked everything that can
be asked of rows which are known.
"""

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
)
from lance_core.index.segment_files import NewSegment, OpenSegment
from lance_core.storage.memory import MemoryStore
from lance_core.versions.location import Location, locate

ROWS_UNDER = 1 << 20
"""How many rows each fragment may have."""


@dataclass(frozen=True, slots=True)
class Unmoved:
    def remap(self, rows: Ids) -> tuple[Ids, npt.NDArray[np.bool_]]:
        return rows, np.ones(len(rows), np.bool_)

    def remap_set(self, rows: RowSet) -> RowSet:
        return rows


@dataclass(frozen=True, slots=True)
class Moved:
    """Rows that went to other numbers; those that are not told of are gone."""

    to: Mapping[int, int] = field(default_factory=dict)

    def remap(self, rows: Ids) -> tuple[Ids, npt.NDArray[np.bool_]]:
        there = np.array([int(row) in self.to for row in rows], np.bool_)
        return np.array([self.to.get(int(row), 0) for row in rows], np.uint64), there

    def remap_set(self, rows: RowSet) -> RowSet:
        return RowSet.of(np.array([self.to[row] for row in rows if row in self.to], np.uint64))


def rows_of(values: pa.Array, rows: Sequence[int] | None = None, *, batch: int = 1000) -> list[pa.RecordBatch]:
    numbers = pa.array(range(len(values)) if rows is None else rows, pa.uint64())
    table = pa.table({VALUE: values, ROW: numbers})
    return table.to_batches(max_chunksize=batch)


def write(
    directory: Path | None,
    kind: IndexType,
    column: pa.Field,
    rows: Iterable[pa.RecordBatch] = (),
    parts: Sequence[MergeInput] = (),
    options: Mapping[str, object] | None = None,
    *,
    stable_row_ids: bool = False,
) -> Segment:
    """In files of Lance, or in memory where there is no directory, which is faster."""
    if directory is None:
        store = MemoryStore()
        location = Location(uri="memory://table", store=store, codec=IpcCodec(store))
    else:
        location = locate(directory, durable=False)
    files = NewSegment(location, uuid.uuid4())
    details = kind.write(files, column, rows, parts, kind.parse_options(options or {}))
    sizes = (table_pb2.IndexFile(path=file.path, size_bytes=file.size) for file in files.files)
    message = table_pb2.IndexMetadata(name="test", fields=[0], files=sizes)
    message.uuid.uuid = files.segment_uuid.bytes
    message.index_details.type_url = kind.type_url
    message.index_details.value = details
    message.index_version = kind.written_version(stable_row_ids=stable_row_ids)
    metadata = IndexMetadata(message)
    return Segment(metadata, OpenSegment(location, metadata), lambda high: ROWS_UNDER)


def check(
    kind: IndexType,
    segment: Segment,
    values: pa.Array,
    leaf: Leaf,
    rows: Sequence[int] | None = None,
    *,
    searcher: Searcher | None = None,
) -> bool:
    """What is found is what the engine finds by looking at every value. Whether anything could be answered."""
    expected = set(matching(values, leaf, rows))
    found = (searcher or kind.open(segment, pa.field(VALUE, values.type))).search(leaf)
    expecting = kind.answers(leaf, segment.metadata)
    if found is None:
        return False
    assert expecting is not None, f"{leaf} is answered, against what was said"
    got = set(found.rows)
    if found.certainty is Certainty.EXACT:
        assert expecting is Certainty.EXACT
        assert got == expected, leaf
    else:
        assert got >= expected, leaf
    return True


def matching(values: pa.Array, leaf: Node | RangeCondition, rows: Sequence[int] | None = None) -> list[int]:
    batch = pa.RecordBatch.from_arrays([values], names=[VALUE])
    node = And((leaf.low, leaf.high)) if isinstance(leaf, RangeCondition) else leaf
    mask = Predicate.from_node(node, batch.schema).mask(batch).to_pylist()
    numbers = range(len(values)) if rows is None else rows
    return [number for number, matches in zip(numbers, mask, strict=True) if matches]
