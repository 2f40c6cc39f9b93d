"""Segment builder: writes a segment of given fragments into memory, opens it and compares its searches with the
evaluator of predicates.

Start with `build_segment` and `check_search`.
"""

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_core.datafiles.ipc_codec import IpcCodec
from lance_core.expressions.predicate import Predicate
from lance_core.expressions.tree import Call, Comparison, In, IsNull, Like
from lance_core.format._pb import table_pb2
from lance_core.format.fragment import StorageVersion
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.row_sets import Ids, RowSet
from lance_core.index.index_type import (
    ROW,
    VALUE,
    Certainty,
    Condition,
    IndexType,
    MatchedRows,
    MergeInput,
    Segment,
    SegmentBuild,
)
from lance_core.index.segment_files import NewSegment, OpenSegment
from lance_core.storage.memory import MemoryStore
from lance_core.versions.location import Location

Fragments = Mapping[int, pa.Array]
"""The values of each fragment, by fragment id."""
_segment_numbers = itertools.count()


@dataclass(frozen=True)
class KeepFragments:
    """Row remap that keeps the rows of these fragments at their addresses and drops all others."""

    fragments: frozenset[int]

    def remap(self, rows: Ids) -> tuple[Ids, npt.NDArray[np.bool_]]:
        return rows, np.isin(rows >> np.uint64(32), list(self.fragments))

    def remap_set(self, rows: RowSet) -> RowSet:
        return rows.in_fragments(BitMap(self.fragments))


@dataclass(frozen=True)
class BuiltSegment:
    segment: Segment
    location: Location
    column: pa.Field
    deleted: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return self.segment.metadata.qualified_path

    def merge_input(self, *surviving: int) -> MergeInput:
        return MergeInput(self.segment, KeepFragments(frozenset(surviving)))

    def with_metadata(self, change: Callable[[table_pb2.IndexMetadata], None]) -> "BuiltSegment":
        message = table_pb2.IndexMetadata()
        message.CopyFrom(self.segment.metadata.message)
        change(message)
        metadata = IndexMetadata(message)
        files = OpenSegment(self.location, metadata)
        return replace(self, segment=replace(self.segment, metadata=metadata, files=files))


def value_field(arrow: pa.DataType) -> pa.Field:
    return pa.field("v", arrow)


def scan_batches(
    fragments: Fragments, deleted: Mapping[int, Sequence[int]] | None = None, batch_rows: int = 7
) -> Iterator[pa.RecordBatch]:
    """Yield the live rows as a scan does, in batches that need not end with a fragment."""
    values: list[pa.Array] = []
    rows: list[int] = []
    for id, array in fragments.items():
        kept = [offset for offset in range(len(array)) if offset not in (deleted or {}).get(id, ())]
        values.append(array.take(pa.array(kept, pa.int64())))
        rows += [id << 32 | offset for offset in kept]
    table = pa.table({VALUE: pa.chunked_array(values), ROW: pa.array(rows, pa.uint64())}) if values else None
    if table is not None:
        yield from table.combine_chunks().to_batches(max_chunksize=batch_rows)


