"""LABEL_LIST: for each element, the set of the rows whose lists have it. For tags and the like.

The file is that of BITMAP (`value_bitmaps.py`), its keys are elements; under NULL are the rows whose list has a NULL in
it. An empty list is under no key, and neither is a NULL list: those rows are kept beside the keys. Elements are the
same where they are bit by bit, as for the engine: 0.0 is no -0.0 in a list.

Not answered is what holds for rows that are under no key: that a list has all of nothing. And to what is NULL for
every row (whether a list has an element that is not known) rows add nothing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.expressions.tree import Call, IsNull
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.row_sets import RowSet
from lance_core.index.bitmap import NoOptions, add_parts, no_options
from lance_core.index.index_type import (
    ROW,
    VALUE,
    Certainty,
    Examined,
    IndexOptions,
    Leaf,
    MatchedRows,
    MergeInput,
    Segment,
)
from lance_core.index.ordering import Key, Ordering, ordering
from lance_core.index.segment_files import SegmentSink
from lance_core.index.supported_types import ORDERED, is_bytes, is_ordered, is_plain, is_text
from lance_core.index.value_bitmaps import BitmapBuilder, ValueBitmaps, examine, kept_beside

_NULL_LISTS = "lance:label_list_nulls"
_NOWHERE: Key = 1 << 64
"""Beyond the keys of all numbers."""
_HAS, _HAS_ANY, _HAS_ALL = "array_has", "array_has_any", "array_has_all"


@dataclass(frozen=True, slots=True)
class LabelList:
    name: str = "LABEL_LIST"
    type_url: str = "/lance.table.LabelListIndexDetails"
    newest: int = 1
    supported_types: str = f"lists of {ORDERED}"

    def version(self, *, stable_row_ids: bool) -> int:
        return 1

    def supports(self, column: pa.Field) -> bool:
        arrow = column.type
        is_list = pa.types.is_list(arrow) or pa.types.is_large_list(arrow)
        return is_list and is_plain(column) and is_plain(arrow.value_field) and is_ordered(arrow.value_type)

    def options(self, given: Mapping[str, object]) -> NoOptions:
        return no_options(self.name, given)

    def options_of(self, segment: Segment) -> NoOptions:
        return NoOptions()

    def answers(self, leaf: Leaf, metadata: IndexMetadata) -> Certainty | None:
        if isinstance(leaf, IsNull):
            # In files of version 0 nobody wrote it down.
            return Certainty.EXACT if metadata.message.index_version >= 1 else None
        return Certainty.EXACT if isinstance(leaf, Call) and _asked(leaf) is not None else None

    def write(
        self,
        files: SegmentSink,
        column: pa.Field,
        rows: Iterable[pa.RecordBatch],
        parts: Sequence[MergeInput],
        options: IndexOptions,
    ) -> bytes:
        gathered = BitmapBuilder(ordering(column.type.value_type))
        nulls: list[RowSet | None] = []
        for batch in rows:
            lists, numbers = batch.column(VALUE), batch.column(ROW).to_numpy()
            nulls.append(RowSet.of(numbers[lists.is_null().to_numpy(zero_copy_only=False)]))
            # Under a NULL list there may be elements, which are none of it.
            lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
            gathered.add(lists.flatten(), np.repeat(numbers, lengths))
        add_parts(gathered, parts)
        for part in parts:
            kept = kept_beside(part.segment, _NULL_LISTS)
            nulls.append(None if kept is None else part.moves.of_set(kept))
        known = [each for each in nulls if each is not None]
        # What a part of version 0 does not know, nobody knows of the whole.
        gathered.write(files, {_NULL_LISTS: RowSet.union(known).encode()} if len(known) == len(nulls) else {})
        return b""

    def open(self, segment: Segment, column: pa.Field) -> "LabelListSearcher":
        return LabelListSearcher(ValueBitmaps.of(segment), segment)

    def examine(self, segment: Segment, column: pa.Field) -> Examined:
        return examine(segment, column.type.value_type, beside=_NULL_LISTS)


LABEL_LIST = LabelList()


@dataclass(frozen=True, slots=True)
class LabelListSearcher:
    _sets: ValueBitmaps
    _segment: Segment

    def search(self, leaf: Leaf) -> MatchedRows | None:
        rows: RowSet | None = None
        if isinstance(leaf, IsNull):
            if LABEL_LIST.answers(leaf, self._segment.metadata) is not None:
                rows = self._sets.beside(_NULL_LISTS)
        elif isinstance(leaf, Call) and (asked := _asked(leaf)) is not None:
            keys = _keys(asked, self._sets.order)
            rows = None if keys is None else self._having(keys, every=leaf.function == _HAS_ALL)
        return None if rows is None else MatchedRows(rows, Certainty.EXACT)

    def _having(self, keys: "Sequence[Key | None]", *, every: bool) -> RowSet:
        if not every:
            at = [position for key in keys if key is not None for position in self._sets.at(key)]
            found = self._sets.union(at)
            return found | self._sets.of_null() if None in keys else found
        found, *others = [self._sets.of_null() if key is None else self._sets.union(self._sets.at(key)) for key in keys]
        for each in others:
            found = found & each
        return found


def _asked(leaf: Call) -> pa.Array | None:
    """The elements that a function asks for, NULL among them; None where it is not one of the three, or asks for
    nothing."""
    if len(leaf.arguments) != 1 or not leaf.arguments[0].is_valid:
        return None
    (given,) = leaf.arguments
    if leaf.function == _HAS:
        return pa.array([given], given.type)
    if leaf.function in (_HAS_ANY, _HAS_ALL) and isinstance(given, pa.ListScalar) and len(given.values):
        return given.values
    return None


def _keys(asked: pa.Array, order: Ordering) -> "list[Key | None] | None":
    """NULL is None. A literal may be of a wider type than the elements, which the engine then widens as well: one that
    no element can be has a key that none has. None where widening could make two elements one."""
    wide, narrow = asked.type, order.type
    if wide == narrow or (_is_text(wide) and _is_text(narrow)) or (_is_bytes(wide) and _is_bytes(narrow)):
        keys = iter(order.keys(asked.drop_null().cast(narrow)))
        return [next(keys) if each else None for each in asked.is_valid().to_pylist()]
    values: list[Key | None] = asked.to_pylist()
    if pa.types.is_integer(wide) and pa.types.is_integer(narrow):
        return values
    if pa.types.is_floating(wide) and pa.types.is_floating(narrow) and wide.bit_width > narrow.bit_width:
        return [None if each is None else _narrowed(each, order) for each in values] if _are_numbers(values) else None
    return None


def _narrowed(value: float, order: Ordering) -> Key:
    there = pa.array([value], pa.float64()).cast(order.type, safe=False)
    return order.keys(there)[0] if there.cast(pa.float64())[0].as_py() == value else _NOWHERE


def _are_numbers(values: Sequence[float | None]) -> bool:
    return not any(each is not None and math.isnan(each) for each in values)


def _is_text(arrow: pa.DataType) -> bool:
    return is_text(arrow) or pa.types.is_string_view(arrow)


def _is_bytes(arrow: pa.DataType) -> bool:
    return is_bytes(arrow) or pa.types.is_binary_view(arrow)
