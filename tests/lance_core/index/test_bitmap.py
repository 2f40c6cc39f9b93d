"""BITMAP: a search finds the rows of a full scan for every type, also in segments that were merged."""

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_core.errors import InvalidInput, Unsupported
from lance_core.expressions.tree import Like
from lance_core.index import value_bitmaps
from lance_core.index.bitmap import BITMAP
from lance_core.index.index_type import VALUE, MergeInput
from lance_core.limits import INDEX_KEYS
from tests.lance_core.index import ordered_columns
from tests.lance_core.index.segment_search import (
    DictionaryRemap,
    IdentityRemap,
    check_search,
    row_batches,
    write_segment,
)

_FEW = settings(max_examples=8, deadline=None)


@pytest.mark.parametrize("arrow", ordered_columns.TYPES, ids=ordered_columns.type_name)
def test_a_search_finds_the_rows_of_a_scan(arrow: pa.DataType) -> None:
    @_FEW
    @given(ordered_columns.arrays(arrow), st.data())
    def run(values: pa.Array, draw: st.DataObject) -> None:
        segment = write_segment(None, BITMAP, pa.field(VALUE, arrow), row_batches(values, batch=16))
        searcher = BITMAP.open(segment, pa.field(VALUE, values.type))
        for leaf in ordered_columns.leaves(arrow, draw):
            check_search(BITMAP, segment, values, leaf, searcher=searcher)

    run()


@pytest.mark.parametrize("pattern", ["%b%", "_b", "A%", "%", "", "ab\\%", "a%c"])
@pytest.mark.parametrize("ignore_case", [False, True])
@pytest.mark.parametrize("arrow", [pa.string(), pa.large_string()])
def test_every_pattern_is_matched_with_the_values(arrow: pa.DataType, pattern: str, ignore_case: bool) -> None:
    values = pa.array([*ordered_columns.VALUES[arrow], None, "abc"], arrow)
    segment = write_segment(None, BITMAP, pa.field(VALUE, arrow), row_batches(values))
    assert check_search(BITMAP, segment, values, Like((VALUE,), pattern, ignore_case))


@_FEW
@given(ordered_columns.arrays(pa.float32()), st.data())
def test_a_merge_drops_rows_that_are_gone(values: pa.Array, draw: st.DataObject) -> None:
    column = pa.field(VALUE, pa.float32())
    half = len(values) // 2
    second_rows = range(5 << 32, (5 << 32) + len(values) - half)
    first = write_segment(None, BITMAP, column, row_batches(values.slice(0, half)))
    second = write_segment(None, BITMAP, column, row_batches(values.slice(half), second_rows))
    kept = draw.draw(st.sets(st.sampled_from(range(half)))) if half else set()
    parts = [
        MergeInput(first, DictionaryRemap({row: row + (1 << 32) for row in kept})),
        MergeInput(second, IdentityRemap()),
    ]
    merged = write_segment(None, BITMAP, column, row_batches(pa.array([7], pa.float32()), [9]), parts)
    left = [values[row].as_py() for row in sorted(kept)]
    merged_values = pa.array(left + values.slice(half).to_pylist() + [7], pa.float32())
    merged_rows = [row + (1 << 32) for row in sorted(kept)] + [*second_rows, 9]
    for leaf in ordered_columns.leaves(pa.float32(), draw):
        assert check_search(BITMAP, merged, merged_values, leaf, merged_rows)
    examined = BITMAP.examine(merged, column)
    assert set(examined.rows) == set(merged_rows)
    assert not examined.problems


def test_rows_in_any_order_and_of_many_fragments() -> None:
    values = pa.array([n % 3 for n in range(3000)], pa.int64())
    rows = [(n * 7 % 11 << 32) | n for n in range(3000)]
    segment = write_segment(None, BITMAP, pa.field(VALUE, pa.int64()), row_batches(values, rows, batch=700))
    examined = BITMAP.examine(segment, pa.field(VALUE, pa.int64()))
    assert set(examined.rows) == set(rows)
    assert not examined.problems


@pytest.mark.parametrize("batch", [3, 1000])
def test_too_many_distinct_values_are_rejected_with_advice(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    values = pa.array(range(20))
    monkeypatch.setattr(value_bitmaps, "INDEX_KEYS", replace(INDEX_KEYS, maximum=20))
    segment = write_segment(None, BITMAP, pa.field(VALUE, values.type), row_batches(values, batch=batch))
    BITMAP.open(segment, pa.field(VALUE, values.type))
    monkeypatch.setattr(value_bitmaps, "INDEX_KEYS", replace(INDEX_KEYS, maximum=19))
    with pytest.raises(InvalidInput, match=r"more than 19 distinct values.* build a BTREE"):
        write_segment(None, BITMAP, pa.field(VALUE, values.type), row_batches(values, batch=batch))
    with pytest.raises(Unsupported, match="LANCE_ASSETS_INDEX_KEYS_MAX"):
        BITMAP.open(segment, pa.field(VALUE, values.type))
