"""Projections: computed columns with types that are known in advance, casts, and values that do not fit."""

import datetime
import decimal

import pyarrow as pa
import pytest

from lance_core.errors import InvalidInput
from lance_core.expressions import Projection

JSON = pa.json_(pa.string())
SCHEMA = pa.schema([("id", pa.int64()), ("f", pa.float32()), ("Name", pa.string()), ("js", JSON)])
BATCH = pa.RecordBatch.from_arrays(
    [
        pa.array([1, None]),
        pa.array([0.5, 2.0], pa.float32()),
        pa.array(["a", "b"]),
        pa.ExtensionArray.from_storage(JSON, pa.array(['{"a": 1}', None])),
    ],
    schema=SCHEMA,
)


def check(sql: str, arrow: pa.DataType, values: list[object], cast: pa.DataType | None = None) -> None:
    projection = Projection.parse({"new": sql}, SCHEMA, types={"new": cast} if cast else None)
    assert projection.schema == pa.schema([("new", arrow)])
    assert projection.evaluate(BATCH).to_pydict() == {"new": values}
    assert projection.evaluate(BATCH.slice(0, 0)).schema == projection.schema


@pytest.mark.parametrize(
    ("sql", "arrow", "values"),
    [
        ("id * 2", pa.int64(), [2, None]),
        ("name || '!'", pa.string(), ["a!", "b!"]),
        ("1", pa.int64(), [1, 1]),
        ("'x'", pa.string(), ["x", "x"]),
        ("CAST(NULL AS int)", pa.int32(), [None, None]),
        ("id IS NULL", pa.bool_(), [False, True]),
        ("CASE WHEN f > 1 THEN 'big' ELSE 'small' END", pa.string(), ["small", "big"]),
        ("f", pa.float32(), [0.5, 2.0]),
        ("js", JSON, ['{"a": 1}', None]),
    ],
)
def test_types_are_known_before_the_first_batch(sql: str, arrow: pa.DataType, values: list[object]) -> None:
    check(sql, arrow, values)


@pytest.mark.parametrize(
    ("sql", "arrow", "values"),
    [
        ("NULL", pa.string(), [None, None]),
        ("id", pa.int8(), [1, None]),
        ("0.1", pa.decimal128(5, 2), [decimal.Decimal("0.10")] * 2),
        ("'2020-01-31'", pa.date32(), [datetime.date(2020, 1, 31)] * 2),
    ],
)
def test_values_are_cast_to_the_requested_type(sql: str, arrow: pa.DataType, values: list[object]) -> None:
    check(sql, arrow, values, cast=arrow)


def test_a_value_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(InvalidInput, match=r"the SQL of new, 'f \* 1000' failed on a row: .*500"):
        Projection.parse({"new": "f * 1000"}, SCHEMA, types={"new": pa.int8()}).evaluate(BATCH)


def test_several_columns_at_once() -> None:
    projection = Projection.parse({"a": "id + 1", "b": "ID + f"}, SCHEMA)
    assert projection.columns == ("f", "id")
    assert projection.evaluate(BATCH).to_pydict() == {"a": [2, None], "b": [1.5, None]}


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("nme", "the SQL of column 'new', 'nme': there is no column 'nme' at character 1; did you mean 'Name'?"),
        ("sum(id)", "an aggregate cannot be evaluated row by row"),
        ("random()", "random() is not deterministic"),
    ],
)
def test_errors_name_the_column(sql: str, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Projection.parse({"new": sql}, SCHEMA)
    assert message in str(refused.value)


def test_no_expression_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no expression is given"):
        Projection.parse({}, SCHEMA)
