"""Tests of `lance_core/expressions/arrow_filters.py`: pyarrow and the translated SQL select the same rows."""

import datetime
import decimal
import math
import operator
import re
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lance_core import InvalidInput
from lance_core.expressions import Predicate
from lance_core.expressions.arrow_expressions import CallNode, FieldNode, LiteralNode, fields_of, read_tree
from lance_core.expressions.arrow_filters import split_filter, to_sql

TYPES = {
    "i8": pa.int8(),
    "i64": pa.int64(),
    "u16": pa.uint16(),
    "f32": pa.float32(),
    "f64": pa.float64(),
    "dec": pa.decimal128(6, 2),
    "flag": pa.bool_(),
    "text": pa.string(),
    "big": pa.large_string(),
    "raw": pa.binary(),
    "fixed": pa.binary(2),
    "day": pa.date32(),
    "ms": pa.timestamp("ms"),
    "us": pa.timestamp("us", "UTC"),
    "t32": pa.time32("ms"),
    "t64": pa.time64("ns"),
    "wait": pa.duration("us"),
    "code": pa.dictionary(pa.int32(), pa.string()),
}
SCHEMA = pa.schema(
    [*TYPES.items(), ("in a b", pa.int32()), ("s", pa.struct([("x.y", pa.int32()), ("z", pa.string())]))]
)
DAYS = [datetime.date(1969, 12, 31), datetime.date(1970, 1, 1), datetime.date(2026, 2, 28), datetime.date(9999, 12, 31)]
INSTANTS = [datetime.datetime(1970, 1, 1, 0, 0, 0, each, datetime.UTC) for each in (0, 1000, 1500)] + [
    datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC),
    datetime.datetime(9000, 1, 1, tzinfo=datetime.UTC),
]
MOMENTS = [each.replace(tzinfo=None) for each in INSTANTS]
TEXTS = ["", "a", "ab", "a_b", "A%", "it's", "back\\slash", "ø\n", "`q`"]
NUMBERS = [-129, -128, -2, -1, 0, 1, 2, 127, 128, 65535, 65536]
FLOATS = [-math.inf, -1.5, -0.0, 0.0, 0.1, 1.0, 1.5, 2.0, 3e38, 1e300, math.inf, math.nan]
LITERALS: dict[str, list[object]] = {
    **{name: [*NUMBERS, *FLOATS[1:8], decimal.Decimal("1.5")] for name in ("i8", "i64", "u16", "in a b")},
    **{name: [*FLOATS, *NUMBERS] for name in ("f32", "f64")},
    "dec": [decimal.Decimal(each) for each in ("-9999.99", "0", "1.50", "1.505", "99999")] + [-1, 0, 1],
    "flag": [True, False],
    **{name: list(TEXTS) for name in ("text", "big", "code")},
    "raw": [b"", b"a", b"\x00\xff"],
    "fixed": [b"aa", b"\x00\xff"],
    "day": [*DAYS, *MOMENTS[:-1]],
    "ms": [*MOMENTS, *DAYS[:3]],
    "us": [*INSTANTS],
    **{name: [datetime.time(0, 0, 0, each) for each in (0, 1000, 1500)] for name in ("t32", "t64")},
    "wait": [datetime.timedelta(microseconds=each) for each in (-1, 0, 1, 10**12)],
}
COMPARE: list[Callable[..., pc.Expression]] = [
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
]


def in_range(value: object, arrow: pa.DataType) -> bool:
    try:
        pa.array([value]).cast(arrow)
    except pa.ArrowException:
        return False
    return not (pa.types.is_float32(arrow) and isinstance(value, float) and 1e39 < abs(value) < math.inf)


def values_of(name: str, arrow: pa.DataType) -> list[object]:
    values = [each for each in LITERALS[name] if in_range(each, arrow)]
    return [pa.array([each]).cast(arrow)[0].as_py() for each in values]


def rows() -> pa.Table:
    """Return rows with every value of every column, and a null; shorter columns are repeated."""
    columns = {name: [None, *values_of(name, SCHEMA.field(name).type)] for name in (*TYPES, "in a b")}
    count = max(map(len, columns.values()))
    padded = {name: [values[number % len(values)] for number in range(count)] for name, values in columns.items()}
    structs = [None, {"x.y": None, "z": "a"}, {"x.y": 1, "z": None}, {"x.y": 2, "z": "ab"}]
    return pa.table({**padded, "s": [structs[number % 4] for number in range(count)]}, SCHEMA)


ROWS = rows()


