"""Reader: tables as DataFrames."""

import datetime as dt
from decimal import Decimal
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lance_assets.spark import aggregate, append, count_rows, read
from lance_assets.spark.jobs import partition_numbers
from lance_core import InvalidInput, NotFound, Table, Unsupported
from tests.lance_core.datafiles.test_isolated_reader import create_aborting_table


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


def test_frame_keeps_its_version(spark: SparkSession, tmp_path: Path) -> None:
    append(spark.range(10), uri_in(tmp_path))
    frame = read(spark, uri_in(tmp_path))
    append(spark.range(5), uri_in(tmp_path))
    assert frame.count() == 10
    assert read(spark, uri_in(tmp_path)).count() == 15
    assert read(spark, uri_in(tmp_path), version=1).count() == 10


def test_column_selection(spark: SparkSession, tmp_path: Path) -> None:
    Table.create(uri_in(tmp_path), pa.table({"a": [1], "b": ["x"], "c": [2.0]}))
    frame = read(spark, uri_in(tmp_path), columns=["c", "a"])
    assert frame.columns == ["c", "a"]
    assert [tuple(row) for row in frame.collect()] == [(2.0, 1)]


def test_types_that_spark_lacks_are_widened(spark: SparkSession, tmp_path: Path) -> None:
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


def test_unsupported_column_names_the_remedy(spark: SparkSession, tmp_path: Path) -> None:
    wide = pa.array([Decimal(1)], pa.decimal256(60, 0))
    Table.create(uri_in(tmp_path), pa.table({"id": [1], "wide": wide}))
    with pytest.raises(Unsupported, match=r"column 'wide' is stored as decimal256.*columns="):
        read(spark, uri_in(tmp_path))
    assert read(spark, uri_in(tmp_path), columns=["id"]).count() == 1


def test_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    Table.create(uri_in(tmp_path), pa.schema([("id", pa.int64())]))
    frame = read(spark, uri_in(tmp_path))
    assert (frame.columns, frame.count()) == (["id"], 0)


def test_rows_without_columns_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    Table.create(uri_in(tmp_path), pa.table({"id": [1, 2, 3]}))
    frame = read(spark, uri_in(tmp_path), columns=[])
    assert (frame.columns, frame.count()) == ([], 3)


