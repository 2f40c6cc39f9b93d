"""Rows of this process, written by the same steps as those of workers: for frames that are in memory, or come one batch
after the other. Unlike the verbs of `Table` these create a table that is not there, and convert where nothing is lost.
"""

from collections.abc import Mapping

import pyarrow as pa

from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.table.committed import Committed
from lance_core.tasks.driver import ATTEMPTS, TableRef, WriteOptions
from lance_core.tasks.partitioning import LocalRunner
from lance_core.tasks.replace_where import overwrite_slice
from lance_core.tasks.upsert import StageFunction
from lance_core.tasks.write import RESULT, PlannedWrite, WriteTask, begin_append, begin_overwrite


def append(
    rows: pa.Table | pa.RecordBatchReader,
    where: TableRef,
    *,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
) -> Committed:
    """As one version; no rows make none where the table is there."""
    planned = begin_append(
        where.uri,
        rows.schema,
        create=True,
        intent=intent,
        limits=FileLimits(),
        storage_options=where.storage_options,
        manifest_store=where.manifest_store,
        branch=where.branch,
    )
    return _finished(planned, rows, properties, retries)


def overwrite(
    rows: pa.Table | pa.RecordBatchReader,
    where: TableRef,
    *,
    only: str | None = None,
    replace_schema: bool = False,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
) -> Committed:
    """All rows, or those that `only`, a condition, names."""
    if only is not None:
        how = WriteOptions(intent, properties, retries)
        return overwrite_slice(
            where, rows.schema, _staging(rows), only, limits=FileLimits(), options=how, runner=LocalRunner()
        )
    planned = begin_overwrite(
        where.uri,
        rows.schema,
        replace_schema=replace_schema,
        intent=intent,
        limits=FileLimits(),
        storage_options=where.storage_options,
        manifest_store=where.manifest_store,
        branch=where.branch,
    )
    return _finished(planned, rows, properties, retries)


def _finished(
    planned: PlannedWrite | Committed,
    rows: pa.Table | pa.RecordBatchReader,
    properties: Mapping[str, str] | None,
    retries: int,
) -> Committed:
    if isinstance(planned, Committed):
        return planned
    return planned.finish(_staging(rows)(WriteTask(planned.plan)), properties=properties, retries=retries)


def _staging(rows: pa.Table | pa.RecordBatchReader) -> StageFunction:
    def stage(task: WriteTask) -> pa.Table:
        batches = rows.to_batches() if isinstance(rows, pa.Table) else rows
        return pa.Table.from_batches(task(batches), RESULT)

    return stage


__all__ = ["TableRef", "append", "overwrite"]