def build_segment(
    index_type: IndexType,
    arrow: pa.DataType,
    fragments: Fragments,
    *,
    deleted: Mapping[int, Sequence[int]] | None = None,
    merge_inputs: Sequence[MergeInput] = (),
    merged_ids: Iterable[int] = (),
    location: Location | None = None,
    row_counts: Mapping[int, int] | None = None,
    batch_rows: int = 7,
    **options: object,
) -> BuiltSegment:
    """Build a segment of these fragments; `merged_ids` are the fragments that its merge inputs contribute."""
    if location is None:
        store = MemoryStore()
        location = Location(uri="memory://table", store=store, codec=IpcCodec(store))
    column = value_field(arrow)
    # A fragment without live rows is no longer in the table.
    live_fragments = [
        id for id, array in fragments.items() if set(range(len(array))) - set((deleted or {}).get(id, ()))
    ]
    new = NewSegment(location, uuid.UUID(int=next(_segment_numbers) + 1), StorageVersion(2, 2))
    rows = scan_batches(fragments, deleted, batch_rows)
    details = index_type.write(new, SegmentBuild(column, rows, merge_inputs, index_type.parse_options(options)))
    message = table_pb2.IndexMetadata(
        uuid=table_pb2.UUID(uuid=new.segment_uuid.bytes),
        fields=[0],
        name="v_idx",
        dataset_version=1,
        fragment_bitmap=BitMap([*live_fragments, *merged_ids]).serialize(),
        index_version=index_type.written_version,
        files=(table_pb2.IndexFile(path=file.path, size_bytes=file.size) for file in new.files),
    )
    message.index_details.type_url = index_type.type_url
    message.index_details.value = details
    metadata = IndexMetadata(message)
    sizes = {id: len(array) for id, array in fragments.items()} | dict(row_counts or {})
    segment = Segment(metadata, OpenSegment(location, metadata), lambda high: sizes.get(high, 0))
    return BuiltSegment(segment, location, column, deleted or {})


def parse_condition(sql: str, arrow: pa.DataType) -> Condition:
    tree = Predicate.parse(sql, pa.schema([value_field(arrow)])).tree
    assert isinstance(tree, Comparison | In | IsNull | Like | Call), tree
    return tree


def search_segment(index_type: IndexType, built: BuiltSegment, condition: Condition) -> MatchedRows | None:
    return index_type.open(built.segment, built.column).search(condition)


def matching_rows(
    condition: Condition, arrow: pa.DataType, fragments: Fragments, deleted: Mapping[int, Sequence[int]]
) -> set[int]:
    """Return the live rows for which the evaluator finds the condition true."""
    schema = pa.schema([value_field(arrow)])
    predicate = Predicate.from_node(condition, schema)
    result = set()
    for id, array in fragments.items():
        mask = predicate.mask(pa.RecordBatch.from_arrays([array], schema=schema))
        result |= {id << 32 | offset for offset, true in enumerate(mask.to_pylist()) if true}
        result -= {id << 32 | offset for offset in deleted.get(id, ())}
    return result


def live_rows(built: BuiltSegment, fragments: Fragments) -> set[int]:
    """Return the rows from which the segment was built."""
    deleted_rows = {id << 32 | offset for id, offsets in built.deleted.items() for offset in offsets}
    return {id << 32 | offset for id, array in fragments.items() for offset in range(len(array))} - deleted_rows


def check_search(index_type: IndexType, built: BuiltSegment, fragments: Fragments, condition: Condition) -> MatchedRows:
    """Check that a search finds every match, and no other live row if it claims to be exact."""
    result = search_segment(index_type, built, condition)
    assert result is not None, condition
    expected = index_type.answers(condition, built.segment.metadata)
    assert expected is not None
    assert result.certainty is Certainty.EXACT or expected is Certainty.AT_MOST
    matches = matching_rows(condition, built.column.type, fragments, built.deleted)
    deleted_rows = {id << 32 | offset for id, offsets in built.deleted.items() for offset in offsets}
    rows = set(result.rows) - deleted_rows
    assert matches <= rows, (condition, sorted(matches - rows))
    if result.certainty is Certainty.EXACT:
        assert matches == rows, (condition, sorted(rows - matches))
    live = {id << 32 | offset for id, array in fragments.items() for offset in range(len(array))}
    assert rows <= live
    return result


def replace_file(
    built: BuiltSegment,
    name: str,
    table: pa.Table,
    metadata: Mapping[str, str] | None = None,
    buffer: bytes | None = None,
) -> None:
    """Replace one file of the segment, as another writer or damage could."""
    path = f"{built.path}/{name}"
    built.location.store.delete(path)
    writer = built.location.codec.create(path, table.schema.remove_metadata(), StorageVersion(2, 2))
    for batch in table.to_batches():
        writer.write(batch)
    if buffer is not None:
        writer.add_buffer(buffer)
    for key, value in (metadata or {}).items():
        writer.add_metadata(key, value)
    writer.finish()
