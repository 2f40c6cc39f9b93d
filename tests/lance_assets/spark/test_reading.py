"""Tables as DataFrames."""

import datetime as dt
from decimal import Decimal
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_assets.spark import append, read
from lance_core import InvalidInput, NotFound, Table, Unsupported


def uri_in(folder: Path) -> str:
    return str(folder / "table")


def test_rows_written_by_pylance_with_deletions(spark: SparkSession, tmp_path: Path) -> None:
    theirs = lance.write_dataset(
        pa.table({"id": range(1000), "s": [f"r{n}" for n in range(1000)]}),
        uri_in(tmp_path),
        max_rows_per_file=100,
    )
    theirs.delete("id % 3 = 0")
    frame = read(spark, uri_in(tmp_path))
    assert frame.count() == 666
    assert frame.where("id = 500").collect()[0].s == "r500"
    assert frame.selectExpr("sum(id)").collect()[0][0] == sum(n for n in range(1000) if n % 3)


def test_a_frame_keeps_its_version(spark: SparkSession, tmp_path: Path) -> None:
    append(spark.range(10), uri_in(tmp_path))
    frame = read(spark, uri_in(tmp_path))
    append(spark.range(5), uri_in(tmp_path))
    assert frame.count() == 10
    assert read(spark, uri_in(tmp_path)).count() == 15
    assert read(spark, uri_in(tmp_path), version=1).count() == 10


def test_only_the_columns_that_are_named(spark: SparkSession, tmp_path: Path) -> None:
    Table.create(uri_in(tmp_path), pa.table({"a": [1], "b": ["x"], "c": [2.0]}))
    frame = read(spark, uri_in(tmp_path), columns=["c", "a"])
    assert frame.columns == ["c", "a"]
    assert [tuple(row) for row in frame.collect()] == [(2.0, 1)]


def test_types_that_spark_does_not_have_arrive_as_the_next_wider(spark: SparkSession, tmp_path: Path) -> None:
    cases = {
        "u8": (pa.array([255], pa.uint8()), 255, "smallint"),
        "u16": (pa.array([65535], pa.uint16()), 65535, "int"),
        "u32": (pa.array([2**32 - 1], pa.uint32()), 2**32 - 1, "bigint"),
        "u64": (pa.array([2**64 - 1], pa.uint64()), Decimal(2**64 - 1), "decimal(20,0)"),
        "half": (pa.array([1.5], pa.float16()), 1.5, "float"),
        "fsl": (pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)), [1.0, 2.0], "array<float>"),
        "fixed": (pa.array([b"ab"], pa.binary(2)), bytearray(b"ab"), "binary"),
        "dict": (pa.array(["x"]).dictionary_encode(), "x", "string"),
        "large": (pa.array(["y"], pa.large_string()), "y", "string"),
        "date64": (pa.array([dt.date(2026, 1, 1)], pa.date64()), dt.date(2026, 1, 1), "date"),
        "seconds": (
            pa.array([0], pa.timestamp("s")),
            dt.datetime(1970, 1, 1),  # noqa: DTZ001 - without a zone
            "timestamp_ntz",
        ),
        "millis": (pa.array([1500], pa.duration("ms")), dt.timedelta(seconds=1.5), "interval day to second"),
        "json": (
            pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array(['{"a":1}'])),
            '{"a":1}',
            "string",
        ),
    }
    Table.create(uri_in(tmp_path), pa.table({name: array for name, (array, _, _) in cases.items()}))
    frame = read(spark, uri_in(tmp_path))
    assert dict(frame.dtypes) == {name: kind for name, (_, _, kind) in cases.items()}
    assert frame.collect()[0].asDict() == {name: value for name, (_, value, _) in cases.items()}


def test_a_column_that_spark_cannot_hold_names_the_way_out(spark: SparkSession, tmp_path: Path) -> None:
    wide = pa.array([Decimal(1)], pa.decimal256(60, 0))
    Table.create(uri_in(tmp_path), pa.table({"id": [1], "wide": wide}))
    with pytest.raises(Unsupported, match=r"column 'wide' is stored as decimal256.*columns="):
        read(spark, uri_in(tmp_path))
    assert read(spark, uri_in(tmp_path), columns=["id"]).count() == 1


def test_an_empty_table_is_an_empty_frame(spark: SparkSession, tmp_path: Path) -> None:
    Table.create(uri_in(tmp_path), pa.schema([("id", pa.int64())]))
    frame = read(spark, uri_in(tmp_path))
    assert (frame.columns, frame.count()) == (["id"], 0)


def test_no_columns_are_still_so_many_rows(spark: SparkSession, tmp_path: Path) -> None:
    Table.create(uri_in(tmp_path), pa.table({"id": [1, 2, 3]}))
    frame = read(spark, uri_in(tmp_path), columns=[])
    assert (frame.columns, frame.count()) == ([], 3)


def test_what_is_not_there(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no Lance table at"):
        read(spark, uri_in(tmp_path))
    Table.create(uri_in(tmp_path), pa.table({"city": ["Oslo"]}))
    with pytest.raises(NotFound, match="has no version 7; it has 1"):
        read(spark, uri_in(tmp_path), version=7)
    with pytest.raises(InvalidInput, match="no column 'citi'; did you mean 'city'"):
        read(spark, uri_in(tmp_path), columns=["citi"])
