"""Writing DataFrames into Lance tables: executors write the files, the driver commits once.

A retried or speculative task leaves orphan files, never rows; a failed job leaves nothing to undo.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame

from lance_assets.spark.arrow_bridge import map_in_arrow
from lance_assets.spark.jobs import FRAGMENT_RESULT_SCHEMA, SparkRunner
from lance_assets.spark.types import stored_schema
from lance_core import Committed, InvalidInput
from lance_core.tasks.driver import Audit, TableRef, WriteOptions
from lance_core.tasks.replace_where import overwrite_slice
from lance_core.tasks.write import (
    ATTEMPTS,
    BYTES_PER_FILE_MAX,
    ROWS_PER_FILE_MAX,
    FileLimits,
    ManifestStore,
    PlannedWrite,
    WriteTask,
    begin_append,
    begin_overwrite,
)


def append(
    df: DataFrame,
    uri: str,
    *,
    create: bool = True,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
    audit: Audit | None = None,
    max_rows_per_file: int = ROWS_PER_FILE_MAX,
    max_bytes_per_file: int = BYTES_PER_FILE_MAX,
    cluster_by: str | Sequence[str] = (),
) -> Committed:
    """Add the rows of `df`; a table that is not there is created with them, unless `create=False`.

    With `intent=`, the same intent again, from anywhere, returns the version that holds it. `cluster_by` names columns
    whose like values shall lie together: rows are spread over the files by ranges of them, and sorted within each, so
    that a filter on them reads few.
    """
    ordered = _clustered(df, cluster_by)
    planned = begin_append(
        uri,
        stored_schema(df.schema),
        create=create,
        intent=intent,
        limits=FileLimits(max_rows_per_file, max_bytes_per_file),
        storage_options=storage_options,
        manifest_store=manifest_store,
        branch=branch,
    )
    return _write(ordered, planned, properties, retries, audit)


def overwrite(
    df: DataFrame,
    uri: str,
    *,
    where: str | None = None,
    replace_schema: bool = False,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
    audit: Audit | None = None,
    max_rows_per_file: int = ROWS_PER_FILE_MAX,
    max_bytes_per_file: int = BYTES_PER_FILE_MAX,
    cluster_by: str | Sequence[str] = (),
) -> Committed:
    """Replace all rows. The stored schema stays, since it knows what Spark forgets (fixed sizes, unsigned integers,
    time zones, field metadata), unless `replace_schema=True`. `df` may read the same table: its version is pinned.

    `where`, a condition in Lance's SQL, overwrites a slice: the rows that match go, and those of `df`, all of which
    have to match it too, take their place in the same version. The slice is what `df` is, whatever others write into it
    meanwhile; `df` runs once, also where it has to be planned again.
    """
    ordered = _clustered(df, cluster_by)
    if where is not None:
        if replace_schema:
            raise InvalidInput("replace_schema=True is for an overwrite of all rows; with where= the schema stays")
        return overwrite_slice(
            TableRef(uri, branch, storage_options, manifest_store),
            stored_schema(df.schema),
            lambda task: map_in_arrow(ordered, task, FRAGMENT_RESULT_SCHEMA),
            where,
            limits=FileLimits(max_rows_per_file, max_bytes_per_file),
            how=WriteOptions(intent, properties, retries, audit),
            runner=SparkRunner(df.sparkSession),
        )
    planned = begin_overwrite(
        uri,
        stored_schema(df.schema),
        replace_schema=replace_schema,
        intent=intent,
        limits=FileLimits(max_rows_per_file, max_bytes_per_file),
        storage_options=storage_options,
        manifest_store=manifest_store,
        branch=branch,
    )
    return _write(ordered, planned, properties, retries, audit)


def _write(
    df: DataFrame,
    planned: PlannedWrite | Committed,
    properties: Mapping[str, str] | None,
    retries: int,
    audit: Audit | None,
) -> Committed:
    if isinstance(planned, Committed):
        return planned
    written: pa.Table = map_in_arrow(df, WriteTask(planned.plan), FRAGMENT_RESULT_SCHEMA)
    return planned.finish(written, properties=properties, retries=retries, audit=audit)


def _clustered(df: DataFrame, by: str | Sequence[str]) -> DataFrame:
    names = [by] if isinstance(by, str) else list(by)
    if unknown := [name for name in names if name not in df.columns]:
        raise InvalidInput(f"cluster_by={names}: there is no column {unknown[0]!r}; there are {', '.join(df.columns)}")
    columns = [df[f"`{name.replace('`', '``')}`"] for name in names]
    return df.repartitionByRange(*columns).sortWithinPartitions(*columns) if columns else df