def comparisons() -> st.SearchStrategy[pc.Expression]:
    names = st.sampled_from([*TYPES, "in a b"])

    def build(name: str) -> st.SearchStrategy[pc.Expression]:
        field = pc.field(name)
        values = values_of(name, SCHEMA.field(name).type)
        simple = st.tuples(st.sampled_from(COMPARE), st.sampled_from(LITERALS[name]), st.booleans()).map(
            lambda drawn: drawn[0](pc.scalar(drawn[1]), field) if drawn[2] else drawn[0](field, pc.scalar(drawn[1]))
        )
        listed = st.lists(st.sampled_from([None, *values]), max_size=4).map(
            lambda drawn: field.isin(pa.array(drawn, SCHEMA.field(name).type))
        )
        listed_in_sql = st.lists(st.sampled_from([None, *values]), max_size=4).map(
            lambda drawn: pc.if_else(
                field.is_valid(), field.isin(pa.array(drawn, SCHEMA.field(name).type)), pa.scalar(None, pa.bool_())
            )
        )
        nulls = st.sampled_from([field.is_null(), field.is_valid()])
        more = {
            "f32": st.just(field.is_nan()),
            "f64": st.sampled_from([field.is_null(nan_is_null=True), ~field.is_nan(), field > field]),
            "flag": st.just(field),
            "i64": st.just(field + 1 > 2),
            "text": st.tuples(
                st.sampled_from([pc.starts_with, pc.ends_with, pc.match_substring]), st.sampled_from(TEXTS)
            ).map(lambda drawn: drawn[0](field, drawn[1])),
            "big": st.just(pc.field("us") == pc.field("us")),
        }.get(name, nulls)
        return st.one_of(simple, listed, listed_in_sql, nulls, more)

    nested = st.sampled_from([pc.field("s", "x.y") > 1, pc.field("s", "z") != "a", pc.field("s", "x.y").is_null()])
    constants = st.sampled_from([pc.scalar(True), pc.scalar(False), pc.scalar(pa.scalar(None, pa.bool_()))])
    return st.one_of(names.flatmap(build), nested, constants)


conditions = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        inner.map(operator.invert),
    ),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(conditions)
def test_the_sql_selects_the_rows_that_pyarrow_selects(condition: pc.Expression) -> None:
    try:
        expected = ROWS.filter(condition)
    except pa.ArrowException:
        return  # pyarrow does not evaluate it
    split = split_filter(condition, SCHEMA)
    assume(not _intersects_lists(split.sql or ""))
    found = ROWS
    if split.sql is not None:
        batches = Predicate.parse(split.sql, SCHEMA).filter(ROWS.to_batches())
        found = pa.Table.from_batches(batches, SCHEMA)
    if split.residual is None:
        assert to_sql(condition, SCHEMA) == split.sql
    else:
        found = found.filter(split.residual)
    # Dictionaries may be encoded anew, and NaN is not equal to itself.
    assert repr(found.to_pylist()) == repr(expected.to_pylist()), split


def _intersects_lists(sql: str) -> bool:
    """Return whether a filter may ask for one column to be in two lists (see the next test)."""
    columns = re.findall(r"([^ (]+) IN \(", sql)
    return " AND " in sql and len(set(columns)) < len(columns)


def test_disjoint_lists_of_one_column_are_false_for_null_as_in_pylance(tmp_path: Path) -> None:
    # DataFusion replaces the conjunction by FALSE also where the column is NULL, so its negation selects those rows.
    rows = pa.table({"number": pa.array([None, 0, 1], pa.int64())})
    theirs = lance.write_dataset(rows, str(tmp_path / "table"))
    sql = "NOT (number IN (0) AND number IN (1))"
    found = pa.Table.from_batches(Predicate.parse(sql, rows.schema).filter(rows.to_batches()), rows.schema)
    assert found == theirs.to_table(filter=sql) == rows


@pytest.mark.parametrize("name", list(TYPES))
def test_a_comparison_with_a_value_of_the_column_is_translated(name: str) -> None:
    if name == "code":
        return
    value = next(each for each in values_of(name, TYPES[name]) if each == each)
    assert to_sql(pc.field(name) == pa.scalar(value, TYPES[name]), SCHEMA)


def test_a_long_chain_is_translated_without_recursion() -> None:
    condition = pc.field("i64") == 0
    for number in range(1, 1500):
        condition = condition | (pc.field("i64") == number)
    assert to_sql(condition, SCHEMA).count(" OR ") == 1499


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (pc.field("i64") + 1 > 2, "compares other values than a column"),
        (pc.utf8_lower(pc.field("text")) == "a", "compares other values than a column"),
        (pc.field("text") > 1, "literal of type int64"),
        (pc.starts_with(pc.field("text"), "a", ignore_case=True), "ignores case"),
        (pc.match_substring_regex(pc.field("text"), "a"), "'match_substring_regex'"),
        (pc.field("nothing") > 1, "there is no column 'nothing'"),
        (pc.field("s", "q") > 1, "there is no column 's.q'"),
        (pc.field(3) > 1, "refer to columns by name"),
    ],
)
def test_an_expression_without_equal_in_sql_is_refused_by_name(condition: pc.Expression, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        to_sql(condition, SCHEMA)


def test_a_tree_has_fields_literals_and_calls_with_options() -> None:
    tree = read_tree(pc.field("s", "x.y").isin([1, None]) & (pc.field("a") > 1))
    assert isinstance(tree, CallNode)
    listed, compared = tree.arguments
    assert isinstance(listed, CallNode)
    assert listed.options["value_set"].as_py() == [1, None]
    assert compared == CallNode("greater", (FieldNode(("a",)), LiteralNode(pa.scalar(1))), {})
    assert list(fields_of(tree)) == [("s", "x.y"), ("a",)]
