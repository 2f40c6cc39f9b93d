"""Widening: an append on Spark converts a column to the type of the table if and only if an append of the core does."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_assets.spark import append
from lance_core import InvalidInput, Table

INT32_MAX = 2**31 - 1
WIDENED = {
    "int32 to int64": (pa.array([INT32_MAX, None], pa.int32()), pa.int64()),
    "int16 to int32": (pa.array([-(2**15), None], pa.int16()), pa.int32()),
    "int8 to int64": (pa.array([-128, None], pa.int8()), pa.int64()),
    "int32 to double": (pa.array([INT32_MAX, None], pa.int32()), pa.float64()),
    "float to double": (pa.array([1.5, None], pa.float32()), pa.float64()),
    "item of a list": (pa.array([[1, None], None], pa.list_(pa.int32())), pa.list_(pa.int64())),
    "field of a struct": (pa.array([{"a": 1}, None], pa.struct([("a", pa.int32())])), pa.struct([("a", pa.int64())])),
    "text to large text": (pa.array(["a", None], pa.string()), pa.large_string()),
}
"""Data, and the type of the column that it is appended to."""
REFUSED = {
    "int64 above int32": (pa.array([INT32_MAX + 1], pa.int64()), pa.int32()),
    "text to int64": (pa.array(["1"], pa.string()), pa.int64()),
    "double with a fraction to int64": (pa.array([1.5], pa.float64()), pa.int64()),
}


def _rows_after_append(data: pa.Table, schema: pa.Schema, directory: Path, spark: SparkSession | None) -> pa.Table:
    table = Table.create(directory, schema.empty_table(), durable=False)
    if spark is None:
        return table.append(data).table.to_table()
    append(spark.createDataFrame(data), table.uri)
    return Table.open(table.uri).to_table()


def test_both_convert_to_a_wider_type(spark: SparkSession, tmp_path: Path) -> None:
    data = pa.table({name: values for name, (values, _stored) in WIDENED.items()})
    schema = pa.schema([(name, stored) for name, (_values, stored) in WIDENED.items()])
    by_core = _rows_after_append(data, schema, tmp_path / "core", None)
    by_spark = _rows_after_append(data, schema, tmp_path / "spark", spark)
    assert by_core.schema == by_spark.schema == schema
    assert by_spark.to_pylist() == by_core.to_pylist() == data.to_pylist()


@pytest.mark.parametrize("name", REFUSED)
def test_both_refuse_what_would_lose_values(spark: SparkSession, tmp_path: Path, name: str) -> None:
    values, stored = REFUSED[name]
    for directory, session in ((tmp_path / "core", None), (tmp_path / "spark", spark)):
        with pytest.raises(InvalidInput, match=r"'v'|column v"):
            _rows_after_append(pa.table({"v": values}), pa.schema([("v", stored)]), directory, session)
        assert Table.open(directory).version == 1
