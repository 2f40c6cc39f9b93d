"""SQL views, frames without rows, and the description of a source in a query plan."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from lance_assets.spark import append, overwrite, read
from lance_core import Table


@pytest.fixture
def uri(tmp_path: Path) -> str:
    table_uri = str(tmp_path / "clicks.lance")
    Table.create(table_uri, pa.table({"id": [1, 2, 3]}))
    return table_uri


def test_view_is_read_and_written(spark: SparkSession, uri: str) -> None:
    spark.sql(f"create temporary view clicks using lance options (path '{uri}', filter 'id > 1')")
    try:
        assert [row.id for row in spark.sql("select id from clicks order by id").collect()] == [2, 3]
        spark.sql("insert into clicks values (9)")
    finally:
        spark.catalog.dropTempView("clicks")
    assert Table.open(uri).to_table()["id"].to_pylist() == [1, 2, 3, 9]


def test_catalog_tables_are_refused_with_a_remedy(spark: SparkSession, uri: str) -> None:
    """A catalog table loses its options, including its location."""
    with pytest.raises(AnalysisException, match=r"make a view|neither a path nor a URI"):
        spark.sql(f"create table clicks using lance options (path '{uri}')")
    assert not spark.catalog.tableExists("clicks")


def test_empty_frame_makes_no_version(spark: SparkSession, uri: str) -> None:
    nothing = spark.createDataFrame([], "id bigint")
    nothing.write.format("lance").mode("append").save(uri)
    assert append(nothing, uri).version == 1
    assert append(spark.range(0), uri).version == 1
    assert Table.open(uri).version == 1
    assert overwrite(nothing, uri).table.count_rows() == 0
    assert read(spark, uri).collect() == spark.read.format("lance").load(uri).collect() == []


def test_plan_names_the_version(spark: SparkSession, uri: str) -> None:
    """The plan is the only place that shows the version of a cached frame."""
    append(spark.range(5, 6), uri)
    for version in (1, 2):
        frame = read(spark, uri, version=version)
        text = frame._jdf.queryExecution().toString()
        assert f"ReadTask_of_version_{version}_of_clicks_lance" in text
