"""Full-text search on Spark: the queries of a DataFrame are answered in the workers."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lance_assets.spark import text_search
from lance_core import InvalidInput, Table


def test_the_queries_of_a_frame_are_answered(spark: SparkSession, tmp_path: Path) -> None:
    texts = [f"lance w{number % 7}" if number % 3 else f"table w{number % 5}" for number in range(60)]
    table = Table.create(tmp_path / "t", {"id": list(range(60)), "body": texts}, durable=False)
    table = table.create_index("body", "INVERTED").table
    questions = ["lance w3", "table w1", None, '{"phrase": {"column": "body", "terms": "nothing"}}']
    df = spark.createDataFrame(list(enumerate(questions)), "key int, question string").repartition(3)
    answered = text_search(
        spark, table.uri, df, query="question", k=4, columns="body", filter="id > 9", select=["id"], highlight=True
    )
    assert answered.columns == ["key", "question", "id", "_score", "_highlights"]
    table.delete("true")  # the version is pinned
    found = answered.orderBy("key", F.desc("_score"), "id").collect()
    assert {row.key for row in found} == {0, 1}
    for key in (0, 1):
        expected = table.text_search(
            str(questions[key]), 4, columns="body", filter="id > 9", select=["id"], highlight=True
        )
        rows = [row for row in found if row.key == key]
        spans = {row.id: [span.asDict() for span in row._highlights] for row in rows}
        assert spans == dict(zip(expected["id"].to_pylist(), expected["_highlights"].to_pylist(), strict=True))
        assert sorted(row.id for row in rows) == sorted(expected["id"].to_pylist())
        assert [row._score for row in rows] == pytest.approx(expected["_score"].to_pylist())
    with pytest.raises(InvalidInput, match="query='key' has the type int"):
        text_search(spark, table.uri, df, query="key", columns="body", select=["id"], version=table.version)
    renamed = df.withColumnRenamed("key", "id")
    with pytest.raises(InvalidInput, match="both sides have a column 'id'"):
        text_search(spark, table.uri, renamed, query="question", columns="body", version=table.version)
