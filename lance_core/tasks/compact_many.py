"""Many tables compacted by one job: their groups are dealt out to workers as if they were of one table.

    driver    newest version of each -> its groups -> all groups in about equal bins
    workers   a bin, group by group; one that cannot be written is told, and the rest of the bin goes on
    driver    table by table: a commit of the groups that are written

Each table has its own intention, properties and commit, so whatever happens to one is not the others' trouble. Where
somebody was in the way of a commit, groups that are as they were keep their files and the others are left for the next
time: there is no second job. What was begun and lost is gone on with by asking for it again under the same intention.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

from lance_core import validation
from lance_core.commit import write_protocol
from lance_core.dml import retry
from lance_core.errors import InvalidInput, LanceError, StorageError
from lance_core.format.fragment import Fragment
from lance_core.format.operations import Rewrite
from lance_core.maintenance import compaction
from lance_core.maintenance.compaction_plan import Group
from lance_core.maintenance.compaction_write import write_group
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.table.committed import Committed
from lance_core.table.table import committed_of
from lance_core.tasks import remote_errors
from lance_core.tasks.compact import VERB, CompactionRequest, GroupBatch, group_key
from lance_core.tasks.driver import TASKS_PER_SLOT, TableRef, WriteOptions
from lance_core.tasks.partitioning import RESULT, Runner, VersionHeader
from lance_core.versions.snapshot import Snapshot

# What a table can do to whoever reads it: it is anybody's bytes.
TABLE_ERRORS = (LanceError, pa.ArrowException, ArithmeticError, LookupError, OSError, RecursionError, ValueError)
_TABLES_AT_ONCE = 8
_BYTES_OF_A_FILE = 64 * 1024
_WIRE = pa.schema(
    [
        pa.field("table", pa.int64()),
        pa.field("group", pa.int64()),
        pa.field("fragments", pa.list_(pa.binary())),
        pa.field("trouble", pa.string()),
    ]
)
_A = TypeVar("_A")
_B = TypeVar("_B")


@dataclass(frozen=True, slots=True)
class TableCompaction:
    table: TableRef
    options: WriteOptions
    target_rows: int


@dataclass(frozen=True, slots=True)
class CompactionOutcome:
    """Of one table. Both, where a part of it could not be written and the rest is committed."""

    committed: Committed | None
    error: Exception | None = None


@dataclass(slots=True)
class _Planned:
    wanted: TableCompaction
    base: Snapshot
    begun: write_protocol.StartedWrite
    groups: tuple[Group, ...]
    files: dict[int, tuple[Fragment, ...]] = field(default_factory=dict)
    """What was written, by the number of the group."""
    error: Exception | None = None


def compact_many(requests: Sequence[TableCompaction], runner: Runner) -> tuple[CompactionOutcome, ...]:
    """In the order of `requests`. One job, or none where nothing is to be written."""
    for each in requests:
        validation.check_intent_and_retries(intent=each.options.intent, retries=each.options.retries)
    begun = _each(requests, _begun)
    planned = [each for each in begun if isinstance(each, _Planned)]
    _write(planned, runner)
    ended = iter(_each(planned, _ended))
    return tuple(next(ended) if isinstance(each, _Planned) else each for each in begun)


def _begun(wanted: TableCompaction) -> _Planned | CompactionOutcome:
    try:
        base = wanted.table.newest()
        base.manifest.check_writable()
        groups = CompactionRequest(wanted.target_rows, materialize_deletions=True, remap=None).plan_groups(base)
        begun = write_protocol.begin(base.location, base, verb=VERB, intent=wanted.options.intent, runtime=SYSTEM_RUNTIME)
        if isinstance(begun, write_protocol.WriteResult):
            return CompactionOutcome(committed_of(begun))
        if not groups:
            return CompactionOutcome(committed_of(write_protocol.finish_unchanged(begun, Rewrite.name)))
        compaction.check_remap(base, groups, None)
        return _Planned(wanted, base, begun, groups)
    except TABLE_ERRORS as error:
        return CompactionOutcome(None, error)


def _ended(planned: _Planned) -> CompactionOutcome:
    if not planned.files and planned.error is not None:
        return CompactionOutcome(None, planned.error)
    how = planned.wanted.options
    try:
        noted = validation.check_properties(how.properties)
        shape = CompactionRequest(planned.wanted.target_rows, materialize_deletions=True, remap=None)
        done = [compaction.RewrittenGroup(planned.groups[number], new) for number, new in sorted(planned.files.items())]
        batch = GroupBatch(tuple(each.old for each in done), shape, noted, runner=None)
        batch.add_rewritten(planned.base.manifest.schema, done)
        change = retry.Change(VERB, batch.plan, Rewrite.name, can_replan=True)
        landed = retry.resume(change, planned.begun, properties=noted, retries=how.retries)
        return CompactionOutcome(committed_of(landed), planned.error)
    except TABLE_ERRORS as error:
        return CompactionOutcome(None, error)


def _write(planned: Sequence[_Planned], runner: Runner) -> None:
    """One job for all groups; what came back is with their tables then."""
    pieces = [
        _GroupRef(table, number, group_key(group))
        for table, each in enumerate(planned)
        for number, group in enumerate(each.groups)
    ]
    if not pieces:
        return
    weights = [_weight(planned[piece.table].groups[piece.group]) for piece in pieces]
    bins = pack_into_bins(pieces, weights, runner.slots * TASKS_PER_SLOT)
    task = _Task(
        tuple(VersionHeader.of(each.base) for each in planned), tuple(each.wanted.target_rows for each in planned), bins
    )
    for row in runner.run(task, len(bins)).to_pylist():
        if row["refusal"] is not None:
            raise remote_errors.decode_error(row["refusal"])
        (told,) = pa.ipc.read_record_batch(pa.py_buffer(row["result"]), _WIRE).to_pylist()
        each = planned[told["table"]]
        if told["trouble"] is not None:
            each.error = remote_errors.decode_error(told["trouble"])
        else:
            each.files[told["group"]] = tuple(map(Fragment.decode, told["fragments"]))
    for each in planned:
        if len(each.files) < len(each.groups) and each.error is None:
            lost = len(each.groups) - len(each.files)
            each.error = StorageError(f"{each.base.location.uri}: {lost} groups of fragments did not come back")


@dataclass(frozen=True, slots=True)
class _GroupRef:
    table: int
    group: int
    fragments: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class _Task:
    """Runs in a worker."""

    wholes: tuple[VersionHeader, ...]
    target_rows: tuple[int, ...]
    bins: tuple[tuple[_GroupRef, ...], ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    self.wholes[0].stamp.check()
                except InvalidInput as error:
                    told = {"part": number, "refusal": remote_errors.encode_error(error)}
                    yield pa.RecordBatch.from_pylist([told], RESULT)
                    continue
                for piece in self.bins[number]:
                    row = {"part": number, "result": self._done(piece)}
                    yield pa.RecordBatch.from_pylist([row], RESULT)

    def _done(self, piece: _GroupRef) -> bytes:
        row: dict[str, object] = {"table": piece.table, "group": piece.group}
        whole = self.wholes[piece.table]
        try:
            part = whole.snapshot_with(piece.fragments)
            new = write_group(part, tuple(part.manifest.fragments), self.target_rows[piece.table], SYSTEM_RUNTIME)
            row["fragments"] = [fragment.encode() for fragment in new]
        except LanceError as error:
            row["trouble"] = remote_errors.encode_error(error)
        except TABLE_ERRORS as error:
            row["trouble"] = remote_errors.encode_error(StorageError(f"{whole.uri}: {type(error).__name__}: {error}"))
        return bytes(pa.RecordBatch.from_pylist([row], _WIRE).serialize())


def pack_into_bins(things: Sequence[_A], weights: Sequence[int], bins_max: int) -> tuple[tuple[_A, ...], ...]:
    """In at most so many bins of about the same weight: the heaviest first, each into the lightest bin.

    >>> dealt("abcd", [1, 5, 2, 2], 2)
    (('b',), ('c', 'd', 'a'))
    """
    bins: list[list[_A]] = [[] for _ in range(min(bins_max, len(things)))]
    filled = [(0, number) for number in range(len(bins))]
    for place in sorted(range(len(things)), key=lambda place: (-weights[place], place)):
        weight, number = heapq.heappop(filled)
        bins[number].append(things[place])
        heapq.heappush(filled, (weight + weights[place], number))
    return tuple(map(tuple, bins))


def _weight(group: Group) -> int:
    """Where sizes are not known, rows are the next best; a file costs something however small it is."""
    return sum(max(fragment.file_bytes, fragment.physical_rows, _BYTES_OF_A_FILE) for fragment in group)


def _each(things: Sequence[_A], work: Callable[[_A], _B]) -> list[_B]:
    """Side by side: mostly waiting for a store."""
    with ThreadPoolExecutor(_TABLES_AT_ONCE, thread_name_prefix="compacting") as threads:
        return list(threads.map(work, things))