def test_missing_tables_versions_and_columns(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no Lance table at"):
        read(spark, uri_in(tmp_path))
    Table.create(uri_in(tmp_path), pa.table({"city": ["Oslo"]}))
    with pytest.raises(NotFound, match="has no version 7; it has 1"):
        read(spark, uri_in(tmp_path), version=7)
    with pytest.raises(InvalidInput, match="no column 'citi'; did you mean 'city'"):
        read(spark, uri_in(tmp_path), columns=["citi"])


def thousand(folder: Path) -> Table:
    rows = pa.table({"id": range(1000), "s": [f"r{n % 10}" for n in range(1000)], "x": [n / 4 for n in range(1000)]})
    return Table.create(uri_in(folder), rows, max_rows_per_file=100).delete("id % 4 = 1").table


def test_workers_evaluate_filters(spark: SparkSession, tmp_path: Path) -> None:
    table = thousand(tmp_path)
    condition = "regexp_match(s, '^r[12]$') and id / 2 > 100"
    frame = read(spark, table.uri, columns=["x", "id"], filter=condition)
    assert frame.columns == ["x", "id"]
    assert [row.id for row in frame.collect()] == table.to_table(["id"], condition)["id"].to_pylist()
    assert read(spark, table.uri, columns=[], filter=condition).count() == table.count_rows(condition)
    assert read(spark, table.uri, filter="false").count() == 0
    with pytest.raises(InvalidInput, match="no column 'ids'"):
        read(spark, table.uri, filter="ids = 3")


def test_addresses_are_signed_integers(spark: SparkSession, tmp_path: Path) -> None:
    table = thousand(tmp_path)
    frame = read(spark, table.uri, columns=["id"], with_row_address=True, with_row_id=True)
    assert dict(frame.dtypes) == {"id": "bigint", "_rowid": "bigint", "_rowaddr": "bigint"}
    rows = frame.where("id > 990").collect()
    alone = table.to_table(["id"], "id > 990", with_row_address=True)
    assert [(row.id, row._rowaddr) for row in rows] == [(row["id"], row["_rowaddr"]) for row in alone.to_pylist()]


def test_tags_and_branches(spark: SparkSession, tmp_path: Path) -> None:
    table = thousand(tmp_path)
    table.tags.create("first", 1)
    table.branches.create("dev")
    more = spark.createDataFrame([(5000, "new", 1.0)], "id bigint, s string, x double")
    committed = append(more, table.uri, branch="dev")
    assert committed.table.branch == "dev"
    counts = [
        read(spark, table.uri, columns=["id"], **which).count()
        for which in ({"tag": "first"}, {"branch": "dev"}, {"version": 1}, {})
    ]
    assert counts == [1000, 751, 1000, 750]


def test_workers_count_and_aggregate_rows(spark: SparkSession, tmp_path: Path) -> None:
    table = thousand(tmp_path)
    assert count_rows(spark, table.uri) == 750
    assert count_rows(spark, table.uri, "s = 'r2' and x > 3") == table.count_rows("s = 'r2' and x > 3")
    sql = "select s, count(*) n, avg(x) a from dataset where id >= 500 group by s having count(*) > 30 order by s desc"
    theirs = pa.Table.from_batches(lance.dataset(table.uri).sql(sql).build().to_batch_records())
    assert aggregate(spark, table.uri, sql).to_pylist() == theirs.to_pylist()
    with pytest.raises(InvalidInput, match="median"):
        aggregate(spark, table.uri, "select median(x) from dataset")


def test_large_table_is_not_broadcast(spark: SparkSession, tmp_path: Path) -> None:
    """Without an estimate Spark would take the table for a list of split numbers and run out of memory in a join."""
    Table.create(str(tmp_path / "large"), pa.table({"id": np.arange(2_000_000)}), max_rows_per_file=500_000)
    Table.create(str(tmp_path / "small"), pa.table({"id": [5, 7]}))
    large, small = (read(spark, str(tmp_path / name)) for name in ("large", "small"))
    with_large = large.join(large.withColumnRenamed("id", "other"), F.expr("id = other"))
    assert "BroadcastHashJoin" not in plan_of(with_large)
    with_small = large.join(small, "id")
    assert plan_of(with_small).count("BroadcastHashJoin") == 1
    assert "BuildRight" in plan_of(with_small)
    assert sorted(row.id for row in with_small.collect()) == [5, 7]
    by_key = read(spark, str(tmp_path / "large"), filter="id % 1000 = 0").join(small, "id", "left_anti")
    assert by_key.count() == 2000


def plan_of(frame: DataFrame) -> str:
    text = frame._jdf.queryExecution().executedPlan().toString()
    return str(text)


@pytest.mark.parametrize("memory_bytes", [0, 24, 25_000, 2**50])
def test_partition_numbers(spark: SparkSession, memory_bytes: int) -> None:
    """Each partition has one number, in order, for any estimated size."""
    frame = partition_numbers(spark, 3, memory_bytes)
    assert [row.id for row in frame.collect()] == [0, 1, 2]
    partitions = frame.withColumn("partition", F.spark_partition_id())
    assert [(row.id, row.partition) for row in partitions.collect()] == [(0, 0), (1, 1), (2, 2)]
    assert frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes() >= min(memory_bytes, 2**27)


def test_untrusted_tables_are_decoded_elsewhere(spark: SparkSession, tmp_path: Path) -> None:
    """A file that would end the Python worker, and with it the job, is an error that names the file."""
    Table.create(uri_in(tmp_path), pa.table({"a": range(100)}), max_rows_per_file=40)
    assert read(spark, uri_in(tmp_path), trusted=False).selectExpr("sum(a)").collect()[0][0] == 4950
    assert count_rows(spark, uri_in(tmp_path), "a > 50", trusted=False) == 49
    frame = spark.read.format("lance").option("trusted", "false").load(uri_in(tmp_path))
    assert frame.where("a < 3").count() == 3
    create_aborting_table(tmp_path / "bad")
    with pytest.raises(Exception, match="cannot be decoded: the process that decoded it ended with SIGABRT"):
        read(spark, str(tmp_path / "bad"), trusted=False).collect()
