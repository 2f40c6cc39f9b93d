"""Arguments of the Spark functions: swapped ones and frames of other libraries are refused with the right call."""

import inspect
from collections.abc import Callable
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_assets.spark as functions
from lance_core import InvalidInput, Table

ROWS = pa.table({"id": [1]})
FRAME_FUNCTIONS = ("append", "overwrite", "upsert", "merge_columns", "nearest_join")
SESSION_FUNCTIONS = (
    *("read", "read_changes", "count_rows", "aggregate", "delete", "update", "compact"),
    *(
        "compute_columns",
        "refresh_view",
        "map_columns",
        "build_index",
        "optimize_indices",
        "export",
        "ingest",
        "verify_files",
        "explain_nearest_join",
        "text_search",
    ),
)
OTHER_FRAMES = [
    (pd.DataFrame({"id": [1]}), "a pandas DataFrame", "spark.createDataFrame(df)"),
    (pl.DataFrame({"id": [1]}), "a polars DataFrame", "spark.createDataFrame(df.to_arrow())"),
    (pl.DataFrame({"id": [1]}).lazy(), "a polars LazyFrame", "spark.createDataFrame(df.collect().to_arrow())"),
    (ROWS, "a pyarrow Table", "spark.createDataFrame(df)"),
    (ROWS.to_batches()[0], "a pyarrow RecordBatch", "spark.createDataFrame(pyarrow.Table.from_batches([df]))"),
    (ROWS.to_reader(), "a pyarrow RecordBatchReader", "spark.createDataFrame(df.read_all())"),
]


def call(name: str, *arguments: object) -> str:
    """Call a function with these first arguments, and any value for its other required ones; return the refusal."""
    function: Callable[..., Any] = getattr(functions, name)
    parameters = inspect.signature(function).parameters.values()
    required = [each for each in parameters if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]
    named = {each.name: None for each in parameters if each.default is each.empty and each.kind is each.KEYWORD_ONLY}
    more = ["x"] * (len(required) - len(arguments))
    with pytest.raises(InvalidInput) as refused:
        function(*arguments, *more, **named)
    message = str(refused.value)
    assert ". " not in message
    return message


def test_every_function_is_checked() -> None:
    others = {"ComputedColumn", "CsvFormat", "LanceDataSource", "SparkSettings"}
    others |= {"device_addresses", "live_session", "open_session", "upsert_batches"}
    assert {*FRAME_FUNCTIONS, *SESSION_FUNCTIONS, *others} == set(functions.__all__)


@pytest.mark.parametrize("name", FRAME_FUNCTIONS)
def test_frames_of_other_libraries(name: str) -> None:
    for frame, described, conversion in OTHER_FRAMES:
        message = call(name, frame, "t")
        assert message.startswith(f"{name} takes a DataFrame of Spark, not {described}: call {name}({conversion}, uri")
        assert "lance_core.Table" in message
        assert call(name, "t", frame).startswith(f"the arguments of {name} are swapped")
    for other in (None, [{"id": 1}], "t"):
        assert f"call {name}(df, uri" in call(name, other, "t")


@pytest.mark.parametrize("name", FRAME_FUNCTIONS)
def test_swapped_frame(spark: SparkSession, name: str) -> None:
    df = spark.range(1)
    assert call(name, "t", df).startswith(f"the arguments of {name} are swapped: call {name}(df, uri")
    assert call(name, df, df) == f"{name} takes the location of a table as uri, not a pyspark DataFrame: call " + (
        f"{name}(df, uri, on)" if name == "upsert" else f"{name}(df, uri)"
    )
    assert f"call {name}(df, uri" in call(name, spark, "t")


@pytest.mark.parametrize("name", SESSION_FUNCTIONS)
def test_session_functions(spark: SparkSession, name: str) -> None:
    df = spark.range(1)
    if name != "ingest":
        assert call(name, "t", spark).startswith(f"the arguments of {name} are swapped: call {name}(spark, uri")
    assert f"first argument, not a str: call {name}(spark, " in call(name, "t", "t")
    assert "as in df.sparkSession" in call(name, df, "t")
    wrong = (spark, "files", df) if name == "ingest" else (spark, df)
    assert "the location of a table as uri, not a pyspark DataFrame" in call(name, *wrong)


def test_frames_of_queries(spark: SparkSession) -> None:
    with pytest.raises(InvalidInput, match=r"query_df, not a pandas DataFrame: .*spark\.createDataFrame\(query_df\)"):
        functions.text_search(spark, "t", pd.DataFrame({"q": ["x"]}), query="q")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="text_search takes a DataFrame of Spark as query_df, not a list"):
        functions.text_search(spark, "t", ["x"], query="q")  # type: ignore[arg-type]


def test_core_methods_refuse_other_frames(spark: SparkSession, tmp_path) -> None:
    table = Table.create(tmp_path / "t", ROWS)
    df = spark.range(1)
    for use, function in (
        (lambda rows: table.append(rows), "append(df, uri)"),
        (lambda rows: table.overwrite(rows), "append(df, uri)"),
        (lambda rows: table.upsert(rows, "id"), "append(df, uri)"),
        (lambda rows: table.merge_columns(rows, "id"), "append(df, uri)"),
        (lambda rows: Table.create(tmp_path / "u", rows), "append(df, uri)"),
    ):
        with pytest.raises(InvalidInput, match=r"not a DataFrame of Spark: .*lance_assets\.spark") as refused:
            use(df)
        assert function in str(refused.value)
    with pytest.raises(InvalidInput, match="swapped"):
        Table.create(ROWS, tmp_path / "u")
