"""BTREE: a search finds the rows of a full scan for every type and page size, also in segments that were merged."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_core.index.btree import BTREE
from lance_core.index.index_type import VALUE, MergeInput
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
    @given(ordered_columns.arrays(arrow), st.integers(1, 7), st.data())
    def run(values: pa.Array, zone_size: int, draw: st.DataObject) -> None:
        segment = write_segment(
            None, BTREE, pa.field(VALUE, arrow), row_batches(values, batch=16), options={"zone_size": zone_size}
        )
        searcher = BTREE.open(segment, pa.field(VALUE, values.type))
        for leaf in ordered_columns.leaves(arrow, draw):
            check_search(BTREE, segment, values, leaf, searcher=searcher)

    run()


@_FEW
@given(ordered_columns.arrays(pa.int32()), st.data())
def test_a_merge_drops_rows_that_are_gone(values: pa.Array, draw: st.DataObject) -> None:
    column = pa.field(VALUE, pa.int32())
    half = len(values) // 2
    first = write_segment(None, BTREE, column, row_batches(values.slice(0, half)), options={"zone_size": 3})
    second = write_segment(None, BTREE, column, row_batches(values.slice(half), range(1000, 1000 + len(values) - half)))
    kept = draw.draw(st.sets(st.sampled_from(range(half)))) if half else set()
    remap = DictionaryRemap({row: row + 500 for row in kept})
    merged = write_segment(
        None,
        BTREE,
        column,
        row_batches(pa.array([7], pa.int32()), [9]),
        [MergeInput(first, remap), MergeInput(second, IdentityRemap())],
    )
    merged_values = pa.array(
        [values[row].as_py() for row in sorted(kept)] + values.slice(half).to_pylist() + [7], pa.int32()
    )
    merged_rows = [row + 500 for row in sorted(kept)] + [*range(1000, 1000 + len(values) - half), 9]
    for leaf in ordered_columns.leaves(pa.int32(), draw):
        assert check_search(BTREE, merged, merged_values, leaf, merged_rows)
    examined = BTREE.examine(merged, column)
    assert set(examined.rows) == set(merged_rows)
    assert not examined.problems
