"""Change reader: the rows that were inserted, updated or deleted between two versions, as a DataFrame.

Executors compare the row ids of the fragments that differ between the versions, and read the rows that changed. No row
passes through the driver. `readStream.format("lance")` follows the rows that are added instead (`streaming.py`). Start
with `read_changes`.
"""

from collections.abc import Mapping, Sequence

import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from lance_assets.spark.arguments import check_session_call
from lance_assets.spark.jobs import count_task_slots, partition_numbers
from lance_assets.spark.reader import empty_frame
from lance_assets.spark.types import spark_schema, transport_schema
from lance_assets.spark.worker_setup import WorkerTask
from lance_core.tasks.scan.change_plan import ChangeTask, plan_read_changes
from lance_core.tasks.scan.read import ManifestStore, VersionRef


def read_changes(
    spark: SparkSession,
    uri: str,
    since: int,
    until: int | None = None,
    *,
    columns: Sequence[str] | None = None,
    filter: str | pc.Expression | None = None,
    with_row_id: bool = True,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    bases: Sequence[str] = (),
    verify: str = "off",
    trusted: bool = True,
) -> DataFrame:
    """Return the rows that differ between the versions `since` and `until` (default: the newest).

    The columns and rows are those of `Table.changes`: `_change` ("insert", "update" or "delete"), the columns of the
    later version or `columns`, `_rowid`, and the versions in which the row was created and last updated. Inserted and
    updated rows have their new values, deleted rows their old ones, and a condition in `filter` applies to these.
    Ids and versions have the type `bigint`. A row that was only moved, as by a compaction, is not a change. The table
    needs stable row ids (`append(..., stable_row_ids=True)`).

    The DataFrame is pinned to both versions, which must not be cleaned up before it is computed.
    """
    check_session_call("read_changes", spark, uri, storage_options, manifest_store, more=", since")
    later = VersionRef(
        uri, until, None, branch, storage_options, manifest_store, tuple(bases), verify, trusted=trusted
    ).snapshot()
    plan = plan_read_changes(
        later,
        since,
        columns=columns,
        filter=filter,
        with_row_id=with_row_id,
        transport=transport_schema,
        slots=count_task_slots(spark),
    )
    schema = spark_schema(plan.arrow)
    if not plan.partitions:
        return empty_frame(spark, schema)
    numbers = partition_numbers(spark, len(plan.partitions), plan.memory_bytes)
    return numbers.mapInArrow(WorkerTask(ChangeTask(plan)), schema)
