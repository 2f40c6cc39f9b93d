"""Logical types: their strings and Arrow types. tests/interop covers every type in a table."""

import pyarrow as pa
import pytest

from lance_core.format.logical_types import UnknownLogicalType, from_arrow, to_arrow

PAIRS = [
    ("timestamp:us:-", pa.timestamp("us")),
    ("timestamp:us:+05:30", pa.timestamp("us", "+05:30")),
    ("timestamp:s:America/Argentina/Buenos_Aires", pa.timestamp("s", "America/Argentina/Buenos_Aires")),
    ("decimal:128:38:-3", pa.decimal128(38, -3)),
    ("decimal:256:76:0", pa.decimal256(76, 0)),
    ("fixed_size_binary:16", pa.binary(16)),
    ("fixed_size_list:fixed_size_list:double:3:2", pa.list_(pa.list_(pa.float64(), 3), 2)),
    ("fixed_size_list:timestamp:us:+05:30:2", pa.list_(pa.timestamp("us", "+05:30"), 2)),
    ("dict:large_string:int8:false", pa.dictionary(pa.int8(), pa.large_string())),
    ("dict:timestamp:us:+05:30:int8:false", pa.dictionary(pa.int8(), pa.timestamp("us", "+05:30"))),
]


@pytest.mark.parametrize(("logical", "arrow"), PAIRS)
def test_both_directions(logical: str, arrow: pa.DataType) -> None:
    assert from_arrow(arrow) == logical
    assert to_arrow(logical) == arrow


@pytest.mark.parametrize(
    ("logical", "arrow"),
    [
        ("timestamp:us", pa.timestamp("us")),
        ("timestamp:us:", pa.timestamp("us")),
        ("dict:string:int8:true", pa.dictionary(pa.int8(), pa.string())),
    ],
)
def test_spellings_of_older_writers(logical: str, arrow: pa.DataType) -> None:
    assert to_arrow(logical) == arrow


@pytest.mark.parametrize(
    "logical",
    [
        "", "int128", "Int8", "timestamp", "timestamp:m:-", "decimal:64:5:2", "decimal:128:5", "decimal:128:99:2",
        "decimal:128:a:b", "fixed_size_binary", "fixed_size_binary:00", "fixed_size_binary:-2", "fixed_size_list:float",
        "fixed_size_list:float:0", "fixed_size_list:what:2", "dict:string:int8", "dict:string:float:false", "dict::",
        "blob",
    ],
)  # fmt: skip
def test_unknown_types_are_rejected(logical: str) -> None:
    with pytest.raises(UnknownLogicalType):
        to_arrow(logical)


def test_an_ordered_dictionary_loses_its_order() -> None:
    """pylance stores it likewise: the format has the word, but no writer uses it."""
    assert from_arrow(pa.dictionary(pa.int8(), pa.string(), ordered=True)) == "dict:string:int8:false"
