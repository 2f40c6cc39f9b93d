"""Tests of `lance_core/datafiles/row_fingerprints.py`: equal rows have equal fingerprints in every physical form, other
rows have others, and the stored numbers never change."""

import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from lance_core.datafiles.row_fingerprints import fingerprint_rows
from lance_core.errors import InvalidInput

VALUES: dict[str, tuple[pa.DataType, list[object]]] = {
    "integer": (pa.int64(), [1, 2, None, -1, 0]),
    "small integer": (pa.uint8(), [1, 2, None, 255, 0]),
    "half": (pa.float16(), [np.float16(1), np.float16(2), None, np.float16(-0.0), np.float16(0.0)]),
    "double": (pa.float64(), [1.5, 2.5, None, -0.0, 0.0]),
    "boolean": (pa.bool_(), [True, False, None]),
    "decimal": (pa.decimal128(10, 2), [1, 2, None, 100]),
    "text": (pa.string(), ["a", "b", None, "", "a long text of more than thirty-two bytes"]),
    "binary": (pa.binary(), [b"a", b"b", None, b""]),
    "fixed binary": (pa.binary(3), [b"abc", b"abd", None]),
    "list": (pa.list_(pa.int32()), [[1, 2], [2, 1], [], None, [None], [1, 2, 0]]),
    "list of lists": (pa.list_(pa.list_(pa.int8())), [[[1], [2]], [[1, 2]], [[], [1, 2]], None, []]),
    "vector": (pa.list_(pa.float32(), 2), [[1.0, 2.0], [2.0, 1.0], None, [None, 1.0], [0.0, 1.0]]),
    "struct": (
        pa.struct([("a", pa.int8()), ("b", pa.string())]),
        [{"a": 1, "b": "x"}, {"a": None, "b": "x"}, None, {"a": None, "b": None}],
    ),
    "map": (pa.map_(pa.string(), pa.int8()), [[("k", 1)], [("k", 2)], [], None]),
    "timestamp": (pa.timestamp("us", "UTC"), [1, 2, None]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None, "c"]),
}
"""Different values of each type."""
STORED = {
    "integer": 9520177911952055365,
    "text": 3198583979425252683,
    "vector": 8006232901464406842,
    "list": 7567726751029344276,
    "struct": 5592021093814307171,
}
"""Fingerprint of the first value of a type under the code version "1"."""


def fingerprints(array: pa.Array, code: bytes = b"1") -> list[int]:
    return [int(each) for each in fingerprint_rows(pa.record_batch({"c": array}), code)]


@pytest.mark.parametrize("name", VALUES)
def test_fingerprints_depend_on_values_alone(name: str) -> None:
    type_, values = VALUES[name]
    rows = pa.array(values, type_)
    expected = fingerprints(rows)
    assert len(set(expected)) == len(values)
    assert set(fingerprints(rows, b"2")).isdisjoint(expected)
    choices = random.Random(name)
    for _ in range(20):
        order = [choices.randrange(len(values)) for _ in range(choices.randint(1, 12))]
        taken = rows.take(pa.array(order))
        start = choices.randrange(len(order))
        assert fingerprints(taken.slice(start)) == [expected[each] for each in order[start:]]
    if name in STORED:
        assert expected[0] == STORED[name]


PHYSICAL: dict[str, tuple[str, Callable[[pa.Array], pa.Array]]] = {
    "large text": ("text", lambda array: array.cast(pa.large_string())),
    "text view": ("text", lambda array: array.cast(pa.string_view())),
    "dictionary": ("text", lambda array: array.dictionary_encode()),
    "large list": ("list", lambda array: array.cast(pa.large_list(pa.int32()))),
}


@pytest.mark.parametrize("form", PHYSICAL)
def test_physical_forms_of_a_value_have_one_fingerprint(form: str) -> None:
    name, convert = PHYSICAL[form]
    type_, values = VALUES[name]
    rows = pa.array(values, type_)
    assert fingerprints(convert(rows)) == fingerprints(rows)


def test_columns_count_in_their_order() -> None:
    one, two = pa.array([1, 2]), pa.array([2, 1])
    first = fingerprint_rows(pa.record_batch({"a": one, "b": two}), b"1")
    assert list(first) == list(fingerprint_rows(pa.record_batch({"a": two, "b": one}), b"1"))[::-1]
    assert first[0] != first[1]
    assert list(first) == list(fingerprint_rows(pa.record_batch({"x": one, "y": two}), b"1"))


def test_a_type_without_fingerprints_is_refused() -> None:
    with pytest.raises(InvalidInput, match="column 'c' of type list_view"):
        fingerprints(pa.array([[1]], pa.list_view(pa.int8())))
