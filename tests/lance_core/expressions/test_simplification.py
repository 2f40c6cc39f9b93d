"""Simplification: comparisons that are in their simplest form skip the optimizer."""

import datetime
import math
from decimal import Decimal

import pyarrow as pa
import pytest

from lance_core.expressions import Predicate, engine
from lance_core.expressions.resolve import build_comparison, is_simplified

_VALUES: tuple[tuple[pa.DataType, tuple[object, ...]], ...] = (
    (pa.int8(), (-128, 7, 127)),
    (pa.uint64(), (0, 2**64 - 1)),
    (pa.int64(), (-(2**63), 7)),
    (pa.float16(), (1.5,)),
    (pa.float32(), (-0.0, math.inf, math.nan)),
    (pa.float64(), (0.0, -0.0, 1.5, -math.inf, math.nan)),
    (pa.string(), ("", "it's", "%")),
    (pa.large_string(), ("abc",)),
    (pa.binary(), (b"", b"abc")),
    (pa.binary(3), (b"abc",)),
    (pa.date32(), (datetime.date(2020, 1, 31),)),
    (pa.timestamp("us"), (1_580_000_000_000_000,)),
    (pa.timestamp("ns", "UTC"), (1_580_000_000_000_000_000,)),
    (pa.time64("us"), (datetime.time(1, 2),)),
    (pa.duration("s"), (datetime.timedelta(3),)),
    (pa.decimal128(10, 2), (Decimal("1.25"),)),
)


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("operation", ["=", "!=", "<", "<=", ">", ">="])
@pytest.mark.parametrize(
    ("arrow", "values"), _VALUES, ids=lambda given: str(given) if isinstance(given, pa.DataType) else ""
)
def test_simplification_keeps_simple_comparisons(
    arrow: pa.DataType, values: tuple[object, ...], operation: str, nullable: bool
) -> None:
    schema = pa.schema([pa.field("a.B c", arrow, nullable=nullable)])
    for value in values:
        comparison = build_comparison(engine.column(("a.B c",)), operation, engine.literal(pa.scalar(value, arrow)))
        assert is_simplified(comparison, schema)
        simplified = engine.simplify(comparison, schema)
        assert simplified.canonical_name().replace("?table?.", "") == comparison.canonical_name()
        assert engine.type_of(simplified, schema) == pa.bool_()


@pytest.mark.parametrize(
    "sql", ["flag = true", "id = NULL", "id = 1.5", "7 = id", "id = other", "s.x = 1", "id + 1 = 2", "id = 1 OR id = 2"]
)
def test_other_conditions_are_simplified(sql: str) -> None:
    """Some of these would stay the same after their literals are cast to the type of the column."""
    schema = pa.schema(
        [("id", pa.int64()), ("other", pa.int64()), ("flag", pa.bool_()), ("s", pa.struct([("x", pa.int64())]))]
    )
    assert not is_simplified(engine.parse(sql, schema), schema)


def test_a_lookup_is_not_simplified(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object) -> None:
        raise AssertionError("simplified")

    monkeypatch.setattr(engine, "simplify", fail)
    schema = pa.schema([("ID", pa.int32()), ("Name", pa.string())])
    batch = pa.RecordBatch.from_pydict({"ID": [80_000, None], "Name": ["a", "b"]}, schema=schema)
    found = Predicate.parse("id = 80000", schema)
    assert (found.columns, found.mask(batch).to_pylist()) == (("ID",), [True, False])
    assert Predicate.parse("name > 'a'", schema).mask(batch).to_pylist() == [False, True]
