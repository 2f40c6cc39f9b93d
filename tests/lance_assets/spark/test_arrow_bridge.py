"""Arrow bridge: the batches that Spark sends without measuring their size."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lance_assets.spark.arrow_bridge import (
    BYTES_SETTING,
    ROWS_SETTING,
    TEXT_BATCH_ROWS,
    map_in_arrow,
    unmeasured_batch_rows,
)


@pytest.mark.parametrize(
    ("types", "rows"),
    [
        ("a bigint, b double, c decimal(38,2), d date, e timestamp, f timestamp_ntz, g boolean, h void", 65_536),
        ("a interval day to second, b struct<c: int, d: struct<e: date>>", 65_536),
        (", ".join(f"a{number} int" for number in range(128)), 32_768),
        ("a bigint, b string", 1024),
        ("a struct<b: int, c: struct<d: string>>", 1024),
        (", ".join(f"a{number} string" for number in range(8192)), 512),
        ("a string, b binary", None),
        ("a array<float>", None),
        ("a map<int, int>", None),
        ("a struct<b: array<int>>", None),
        ("a variant", None),
    ],
)
def test_unmeasured_rows_by_type(spark: SparkSession, types: str, rows: int | None) -> None:
    kinds = T._parse_datatype_string(types)
    assert isinstance(kinds, T.StructType)
    assert unmeasured_batch_rows(kinds) == rows


def batches(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    sizes = [batch.num_rows for batch in rows]
    yield pa.record_batch({"rows": pa.array(sizes, pa.int64())})


def largest(df: DataFrame) -> int:
    return max(map_in_arrow(df, batches, "rows bigint")["rows"].to_pylist())


def texts(spark: SparkSession, rows: int = 3000, size: int = 1000) -> DataFrame:
    return spark.range(0, rows, 1, 1).select(F.repeat(F.lit("x"), size).alias("text"))


def test_batches_of_wide_rows_are_measured(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    context = spark.sparkContext
    settings: list[tuple[str | None, str | None]] = []
    map_in_arrow = type(spark.range(1)).mapInArrow

    def record_and_call(df: DataFrame, *given: object) -> DataFrame:
        settings.append((context.getLocalProperty(BYTES_SETTING), context.getLocalProperty(ROWS_SETTING)))
        return map_in_arrow(df, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(type(spark.range(1)), "mapInArrow", record_and_call)
    assert largest(spark.range(0, 70_000, 1, 1)) == 65_536
    assert largest(texts(spark)) == 1024
    assert 600 < largest(texts(spark, rows=1000, size=100_000).select(F.array("text").alias("list"))) < 800
    assert settings == [("2147483647", "65536"), ("2147483647", "1024"), (None, "65536")]
    assert context.getLocalProperty(BYTES_SETTING) is context.getLocalProperty(ROWS_SETTING) is None


def test_settings_of_the_session_apply(spark: SparkSession) -> None:
    own = spark.newSession()
    own.conf.set(ROWS_SETTING, 2000)
    assert largest(texts(own)) == 2000
    own.conf.set(BYTES_SETTING, 1_500_000)
    assert TEXT_BATCH_ROWS < largest(texts(own)) < 2000
    own.conf.unset(BYTES_SETTING)
    own.conf.set(ROWS_SETTING, 500)
    assert largest(texts(own)) == 500
    assert largest(texts(spark)) == TEXT_BATCH_ROWS


def test_larger_batches_of_the_session_are_measured(spark: SparkSession) -> None:
    own = spark.newSession()
    own.conf.set(ROWS_SETTING, 5000)
    assert 600 < largest(texts(own, rows=1000, size=100_000)) < 800


def test_python_functions_keep_their_batches(spark: SparkSession) -> None:
    """The input of the function may have wide rows even if its output has not."""

    def sizes(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            yield pa.record_batch({"rows": [batch.num_rows], "name": ["x"]})

    def record_and_call(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            yield batch.select(["rows"])

    mapped = map_in_arrow(
        texts(spark, rows=12_000).mapInArrow(sizes, "rows bigint, name string"), record_and_call, "rows bigint"
    )
    assert mapped["rows"].to_pylist() == [10_000, 2_000]
