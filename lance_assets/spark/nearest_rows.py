"""Nearest join: for each row of a DataFrame the nearest rows of a Lance table, by the vectors of both.

Workers search the pinned version of the table with its vector index, or by exact matrix products, for the queries of
many rows at a time. A row of the table enters the JVM only as a part of the result. Start with `nearest_join`.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from lance_assets.spark.arguments import check_frame_call, check_session_call
from lance_assets.spark.types import spark_schema, stored_schema, transport_schema
from lance_assets.spark.worker_setup import WorkerTask
from lance_core import InvalidInput
from lance_core.tasks.partitioning import VersionHeader
from lance_core.tasks.scan import nearest
from lance_core.tasks.scan.nearest import NearestJoin, SearchRequest
from lance_core.tasks.scan.read import ManifestStore, VersionRef

_NUMBERS = (T.FloatType, T.DoubleType, T.ByteType, T.ShortType, T.IntegerType, T.LongType)
Metric = Literal["l2", "cosine", "dot", "hamming"]


def nearest_join(
    df: DataFrame,
    uri: str,
    *,
    column: str,
    vector: str,
    k: int = 10,
    how: Literal["inner", "left"] = "inner",
    metric: Metric | None = None,
    nprobes: int | None = None,
    refine: int | None = None,
    ef: int | None = None,
    filter: str | None = None,
    condition: str | None = None,
    columns: Sequence[str] | None = None,
    exact: bool = False,
    version: int | None = None,
    tag: str | None = None,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    bases: Sequence[str] = (),
    verify: str = "off",
    trusted: bool = True,
) -> DataFrame:
    """Return each row of `df` with the `k` rows of the table whose vectors in `column` are nearest to its `vector`.

    `vector` is a column of arrays of numbers; for a table column of lists of vectors, it may also be one of arrays of
    such arrays, each a query of several vectors. The result has the columns of `df`, the `columns` of the table (all by
    default) and `_distance`, a row for each pair, nearest first. A row whose vector is null, or whose list of vectors
    is empty, has no pairs; with `how="left"` rows without pairs are kept, with nulls. `filter` is a condition in Lance
    SQL on the rows of the table: `k` rows come back whenever as many match.

    `condition` is one on pairs: `"left.lang = right.lang AND right.id <> left.id"` has columns of `df` as `left.x` and
    columns of the table as `right.x`. Again `k` rows come back whenever as many match. If it reads columns of `df`, all
    vectors are compared, and it is evaluated for the pairs that are near enough; otherwise it works like `filter`.

    The DataFrame is pinned to the newest version of the table, or to the one that a number or a tag names. The
    arguments of the search are those of `Table.search`. Workers search for the vectors of up to 4,096 rows at a time.
    They use the vector index, unless comparing all vectors takes no longer, which `explain_nearest_join` shows;
    `exact=True` compares all vectors. A worker holds the partitions of the index that it has searched, up to 1 GiB.
    """
    check_frame_call("nearest_join", df, uri, storage_options, manifest_store)
    if how not in ("inner", "left"):
        raise InvalidInput(f"how must be 'inner' or 'left', not {how!r}")
    base = VersionRef(
        uri, version, tag, branch, storage_options, manifest_store, tuple(bases), verify, trusted=trusted
    ).snapshot()
    request, pairs = SearchRequest(column, k, metric, nprobes, refine, ef, filter, columns, exact), None
    if condition is not None:
        read = T.StructType([field for field in df.schema.fields if field.name in str(condition)])
        request, pairs = nearest.add_condition(base, request, condition, stored_schema(read))
    request, stored = nearest.plan_nearest_join(
        base,
        request,
        df.columns,
        vector,
        keeps_all=how == "left",
    )
    _check_vectors(df.schema[vector], nearest.has_lists_of_vectors(base, column))
    right = transport_schema(stored)
    task = NearestJoin(VersionHeader.of(base), request, vector, how == "left", right, pairs)
    return df.mapInArrow(WorkerTask(task), T.StructType([*df.schema.fields, *spark_schema(stored).fields]))


def explain_nearest_join(
    spark: SparkSession,
    uri: str,
    *,
    column: str,
    k: int = 10,
    queries: int = nearest.GROUP_QUERIES_MAX,
    metric: Metric | None = None,
    nprobes: int | None = None,
    refine: int | None = None,
    ef: int | None = None,
    filter: str | None = None,
    condition: str | None = None,
    version: int | None = None,
    tag: str | None = None,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    bases: Sequence[str] = (),
    verify: str = "off",
    trusted: bool = True,
) -> str:
    """Return how a worker of `nearest_join` finds the nearest rows for `queries` rows at a time: by which index, and
    the estimated seconds with the index and with matrix products. Nothing is searched."""
    check_session_call("explain_nearest_join", spark, uri, storage_options, manifest_store)
    base = VersionRef(
        uri, version, tag, branch, storage_options, manifest_store, tuple(bases), verify, trusted=trusted
    ).snapshot()
    request = SearchRequest(column, k, metric, nprobes, refine, ef, filter)
    return nearest.explain_nearest_join(base, request, queries, condition)


def _check_vectors(field: T.StructField, may_be_lists: bool) -> None:
    """Raise `InvalidInput` unless a column has arrays of numbers or, if allowed, arrays of such arrays."""
    type_ = field.dataType
    vector = type_.elementType if isinstance(type_, T.ArrayType) and may_be_lists else None
    if _is_vector(type_) or _is_vector(vector):
        return
    if isinstance(type_, T.ArrayType) and _is_vector(type_.elementType):
        raise InvalidInput(
            f"vector={field.name!r} has lists of vectors, but a value of the column of the table is one vector; give "
            "each row one vector, such as with explode()"
        )
    raise InvalidInput(
        f"vector={field.name!r} has the type {type_.simpleString()}, but a query vector is an array of numbers; "
        "vector_to_array() converts a column of Spark ML"
    )


def _is_vector(type_: T.DataType | None) -> bool:
    return isinstance(type_, T.ArrayType) and isinstance(type_.elementType, _NUMBERS)
