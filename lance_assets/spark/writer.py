"""Writer: appends DataFrames to Lance tables or overwrites them. Executors write the files, the driver commits once.

A retried or speculative task leaves orphan files, never rows; a failed job leaves nothing to undo.
"""

from collections.abc import Mapping, Sequence

import pyarrow.compute as pc
from pyspark.sql import DataFrame

from lance_assets.spark.arguments import check_frame_call
from lance_assets.spark.arrow_bridge import map_in_arrow
from lance_assets.spark.jobs import FRAGMENT_RESULT_SCHEMA, SparkRunner
from lance_assets.spark.types import stored_schema
from lance_core import Committed, InvalidInput
from lance_core.tasks.driver import Audit, NewTableOptions, TableRef, WriteOptions
from lance_core.tasks.rows.replace_where import overwrite_slice
from lance_core.tasks.rows.write import (
    ATTEMPTS,
    BYTES_PER_FILE_MAX,
    ROWS_PER_FILE_MAX,
    FileLimits,
    ManifestStore,
    StageFunction,
    append_rows,
    overwrite_rows,
)


def append(
    df: DataFrame,
    uri: str,
    *,
    create: bool = True,
    stable_row_ids: bool | None = None,
    storage_version: str | None = None,
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
    cluster_by: str | Sequence[str] = (),
) -> Committed:
    """Append the rows of `df`. A table that does not exist is created, unless `create=False`.

    `stable_row_ids` and `storage_version` are those of `Table.create`, for the table that this call creates: by default
    without stable row ids and of version 2.2. Neither can change later, so a table that exists and differs from what is
    requested is refused.

    If `intent` was committed before, by any process, the version of that commit is returned and nothing is written.
    `cluster_by` names columns to cluster by: rows are range-partitioned by them over the files and sorted within each
    file, so that a filter on them reads few files.
    """
    check_frame_call("append", df, uri, storage_options, manifest_store)
    ordered = _clustered(df, cluster_by)
    return append_rows(
        TableRef(uri, branch, storage_options, manifest_store, verify=verify, trusted=trusted),
        stored_schema(df.schema),
        _stage(ordered),
        create=create,
        new_table=NewTableOptions(stable_row_ids, storage_version),
        limits=FileLimits(max_rows_per_file, max_bytes_per_file),
        options=WriteOptions(intent, properties, retries, audit),
    )


def overwrite(
    df: DataFrame,
    uri: str,
    *,
    where: str | pc.Expression | None = None,
    replace_schema: bool = False,
    stable_row_ids: bool | None = None,
    storage_version: str | None = None,
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
    cluster_by: str | Sequence[str] = (),
) -> Committed:
    """Replace all rows by those of `df`, or with `where` the rows that match a condition.

    The stored schema stays, unless `replace_schema=True`, since it holds what Spark types lose: fixed sizes, unsigned
    integers, time zones, field metadata. `df` may read the same table, since its version is pinned.

    A table that does not exist is created, with `stable_row_ids` and `storage_version` as in `append`.

    `where` is a condition in Lance SQL. The rows that match it are removed and those of `df` added in the same version;
    all rows of `df` must match the condition too. In the committed version the rows that match are exactly those of
    `df`: rows that concurrent writers added before it are replaced too. `df` is computed once, even if the overwrite is
    replanned.
    """
    check_frame_call("overwrite", df, uri, storage_options, manifest_store)
    ordered = _clustered(df, cluster_by)
    table = TableRef(uri, branch, storage_options, manifest_store, verify=verify, trusted=trusted)
    limits, new_table = (
        FileLimits(max_rows_per_file, max_bytes_per_file),
        NewTableOptions(stable_row_ids, storage_version),
    )
    options = WriteOptions(intent, properties, retries, audit)
    if where is not None:
        if replace_schema:
            raise InvalidInput("replace_schema=True is for an overwrite of all rows; with where= the schema stays")
        return overwrite_slice(
            table,
            stored_schema(df.schema),
            _stage(ordered),
            where,
            new_table=new_table,
            limits=limits,
            options=options,
            runner=SparkRunner(df.sparkSession),
        )
    return overwrite_rows(
        table,
        stored_schema(df.schema),
        _stage(ordered),
        replace_schema=replace_schema,
        new_table=new_table,
        limits=limits,
        options=options,
    )


def _stage(df: DataFrame) -> StageFunction:
    """Return the stage in which executors write the rows of `df`."""
    return lambda task: map_in_arrow(df, task, FRAGMENT_RESULT_SCHEMA)


def _clustered(df: DataFrame, by: str | Sequence[str]) -> DataFrame:
    names = [by] if isinstance(by, str) else list(by)
    if unknown := [name for name in names if name not in df.columns]:
        raise InvalidInput(f"cluster_by={names}: no column {unknown[0]!r}; the columns are {', '.join(df.columns)}")
    columns = [df[f"`{name.replace('`', '``')}`"] for name in names]
    return df.repartitionByRange(*columns).sortWithinPartitions(*columns) if columns else df
