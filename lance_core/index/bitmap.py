"""BITMAP index: stores for each value the set of rows that have it. For columns with few distinct values.

`value_bitmaps.py` reads and writes the file; this module translates conditions to its keys. Each value occurs once,
so that any pattern can be matched against the values themselves.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lance_core.expressions.predicate import Predicate
from lance_core.expressions.tree import Comparison, In, IsNull, Like
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.row_sets import RowSet
from lance_core.index import ordering as orders
from lance_core.index.index_type import (
    ROW,
    VALUE,
    Certainty,
    Leaf,
    MatchedRows,
    MergeInput,
    RangeCondition,
    Segment,
    SegmentBuild,
    SegmentExamination,
    TypeWithoutOptions,
)
from lance_core.index.ordering import Key, Span, ordering
from lance_core.index.segment_files import SegmentSink
from lance_core.index.supported_types import ORDERED_TYPES, is_ordered, is_plain
from lance_core.index.value_bitmaps import BitmapBuilder, ValueBitmaps, examine_bitmaps, read_all_sets


class Bitmap(TypeWithoutOptions):
    name: str = "BITMAP"
    type_url: str = "/lance.table.BitmapIndexDetails"
    max_readable_version: int = 0
    written_version: int = 0
    supported_types: str = ORDERED_TYPES

    def supports(self, column: pa.Field) -> bool:
        return is_plain(column) and is_ordered(column.type)

    def answers(self, leaf: Leaf, metadata: IndexMetadata) -> Certainty | None:
        return _certainty_of(leaf)

    def write(self, sink: SegmentSink, build: SegmentBuild) -> bytes:
        builder = BitmapBuilder(ordering(build.column.type))
        for batch in build.rows:
            builder.add(batch.column(VALUE), batch.column(ROW).to_numpy())
        add_merge_inputs(builder, build.inputs)
        builder.write(sink)
        return b""

    def open(self, segment: Segment, column: pa.Field) -> "BitmapSearcher":
        return BitmapSearcher(ValueBitmaps.of(segment))

    def examine(self, segment: Segment, column: pa.Field) -> SegmentExamination:
        return examine_bitmaps(segment, column.type)


BITMAP = Bitmap()


@dataclass(frozen=True, slots=True)
class BitmapSearcher:
    """Searcher for one segment of a BITMAP index."""

    _sets: ValueBitmaps

    def search(self, leaf: Leaf) -> MatchedRows | None:
        order, certainty = self._sets.order, _certainty_of(leaf)
        rows: RowSet | None = None
        if certainty is None:
            return None
        match leaf:
            case IsNull():
                rows = self._sets.null_rows()
            case In() if (keys := orders.keys_of(order, leaf)) is not None:
                rows = self._sets.union(position for key in keys for position in self._sets.positions_of(key))
            case Comparison() | RangeCondition() if (span := orders.span_of(order, leaf)) is not None:
                rows = self._sets.union(self._sets.positions_within(span))
            case Like():
                rows = self._sets.union(self._keys_matching(leaf))
        return None if rows is None else MatchedRows(rows, certainty)

    def _keys_matching(self, leaf: Like) -> Iterable[int]:
        """Return the positions of the keys that match a pattern."""
        candidates = self._sets.positions_within(orders.span_of(self._sets.order, leaf) or Span())
        if leaf.is_prefix or not candidates:
            return candidates
        batch = pa.RecordBatch.from_arrays(
            [_as_text(self._sets.keys[candidates.start : candidates.stop])], names=[VALUE]
        )
        mask = Predicate.from_node(Like((VALUE,), leaf.pattern, leaf.ignore_case), batch.schema).mask(batch)
        return candidates.start + np.flatnonzero(mask.to_numpy(zero_copy_only=False))


def _certainty_of(leaf: Leaf) -> Certainty | None:
    return Certainty.EXACT if isinstance(leaf, IsNull | Like) else orders.certainty_of(leaf)


def _as_text(keys: Sequence[Key]) -> pa.Array:
    return pa.array(keys, pa.large_binary()).cast(pa.large_string())


def add_merge_inputs(builder: BitmapBuilder, inputs: Sequence[MergeInput]) -> None:
    """Add the rows of existing segments to a new one."""
    for merge_input in inputs:
        for keys, sets in read_all_sets(merge_input.segment, builder.order.type):
            builder.add_sets(keys, [merge_input.row_remap.remap_set(rows) for rows in sets])
