"""Driver results: with a tiny limit on collected results, every operation succeeds on a table of vectors."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from lance_assets.spark import (
    aggregate,
    append,
    compact,
    count_rows,
    delete,
    map_columns,
    merge_columns,
    overwrite,
    read,
    update,
    upsert,
)
from lance_core import InvalidInput, Table

BOUND = "spark.driver.maxResultSize"
ROWS, WIDTH = 3000, 64


@pytest.fixture
def bounded(spark: SparkSession) -> Iterator[SparkSession]:
    """Session whose result limit admits the reports of a few tasks, but no rows; a row has 256 bytes."""
    conf = spark.sparkContext._jsc.sc().conf()
    conf.set(BOUND, "128k")
    yield spark
    conf.remove(BOUND)


def test_operations_collect_no_rows(bounded: SparkSession, tmp_path: Path) -> None:
    spark, uri = bounded, str(tmp_path / "t")
    numbers = pa.array(np.random.default_rng(0).random(ROWS * WIDTH), pa.float32())
    vectors = pa.FixedSizeListArray.from_arrays(numbers, WIDTH)
    Table.create(uri, pa.table({"id": range(ROWS), "v": vectors}), max_rows_per_file=ROWS // 4, durable=False)
    with pytest.raises(Py4JError, match=rf"bigger than {BOUND}"):
        read(spark, uri).collect()  # a query that collects all rows fails in Spark

    append(read(spark, uri), uri)
    update(spark, uri, {"id": f"id + {ROWS}"}, "_rowoffset >= 0 and id % 2 = 0")
    delete(spark, uri, "id % 10 = 3")
    upsert(read(spark, uri, filter="id % 2 = 0", version=1), uri, "id")
    named = read(spark, uri, columns=["id"], with_row_address=True).selectExpr("_rowaddr", "cast(id as string) name")
    merge_columns(named, uri)

    def copied(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"w": batch["v"]})

    map_columns(spark, uri, copied, read_columns=["v"], schema=pa.schema([pa.field("w", vectors.type)]))
    compact(spark, uri)
    table = Table.open(uri)
    rows = count_rows(spark, uri, "id >= 0")
    assert rows == table.count_rows() > ROWS
    assert table.count_rows("w is null or name is null") == 0
    assert overwrite(read(spark, uri, columns=["id", "v", "w", "name"], filter="id < 500"), uri).rows_added < rows


def test_too_many_groups_are_an_error(bounded: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, pa.table({"id": range(100_000)}), durable=False)
    message = rf"(?s)t: the groups of 'select id.*the workers returned.*{BOUND} \(128.0 KiB\).*fewer groups"
    with pytest.raises(InvalidInput, match=message):
        aggregate(bounded, uri, "select id, count(*) as n from dataset group by id")
    groups = aggregate(bounded, uri, "select id % 10 as digit, count(*) as n from dataset group by digit")
    assert sorted(groups["n"].to_pylist()) == [10_000] * 10
