"""Nearest join on Spark: a DataFrame and a table are joined by their vectors, in the workers."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lance_assets.spark import explain_nearest_join, nearest_join
from lance_core import InvalidInput, Table
from tests.lance_core.index.vector.test_multivectors import multivectors
from tests.lance_core.index.vector.test_multivectors import query as multivector_query
from tests.lance_core.index.vector.test_vector_build import QUERIES, write_table


def test_a_frame_is_joined_with_a_table(spark: SparkSession, tmp_path: Path) -> None:
    table = write_table(tmp_path / "t", pa.float32()).create_index("v", "IVF_FLAT", num_partitions=6).table
    queries = [*[each.tolist() for each in QUERIES], None]
    df = spark.createDataFrame(list(enumerate(queries)), "key int, query_vec array<float>").repartition(3)
    joined = nearest_join(df, table.uri, column="v", vector="query_vec", k=4, nprobes=6, filter="id > 100")
    assert joined.columns == ["key", "query_vec", "id", "v", "_distance"]
    table.delete("true")  # the version is pinned
    rows = joined.orderBy("key", "_distance").collect()
    expected = table.search("v", QUERIES, 4, exact=True, filter="id > 100")
    assert [row.id for row in rows] == expected["id"].to_pylist()
    np.testing.assert_allclose([row._distance for row in rows], expected["_distance"], rtol=1e-5)
    assert [row.v for row in rows] == expected["v"].to_pylist()
    best = joined.groupBy("key").agg(F.min("_distance")).count()
    assert best == 3
    pairs = nearest_join(
        df, table.uri, column="v", vector="query_vec", k=3, columns=["id"], version=table.version,
        condition="right.id % 3 = left.key", filter="id > 50",
    )  # fmt: skip
    assert [row.id for row in pairs.orderBy("key", "_distance").collect()] == [
        number
        for key, each in enumerate(QUERIES)
        for number in table.search("v", each, 3, exact=True, filter=f"id % 3 = {key} and id > 50")["id"].to_pylist()
    ]
    left = nearest_join(
        df, table.uri, column="v", vector="query_vec", k=1, how="left", columns=["id"], version=table.version
    )
    assert [row.id is None for row in left.orderBy("key").collect()] == [False, False, False, True]
    assert "products" in explain_nearest_join(spark, table.uri, column="v", version=table.version)


def test_vectors_of_the_frame(spark: SparkSession, tmp_path: Path) -> None:
    table = write_table(tmp_path / "t", pa.float32())
    df = spark.range(2).withColumn("q", F.lit("text"))
    with pytest.raises(InvalidInput, match="vector='q' has the type string"):
        nearest_join(df.drop("id"), table.uri, column="v", vector="q")
    with pytest.raises(InvalidInput, match="how must be"):
        nearest_join(df, table.uri, column="v", vector="q", how="outer")  # type: ignore[arg-type]


def test_queries_of_several_vectors(spark: SparkSession, tmp_path: Path) -> None:
    table = Table.create(tmp_path / "lists", multivectors(), durable=False)
    queries = [multivector_query(seed, 1 + seed % 3).tolist() for seed in range(5)]
    df = spark.createDataFrame([*enumerate(queries), (5, None)], "key int, q array<array<float>>").repartition(2)
    joined = nearest_join(df, table.uri, column="v", vector="q", k=3, metric="cosine", columns=["id"], how="left")
    rows = joined.orderBy("key", "_distance").collect()
    expected = [
        number
        for each in queries
        for number in table.search("v", each, 3, metric="cosine", columns=["id"])["id"].to_pylist()
    ]
    assert [row.id for row in rows] == [*expected, None]
    vectors = write_table(tmp_path / "t", pa.float32())
    with pytest.raises(InvalidInput, match="vector='q' has lists of vectors"):
        nearest_join(df, vectors.uri, column="v", vector="q")
