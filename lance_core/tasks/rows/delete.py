"""Distributed delete: each worker finds the matching rows of its fragments and writes their deletion files.

Workers use the evaluator that a delete in one process uses.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from lance_core.dml import delete as local_delete
from lance_core.expressions import Predicate
from lance_core.expressions.arrow_filters import Condition, to_sql
from lance_core.format.operations import Delete, Operation
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.scan.column_resolution import filterable_schema
from lance_core.table.base import Committed
from lance_core.tasks import operation_merge
from lance_core.tasks.driver import TableRef, WriteOptions, run_change, run_over_fragments
from lance_core.tasks.partitioning import Runner
from lance_core.tasks.scan.pushed_selection import PushedSelection, fragments_to_scan
from lance_core.versions.snapshot import Snapshot


def delete(table: TableRef, predicate: Condition, *, options: WriteOptions, runner: Runner) -> Committed:
    """Delete the rows that match `predicate`, as one version."""

    def plan(base: Snapshot) -> Operation:
        # An invalid predicate is reported before a task runs.
        schema = filterable_schema(base.manifest)
        sql = to_sql(predicate, schema, "predicate")
        fragments, selection = fragments_to_scan(base, Predicate.parse(sql, schema))
        results = run_over_fragments(base, fragments, DeleteTask(sql, selection), runner) if fragments else {}
        return operation_merge.merge_deletes(operation_merge.decode_operations(results), sql)

    return run_change(table, options, "delete", plan, operation=Delete.name)


@dataclass(frozen=True, slots=True)
class DeleteTask:
    """Plans the delete of one partition. A partition without matching rows returns nothing."""

    predicate: str
    selection: PushedSelection

    def __call__(self, partition: Snapshot, _number: int) -> Iterator[bytes]:
        planned = local_delete.delete(
            partition, self.predicate, runtime=SYSTEM_RUNTIME, selection=self.selection.selection_for(partition)
        )
        if planned.affected:
            yield operation_merge.encode_operation(planned)
