"""An update whose rows are found and written by workers.

    workers   how many rows match in which fragments
    driver    which of the two ways is cheaper for the whole table
    workers   that way, each for its fragments: moved rows in new files, or new columns beside the others
    driver    one operation for all

The first step is left out where all rows change.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.dml import update as in_one_process
from lance_core.dml.row_matching import matching
from lance_core.dml.row_rewrite import ids_of, is_cheaper
from lance_core.dml.update import UpdateRequest
from lance_core.expressions import Predicate
from lance_core.format.operations import Update, UpdateMode
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.scan.column_resolution import filterable_schema
from lance_core.table.committed import Committed
from lance_core.tasks import operation_merge
from lance_core.tasks.driver import TASKS_PER_SLOT, TableRef, WriteOptions, partitions_for_reading, run_change
from lance_core.tasks.partial_results import PartialResults
from lance_core.tasks.partitioning import Runner
from lance_core.tasks.pushed_selection import PushedSelection, fragments_to_scan
from lance_core.versions.snapshot import Snapshot

_COUNTED = struct.Struct("<QQ")
_ROWS_WORTH_A_FILE = 1 << 16


def update(
    table: TableRef,
    values: Mapping[str, str],
    condition: str | None,
    *,
    limits: FileLimits,
    options: WriteOptions,
    runner: Runner,
) -> Committed:
    kept, counts = PartialResults(), PartialResults()

    def plan(base: Snapshot) -> Update:
        asked = UpdateRequest.of(base, values, condition)  # what is wrong with it is told before a task runs
        sent, found = _counted(base, asked.predicate, condition, counts, runner)
        fragments = [fragment for fragment in base.manifest.fragments if fragment.id in found]
        rows, matched = sum(fragment.physical_rows for fragment in fragments), sum(found.values())
        in_place = is_cheaper(base, asked.columns, rows=rows, changed=matched)
        part = _UpdateTask(tuple(values.items()), condition, limits, in_place, sent)
        results = kept.over_fragments(base, fragments, partitions_for_writing(matched, runner), part, runner)
        return operation_merge.merge_updates(operation_merge.decode_operations(results), _whole(base, asked, in_place))

    return run_change(table, options, "update", plan, operation=Update.name)


def partitions_for_writing(rows: int, runner: Runner) -> int:
    """For work that writes so many rows: each part makes a file, so few rows are not spread wider than helps."""
    return max(runner.slots, min(runner.slots * TASKS_PER_SLOT, rows // _ROWS_WORTH_A_FILE))


def _counted(
    base: Snapshot, predicate: Predicate | None, condition: str | None, kept: PartialResults, runner: Runner
) -> tuple[PushedSelection, dict[int, int]]:
    """Rows that match, of each fragment that has any; and what indices know of them."""
    if predicate is None or condition is None:
        whole = base.manifest.fragments
        return PushedSelection(), {fragment.id: fragment.live_rows for fragment in whole if fragment.live_rows}
    fragments, sent = fragments_to_scan(base, predicate)
    work = _Count(condition, sent)
    results = kept.over_fragments(base, fragments, partitions_for_reading(fragments, runner.slots), work, runner)
    return sent, dict(_COUNTED.unpack(each) for _part, found in sorted(results.items()) for each in found)


def _whole(base: Snapshot, asked: UpdateRequest, in_place: bool) -> Update:
    fields = ids_of(map(base.manifest.schema.field, asked.columns))
    if in_place:
        return Update(fields_modified=fields, mode=UpdateMode.REWRITE_COLUMNS)
    return Update(fields_assigned=fields)


@dataclass(frozen=True, slots=True)
class _Count:
    condition: str
    sent: PushedSelection

    def __call__(self, part: Snapshot, _number: int) -> Iterator[bytes]:
        predicate = Predicate.parse(self.condition, filterable_schema(part.manifest))
        for fragment, offsets in matching(part, predicate, self.sent.selection_for(part)):
            if len(offsets):
                yield _COUNTED.pack(fragment.id, len(offsets))


@dataclass(frozen=True, slots=True)
class _UpdateTask:
    values: tuple[tuple[str, str], ...]
    condition: str | None
    limits: FileLimits
    in_place: bool
    sent: PushedSelection

    def __call__(self, part: Snapshot, _number: int) -> Iterator[bytes]:
        planned = in_one_process.update(
            part,
            dict(self.values),
            self.condition,
            limits=self.limits,
            runtime=SYSTEM_RUNTIME,
            in_place=self.in_place,
            selection=self.sent.selection_for(part),
        )
        if planned.affected:
            yield operation_merge.encode_operation(planned)
