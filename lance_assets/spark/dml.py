"""DML: delete, update, upsert and compact Lance tables. Executors find rows and write files, the driver commits once.

Conditions and values are Lance SQL, which the workers evaluate with the same evaluator as one process does; Spark SQL
never selects the rows. If a concurrent commit conflicts with the change, the job runs again on the newest version.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from lance_assets.spark.arguments import check_frame_call, check_session_call
from lance_assets.spark.arrow_bridge import map_in_arrow
from lance_assets.spark.jobs import FRAGMENT_RESULT_SCHEMA, SparkRunner
from lance_assets.spark.types import stored_schema
from lance_core import Committed
from lance_core.progress import ProgressArgument, reporting
from lance_core.tasks.compaction import compact as compacting
from lance_core.tasks.compaction.compact import GROUPS_PER_COMMIT
from lance_core.tasks.driver import ATTEMPTS, Audit, ManifestStore, TableRef, WriteOptions
from lance_core.tasks.rows import delete as deleting
from lance_core.tasks.rows import update as updating
from lance_core.tasks.rows import upsert as upserting
from lance_core.tasks.rows.upsert import UpsertRules
from lance_core.tasks.rows.write import BYTES_PER_FILE_MAX, ROWS_PER_FILE_MAX, FileLimits


def delete(
    spark: SparkSession,
    uri: str,
    predicate: str | pc.Expression,
    *,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    verify: str = "off",
    trusted: bool = True,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
    audit: Audit | None = None,
) -> Committed:
    """Delete the rows that match a condition in Lance SQL, or as an expression of pyarrow.

    Data files stay unchanged: the workers write deletion files, and a fragment without live rows is removed.
    """
    check_session_call("delete", spark, uri, storage_options, manifest_store, more=", predicate")
    return deleting.delete(
        TableRef(uri, branch, storage_options, manifest_store, verify=verify, trusted=trusted),
        predicate,
        options=WriteOptions(intent, properties, retries, audit),
        runner=SparkRunner(spark),
    )


def update(
    spark: SparkSession,
    uri: str,
    set: Mapping[str, str],
    where: str | pc.Expression | None = None,
    *,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    verify: str = "off",
    trusted: bool = True,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
    audit: Audit | None = None,
    max_rows_per_file: int = ROWS_PER_FILE_MAX,
    max_bytes_per_file: int = BYTES_PER_FILE_MAX,
) -> Committed:
    """Set columns to new values, `{column: SQL}`, in the rows that match `where`, or in all rows without it.

    Both are Lance SQL. The update either moves the rows to new files or rewrites whole columns, whichever is cheaper
    for the table.
    """
    check_session_call("update", spark, uri, storage_options, manifest_store, more=", set")
    return updating.update(
        TableRef(uri, branch, storage_options, manifest_store, verify=verify, trusted=trusted),
        set,
        where,
        limits=FileLimits(max_rows_per_file, max_bytes_per_file),
        options=WriteOptions(intent, properties, retries, audit),
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
    delete_if: str | None = None,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    verify: str = "off",
    trusted: bool = True,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
    audit: Audit | None = None,
    max_rows_per_file: int = ROWS_PER_FILE_MAX,
    max_bytes_per_file: int = BYTES_PER_FILE_MAX,
) -> Committed:
    """Upsert (merge) the rows of `df` into the table by the key columns `on`.

    `matched` decides about a table row with the key of a source row: "update", "delete", "fail" or "ignore".
    `matched_if`, a condition over `source.x` and `target.x`, limits it to some of the matches. Source rows without a
    match are inserted, unless `insert=False`. `delete_unmatched` deletes table rows without a match: all of them, or
    those of a condition. A source row that meets `delete_if`, a condition over the columns of `df`, deletes its match
    instead of updating it, and is not inserted. Conditions are Lance SQL.

    `df` is computed once, even if the upsert is replanned after a conflict; its rows are staged in the table directory
    until the commit.
    """
    check_frame_call("upsert", df, uri, storage_options, manifest_store, more=", on")
    rules = UpsertRules.of(
        on,
        matched=matched,
        matched_if=matched_if,
        insert=insert,
        delete_unmatched=delete_unmatched,
        delete_if=delete_if,
    )
    return upserting.upsert(
        TableRef(uri, branch, storage_options, manifest_store, verify=verify, trusted=trusted),
        stored_schema(df.schema),
        lambda task: map_in_arrow(df, task, FRAGMENT_RESULT_SCHEMA),
        rules,
        limits=FileLimits(max_rows_per_file, max_bytes_per_file),
        options=WriteOptions(intent, properties, retries, audit),
        runner=SparkRunner(df.sparkSession),
    )


def compact(
    spark: SparkSession,
    uri: str,
    *,
    target_rows: int = ROWS_PER_FILE_MAX,
    materialize_deletions: bool = True,
    remap: Literal["now", "reuse", "none"] | None = None,
    batch: int = GROUPS_PER_COMMIT,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    verify: str = "off",
    trusted: bool = True,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
    progress: ProgressArgument = False,
) -> Committed:
    """Rewrite small fragments, and fragments with many deleted rows, as full fragments.

    `Table.compact` describes what happens to indices. Each group of neighbouring fragments becomes one full fragment
    and is one task; a table that becomes one fragment is therefore written by a single task, since a file has one
    writer. Every `batch` groups are one commit, and the commits stay if the job is lost. The result sums them up and
    has the version of the last one.

    `progress=True` shows a bar or writes to the log, by stage; a function receives each report.
    """
    check_session_call("compact", spark, uri, storage_options, manifest_store)
    with reporting(progress, "compact"):
        return compacting.compact(
            TableRef(uri, branch, storage_options, manifest_store, verify=verify, trusted=trusted),
            target_rows=target_rows,
            materialize_deletions=materialize_deletions,
            remap=remap,
            batch=batch,
            options=WriteOptions(intent, properties, retries),
            runner=SparkRunner(spark),
        )
