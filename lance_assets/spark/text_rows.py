"""Full-text search on Spark: for each query of a DataFrame the best rows of a Lance table.

Workers search the pinned version of the table with its full-text index. A row of the table enters the JVM only as a
part of the result. Start with `text_search`.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from lance_assets.spark.arguments import check_frame_argument, check_session_call
from lance_assets.spark.types import spark_schema, transport_schema
from lance_assets.spark.worker_setup import WorkerTask
from lance_core import InvalidInput
from lance_core.tasks.partitioning import VersionHeader
from lance_core.tasks.scan import text_queries
from lance_core.tasks.scan.read import ManifestStore, VersionRef


def text_search(
    spark: SparkSession,
    uri: str,
    query_df: DataFrame,
    *,
    query: str,
    k: int = 10,
    columns: str | Sequence[str] | None = None,
    filter: str | None = None,
    select: Sequence[str] | None = None,
    highlight: bool = False,
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
    """Return each row of `query_df` with the `k` rows of the table that match its `query` best.

    `query` is a column of texts, or of queries in JSON. The result has the columns of `query_df`, the `select` columns
    of the table (all by default) and `_score`, a row for each match, best first, and with `highlight=True` also
    `_highlights`. A row whose query is null, or that matches nothing, is left out. The other arguments are those of
    `Table.text_search`.

    The DataFrame is pinned to the newest version of the table, or to the one that a number or a tag names. Repartition
    `query_df` to use more workers; what a worker reads of the index stays in its memory, up to 512 MiB.
    """
    more = ", query_df, query="
    check_session_call("text_search", spark, uri, storage_options, manifest_store, more=more)
    check_frame_argument("text_search", "query_df", query_df)
    base = VersionRef(
        uri, version, tag, branch, storage_options, manifest_store, tuple(bases), verify, trusted=trusted
    ).snapshot()
    request, stored = text_queries.plan_text_queries(
        base,
        text_queries.request_of(k, columns, filter, select, highlight=highlight, exact=exact),
        query_df.columns,
        query,
    )
    if not isinstance(query_df.schema[query].dataType, T.StringType):
        found = query_df.schema[query].dataType.simpleString()
        raise InvalidInput(f"query={query!r} has the type {found}, but a query is a text")
    task = text_queries.TextQueries(VersionHeader.of(base), request, query, transport_schema(stored))
    return query_df.mapInArrow(WorkerTask(task), T.StructType([*query_df.schema.fields, *spark_schema(stored).fields]))
