"""Ops that change rows, by real executors."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_assets.spark import delete
from lance_core import InvalidInput, Table


def made(place: Path) -> str:
    uri = str(place / "table")
    rows = pa.table({"id": pa.array(range(1000), pa.int64()), "name": [f"n{number % 7}" for number in range(1000)]})
    Table.create(uri, rows, max_rows_per_file=100, durable=False)
    return uri


def test_rows_are_deleted_by_the_workers(spark: SparkSession, tmp_path: Path) -> None:
    uri = made(tmp_path)
    files = {file.path for part in Table.open(uri).fragments for file in part.files}
    committed = delete(spark, uri, "id % 10 = 3 or name = 'n5'", properties={"dagster.run_id": "r1"}, intent="monday")
    kept = [number for number in range(1000) if number % 10 != 3 and number % 7 != 5]
    assert (committed.operation, committed.rows_removed) == ("Delete", 1000 - len(kept))
    assert lance.dataset(uri).to_table()["id"].to_pylist() == kept
    assert {file.path for part in committed.table.fragments for file in part.files} == files
    assert committed.table.versions()[-1].properties["dagster.run_id"] == "r1"
    assert delete(spark, uri, "id > 0", intent="monday").landed_before


def test_a_condition_that_does_not_parse_is_told_on_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    uri = made(tmp_path)
    with pytest.raises(InvalidInput, match="character"):
        delete(spark, uri, "id = = 3")
    assert Table.open(uri).version == 1
