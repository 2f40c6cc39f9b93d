"""Tests of `lance_assets/spark/release.py` with the installed release. `make spark-matrix` runs the others."""

import sys
from importlib.util import find_spec
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lance_assets.spark import append, release
from lance_assets.spark.types import spark_schema
from lance_core import MissingDependency, Unsupported

ROWS = pa.table(
    {
        "id": pa.array([1, 2, None], pa.int64()),
        "name": pa.array(["a", None, "c"]),
        "tags": pa.array([["x"], [], None], pa.list_(pa.string())),
        "at": pa.array([0, None, 1_700_000_000_000_000], pa.timestamp("us", "UTC")),
    }
)


class OlderFrame:
    """DataFrame without the methods that Spark 4 added."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self.schema = frame.schema

    def _collect_as_arrow(self) -> list[pa.RecordBatch]:
        return cast(list[pa.RecordBatch], self._frame._collect_as_arrow())  # type: ignore[operator]

    def repartition(self, *arguments: object) -> DataFrame:
        return self._frame.repartition(*arguments)  # type: ignore[arg-type]


def test_rows_pass_through_the_interfaces_of_older_releases(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = release.create_frame(spark, ROWS, spark_schema(ROWS.schema))
    monkeypatch.setattr(release, "RELEASE", (3, 5))
    older = release.create_frame(spark, ROWS, spark_schema(ROWS.schema))
    assert older.schema == newest.schema
    collected = release.collect_arrow(cast(DataFrame, OlderFrame(older)))
    assert collected.to_pylist() == release.collect_arrow(newest).to_pylist() == ROWS.to_pylist()


def test_rows_with_equal_numbers_share_a_partition_in_older_releases(spark: SparkSession) -> None:
    rows = spark.range(0, 100, 1, 4).selectExpr("id", "id % 7 as number")
    partitioned = release.repartition_by_id(cast(DataFrame, OlderFrame(rows)), 7, F.col("number"))
    pairs = partitioned.select("number", F.spark_partition_id().alias("partition")).distinct().collect()
    assert len(pairs) == len({pair.number for pair in pairs}) == 7


def test_a_missing_interface_is_refused_with_the_release_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "RELEASE", (4, 0))
    with pytest.raises(Unsupported, match=r"the sink needs Spark 4\.1, and this is PySpark .*; use another"):
        release.require_release((4, 1), "the sink", "use another")
    release.require_release((4, 0), "the source", "")
    assert release.existing_types("LongType", "NoSuchType") == (T.LongType,)


def test_the_data_source_is_refused_before_its_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "RELEASE", (3, 5))
    with pytest.raises(Unsupported, match=r"the format lance needs Spark 4\.0, .*; call read and append"):
        from lance_assets.spark import LanceDataSource  # noqa: F401
    monkeypatch.undo()
    from lance_assets.spark import LanceDataSource as found

    assert found.name() == "lance"


def test_a_python_that_is_too_new_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "RELEASE", (3, 5))
    monkeypatch.setattr(sys, "version_info", (3, 13, 0, "final", 0))
    with pytest.raises(Unsupported, match=r"supports Python up to 3\.12, and this is Python 3\.13"):
        release.check_environment()


def test_a_pandas_that_does_not_load_with_numpy_is_refused() -> None:
    for pandas, numpy in ((None, "2.1.0"), ("1.5.3", "1.26.4"), ("2.2.3", "2.0.0"), ("3.1.0rc1", "2.4.6")):
        release.check_pandas(pandas, numpy)
    with pytest.raises(MissingDependency, match=r"pandas 1\.5\.3 does not load with numpy 2\.1\.0; .*pandas>=2\.2\.3"):
        release.check_pandas("1.5.3", "2.1.0")


def test_a_python_without_distutils_is_refused_before_a_job(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "RELEASE", (3, 5))
    monkeypatch.setattr(sys, "version_info", (3, 12, 0, "final", 0))
    release.check_environment()
    monkeypatch.setattr(release, "find_spec", lambda name: None if name == "distutils" else find_spec(name))
    with pytest.raises(MissingDependency, match=r"needs the module distutils, and this is Python 3\.12.*setuptools"):
        append(spark.range(1), "never-written")
