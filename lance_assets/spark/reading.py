"""Lance tables as DataFrames: planned on the driver, read by executors, pinned to one version."""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from lance_assets.spark.jobs import slots
from lance_assets.spark.types import spark_schema, transport_schema
from lance_core import Table
from lance_core.tasks.read import ReadTask, plan_read

_TASKS_PER_SLOT = 4


def read(
    spark: SparkSession,
    uri: str,
    *,
    columns: Sequence[str] | None = None,
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The newest version, or the one that is named. The DataFrame keeps reading it, whatever is committed since."""
    table = Table.open(uri, version=version, storage_options=storage_options)
    if columns is not None and not columns:
        # Rows without columns do not travel as Arrow; how many there are the driver knows.
        return spark.range(table.count_rows()).select()
    plan = plan_read(
        table,
        columns=columns,
        transport=transport_schema,
        groups_max=slots(spark) * _TASKS_PER_SLOT,
        storage_options=storage_options,
    )
    schema = spark_schema(plan.arrow)
    if not plan.groups:
        return spark.createDataFrame([], schema)
    groups = len(plan.groups)
    return spark.range(0, groups, 1, groups).mapInArrow(ReadTask(plan), schema)
