"""Distributed update: workers find and write the rows that match.

    workers   count the matching rows of each fragment
    driver    decides for the whole table whether it is cheaper to move rows or to rewrite columns
    workers   write their fragments that way: moved rows in new files, or new files with the changed columns
    driver    merges the results into one operation

The first step is skipped if all rows change.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lance_core.commit.write_protocol import Planned
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.dml import update as local_update
from lance_core.dml.column_sources import with_column_sources
from lance_core.dml.row_matching import find_matching_rows
from lance_core.dml.row_rewrite import field_ids_of, is_column_rewrite_cheaper
from lance_core.dml.update import UpdateRequest
from lance_core.expressions import Predicate
from lance_core.expressions.arrow_filters import Condition, to_sql
from lance_core.format.operations import Update, UpdateMode
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.scan.column_resolution import filterable_schema
from lance_core.table.base import Committed
from lance_core.tasks import operation_merge
from lance_core.tasks.driver import TASKS_PER_SLOT, TableRef, WriteOptions, partition_count, run_change
from lance_core.tasks.partial_results import PartialResults
from lance_core.tasks.partitioning import Runner
from lance_core.tasks.scan.pushed_selection import PushedSelection, fragments_to_scan
from lance_core.versions.snapshot import Snapshot

_MATCH_COUNT = struct.Struct("<QQ")
_ROWS_PER_FILE_MIN = 1 << 16


def update(
    table: TableRef,
    values: Mapping[str, str],
    condition: Condition | None,
    *,
    limits: FileLimits,
    options: WriteOptions,
    runner: Runner,
) -> Committed:
    """Set columns to the values of SQL expressions in the rows that match `condition`, as one version."""
    results_cache, counts_cache = PartialResults(), PartialResults()

    def plan(base: Snapshot) -> Planned | None:
        sql = None if condition is None else to_sql(condition, filterable_schema(base.manifest), "where")
        request = UpdateRequest.of(base, values, sql)  # reports invalid input before a task runs
        selection, matches = _count_matches(base, request.predicate, sql, counts_cache, runner)
        fragments = [fragment for fragment in base.manifest.fragments if fragment.id in matches]
        rows, matched = sum(fragment.physical_rows for fragment in fragments), sum(matches.values())
        in_place = is_column_rewrite_cheaper(base, request.columns, rows=rows, changed=matched)
        task = _UpdateTask(tuple(values.items()), sql, limits, in_place, selection)
        results = results_cache.over_fragments(base, fragments, partitions_for_writing(matched, runner), task, runner)
        operation = operation_merge.merge_updates(
            operation_merge.decode_operations(results), _operation_template(base, request, in_place)
        )
        return with_column_sources(base, operation, request.column_sources())

    return run_change(table, options, "update", plan, operation=Update.name)


def columns_read_by(table: TableRef, values: Mapping[str, str], condition: str | None) -> dict[str, tuple[str, ...]]:
    """Return the columns that decide about the new values of each column: those of its expression and of the
    condition."""
    request = UpdateRequest.of(table.newest(), values, condition)
    return {name: tuple(sorted(columns)) for name, columns in request.column_sources().items()}


def partitions_for_writing(rows: int, runner: Runner) -> int:
    """Return the number of partitions for work that writes this many rows. Each partition writes a file, so few rows
    are not spread over many partitions."""
    return max(runner.slots, min(runner.slots * TASKS_PER_SLOT, rows // _ROWS_PER_FILE_MIN))


def _count_matches(
    base: Snapshot, predicate: Predicate | None, condition: str | None, cache: PartialResults, runner: Runner
) -> tuple[PushedSelection, dict[int, int]]:
    """Return what indices know of the condition, and the number of matching rows of each fragment that has any."""
    if predicate is None or condition is None:
        all_fragments = base.manifest.fragments
        return PushedSelection(), {fragment.id: fragment.live_rows for fragment in all_fragments if fragment.live_rows}
    fragments, selection = fragments_to_scan(base, predicate)
    task = _CountTask(condition, selection)
    results = cache.over_fragments(base, fragments, partition_count(fragments, runner.slots), task, runner)
    return selection, dict(_MATCH_COUNT.unpack(count) for _, counts in sorted(results.items()) for count in counts)


def _operation_template(base: Snapshot, request: UpdateRequest, in_place: bool) -> Update:
    fields = field_ids_of(map(base.manifest.schema.field, request.columns))
    if in_place:
        return Update(fields_modified=fields, mode=UpdateMode.REWRITE_COLUMNS)
    return Update(fields_assigned=fields)


@dataclass(frozen=True, slots=True)
class _CountTask:
    """Counts the matching rows of each fragment of a partition."""

    condition: str
    selection: PushedSelection

    def __call__(self, partition: Snapshot, _number: int) -> Iterator[bytes]:
        predicate = Predicate.parse(self.condition, filterable_schema(partition.manifest))
        for fragment, offsets in find_matching_rows(partition, predicate, self.selection.selection_for(partition)):
            if len(offsets):
                yield _MATCH_COUNT.pack(fragment.id, len(offsets))


@dataclass(frozen=True, slots=True)
class _UpdateTask:
    """Plans the update of one partition. A partition without matching rows returns nothing."""

    values: tuple[tuple[str, str], ...]
    condition: str | None
    limits: FileLimits
    in_place: bool
    selection: PushedSelection

    def __call__(self, partition: Snapshot, _number: int) -> Iterator[bytes]:
        planned = local_update.update(
            partition,
            dict(self.values),
            self.condition,
            limits=self.limits,
            runtime=SYSTEM_RUNTIME,
            in_place=self.in_place,
            selection=self.selection.selection_for(partition),
        )
        if planned.affected:
            yield operation_merge.encode_operation(planned)
