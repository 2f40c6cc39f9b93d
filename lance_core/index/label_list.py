"""LABEL_LIST index: stores for each list element the set of rows whose lists contain it, such as the rows of a tag.

The file is that of BITMAP (`value_bitmaps.py`) with elements as keys; the key NULL has the rows whose list contains a
NULL. Empty lists and NULL lists have no key; the rows with a NULL list are stored in a separate set. Elements are
equal if they are equal bit by bit, as in the query engine: in a list, 0.0 does not equal -0.0.

The index does not answer a condition that holds for rows without a key: a list contains all elements of an empty list.
A condition that is NULL for every row (whether a list contains an unknown element) matches no rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.expressions.tree import Call, IsNull
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.row_sets import RowSet
from lance_core.index.bitmap import add_merge_inputs
from lance_core.index.index_type import (
    ROW,
    VALUE,
    Certainty,
    Leaf,
    MatchedRows,
    Segment,
    SegmentBuild,
    SegmentExamination,
    TypeWithoutOptions,
)
from lance_core.index.ordering import Key, Ordering, ordering
from lance_core.index.segment_files import SegmentSink
from lance_core.index.supported_types import ORDERED_TYPES, is_bytes, is_ordered, is_plain, is_text
from lance_core.index.value_bitmaps import BitmapBuilder, ValueBitmaps, examine_bitmaps, read_attached_set

_NULL_LISTS = "lance:label_list_nulls"
_ABSENT_KEY: Key = 1 << 64
"""A key that no row has: it is greater than the keys of all numbers."""
_HAS, _HAS_ANY, _HAS_ALL = "array_has", "array_has_any", "array_has_all"


class LabelList(TypeWithoutOptions):
    name: str = "LABEL_LIST"
    type_url: str = "/lance.table.LabelListIndexDetails"
    max_readable_version: int = 1
    written_version: int = 1
    supported_types: str = f"lists of {ORDERED_TYPES}"

    def supports(self, column: pa.Field) -> bool:
        arrow = column.type
        is_list = pa.types.is_list(arrow) or pa.types.is_large_list(arrow)
        return is_list and is_plain(column) and is_plain(arrow.value_field) and is_ordered(arrow.value_type)

    def answers(self, leaf: Leaf, metadata: IndexMetadata) -> Certainty | None:
        if isinstance(leaf, IsNull):
            # Files of version 0 do not record NULL lists.
            return Certainty.EXACT if metadata.message.index_version >= 1 else None
        return Certainty.EXACT if isinstance(leaf, Call) and _requested_elements(leaf) is not None else None

    def write(self, sink: SegmentSink, build: SegmentBuild) -> bytes:
        builder = BitmapBuilder(ordering(build.column.type.value_type))
        nulls: list[RowSet | None] = []
        for batch in build.rows:
            lists, numbers = batch.column(VALUE), batch.column(ROW).to_numpy()
            nulls.append(RowSet.of(numbers[lists.is_null().to_numpy(zero_copy_only=False)]))
            # Below a NULL list the array may have elements, which do not belong to any list.
            lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
            builder.add(lists.flatten(), np.repeat(numbers, lengths))
        add_merge_inputs(builder, build.inputs)
        for merge_input in build.inputs:
            recorded = read_attached_set(merge_input.segment, _NULL_LISTS)
            nulls.append(None if recorded is None else merge_input.row_remap.remap_set(recorded))
        known = [rows_of_input for rows_of_input in nulls if rows_of_input is not None]
        # If an input of version 0 does not record its NULL lists, they are unknown for the new segment.
        builder.write(sink, {_NULL_LISTS: RowSet.union(known).encode()} if len(known) == len(nulls) else {})
        return b""

    def open(self, segment: Segment, column: pa.Field) -> "LabelListSearcher":
        return LabelListSearcher(ValueBitmaps.of(segment), segment)

    def examine(self, segment: Segment, column: pa.Field) -> SegmentExamination:
        return examine_bitmaps(segment, column.type.value_type, attachment=_NULL_LISTS)


LABEL_LIST = LabelList()


@dataclass(frozen=True, slots=True)
class LabelListSearcher:
    """Searcher for one segment of a LABEL_LIST index."""

    _sets: ValueBitmaps
    _segment: Segment

    def search(self, leaf: Leaf) -> MatchedRows | None:
        rows: RowSet | None = None
        if isinstance(leaf, IsNull):
            if LABEL_LIST.answers(leaf, self._segment.metadata) is not None:
                rows = self._sets.attached_set(_NULL_LISTS)
        elif isinstance(leaf, Call) and (elements := _requested_elements(leaf)) is not None:
            keys = _element_keys(elements, self._sets.order)
            rows = None if keys is None else self._rows_with(keys, every=leaf.function == _HAS_ALL)
        return None if rows is None else MatchedRows(rows, Certainty.EXACT)

    def _rows_with(self, keys: "Sequence[Key | None]", *, every: bool) -> RowSet:
        """Return the rows whose lists contain any of the keys, or, with `every`, all of them."""
        if not every:
            positions = [position for key in keys if key is not None for position in self._sets.positions_of(key)]
            rows = self._sets.union(positions)
            return rows | self._sets.null_rows() if None in keys else rows
        rows, *others = map(self._rows_with_key, keys)
        for other in others:
            rows = rows & other
        return rows

    def _rows_with_key(self, key: Key | None) -> RowSet:
        return self._sets.null_rows() if key is None else self._sets.union(self._sets.positions_of(key))


def _requested_elements(leaf: Call) -> pa.Array | None:
    """Return the elements that a function looks for, including NULL; `None` if the function is not one of the three,
    or looks for no element."""
    if len(leaf.arguments) != 1 or not leaf.arguments[0].is_valid:
        return None
    (argument,) = leaf.arguments
    if leaf.function == _HAS:
        return pa.array([argument], argument.type)
    if leaf.function in (_HAS_ANY, _HAS_ALL) and isinstance(argument, pa.ListScalar) and len(argument.values):
        return argument.values
    return None


def _element_keys(elements: pa.Array, order: Ordering) -> "list[Key | None] | None":
    """Return the key of each requested element, `None` for NULL.

    A literal may have a wider type than the elements, which the query engine then widens as well. A literal that no
    element can equal gets a key that no element has. The result is `None` if widening could make two elements equal.
    """
    wide, narrow = elements.type, order.type
    if _is_same_kind_of_value(wide, narrow):
        keys = iter(order.keys(elements.drop_null().cast(narrow)))
        return [next(keys) if is_valid else None for is_valid in elements.is_valid().to_pylist()]
    values: list[Key | None] = elements.to_pylist()
    if pa.types.is_integer(wide) and pa.types.is_integer(narrow):
        return values
    if pa.types.is_floating(wide) and pa.types.is_floating(narrow) and wide.bit_width > narrow.bit_width:
        is_comparable = _has_no_nan(values)
        return [None if value is None else _narrow_key(value, order) for value in values] if is_comparable else None
    return None


def _is_same_kind_of_value(one: pa.DataType, other: pa.DataType) -> bool:
    return one == other or (_is_text(one) and _is_text(other)) or (_is_bytes(one) and _is_bytes(other))


def _narrow_key(value: float, order: Ordering) -> Key:
    narrowed = pa.array([value], pa.float64()).cast(order.type, safe=False)
    return order.keys(narrowed)[0] if narrowed.cast(pa.float64())[0].as_py() == value else _ABSENT_KEY


def _has_no_nan(values: Sequence[float | None]) -> bool:
    return not any(value is not None and math.isnan(value) for value in values)


def _is_text(arrow: pa.DataType) -> bool:
    return is_text(arrow) or pa.types.is_string_view(arrow)


def _is_bytes(arrow: pa.DataType) -> bool:
    return is_bytes(arrow) or pa.types.is_binary_view(arrow)
