"""Lance tables as DataFrames: planned on the driver, read by executors, pinned to one version.

Which rows match is decided by Lance's SQL, in the workers, by the evaluator that one process uses. Counting and
aggregating read rows in the workers too, and bring no row to Spark: start with `read`, then `aggregate`.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lance_assets.spark.jobs import SparkRunner, count_task_slots, limited_driver_result, partition_numbers
from lance_assets.spark.types import spark_schema, transport_schema
from lance_assets.spark.worker_setup import WorkerTask
from lance_core.tasks import aggregate as aggregating
from lance_core.tasks import read as plans
from lance_core.tasks.read import FetchedRows, ManifestStore, ReadTask, VersionRef, fetch_or_plan


def read(
    spark: SparkSession,
    uri: str,
    *,
    columns: Sequence[str] | None = None,
    filter: str | None = None,
    version: int | None = None,
    tag: str | None = None,
    branch: str | None = None,
    with_row_id: bool = False,
    with_row_address: bool = False,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    bases: Sequence[str] = (),
) -> DataFrame:
    """The newest version, or the one that is named by its number or by a tag. The DataFrame keeps reading it, whatever
    is committed since. `filter` is a condition in Lance's SQL: only rows that match leave the workers, and of the
    others only the columns that it needs are read. Addresses and ids of rows come as `bigint`.

    Where indices say which few rows can match, those are read at once, by the driver, and are the DataFrame: to look
    up rows by their key takes no job."""
    base = VersionRef(uri, version, tag, branch, storage_options, manifest_store, tuple(bases)).snapshot()
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
        return spark.createDataFrame(plan.rows, schema) if plan.rows.num_rows else _empty_frame(spark, schema)
    if not plan.arrow.names:
        # Rows without columns do not travel as Arrow; how many there are is a number.
        return spark.range(plans.count_rows(base, filter, runner=lambda: SparkRunner(spark))).select()
    schema = spark_schema(plan.arrow)
    if not plan.partitions:
        return _empty_frame(spark, schema)
    return partition_numbers(spark, len(plan.partitions), plan.memory_bytes).mapInArrow(
        WorkerTask(ReadTask(plan)), schema
    )


def _empty_frame(spark: SparkSession, schema: StructType) -> DataFrame:
    """To look at which takes no job either: Spark sees that of none there is nothing to compute."""
    return spark.createDataFrame([], schema).limit(0)


def count_rows(
    spark: SparkSession,
    uri: str,
    filter: str | None = None,
    *,
    version: int | None = None,
    tag: str | None = None,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    bases: Sequence[str] = (),
) -> int:
    """How many rows there are: from the manifest, without a job. With a condition in Lance's SQL, how many match: the
    workers count them, and read nothing but its columns."""
    base = VersionRef(uri, version, tag, branch, storage_options, manifest_store, tuple(bases)).snapshot()
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
) -> pa.Table:
    """What a query with aggregates gives, such as `select city, avg(age) from dataset where age > 17 group by city`.
    The table is called `dataset` in it. Workers aggregate what they read; the driver puts their groups together."""
    base = VersionRef(uri, version, tag, branch, storage_options, manifest_store, tuple(bases)).snapshot()
    what = f"{base.location.uri}: the groups of {sql!r}"
    with limited_driver_result(what, "Ask for fewer groups, group the rows of read(...) with Spark"):
        return aggregating.aggregate(base, sql, runner=lambda: SparkRunner(spark))
