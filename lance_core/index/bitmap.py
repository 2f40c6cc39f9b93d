"""BITMAP: for each value, the set of the rows that have it. For columns of few values.

The file and what is done with it is `value_bitmaps.py`; here is what a condition makes of the keys. As each value is
there once, any pattern can be tried on the values themselves.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.expressions.predicate import Predicate
from lance_core.expressions.tree import Comparison, In, IsNull, Like
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.row_sets import RowSet
from lance_core.index import ordering as orders
from lance_core.index.index_type import (
    ROW,
    VALUE,
    Certainty,
    Examined,
    IndexOptions,
    Leaf,
    MatchedRows,
    MergeInput,
    RangeCondition,
    Segment,
)
from lance_core.index.ordering import Key, Span, ordering
from lance_core.index.segment_files import SegmentSink
from lance_core.index.supported_types import ORDERED, is_ordered, is_plain
from lance_core.index.value_bitmaps import BitmapBuilder, ValueBitmaps, every_set, examine


@dataclass(frozen=True, slots=True)
class NoOptions:
    """There is nothing to choose."""


@dataclass(frozen=True, slots=True)
class Bitmap:
    name: str = "BITMAP"
    type_url: str = "/lance.table.BitmapIndexDetails"
    newest: int = 0
    supported_types: str = ORDERED

    def version(self, *, stable_row_ids: bool) -> int:
        return 0

    def supports(self, column: pa.Field) -> bool:
        return is_plain(column) and is_ordered(column.type)

    def options(self, given: Mapping[str, object]) -> NoOptions:
        return no_options(self.name, given)

    def options_of(self, segment: Segment) -> NoOptions:
        return NoOptions()

    def answers(self, leaf: Leaf, metadata: IndexMetadata) -> Certainty | None:
        return _certainty(leaf)

    def write(
        self,
        files: SegmentSink,
        column: pa.Field,
        rows: Iterable[pa.RecordBatch],
        parts: Sequence[MergeInput],
        options: IndexOptions,
    ) -> bytes:
        gathered = BitmapBuilder(ordering(column.type))
        for batch in rows:
            gathered.add(batch.column(VALUE), batch.column(ROW).to_numpy())
        add_parts(gathered, parts)
        gathered.write(files)
        return b""

    def open(self, segment: Segment, column: pa.Field) -> "BitmapSearcher":
        return BitmapSearcher(ValueBitmaps.of(segment))

    def examine(self, segment: Segment, column: pa.Field) -> Examined:
        return examine(segment, column.type)


BITMAP = Bitmap()


@dataclass(frozen=True, slots=True)
class BitmapSearcher:
    _sets: ValueBitmaps

    def search(self, leaf: Leaf) -> MatchedRows | None:
        order, certainty = self._sets.order, _certainty(leaf)
        rows: RowSet | None = None
        if certainty is None:
            return None
        match leaf:
            case IsNull():
                rows = self._sets.of_null()
            case In() if (keys := orders.keys_of(order, leaf)) is not None:
                rows = self._sets.union(position for key in keys for position in self._sets.at(key))
            case Comparison() | RangeCondition() if (span := orders.span_of(order, leaf)) is not None:
                rows = self._sets.union(self._sets.within(span))
            case Like():
                rows = self._sets.union(self._matching(leaf))
        return None if rows is None else MatchedRows(rows, certainty)

    def _matching(self, leaf: Like) -> Iterable[int]:
        within = self._sets.within(orders.span_of(self._sets.order, leaf) or Span())
        if leaf.is_prefix or not within:
            return within
        batch = pa.RecordBatch.from_arrays([_text(self._sets.keys[within.start : within.stop])], names=[VALUE])
        mask = Predicate.of(Like((VALUE,), leaf.pattern, leaf.ignore_case), batch.schema).mask(batch)
        return within.start + np.flatnonzero(mask.to_numpy(zero_copy_only=False))


def _certainty(leaf: Leaf) -> Certainty | None:
    return Certainty.EXACT if isinstance(leaf, IsNull | Like) else orders.certainty(leaf)


def _text(keys: Sequence[Key]) -> pa.Array:
    return pa.array(keys, pa.large_binary()).cast(pa.large_string())


def no_options(kind: str, given: Mapping[str, object]) -> NoOptions:
    if given:
        raise InvalidInput(f"{kind} has no option {min(given)!r}; it has none at all")
    return NoOptions()


def add_parts(gathered: BitmapBuilder, parts: Sequence[MergeInput]) -> None:
    for part in parts:
        for keys, sets in every_set(part.segment, gathered.order.type):
            gathered.add_sets(keys, [part.moves.of_set(each) for each in sets])
