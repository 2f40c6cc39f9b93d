"""LABEL_LIST: a search finds the rows of a full scan, also for empty lists, NULL lists and NULL elements."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_core.expressions.predicate import Predicate
from lance_core.expressions.tree import Call, IsNull, Not
from lance_core.index.index_type import VALUE, Condition, MergeInput
from lance_core.index.label_list import LABEL_LIST
from tests.lance_core.index import ordered_columns
from tests.lance_core.index.segment_search import (
    DictionaryRemap,
    IdentityRemap,
    check_search,
    matching_rows,
    row_batches,
    write_segment,
)

_FEW = settings(max_examples=8, deadline=None)
_IS_NULL = IsNull((VALUE,))


def draw_conditions(arrow: pa.DataType, draw: st.DataObject) -> list[Condition]:
    element = st.sampled_from(ordered_columns.VALUES[arrow])
    some = st.lists(st.none() | element, max_size=4)
    return [
        _IS_NULL,
        Call("array_has", (VALUE,), (pa.scalar(draw.draw(element), arrow),)),
        Call("array_has", (VALUE,), (pa.scalar(None, arrow),)),
        *(Call(name, (VALUE,), (pa.scalar(draw.draw(some), pa.list_(arrow)),)) for name in ("array_has_any",) * 2),
        *(Call(name, (VALUE,), (pa.scalar(draw.draw(some), pa.list_(arrow)),)) for name in ("array_has_all",) * 2),
    ]


def list_arrays(arrow: pa.DataType) -> st.SearchStrategy[pa.Array]:
    element = st.none() | st.sampled_from(ordered_columns.VALUES[arrow])
    return st.lists(st.none() | st.lists(element, max_size=4), max_size=30).map(
        lambda some: pa.array(some, pa.list_(arrow))
    )


@pytest.mark.parametrize(
    "arrow", [each for each in ordered_columns.TYPES if not pa.types.is_float16(each)], ids=ordered_columns.type_name
)
def test_a_search_finds_the_rows_of_a_scan(arrow: pa.DataType) -> None:
    @_FEW
    @given(list_arrays(arrow), st.booleans(), st.data())
    def run(values: pa.Array, large: bool, draw: st.DataObject) -> None:
        if large:
            values = values.cast(pa.large_list(arrow))
        segment = write_segment(None, LABEL_LIST, pa.field(VALUE, values.type), row_batches(values, batch=16))
        all_rows, nulls = set(range(len(values))), set(matching_rows(values, _IS_NULL))
        searcher = LABEL_LIST.open(segment, pa.field(VALUE, values.type))
        for leaf in draw_conditions(arrow, draw):
            if check_search(LABEL_LIST, segment, values, leaf, searcher=searcher) and leaf is not _IS_NULL:
                # The negation matches every row except the matches and the NULLs: the planner relies on it.
                assert set(matching_rows(values, Not(leaf))) == all_rows - nulls - set(matching_rows(values, leaf)), (
                    leaf
                )

    run()


@pytest.mark.parametrize(
    ("sql", "is_supported"),
    [
        ("array_has(v, 1)", True),
        ("array_contains(v, 1)", True),
        ("list_contains(v, 70000)", True),
        ("array_has_any(v, [1, 70000])", True),
        ("array_has_all(v, [1, 70000])", True),
        ("array_has_all(v, [1, 2])", True),
        ("array_has_any(v, [1, NULL])", True),
        ("array_has_all(v, [])", False),
        ("array_has_any(v, [])", False),
        ("array_has(v, 1.5)", False),
        ("array_has(v, NULL)", False),
    ],
)
def test_a_literal_may_be_wider_than_the_elements(sql: str, is_supported: bool) -> None:
    values = pa.array([[1, 2], [1], [], None, [None], [2]], pa.list_(pa.int16()))
    schema = pa.schema([pa.field("v", values.type)])
    leaf = Predicate.parse(sql, schema).tree
    assert isinstance(leaf, Call)
    segment = write_segment(None, LABEL_LIST, pa.field(VALUE, values.type), row_batches(values))
    found = LABEL_LIST.open(segment, pa.field(VALUE, values.type)).search(leaf)
    assert (found is not None) is is_supported
    mask = Predicate.parse(sql, schema).mask(pa.RecordBatch.from_arrays([values], schema=schema)).to_pylist()
    assert found is None or set(found.rows) == {row for row, matches in enumerate(mask) if matches}


def test_a_merge_keeps_rows_without_a_label() -> None:
    values = pa.array([["a", "b"], None, [], [None], ["b"], None], pa.list_(pa.string()))
    column = pa.field(VALUE, values.type)
    first = write_segment(None, LABEL_LIST, column, row_batches(values.slice(0, 3)))
    second = write_segment(None, LABEL_LIST, column, row_batches(values.slice(3), range(3, 6)))
    parts = [MergeInput(first, DictionaryRemap({0: 10, 1: 11, 2: 12})), MergeInput(second, IdentityRemap())]
    merged = write_segment(None, LABEL_LIST, column, row_batches(pa.array([None, ["a"]], values.type), [7, 8]), parts)
    merged_values = pa.array([*values.to_pylist(), None, ["a"]], values.type)
    merged_rows = [10, 11, 12, 3, 4, 5, 7, 8]
    for name in ("array_has_any", "array_has_all"):
        assert check_search(
            LABEL_LIST, merged, merged_values, Call(name, (VALUE,), (pa.scalar(["a", "b"]),)), merged_rows
        )
    assert check_search(LABEL_LIST, merged, merged_values, _IS_NULL, merged_rows)
    examined = LABEL_LIST.examine(merged, column)
    assert set(examined.rows) == {10, 11, 3, 4, 5, 7, 8}
    assert not examined.lists_every_row
    assert not examined.problems


def test_elements_of_a_null_list_are_ignored() -> None:
    """Arrow allows elements below a NULL list, for instance if the list is a child of a NULL struct."""
    list_arrays = pa.array([["a"], ["b", "c"], ["d"], ["e"]], pa.list_(pa.string()))
    values = pa.ListArray.from_arrays(
        list_arrays.offsets, list_arrays.values, mask=pa.array([False, True, False, False])
    )
    segment = write_segment(None, LABEL_LIST, pa.field(VALUE, values.type), row_batches(values))
    for element in "abcde":
        assert check_search(LABEL_LIST, segment, values, Call("array_has", (VALUE,), (pa.scalar(element),)))
    assert check_search(LABEL_LIST, segment, values, _IS_NULL)
