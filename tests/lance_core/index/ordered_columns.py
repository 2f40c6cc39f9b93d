"""Ordered columns: Hypothesis strategies for columns and conditions of every ordered type.

The values are few, so that they repeat, and include the limits of each type.
"""

import datetime
import math
import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal

import pyarrow as pa
from hypothesis import strategies as st

from lance_core.expressions.tree import Comparison, In, IsNull, Like, Op
from lance_core.index.index_type import VALUE, Leaf, RangeCondition

NEGATIVE_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000000))[0]
_FLOATS = [0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan, NEGATIVE_NAN, 1e-300, 2.0]
_HALF_FLOATS = [0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan]
_TEXT = ["", "a", "ab", "abc", "ab%", "b", "\x00", "\x7f", "é", "ab\uffff", "ab\U0010ffff", "\U0001f600", "a_c"]
_BYTES = [b"", b"a", b"ab", b"\x00", b"\xff", b"\xff\xff", b"\x7f", b"\x80", b"ab\xff"]
_DAYS = [datetime.date(1969, 12, 31), datetime.date(1970, 1, 1), datetime.date(2024, 2, 29)]
_TIMESTAMPS = [
    datetime.datetime(1969, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001
    datetime.datetime(1970, 1, 1),  # noqa: DTZ001
    datetime.datetime(2262, 4, 11),  # noqa: DTZ001
]
_TIMES = [datetime.time(0), datetime.time(12, 30), datetime.time(23, 59, 59)]


def _integers(bits: int, *, signed: bool) -> list[int]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return [low, low + 1, *([-1] if signed else []), 0, 1, 2, 77, high - 1, high]


VALUES: Mapping[pa.DataType, Sequence[object]] = {
    **{pa.type_for_alias(f"int{bits}"): _integers(bits, signed=True) for bits in (8, 16, 32, 64)},
    **{pa.type_for_alias(f"uint{bits}"): _integers(bits, signed=False) for bits in (8, 16, 32, 64)},
    pa.float16(): _HALF_FLOATS,
    pa.float32(): _FLOATS,
    pa.float64(): _FLOATS,
    pa.bool_(): [True, False],
    pa.string(): _TEXT,
    pa.large_string(): _TEXT,
    pa.binary(): _BYTES,
    pa.large_binary(): _BYTES,
    pa.binary(2): [b"ab", b"\x00\x00", b"\xff\xff", b"\x80a"],
    pa.decimal128(10, 2): [Decimal("0.00"), Decimal("-1.25"), Decimal("99999999.99"), Decimal("-99999999.99")],
    pa.decimal256(50, 3): [Decimal("0.000"), Decimal("-1.250"), Decimal(10) ** 46, Decimal(1)],
    pa.date32(): _DAYS,
    pa.date64(): _DAYS,
    pa.time32("s"): _TIMES,
    pa.time32("ms"): _TIMES,
    pa.time64("us"): _TIMES,
    pa.time64("ns"): _TIMES,
    **{pa.timestamp(unit): [moment.replace(microsecond=0) for moment in _TIMESTAMPS] for unit in ("s", "ms")},
    **{pa.timestamp(unit): _TIMESTAMPS for unit in ("us", "ns")},
    pa.timestamp("us", "UTC"): [moment.replace(tzinfo=datetime.UTC) for moment in _TIMESTAMPS],
    pa.timestamp("ms", "Europe/Berlin"): [moment.replace(microsecond=0, tzinfo=datetime.UTC) for moment in _TIMESTAMPS],
    pa.duration("us"): [datetime.timedelta(0), datetime.timedelta(days=-1), datetime.timedelta(seconds=5)],
    pa.duration("ns"): [datetime.timedelta(0), datetime.timedelta(days=-1), datetime.timedelta(seconds=5)],
}
TYPES = tuple(VALUES)
_OPERATORS = [op for op in Op if op is not Op.NE]


def type_name(arrow: object) -> str:
    return str(arrow).replace(" ", "")


def arrays(arrow: pa.DataType, *, max_length: int = 60) -> st.SearchStrategy[pa.Array]:
    """Draw columns of the type, some values of which are NULL."""
    values = st.lists(st.none() | st.sampled_from(VALUES[arrow]), max_size=max_length)
    return values.map(lambda some: pa.array(some, arrow))


def leaves(arrow: pa.DataType, data: st.DataObject) -> list[Leaf]:
    value = st.sampled_from(VALUES[arrow]).map(lambda some: pa.array([some], arrow)[0])
    conditions: list[Leaf] = [IsNull((VALUE,))]
    conditions += [Comparison((VALUE,), op, data.draw(value)) for op in _OPERATORS]
    conditions += [In((VALUE,), tuple(data.draw(st.lists(value, max_size=size)))) for size in (1, 3, 8)]
    bounds = [(Op.GT, Op.LT), (Op.GE, Op.LE)]
    conditions += [RangeCondition(*(Comparison((VALUE,), op, data.draw(value)) for op in pair)) for pair in bounds]
    if pa.types.is_string(arrow) or pa.types.is_large_string(arrow):
        conditions += [Like((VALUE,), pattern) for pattern in ("a%", "ab%", "a_c%", "ab\\%%", "ab%c", "%", "é%", "%a")]
    return conditions
