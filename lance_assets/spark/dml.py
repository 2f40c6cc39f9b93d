"""Changing rows of Lance tables: executors find them and write files, the driver commits once.

Which rows an op touches is decided by Lance's SQL, in the workers, by the evaluator that one process uses; Spark's own
SQL never decides it. When somebody else was in the way, the job is run again on the newest version.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from pyspark.sql import DataFrame, SparkSession

from lance_assets.spark.arrow_bridge import map_in_arrow
from lance_assets.spark.jobs import FRAGMENT_RESULT_SCHEMA, SparkRunner
from lance_assets.spark.types import stored_schema
from lance_core import Committed
from lance_core.tasks import compact as compacting
from lance_core.tasks import delete as deleting
from lance_core.tasks import update as updating
from lance_core.tasks import upsert as upserting
from lance_core.tasks.compact import GROUPS_AT_ONCE
from lance_core.tasks.driver import ATTEMPTS, Audit, ManifestStore, TableRef, WriteOptions
from lance_core.tasks.upsert import UpsertRules
from lance_core.tasks.write import BYTES_PER_FILE_MAX, ROWS_PER_FILE_MAX, FileLimits


def delete(
    spark: SparkSession,
    uri: str,
    predicate: str,
    *,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
    audit: Audit | None = None,
) -> Committed:
    """Remove the rows that match, in Lance's SQL. No data file is touched: deletion files are written, and a fragment
    of which nothing is left goes."""
    return deleting.delete(
        TableRef(uri, branch, storage_options, manifest_store),
        predicate,
        how=WriteOptions(intent, properties, retries, audit),
        runner=SparkRunner(spark),
    )


def update(
    spark: SparkSession,
    uri: str,
    set: Mapping[str, str],
    where: str | None = None,
    *,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
    audit: Audit | None = None,
    max_rows_per_file: int = ROWS_PER_FILE_MAX,
    max_bytes_per_file: int = BYTES_PER_FILE_MAX,
) -> Committed:
    """Give columns new values, `{column: SQL}`, in the rows that match `where`; in all rows without it. Both are
    Lance's SQL. Rows are moved to new files or their columns rewritten in place, whichever is cheaper for the table."""
    return updating.update(
        TableRef(uri, branch, storage_options, manifest_store),
        set,
        where,
        limits=FileLimits(max_rows_per_file, max_bytes_per_file),
        how=WriteOptions(intent, properties, retries, audit),
        runner=SparkRunner(spark),
    )


def upsert(
    df: DataFrame,
    uri: str,
    on: str | Sequence[str],
    *,
    matched: str = "update",
    matched_if: str | None = None,
    insert: bool = True,
    delete_unmatched: bool | str | None = False,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
    audit: Audit | None = None,
    max_rows_per_file: int = ROWS_PER_FILE_MAX,
    max_bytes_per_file: int = BYTES_PER_FILE_MAX,
) -> Committed:
    """Bring the rows of `df` by the key columns `on`. A row that is there already: `matched` says "update", "delete",
    "fail" or "ignore"; `matched_if`, over `source.x` and `target.x`, says for which. The others are inserted. Rows that
    nothing matched can go, all or those of a condition (`delete_unmatched`). Conditions are Lance's SQL.

    `df` runs once, also where the upsert has to be planned again, and its rows are kept beside the table's until then.
    """
    rules = UpsertRules.of(on, matched=matched, matched_if=matched_if, insert=insert, delete_unmatched=delete_unmatched)
    return upserting.upsert(
        TableRef(uri, branch, storage_options, manifest_store),
        stored_schema(df.schema),
        lambda task: map_in_arrow(df, task, FRAGMENT_RESULT_SCHEMA),
        rules,
        limits=FileLimits(max_rows_per_file, max_bytes_per_file),
        how=WriteOptions(intent, properties, retries, audit),
        runner=SparkRunner(df.sparkSession),
    )


def compact(
    spark: SparkSession,
    uri: str,
    *,
    target_rows: int = ROWS_PER_FILE_MAX,
    materialize_deletions: bool = True,
    remap: Literal["now", "reuse", "none"] | None = None,
    batch: int = GROUPS_AT_ONCE,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
) -> Committed:
    """Write small fragments, and those with many deleted rows, anew as full ones; what becomes of indices, says
    `Table.compact`. A group of neighbours becomes a full fragment, and is a task: a table that becomes one fragment is
    written by one, as its file has one writer. So many groups (`batch`) as make a commit are written at a time, and
    what is committed stays if the job is lost; what is told is the sum, and the version of the last commit."""
    return compacting.compact(
        TableRef(uri, branch, storage_options, manifest_store),
        target_rows=target_rows,
        materialize_deletions=materialize_deletions,
        remap=remap,
        batch=batch,
        how=WriteOptions(intent, properties, retries),
        runner=SparkRunner(spark),
    )
