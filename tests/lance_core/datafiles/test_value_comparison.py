"""Value comparison: the rows that differ are those whose Python values differ."""

import random
from collections.abc import Callable

import pyarrow as pa
import pytest

from lance_core.datafiles.value_comparison import differing_rows

NAN = float("nan")
VALUES: dict[pa.DataType, list[object]] = {
    pa.int32(): [1, 2],
    pa.float64(): [0.5, NAN, 0.0, -0.0],
    pa.string(): ["a", "b", ""],
    pa.bool_(): [True, False],
    pa.binary(3): [b"abc", b"abd"],
    pa.decimal128(5, 1): [1, 2],
    pa.timestamp("us"): [1, 2],
    pa.dictionary(pa.int8(), pa.string()): ["a", "b"],
    pa.list_(pa.int8()): [[], [1], [1, None], [2, 1]],
    pa.list_(pa.float32(), 2): [[1, 2], [1, None], [2, 1]],
    pa.list_(pa.float16(), 4): [[1, 2, 3, 4], [1, 2, 3, NAN]],
    pa.struct([("a", pa.int8()), ("b", pa.string())]): [{"a": 1, "b": "x"}, {"a": None, "b": "x"}],
    pa.list_(pa.struct([("a", pa.list_(pa.int8()))])): [[], [{"a": [1]}], [{"a": None}], [None]],
}


@pytest.mark.parametrize("arrow", VALUES, ids=str)
def test_rows_differ_if_their_values_do(arrow: pa.DataType) -> None:
    chance = random.Random(str(arrow))
    choose: Callable[[], object] = lambda: None if chance.random() < 0.2 else chance.choice(VALUES[arrow])  # noqa: E731
    for _ in range(200):
        old = [choose() for _ in range(chance.randrange(12))]
        new = [value if chance.random() < 0.5 else choose() for value in old]
        start = chance.randrange(len(old) + 1)  # arrays with an offset
        arrays = [pa.array(values, arrow).slice(start) for values in (old, new)]
        # The text of a value tells the two zeros apart, and equals itself for a NaN.
        expected = [repr(one) != repr(other) for one, other in zip(*(each.to_pylist() for each in arrays), strict=True)]
        assert differing_rows(*arrays).tolist() == expected


def test_types_without_a_comparison_by_row_differ_as_a_whole() -> None:
    arrow = pa.map_(pa.string(), pa.int8())
    one, other = pa.array([[("a", 1)], [("b", 1)]], arrow), pa.array([[("a", 1)], [("b", 2)]], arrow)
    assert differing_rows(one, one).tolist() == [False, False]
    assert differing_rows(one, other)[1]
