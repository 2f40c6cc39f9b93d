"""The overwrite of a slice, whose rows come from workers and whose old rows are found by workers.

    workers   the rows that come, each looked at: written as fragments of the table, once
    workers   each part of the table: its rows of the slice, and their deletion files
    driver    one operation for both, and planned again where somebody was in the way (`dml/replace_where.py`)

A table that is not there begins with the slice.
"""

import pyarrow as pa

from lance_core import validation
from lance_core.datafiles.blob_writing import schema_to_stored
from lance_core.datafiles.conform import Conversion, columns_to_write
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.dml.replace_where import ReplacementRows, ReplaceScope
from lance_core.errors import NotFound
from lance_core.expressions import Predicate
from lance_core.format.fragment import Fragment
from lance_core.format.operations import Delete, Update
from lance_core.format.schema import TableSchema
from lance_core.scan.column_resolution import filterable_schema
from lance_core.table.committed import Committed
from lance_core.table.rows import REPLACE_WHERE_VERB
from lance_core.tasks import operation_merge
from lance_core.tasks.delete import DeleteTask
from lance_core.tasks.driver import TASKS_PER_SLOT, TableRef, WriteOptions, run_change
from lance_core.tasks.partial_results import PartialResults
from lance_core.tasks.partitioning import Runner
from lance_core.tasks.pushed_selection import fragments_to_scan
from lance_core.tasks.upsert import StageFunction
from lance_core.tasks.version_stamp import VersionStamp
from lance_core.tasks.write import PlannedWrite, WritePlan, WriteTask, begin_create, fragments_of
from lance_core.versions.location import locate
from lance_core.versions.refs import branch_location
from lance_core.versions.snapshot import Snapshot


def overwrite_slice(
    table: TableRef,
    incoming: pa.Schema,
    stage: StageFunction,
    condition: str,
    *,
    limits: FileLimits,
    options: WriteOptions,
    runner: Runner,
) -> Committed:
    """`incoming` is what a table would store of the rows that come."""
    validation.check_text(condition, "where")
    try:
        table.newest()
    except NotFound:
        return _born(table, incoming, stage, condition, limits, options)

    def write(base: Snapshot, its: ReplaceScope) -> tuple[TableSchema, tuple[Fragment, ...]]:
        what, schema = base.location.uri, base.manifest.schema
        columns = columns_to_write(schema_to_stored(incoming, schema), schema, conversion=Conversion.CAST, what=what)
        task = WriteTask(_plan_of(base, its, limits))
        return columns, tuple(map(Fragment.decode, fragments_of(stage(task))))

    rows, kept = ReplacementRows(write, condition), PartialResults()

    def plan(base: Snapshot) -> Update:
        def gone() -> Delete:
            fragments, sent = fragments_to_scan(base, Predicate.parse(condition, filterable_schema(base.manifest)))
            parts_max = runner.slots * TASKS_PER_SLOT
            results = kept.over_fragments(base, fragments, parts_max, DeleteTask(condition, sent), runner)
            return operation_merge.merge_deletes(operation_merge.decode_operations(results), condition)

        return rows.plan(base, gone)

    return run_change(table, options, REPLACE_WHERE_VERB, plan, operation=Update.name)


def _born(
    where: TableRef, incoming: pa.Schema, stage: StageFunction, condition: str, limits: FileLimits, how: WriteOptions
) -> Committed:
    location = locate(
        where.uri, storage_options=where.storage_options, durable=where.durable, manifest_store=where.manifest_store
    )
    planned = begin_create(
        branch_location(location, where.branch), incoming, condition, intent=how.intent, limits=limits
    )
    if not isinstance(planned, PlannedWrite):
        return planned
    return planned.finish(
        stage(WriteTask(planned.plan)), properties=how.properties, retries=how.retries, audit=how.audit
    )


def _plan_of(base: Snapshot, its: ReplaceScope, limits: FileLimits) -> WritePlan:
    access = base.location.access
    return WritePlan(
        uri=base.location.uri,
        schema=base.manifest.schema,
        storage_version=base.manifest.storage_version,
        limits=limits,
        durable=access.durable,
        stamp=VersionStamp.of_this_process(),
        storage_options=dict(access.storage_options),
        only=its,
    )
