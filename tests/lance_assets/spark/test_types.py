"""Spark types: each cell of the type matrix passes through a real Spark and returns unchanged, or is refused."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lance_assets.spark import append, delete, read
from lance_assets.spark.types import FIXED_SIZE_KEY
from lance_core import Table
from tests.lance_assets.spark.type_matrix import all_cells, comparable_value, make_table

ZONE = "spark.sql.session.timeZone"


@pytest.fixture
def new_york_session(spark: SparkSession) -> Iterator[SparkSession]:
    """Session in the time zone of New York, where the clocks change."""
    before = spark.conf.get(ZONE)
    spark.conf.set(ZONE, "America/New_York")
    yield spark
    spark.conf.set(ZONE, before or "UTC")


def values(table: pa.Table) -> dict[str, object]:
    return {name: comparable_value(table[name].to_pylist()) for name in table.column_names}


def read_stored(uri: str) -> pa.Table:
    """Return the values as pylance reads them."""
    return lance.dataset(uri).to_table()


def test_every_type_in_every_shape(new_york_session: SparkSession, tmp_path: Path) -> None:
    spark, every = new_york_session, all_cells()
    source, copy = str(tmp_path / "source"), str(tmp_path / "copy")
    for uri, rows in ((source, make_table(every)), (copy, make_table(every).slice(0, 0))):
        lance.write_dataset(rows, uri, data_storage_version="2.2")
    expected, schema = values(read_stored(source)), lance.dataset(source).schema

    frame, facade = read(spark, source), spark.read.format("lance").load(source)
    spelt = {each.name: each.spark for each in every}
    assert dict(frame.dtypes) == dict(facade.dtypes) == spelt
    for each in (frame, facade):
        assert values(each.toArrow()) == expected

    append(frame, copy)
    assert_same_values(copy, schema, expected)
    facade.write.format("lance").mode("overwrite").save(copy)
    assert_same_values(copy, schema, expected)


def test_indexed_rows_are_equal_and_need_no_job(new_york_session: SparkSession, tmp_path: Path) -> None:
    spark, uri = new_york_session, str(tmp_path / "table")
    rows = make_table(all_cells())
    lance.write_dataset(rows.append_column("key", pa.array(range(rows.num_rows))), uri, data_storage_version="2.2")
    Table.open(uri).create_index("key", "BTREE")
    for condition, count in (("key in (1, 4)", 2), ("key = 5", 1), ("key = 77", 0)):
        scanned = read(spark, uri, version=1, filter=condition)
        expected, schema = values(scanned.toArrow()), scanned.schema
        jobs = set(spark.sparkContext.statusTracker().getJobIdsForGroup(None))
        picked = read(spark, uri, filter=condition)
        assert picked.schema == schema
        assert len(picked.collect()) == count
        assert set(spark.sparkContext.statusTracker().getJobIdsForGroup(None)) == jobs
        assert values(picked.toArrow()) == expected
    delete(spark, uri, "key = 5")
    assert read(spark, uri, columns=["key"], filter="key in (1, 5)", with_row_address=True).collect() == [(1, 1)]


def assert_same_values(uri: str, schema: pa.Schema, expected: dict[str, object]) -> None:
    dataset = lance.dataset(uri)
    assert dataset.schema.equals(schema, check_metadata=True)
    assert values(dataset.to_table()) == expected
    assert Table.open(uri).fsck().is_sound


def test_new_table_has_vectors_and_no_spark_metadata(new_york_session: SparkSession, tmp_path: Path) -> None:
    spark, first, second = new_york_session, str(tmp_path / "first"), str(tmp_path / "second")
    frame = spark.sql(
        "select array(1f, 2f) vector, named_struct('a', array(1)) nested, date'1582-10-10' day, "
        "timestamp_ntz'2026-03-08 02:30:00' wall, timestamp'2026-03-08 03:30:00' instant"
    )
    append(frame.withMetadata("vector", {FIXED_SIZE_KEY: 2, "unit": "m"}), first)
    append(read(spark, first), second)
    expected = {
        "vector": [1.0, 2.0],
        "nested": {"a": [1]},
        "day": dt.date(1582, 10, 10),  # a day that the hybrid calendar of older Java versions lacks
        "wall": dt.datetime(2026, 3, 8, 2, 30),  # noqa: DTZ001 - an hour that New York does not have that day
        "instant": dt.datetime(2026, 3, 8, 7, 30, tzinfo=dt.UTC),
    }
    for uri in (first, second):
        (row,) = read_stored(uri).to_pylist()
        assert row == expected
        schema = lance.dataset(uri).schema
        assert schema.field("vector").type == pa.list_(pa.float32(), 2)
        assert schema.field("vector").metadata == {b"unit": b"m"}
        assert schema.field("nested").type[0].type.value_field.name == "item"
        files = b"".join(each.read_bytes() for each in Path(uri).rglob("*") if each.is_file())
        assert b"SPARK::" not in files
        assert b"element" not in files


def test_value_that_spark_lacks_is_an_error_of_the_read(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, pa.table({"n": [1], "v": pa.array([1_001], pa.timestamp("ns"))}), durable=False)
    for frame in (read(spark, uri), spark.read.format("lance").load(uri)):
        with pytest.raises(PySparkException, match=r"column 'v' of type timestamp\[ns\] .*columns="):
            frame.collect()
    assert read(spark, uri, columns=["n"]).count() == 1
