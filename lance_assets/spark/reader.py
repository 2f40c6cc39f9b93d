"""Reader: Lance tables as DataFrames, planned on the driver, read by executors and pinned to one version.

Filters are Lance SQL, or expressions of pyarrow, which are translated. The workers evaluate them with the same
evaluator as a scan in one process. `count_rows` and `aggregate` also read in the workers and pass no rows to Spark.
Start with `read`, then `aggregate`.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lance_assets.spark.arguments import check_session_call
from lance_assets.spark.jobs import SparkRunner, count_task_slots, limited_driver_result, partition_numbers
from lance_assets.spark.release import create_frame
from lance_assets.spark.types import spark_schema, transport_schema
from lance_assets.spark.worker_setup import WorkerTask
from lance_core.tasks.scan import aggregate as aggregating
from lance_core.tasks.scan import read as plans
from lance_core.tasks.scan.read import FetchedRows, ManifestStore, ReadTask, VersionRef, fetch_or_plan


def read(
    spark: SparkSession,
    uri: str,
    *,
    columns: Sequence[str] | None = None,
    filter: str | pc.Expression | None = None,
    version: int | None = None,
    tag: str | None = None,
    branch: str | None = None,
    with_row_id: bool = False,
    with_row_address: bool = False,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    bases: Sequence[str] = (),
    verify: str = "off",
    trusted: bool = True,
) -> DataFrame:
    """Return a DataFrame of the newest version, or of the version that a number or a tag names.

    The DataFrame is pinned to that version: later commits do not change it. `filter` is a condition in Lance SQL. Only
    matching rows leave the workers, and of the other rows only the columns of the filter are read. Row addresses and
    row ids have the type `bigint`. With `verify="read"` each worker compares a file with its recorded checksum before
    it reads it, and with `"sample"` one file in sixteen.

    If indices limit the matches to a few rows, the driver reads those rows during this call and the DataFrame holds
    them. A lookup by key therefore runs no Spark job.

    With `trusted=False`, the driver and the workers decode all files in processes of their own; see `Table.open`.
    """
    check_session_call("read", spark, uri, storage_options, manifest_store)
    base = VersionRef(
        uri, version, tag, branch, storage_options, manifest_store, tuple(bases), verify, trusted=trusted
    ).snapshot()
    plan = fetch_or_plan(
        base,
        columns=columns,
        filter=filter,
        with_row_id=with_row_id,
        with_row_address=with_row_address,
        transport=transport_schema,
        slots=count_task_slots(spark),
    )
    if isinstance(plan, FetchedRows):
        schema = spark_schema(plan.arrow)
        return create_frame(spark, plan.rows, schema) if plan.rows.num_rows else empty_frame(spark, schema)
    if not plan.arrow.names:
        # Arrow batches of Spark cannot carry rows without columns, so a range of the same length replaces them.
        return spark.range(plans.count_rows(base, filter, runner=lambda: SparkRunner(spark))).select()
    schema = spark_schema(plan.arrow)
    if not plan.partitions:
        return empty_frame(spark, schema)
    return partition_numbers(spark, len(plan.partitions), plan.memory_bytes).mapInArrow(
        WorkerTask(ReadTask(plan)), schema
    )


def empty_frame(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return an empty DataFrame. With `limit(0)` the optimizer sees that it needs no job."""
    return spark.createDataFrame([], schema).limit(0)


def count_rows(
    spark: SparkSession,
    uri: str,
    filter: str | pc.Expression | None = None,
    *,
    version: int | None = None,
    tag: str | None = None,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    bases: Sequence[str] = (),
    verify: str = "off",
    trusted: bool = True,
) -> int:
    """Return the number of rows.

    Without a filter the number comes from the manifest and no job runs. With a filter, a condition in Lance SQL, the
    workers count the matching rows and read the columns of the filter only.
    """
    check_session_call("count_rows", spark, uri, storage_options, manifest_store)
    base = VersionRef(
        uri, version, tag, branch, storage_options, manifest_store, tuple(bases), verify, trusted=trusted
    ).snapshot()
    return plans.count_rows(base, filter, runner=lambda: SparkRunner(spark))


def aggregate(
    spark: SparkSession,
    uri: str,
    sql: str,
    *,
    version: int | None = None,
    tag: str | None = None,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    bases: Sequence[str] = (),
    verify: str = "off",
    trusted: bool = True,
) -> pa.Table:
    """Return the result of an aggregate query such as `select city, avg(age) from dataset where age > 17 group by
    city`.

    The query calls the table `dataset`. Each worker aggregates the rows that it reads; the driver merges the partial
    groups.
    """
    check_session_call("aggregate", spark, uri, storage_options, manifest_store, more=", sql")
    base = VersionRef(
        uri, version, tag, branch, storage_options, manifest_store, tuple(bases), verify, trusted=trusted
    ).snapshot()
    subject = f"{base.location.uri}: the groups of {sql!r}"
    with limited_driver_result(subject, "Query fewer groups, or group the rows of read(...) with Spark"):
        return aggregating.aggregate(base, sql, runner=lambda: SparkRunner(spark))
