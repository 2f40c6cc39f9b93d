"""Fleet compaction: compacts many tables in one job, which spreads the groups of all tables over workers.

    driver    newest version of each table -> its groups -> all groups in bins of about equal weight
    workers   rewrite a bin group by group; a group that fails is reported, and the rest of the bin continues
    driver    commits the rewritten groups, table by table

Each table has its own intent, properties and commit, so a failure of one table does not affect the others. After a
conflict, groups whose fragments are unchanged keep their files, and the others wait for the next compaction: there is
no second job. Repeating the call with the same intents continues an interrupted run.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

from lance_core import validation
from lance_core.commit import write_protocol
from lance_core.commit.write_protocol import Change, resume
from lance_core.errors import InvalidInput, LanceError, StorageError
from lance_core.format.fragment import Fragment
from lance_core.format.operations import Rewrite
from lance_core.maintenance import compaction
from lance_core.maintenance.compaction_plan import Group
from lance_core.maintenance.compaction_write import write_group
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.table.base import Committed
from lance_core.table.table import Table
from lance_core.tasks import remote_errors
from lance_core.tasks.compaction.compact import VERB, CompactionRequest, GroupBatch, group_key
from lance_core.tasks.driver import TASKS_PER_SLOT, TableRef, WriteOptions
from lance_core.tasks.partitioning import RESULT, Runner, VersionHeader
from lance_core.versions.snapshot import Snapshot

# Errors that reading a damaged table can cause: its bytes are not trusted.
TABLE_ERRORS = (LanceError, pa.ArrowException, ArithmeticError, LookupError, OSError, RecursionError, ValueError)
TABLES_AT_ONCE = 8
_BYTES_PER_FILE_MIN = 64 * 1024
_WIRE = pa.schema(
    [
        pa.field("table", pa.int64()),
        pa.field("group", pa.int64()),
        pa.field("fragments", pa.list_(pa.binary())),
        pa.field("error", pa.string()),
    ]
)
_A = TypeVar("_A")
_B = TypeVar("_B")


@dataclass(frozen=True, slots=True)
class TableCompaction:
    """Request to compact one table."""

    table: TableRef
    options: WriteOptions
    target_rows: int


@dataclass(frozen=True, slots=True)
class CompactionOutcome:
    """Outcome for one table. Both fields are set if some groups could not be written and the rest is committed."""

    committed: Committed | None
    error: Exception | None = None


@dataclass(slots=True)
class _PlannedTable:
    """A table with groups to rewrite, and the results of the job for it."""

    request: TableCompaction
    base: Snapshot
    started: write_protocol.StartedWrite
    groups: tuple[Group, ...]
    files: dict[int, tuple[Fragment, ...]] = field(default_factory=dict)
    """Fragments written, by group number."""
    error: Exception | None = None


def compact_many(requests: Sequence[TableCompaction], runner: Runner) -> tuple[CompactionOutcome, ...]:
    """Return the outcome of each request, in order. Runs one job, or none if there is nothing to write."""
    for request in requests:
        validation.check_intent_and_retries(intent=request.options.intent, retries=request.options.retries)
    started = _map_concurrently(requests, _plan_table)
    planned = [table for table in started if isinstance(table, _PlannedTable)]
    _write_groups(planned, runner)
    outcomes = iter(_map_concurrently(planned, _commit_table))
    return tuple(next(outcomes) if isinstance(table, _PlannedTable) else table for table in started)


def _plan_table(request: TableCompaction) -> _PlannedTable | CompactionOutcome:
    """Plan one table. Returns its outcome at once if there is nothing to write or if planning failed."""
    try:
        base = request.table.newest()
        base.manifest.check_writable()
        groups = CompactionRequest(request.target_rows, materialize_deletions=True, remap=None).plan_groups(base)
        started = write_protocol.begin(
            base.location, base, verb=VERB, intent=request.options.intent, runtime=SYSTEM_RUNTIME
        )
        if isinstance(started, write_protocol.WriteResult):
            return CompactionOutcome(Committed.of(started, Table))
        if not groups:
            return CompactionOutcome(Committed.of(write_protocol.finish_unchanged(started, Rewrite.name), Table))
        compaction.check_remap(base, groups, None)
        return _PlannedTable(request, base, started, groups)
    except TABLE_ERRORS as error:
        return CompactionOutcome(None, error)


def _commit_table(planned: _PlannedTable) -> CompactionOutcome:
    """Commit the groups of one table that were written."""
    if not planned.files and planned.error is not None:
        return CompactionOutcome(None, planned.error)
    options = planned.request.options
    try:
        properties = validation.check_properties(options.properties)
        request = CompactionRequest(planned.request.target_rows, materialize_deletions=True, remap=None)
        rewritten = [
            compaction.RewrittenGroup(planned.groups[number], new) for number, new in sorted(planned.files.items())
        ]
        batch = GroupBatch(tuple(group.old for group in rewritten), request, properties, runner=None)
        batch.add_rewritten(planned.base.manifest.schema, rewritten)
        change = Change(VERB, batch.plan, Rewrite.name, can_replan=True)
        committed = resume(change, planned.started, properties=properties, retries=options.retries)
        return CompactionOutcome(Committed.of(committed, Table), planned.error)
    except TABLE_ERRORS as error:
        return CompactionOutcome(None, error)


def _write_groups(planned: Sequence[_PlannedTable], runner: Runner) -> None:
    """Run one job for all groups and store its results with their tables."""
    refs = [
        _GroupRef(table, number, group_key(group))
        for table, planned_table in enumerate(planned)
        for number, group in enumerate(planned_table.groups)
    ]
    if not refs:
        return
    weights = [_estimate_weight(planned[ref.table].groups[ref.group]) for ref in refs]
    bins = pack_into_bins(refs, weights, runner.slots * TASKS_PER_SLOT)
    task = _RewriteGroupsTask(
        tuple(VersionHeader.of(planned_table.base) for planned_table in planned),
        tuple(planned_table.request.target_rows for planned_table in planned),
        bins,
    )
    for row in runner.run(task, len(bins)).to_pylist():
        if row["refusal"] is not None:
            raise remote_errors.decode_error(row["refusal"])
        (result,) = pa.ipc.read_record_batch(pa.py_buffer(row["result"]), _WIRE).to_pylist()
        planned_table = planned[result["table"]]
        if result["error"] is not None:
            planned_table.error = remote_errors.decode_error(result["error"])
        else:
            planned_table.files[result["group"]] = tuple(map(Fragment.decode, result["fragments"]))
    for planned_table in planned:
        if len(planned_table.files) < len(planned_table.groups) and planned_table.error is None:
            missing = len(planned_table.groups) - len(planned_table.files)
            planned_table.error = StorageError(
                f"{planned_table.base.location.uri}: {missing} groups of fragments were not returned by any worker"
            )


@dataclass(frozen=True, slots=True)
class _GroupRef:
    """Reference to a group: number of its table, number of the group, encoded fragments."""

    table: int
    group: int
    fragments: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class _RewriteGroupsTask:
    """Runs in a worker: bin numbers in, rewritten groups out."""

    headers: tuple[VersionHeader, ...]
    target_rows: tuple[int, ...]
    bins: tuple[tuple[_GroupRef, ...], ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    self.headers[0].stamp.check()
                except InvalidInput as error:
                    error_row = {"part": number, "refusal": remote_errors.encode_error(error)}
                    yield pa.RecordBatch.from_pylist([error_row], RESULT)
                    continue
                for group in self.bins[number]:
                    row = {"part": number, "result": self._rewrite_group(group)}
                    yield pa.RecordBatch.from_pylist([row], RESULT)

    def _rewrite_group(self, group: _GroupRef) -> bytes:
        row: dict[str, object] = {"table": group.table, "group": group.group}
        header = self.headers[group.table]
        try:
            snapshot = header.snapshot_with(group.fragments)
            new = write_group(
                snapshot, tuple(snapshot.manifest.fragments), self.target_rows[group.table], SYSTEM_RUNTIME
            )
            row["fragments"] = [fragment.encode() for fragment in new]
        except LanceError as error:
            row["error"] = remote_errors.encode_error(error)
        except TABLE_ERRORS as error:
            row["error"] = remote_errors.encode_error(StorageError(f"{header.uri}: {type(error).__name__}: {error}"))
        return bytes(pa.RecordBatch.from_pylist([row], _WIRE).serialize())


def pack_into_bins(items: Sequence[_A], weights: Sequence[int], bins_max: int) -> tuple[tuple[_A, ...], ...]:
    """Pack items into at most `bins_max` bins of about equal weight: the heaviest first, each into the lightest bin.

    >>> pack_into_bins("abcd", [1, 5, 2, 2], 2)
    (('b',), ('c', 'd', 'a'))
    """
    bins: list[list[_A]] = [[] for _ in range(min(bins_max, len(items)))]
    filled = [(0, number) for number in range(len(bins))]
    for position in sorted(range(len(items)), key=lambda position: (-weights[position], position)):
        weight, number = heapq.heappop(filled)
        bins[number].append(items[position])
        heapq.heappush(filled, (weight + weights[position], number))
    return tuple(map(tuple, bins))


def _estimate_weight(group: Group) -> int:
    """Return the estimated cost of rewriting a group. Rows stand in for bytes if the sizes of files are unknown, and
    each fragment has a minimum cost."""
    return sum(max(fragment.file_bytes, fragment.physical_rows, _BYTES_PER_FILE_MIN) for fragment in group)


def _map_concurrently(items: Sequence[_A], function: Callable[[_A], _B]) -> list[_B]:
    """Apply the function to all items in threads, which mostly wait for the store."""
    with ThreadPoolExecutor(TABLES_AT_ONCE, thread_name_prefix="compacting") as threads:
        return list(threads.map(function, items))
