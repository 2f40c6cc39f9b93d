"""Data source: the format `lance` as Spark discovers and uses it, without registration."""

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lance_assets.spark import read
from lance_core import Table

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def create_table(folder: Path) -> Table:
    numbers = [None if n % 7 == 0 else math.nan if n % 11 == 0 else -0.0 if n % 5 == 0 else n / 4 for n in range(400)]
    rows = {
        "id": pa.array(range(400), pa.int64()),
        "x": pa.array(numbers, pa.float64()),
        "s": [None if n % 9 == 0 else f"{'a%' if n % 2 else 'b'}{n % 13}" for n in range(400)],
        "u": pa.array([None if n % 3 == 0 else n % 256 for n in range(400)], pa.uint8()),
        "v": pa.array([[n, 1.0] for n in range(400)], pa.list_(pa.float32(), 2)),
    }
    table = Table.create(str(folder / "t"), pa.table(rows), max_rows_per_file=150, durable=False)
    return table.delete("id % 10 = 9").table


def load_frame(spark: SparkSession, uri: str, **options: object) -> DataFrame:
    return spark.read.format("lance").options(**{name: str(value) for name, value in options.items()}).load(uri)


def ids(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


@pytest.fixture
def with_pushdown(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(PUSHDOWN, "true")
    yield spark
    spark.conf.unset(PUSHDOWN)


def test_read_options(spark: SparkSession, tmp_path: Path) -> None:
    table = create_table(tmp_path)
    table.tags.create("first", 1)
    frame = load_frame(spark, table.uri)
    assert dict(frame.dtypes) == {"id": "bigint", "x": "double", "s": "string", "u": "smallint", "v": "array<float>"}
    assert frame.count() == 360
    assert load_frame(spark, table.uri, version=1).count() == 400
    narrow = load_frame(spark, table.uri, tag="first", columns="u, id", filter="id / 2 < 4", with_row_address="true")
    assert narrow.columns == ["u", "id", "_rowaddr"]
    assert ids(narrow) == list(range(8))
    assert spark.read.format("lance").schema("id bigint").load(table.uri).agg(F.sum("id")).collect()[0][0] == sum(
        n for n in range(400) if n % 10 != 9
    )
    assert load_frame(spark, table.uri, filter="false").count() == 0


def test_frame_keeps_its_version(spark: SparkSession, tmp_path: Path) -> None:
    table = create_table(tmp_path)
    frame = load_frame(spark, table.uri, columns="id")
    table.delete("id < 200")
    assert frame.count() == 360
    assert load_frame(spark, table.uri, columns="id").count() == 180


CONDITIONS = [
    "x > 10 and u < 200",
    "x = 0",
    "x < 1 or id = 7",
    "x = double('NaN')",
    "x <=> null",
    "not (x <=> 2.5)",
    "u in (1, 2, null)",
    "u not in (1, 2)",
    "s like 'a%1%' and not contains(s, '12')",
    "true",
]


def test_filters_with_and_without_pushdown(spark: SparkSession, with_pushdown: SparkSession, tmp_path: Path) -> None:
    """One frame is read with several filters in turn, and with two in one query; no filter may affect another read.
    Without pushdown Spark evaluates all filters alike, so that one is enough."""
    table = create_table(tmp_path)
    frame = load_frame(spark, table.uri, columns="id, x, s, u")
    rows = read(spark, table.uri, columns=["id", "x", "s", "u"])
    for condition in CONDITIONS:
        assert ids(frame.where(condition)) == ids(rows.where(condition)), condition
    assert frame.where("id = 3").union(frame).count() == 361
    spark.conf.set(PUSHDOWN, "false")
    frame = load_frame(spark, table.uri, columns="id, x, s, u")
    assert ids(frame.where(CONDITIONS[0])) == ids(rows.where(CONDITIONS[0]))
    assert frame.where("id = 3").union(frame).count() == 361


def test_rows_are_appended_and_overwritten(spark: SparkSession, tmp_path: Path) -> None:
    table = create_table(tmp_path)
    rows = load_frame(spark, table.uri, filter="id < 10")
    rows.write.format("lance").mode("append").option("property.dagster.run_id", "r1").save(table.uri)
    after = table.refresh()
    assert (after.version, after.count_rows(), after.schema) == (3, 369, table.schema)
    assert after.versions()[-1].properties["dagster.run_id"] == "r1"
    rows.select("v", "u", "s", "x", "id").write.format("lance").mode("overwrite").option("intent", "x").save(table.uri)
    rows.write.format("lance").mode("overwrite").option("intent", "x").save(table.uri)
    after = table.refresh()
    assert (after.version, after.count_rows(), after.schema) == (4, 9, table.schema)
    assert lance.dataset(table.uri).to_table()["id"].to_pylist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    spark.range(5).write.format("lance").mode("append").save(str(tmp_path / "new"))
    assert Table.open(str(tmp_path / "new")).count_rows() == 5


def test_errors(spark: SparkSession, tmp_path: Path) -> None:
    table = create_table(tmp_path)
    writer = spark.range(5).withColumn("nope", F.lit(1)).write.format("lance")
    for mode in ("errorifexists", "ignore"):
        with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
            spark.range(5).write.format("lance").mode(mode).save(table.uri)
    for attempt, message in (
        (lambda: writer.mode("append").save(table.uri), "nope"),
        (lambda: load_frame(spark, table.uri, columns="ids"), "no column 'ids'"),
        (lambda: load_frame(spark, table.uri, version="one"), "whole number"),
        (lambda: load_frame(spark, table.uri, filter="id = = 1"), "does not parse"),
        (lambda: load_frame(spark, table.uri, version=77), "has no version 77"),
        (lambda: spark.read.format("lance").load(), "CREATE TEMPORARY VIEW"),
        (
            lambda: spark.range(5).write.format("lance").option("audit", "f").mode("append").save(table.uri),
            "has no opti",
        ),
        (lambda: spark.read.format("lance").schema("id int").load(table.uri).count(), "requested as int"),
    ):
        with pytest.raises(PySparkException, match=message):
            attempt()
    assert table.refresh().version == table.version


def test_value_that_does_not_fit_commits_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = create_table(tmp_path)
    rows = load_frame(spark, table.uri, filter="id < 3").withColumn("u", F.lit(300).cast("smallint"))
    with pytest.raises(PySparkException, match="'u'"):
        rows.write.format("lance").mode("append").save(table.uri)
    assert table.refresh().version == table.version


def test_sql_view(spark: SparkSession, tmp_path: Path) -> None:
    table = create_table(tmp_path)
    spark.sql(f"create temporary view lance_rows using lance options (path '{table.uri}', columns 'id')")
    assert spark.sql("select count(*), max(id) from lance_rows").collect()[0] == (360, 398)


def test_format_stub_imports_little() -> None:
    """Spark imports it in a separate process for every format."""
    code = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_lance; "
        "heavy = {'lance', 'lance_core', 'dagster', 'datafusion'}; print(sorted(heavy & set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
