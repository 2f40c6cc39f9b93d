"""Plan lineage: sources of columns by Spark's plans. No query runs a job."""

from collections.abc import Callable, Mapping

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from lance_assets.spark import read
from lance_assets.spark.plan_lineage import column_sources
from lance_core import Table

Reads = Mapping[str, DataFrame]
Query = Callable[[SparkSession, DataFrame, DataFrame], DataFrame]
QUERIES: list[tuple[str, Query, dict[str, str]]] = [
    ("renamed", lambda _, a, b: a.selectExpr("x as y2", "5 as five"), {"y2": "a.x"}),
    ("expression", lambda _, a, b: a.selectExpr("x + y as both", "upper(s) as s"), {"both": "a.x a.y", "s": "a.s"}),
    (
        "joined aggregate",
        lambda _, a, b: a.join(b, "id").where("z > 1").groupBy("s").agg((F.sum("x") + F.max("z")).alias("t")),
        {"s": "a.s", "t": "a.x b.z"},
    ),
    ("counted", lambda _, a, b: a.groupBy("s").count(), {"s": "a.s"}),
    ("union", lambda _, a, b: a.select("id").union(b.selectExpr("cast(z as bigint)")), {"id": "a.id b.z"}),
    (
        "joined with itself",
        lambda _, a, b: a.alias("l").join(a.alias("r"), F.expr("l.id = r.id")).selectExpr("r.y as r", "l.x + r.y as m"),
        {"r": "a.y", "m": "a.x a.y"},
    ),
    (
        "window",
        lambda _, a, b: a.select(F.sum("y").over(Window.partitionBy("s").orderBy("x")).alias("w")),
        {"w": "a.s a.x a.y"},
    ),
    (
        "exploded",
        lambda _, a, b: a.select("id", F.explode(F.array("x", "y")).alias("e")),
        {"id": "a.id", "e": "a.x a.y"},
    ),
    ("passed through", lambda _, a, b: a.dropDuplicates(["s"]).limit(3).select("y"), {"y": "a.y"}),
    ("function over batches", lambda _, a, b: a.select("x").mapInArrow(lambda batches: batches, "x double"), {}),
    ("no table", lambda spark, a, b: spark.range(3).selectExpr("id + 1 as n"), {}),
    (
        "subquery",
        lambda spark, a, b: spark.sql("select y, (select max(z) from b where b.id = a.id) as z from a"),
        {"y": "a.y", "z": "a.id b.z"},
    ),
    (
        "with clause",
        lambda spark, a, b: spark.sql(
            "with q as (select s, avg(x) as m from a group by s) "
            "select l.m - r.m as d, l.s from q l join q r on l.s < r.s"
        ),
        {"d": "a.x", "s": "a.s"},
    ),
]


@pytest.fixture(scope="module")
def reads(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Reads:
    folder = tmp_path_factory.mktemp("lineage")
    tables = {
        "a": pa.table({"id": [1, 2], "x": [1.0, 2.0], "y": [3, 4], "s": ["a", "b"]}),
        "b": pa.table({"id": [1, 2], "z": [1.0, 2.0]}),
    }
    frames = {}
    for name, rows in tables.items():
        frames[name] = read(spark, Table.create(str(folder / name), rows, durable=False).uri)
        frames[name].createOrReplaceTempView(name)
    return frames


@pytest.mark.parametrize(("query", "expected"), [case[1:] for case in QUERIES], ids=[case[0] for case in QUERIES])
def test_sources_of_columns(spark: SparkSession, reads: Reads, query: Query, expected: dict[str, str]) -> None:
    found = column_sources(query(spark, reads["a"], reads["b"]), [(frame, name) for name, frame in reads.items()])
    assert {column: " ".join(sorted(map(".".join, each))) for column, each in found.items()} == expected


def test_a_plan_that_takes_too_long_has_no_sources(reads: Reads) -> None:
    assert column_sources(reads["a"].select("x"), [(reads["a"], "a")], seconds_max=-1.0) == {}
