"""Segment strategies: Hypothesis strategies for the fragments of a column, deletions and conditions."""

import datetime
import decimal
import math
import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from lance_core.expressions.tree import Comparison, In, IsNull, Op
from lance_core.index.index_type import Condition
from tests.lance_core.index.segment_builder import Fragments

NEGATIVE_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000000))[0]
_FLOATS = [-math.inf, -1.5, -0.0, 0.0, 1.0, 2.5, math.inf, math.nan, NEGATIVE_NAN]
_TEXTS = ["", "a", "ab", "abc", "b", "é", "z\U0010ffff", "\x00"]
_BYTES = [b"", b"\x00", b"a", b"ab", b"\xff", b"\xff\xff"]
_NUMBERS = [-2, -1, 0, 1, 2, 3, 90]
_MOMENTS = [datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (1969, 1970, 2026)]
POOLS: dict[pa.DataType, Sequence[object]] = {
    pa.int8(): [*_NUMBERS, -128, 127],
    pa.int16(): _NUMBERS,
    pa.int32(): _NUMBERS,
    pa.int64(): [*_NUMBERS, -(2**63), 2**63 - 1],
    pa.uint8(): [0, 1, 2, 255],
    pa.uint64(): [0, 1, 2, 2**63, 2**64 - 1],
    pa.float32(): _FLOATS,
    pa.float64(): _FLOATS,
    pa.bool_(): [False, True],
    pa.string(): _TEXTS,
    pa.large_string(): _TEXTS,
    pa.binary(): _BYTES,
    pa.large_binary(): _BYTES,
    pa.binary(2): [b"\x00\x00", b"ab", b"\xff\xff"],
    pa.decimal128(10, 2): [decimal.Decimal(each) for each in ("-1.50", "0", "0.01", "99999999.99")],
    pa.decimal256(50, 2): [decimal.Decimal(each) for each in ("-1.50", "0", "0.01", "9" * 45)],
    pa.date32(): [datetime.date(1969, 12, 31), datetime.date(1970, 1, 1), datetime.date(2026, 1, 1)],
    pa.date64(): [datetime.date(1969, 12, 31), datetime.date(1970, 1, 1), datetime.date(2026, 1, 1)],
    pa.time32("ms"): [datetime.time(0), datetime.time(12), datetime.time(23, 59, 59)],
    pa.time64("us"): [datetime.time(0), datetime.time(12), datetime.time(23, 59, 59)],
    pa.timestamp("us"): [each.replace(tzinfo=None) for each in _MOMENTS],
    pa.timestamp("ns", "UTC"): _MOMENTS,
    pa.duration("s"): [datetime.timedelta(seconds=-1), datetime.timedelta(0), datetime.timedelta(days=3)],
}
HALF = pa.float16()
ORDERS = (Op.LT, Op.LE, Op.GT, Op.GE)


def array_of(values: Sequence[object], arrow: pa.DataType) -> pa.Array:
    if pa.types.is_float16(arrow):
        values = [None if each is None else np.float16(float(str(each))) for each in values]
    return pa.array(values, arrow)


def columns(arrow: pa.DataType) -> st.SearchStrategy[Fragments]:
    """Draw a few fragments, most of which repeat values; some consist of NULLs alone."""
    values = st.lists(st.sampled_from([None, *POOLS[arrow]]), min_size=1, max_size=12)
    mostly_null = st.lists(st.sampled_from([None, POOLS[arrow][-1]]), min_size=1, max_size=2).map(lambda some: some * 3)
    return st.dictionaries(
        st.sampled_from([0, 3, 7, 70_000]),
        st.one_of(values, mostly_null).map(lambda some: array_of(some, arrow)),
        min_size=1,
        max_size=3,
    )


def leaves(arrow: pa.DataType, ops: Sequence[Op] = (Op.EQ, *ORDERS)) -> st.SearchStrategy[Condition]:
    values = st.sampled_from(POOLS[arrow]).map(lambda value: pa.scalar(value, arrow))
    several = st.lists(values, min_size=1, max_size=4)
    return st.one_of(
        st.just(IsNull(("v",))),
        st.builds(lambda op, value: Comparison(("v",), op, value), st.sampled_from(ops), values),
        several.map(lambda some: In(("v",), tuple(some))),
    )


def deletions() -> st.SearchStrategy[dict[int, list[int]]]:
    return st.dictionaries(st.sampled_from([0, 3, 7]), st.lists(st.integers(0, 11), max_size=6))
