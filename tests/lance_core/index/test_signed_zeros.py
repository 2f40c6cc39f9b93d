"""Signed zeros: the engine treats -0.0 and 0.0 as equal in comparisons and short lists but not in long ones, and
indices follow it.
"""

import math

import pyarrow as pa
import pytest

from lance_core.expressions.tree import Comparison, In, Op
from lance_core.index.bitmap import BITMAP
from lance_core.index.btree import BTREE
from lance_core.index.index_type import VALUE, Certainty, IndexType, RangeCondition
from tests.lance_core.index.ordered_columns import NEGATIVE_NAN
from tests.lance_core.index.segment_search import check_search, row_batches, write_segment

_VALUES = [0.0, -0.0, None, 1.0, -1.0, math.nan, NEGATIVE_NAN, math.inf, -math.inf]
_OTHERS = (1.0, 2.0, 3.0, 4.0)


@pytest.mark.parametrize("arrow", [pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("index_type", [BTREE, BITMAP], ids=lambda index_type: index_type.name)
def test_both_zeros_are_found_as_by_the_engine(index_type: IndexType, arrow: pa.DataType) -> None:
    values = pa.array(_VALUES, arrow)
    segment = write_segment(None, index_type, pa.field(VALUE, arrow), row_batches(values))
    for value in values.drop_null():
        for op in (Op.EQ, Op.LT, Op.LE, Op.GT, Op.GE):
            assert check_search(index_type, segment, values, Comparison((VALUE,), op, value))
        for other in values.drop_null():
            low, high = Comparison((VALUE,), Op.GE, value), Comparison((VALUE,), Op.LE, other)
            assert check_search(index_type, segment, values, RangeCondition(low, high))


@pytest.mark.parametrize("index_type", [BTREE, BITMAP], ids=lambda index_type: index_type.name)
def test_a_list_with_a_zero_is_inexact(index_type: IndexType) -> None:
    values = pa.array(_VALUES, pa.float64())
    segment = write_segment(None, index_type, pa.field(VALUE, pa.float64()), row_batches(values))
    for others in (_OTHERS[:1], _OTHERS):
        for zero in (0.0, -0.0):
            condition = In((VALUE,), tuple(pa.scalar(each) for each in (zero, *others)))
            assert check_search(index_type, segment, values, condition)
            assert index_type.answers(condition, segment.metadata) is Certainty.AT_MOST
        condition = In((VALUE,), tuple(map(pa.scalar, others)))
        assert index_type.answers(condition, segment.metadata) is Certainty.EXACT
