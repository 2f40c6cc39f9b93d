"""Argument checks of the Spark functions: swapped arguments, frames of other libraries, and exposed secrets.

A wrong argument is refused in one sentence with the right call, before any table is opened and any job runs.
"""

import os
from collections.abc import Mapping
from typing import cast

from pyspark.sql import DataFrame, SparkSession

from lance_assets.spark.redaction import warn_of_exposed_references
from lance_assets.spark.release import check_environment, is_frame
from lance_assets.spark.session import is_session
from lance_core import InvalidInput

_FRAME_CONVERSIONS = {
    ("pandas", "DataFrame"): "spark.createDataFrame({0})",
    ("polars", "DataFrame"): "spark.createDataFrame({0}.to_arrow())",
    ("polars", "LazyFrame"): "spark.createDataFrame({0}.collect().to_arrow())",
    ("pyarrow", "Table"): "spark.createDataFrame({0})",
    ("pyarrow", "RecordBatch"): "spark.createDataFrame(pyarrow.Table.from_batches([{0}]))",
    ("pyarrow", "RecordBatchReader"): "spark.createDataFrame({0}.read_all())",
    ("pyspark.pandas", "DataFrame"): "{0}.to_spark()",
}
"""Expression that makes a DataFrame of Spark, by library and class."""


def check_frame_call(
    function: str,
    df: object,
    uri: object,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: object = None,
    *,
    more: str = "",
) -> None:
    """Raise `InvalidInput` unless a function was called as `function(df, uri)`; `more` are its further arguments."""
    check_environment()
    call = f"{function}(df, uri{more})"
    if not is_frame(df):
        raise InvalidInput(_frame_message(function, df, uri, call, more))
    _check_uri(function, uri, call)
    if storage_options or manifest_store is not None:
        warn_of_exposed_references(cast(DataFrame, df).sparkSession, storage_options, manifest_store)


def check_session_call(
    function: str,
    spark: object,
    uri: object,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: object = None,
    *,
    more: str = "",
    before: str = "",
) -> None:
    """Raise `InvalidInput` unless a function was called as `function(spark, uri)`.

    `before` and `more` are its arguments before and after the URI.
    """
    check_environment()
    call = f"{function}(spark, {before}uri{more})"
    if not is_session(spark):
        if is_session(uri):
            raise InvalidInput(f"the arguments of {function} are swapped: call {call}")
        hint = ", as in df.sparkSession" if is_frame(spark) else ""
        raise InvalidInput(
            f"{function} takes a Spark session{hint} as its first argument, not {_described(spark)}: call {call}"
        )
    _check_uri(function, uri, call)
    if storage_options or manifest_store is not None:
        warn_of_exposed_references(cast(SparkSession, spark), storage_options, manifest_store)


def check_frame_argument(function: str, name: str, df: object) -> None:
    """Raise `InvalidInput` unless the argument `name` of a function is a DataFrame of Spark."""
    if not is_frame(df):
        conversion = _conversion(df)
        hint = "" if conversion is None else f": convert it by {conversion.format(name)}"
        raise InvalidInput(f"{function} takes a DataFrame of Spark as {name}, not {_described(df)}{hint}")


def _frame_message(function: str, df: object, uri: object, call: str, more: str) -> str:
    if is_frame(uri):
        return f"the arguments of {function} are swapped: call {call}"
    if _conversion(uri) is not None:
        call = f"{function}({str(_conversion(uri)).format('df')}, uri{more})"
        return f"the arguments of {function} are swapped, and it takes a DataFrame of Spark: call {call}"
    if conversion := _conversion(df):
        return (
            f"{function} takes a DataFrame of Spark, not {_described(df)}: call "
            f"{function}({conversion.format('df')}, uri{more}), or write it without Spark by lance_core.Table"
        )
    return f"{function} takes a DataFrame of Spark as its first argument, not {_described(df)}: call {call}"


def _check_uri(function: str, uri: object, call: str) -> None:
    if not isinstance(uri, str | os.PathLike):
        raise InvalidInput(f"{function} takes the location of a table as uri, not {_described(uri)}: call {call}")


def _conversion(value: object) -> str | None:
    module, name = type(value).__module__, type(value).__name__
    return next(
        (
            conversion
            for (library, class_name), conversion in _FRAME_CONVERSIONS.items()
            if name == class_name and (module == library or module.startswith(f"{library}."))
        ),
        None,
    )


def _described(value: object) -> str:
    """Return the type of a value with its library: `a pandas DataFrame`. The value itself may be a secret."""
    if value is None:
        return "None"
    library = type(value).__module__.partition(".")[0]
    return f"a {type(value).__name__}" if library == "builtins" else f"a {library} {type(value).__name__}"
