"""Distributed replace where: workers write the replacement rows, and find the rows that they replace.

    workers   write the replacement rows once, as fragments of the table; each row must match the condition
    workers   find the matching rows of each partition of the table, and write their deletion files
    driver    commits both as one operation, and replans it after a conflict (`dml/replace_where.py`)

A table that does not exist is created with the replacement rows.
"""

import pyarrow as pa

from lance_core import validation
from lance_core.datafiles.blob_writing import schema_to_stored
from lance_core.datafiles.conform import Conversion, columns_to_write
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.dml.replace_where import ReplacementRows, ReplaceScope
from lance_core.errors import NotFound
from lance_core.expressions import Predicate
from lance_core.expressions.arrow_filters import Condition, to_sql
from lance_core.format.fragment import Fragment
from lance_core.format.operations import Delete, Update
from lance_core.format.schema import TableSchema
from lance_core.scan.column_resolution import filterable_schema
from lance_core.table.base import Committed, NewTableOptions
from lance_core.table.rows import REPLACE_WHERE_VERB
from lance_core.tasks import operation_merge
from lance_core.tasks.driver import TASKS_PER_SLOT, TableRef, WriteOptions, run_change
from lance_core.tasks.partial_results import PartialResults
from lance_core.tasks.partitioning import Runner
from lance_core.tasks.rows.delete import DeleteTask
from lance_core.tasks.rows.write import (
    DEFAULTS,
    PlannedWrite,
    StageFunction,
    WritePlan,
    WriteTask,
    begin_create,
    collect_fragments,
)
from lance_core.tasks.scan.pushed_selection import fragments_to_scan
from lance_core.tasks.version_stamp import VersionStamp
from lance_core.versions.refs import branch_location
from lance_core.versions.snapshot import Snapshot


def overwrite_slice(
    table: TableRef,
    incoming: pa.Schema,
    stage: StageFunction,
    condition: Condition,
    *,
    new_table: NewTableOptions = DEFAULTS,
    limits: FileLimits,
    options: WriteOptions,
    runner: Runner,
) -> Committed:
    """Replace the rows that match `condition`, as one version. `incoming` is the schema in which a new table would
    store the replacement rows."""
    try:
        newest = table.newest()
    except NotFound:
        sql = validation.check_text(to_sql(condition, incoming, "where"), "where")
        return _create_table(table, incoming, stage, sql, new_table, limits, options)
    new_table.check_existing(newest)
    sql = validation.check_text(to_sql(condition, filterable_schema(newest.manifest), "where"), "where")

    def write(base: Snapshot, scope: ReplaceScope) -> tuple[TableSchema, tuple[Fragment, ...]]:
        what, schema = base.location.uri, base.manifest.schema
        columns = columns_to_write(schema_to_stored(incoming, schema), schema, conversion=Conversion.CAST, what=what)
        task = WriteTask(_write_plan(base, scope, limits))
        return columns, tuple(map(Fragment.decode, collect_fragments(stage(task))))

    replacement, deletes_cache = ReplacementRows(write, sql), PartialResults()

    def plan(base: Snapshot) -> Update:
        def plan_delete() -> Delete:
            fragments, selection = fragments_to_scan(base, Predicate.parse(sql, filterable_schema(base.manifest)))
            parts_max = runner.slots * TASKS_PER_SLOT
            results = deletes_cache.over_fragments(base, fragments, parts_max, DeleteTask(sql, selection), runner)
            return operation_merge.merge_deletes(operation_merge.decode_operations(results), sql)

        return replacement.plan(base, plan_delete)

    return run_change(table, options, REPLACE_WHERE_VERB, plan, operation=Update.name)


def _create_table(
    table: TableRef,
    incoming: pa.Schema,
    stage: StageFunction,
    condition: str,
    new_table: NewTableOptions,
    limits: FileLimits,
    options: WriteOptions,
) -> Committed:
    """Create the table with the replacement rows. All of them must match the condition."""
    planned = begin_create(
        branch_location(table.locate(), table.branch),
        incoming,
        condition,
        new_table=new_table,
        intent=options.intent,
        limits=limits,
    )
    return planned.run(stage, options) if isinstance(planned, PlannedWrite) else planned


def _write_plan(base: Snapshot, scope: ReplaceScope, limits: FileLimits) -> WritePlan:
    access = base.location.access
    return WritePlan(
        uri=base.location.uri,
        schema=base.manifest.schema,
        storage_version=base.manifest.storage_version,
        limits=limits,
        durable=access.durable,
        stamp=VersionStamp.of_this_process(),
        storage_options=dict(access.storage_options),
        scope=scope,
    )
