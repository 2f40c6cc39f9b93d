"""A scan whose fragments are read by workers, all of them at the version that the driver pinned.

    driver    Which(uri, ...).snapshot()             the version that is meant, looked up once
              plan_read(base, ...) -> ReadPlan       what is read, in parts: fragments, or rows of a large one
    workers   ReadTask(plan)(batches of numbers)     rows of each part, in the types of `transport`

What is read of a part is planned by `scan/plan.py` as for a whole table. A condition was parsed on the driver, so that
every worker evaluates the same one, `now()` included. Counting rows goes the same way, without the rows.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from lance_core import validation
from lance_core.datafiles.conform import Conversion, conform
from lance_core.errors import Unsupported
from lance_core.expressions import Predicate
from lance_core.format.fragment import Fragment
from lance_core.index import lookup
from lance_core.scan.executor import count_matches, scan
from lance_core.scan.plan import ScanPlan, ScanTask, plan_scan
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from lance_core.tasks.partitioning import PartitionTask, Runner, VersionHeader, collect_results
from lance_core.tasks.pushed_selection import PushedRows, pack_rows
from lance_core.versions.location import locate
from lance_core.versions.refs import resolve_version
from lance_core.versions.snapshot import Snapshot, load_at, load_latest

_PARTS_PER_SLOT = 4
_PARTITION_ROWS_MIN = 65_536
_PARTITION_BYTES_MIN = 8 * 1024**2
_REDUCED_PARTITION_ROWS_MIN = 4_194_304
_REDUCED_PARTITION_BYTES_MIN = 16 * 1024**2
"""Where no row leaves the workers, a task is done with so many bytes in about the time that it takes to start."""
_PARTITION_BYTES_MAX = 256 * 1024**2
_SIGNED_FRAGMENTS = 1 << 31
_LOOKUP_ROWS_MAX = 1024
_LOOKUP_FRAGMENTS_MAX = 16
_LOOKUP_BYTES_MAX = 4 * 1024**2
"""Of rows that are known, and read by the driver."""

RowRanges = tuple[tuple[int, int | None, PushedRows | None], ...]
"""Which live rows of each fragment of a part: how many are skipped, and how many are taken; or the only ones that can
match."""


@dataclass(frozen=True, slots=True)
class VersionRef:
    """The version that is to be read; the newest where nothing says."""

    uri: str
    version: int | None = None
    tag: str | None = None
    branch: str | None = None
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    manifest_store: ManifestStore | str | None = field(default=None, repr=False)
    bases: tuple[str, ...] = ()

    def snapshot(self) -> Snapshot:
        location = locate(
            self.uri, storage_options=self.storage_options, bases=self.bases, manifest_store=self.manifest_store
        )
        number = None if self.version is None else validation.check_version_number(self.version)
        if self.tag is None and self.branch is None:
            return load_latest(location) if number is None else load_at(location, number)
        return resolve_version(location, version=number, tag=self.tag, branch=self.branch)


@dataclass(frozen=True, slots=True)
class ScanPartition:
    """What one task reads. Picklable."""

    fragments: tuple[bytes, ...]
    ranges: RowRanges


@dataclass(frozen=True, slots=True)
class ScanSpec:
    """What is read of every part."""

    columns: tuple[str, ...]
    predicate: Predicate | None = None

    def plan_partition(self, part: Snapshot, ranges: RowRanges) -> ScanPlan:
        plan = plan_scan(part.manifest, columns=self.columns, filter=self.predicate)
        tasks = zip(part.manifest.fragments, ranges, strict=True)
        return replace(plan, tasks=tuple(_task(fragment, *rows) for fragment, rows in tasks))


def _task(fragment: Fragment, skip: int, take: int | None, sent: PushedRows | None) -> ScanTask:
    return ScanTask(fragment, skip, take, None if sent is None else sent.selection)


@dataclass(frozen=True, slots=True)
class ReadWork:
    """What a worker needs to read any part."""

    header: VersionHeader
    scan_spec: ScanSpec
    transport: pa.Schema
    """What the batches look like on their way: the types that the other side can hold."""

    def read(self, part: ScanPartition, transport: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
        """`transport` where who asks knows better what it takes."""
        self.header.stamp.check()
        snapshot = self.header.snapshot_with(part.fragments)
        for batch in scan(snapshot.location, self.scan_spec.plan_partition(snapshot, part.ranges)):
            yield conform(batch, transport or self.transport, conversion=Conversion.OUTWARD, what=self.header.uri)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    work: ReadWork
    partitions: tuple[ScanPartition, ...]
    arrow: pa.Schema
    """What the table stores in these columns. Addresses and ids of rows, which are unsigned, are told as signed ones:
    none is so large that it matters."""
    memory_bytes: int = 0
    """About how much it is, before a condition is looked at."""

    def without_partitions(self) -> "ReadPlan":
        """For workers that are told each part by itself."""
        return replace(self, partitions=())


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Runs in a worker: numbers of parts in, their rows out."""

    plan: ReadPlan

    @property
    def __name__(self) -> str:
        """What a plan of Spark calls it."""
        whole = self.plan.work.header
        table = re.sub(r"\W+", "_", whole.uri.rstrip("/").rpartition("/")[2])
        return f"{type(self).__qualname__}_of_version_{whole.version}_of_{table}"

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.plan.work.read(self.plan.partitions[number])


@dataclass(frozen=True, slots=True)
class FetchedRows:
    """So few that they are read where they are asked for: a job would take longer."""

    rows: pa.Table
    """In the types in which they would travel."""
    arrow: pa.Schema
    """As that of a `ReadPlan`."""


def plan_read(
    base: Snapshot,
    *,
    transport: Callable[[pa.Schema], pa.Schema],
    slots: int,
    columns: Sequence[str] | None = None,
    filter: str | Predicate | None = None,
    with_row_id: bool = False,
    with_row_address: bool = False,
) -> ReadPlan:
    """In scan order. `transport` says which types the other side can hold, for the types that are stored. Of blobs
    comes where they are, as in `to_table`."""
    plan = _planned(base, columns, filter, with_row_id, with_row_address)
    return _spread(base, plan, transport, slots)


def fetch_or_plan(
    base: Snapshot,
    *,
    transport: Callable[[pa.Schema], pa.Schema],
    slots: int,
    columns: Sequence[str] | None = None,
    filter: str | Predicate | None = None,
    with_row_id: bool = False,
    with_row_address: bool = False,
) -> FetchedRows | ReadPlan:
    """The same; or the rows themselves, where indices say that no others than a few can match."""
    plan = _planned(base, columns, filter, with_row_id, with_row_address)
    if not plan.output or not _is_few(plan):
        return _spread(base, plan, transport, slots)
    arrow = _told(plan)
    schema, uri = transport(arrow), base.location.uri
    found = [conform(rows, schema, conversion=Conversion.OUTWARD, what=uri) for rows in scan(base.location, plan)]
    return FetchedRows(pa.Table.from_batches(found, schema), arrow)


def _planned(
    base: Snapshot,
    columns: Sequence[str] | None,
    filter: str | Predicate | None,
    with_row_id: bool,
    with_row_address: bool,
) -> ScanPlan:
    plan = plan_scan(
        base.manifest,
        columns=columns,
        filter=filter,
        with_row_id=with_row_id,
        with_row_address=with_row_address,
        select=lookup.selector_of(base),
    )
    if not all(column.is_stored for column in plan.output) and base.manifest.max_fragment_id >= _SIGNED_FRAGMENTS:
        raise Unsupported(
            f"{base.location.uri} has fragments with numbers above {_SIGNED_FRAGMENTS}, whose rows have addresses that "
            "a signed number does not hold; read it without them"
        )
    return plan


def _spread(base: Snapshot, plan: ScanPlan, transport: Callable[[pa.Schema], pa.Schema], slots: int) -> ReadPlan:
    arrow = _told(plan)
    work = ReadWork(VersionHeader.of(base), ScanSpec(plan.columns, plan.predicate), transport(arrow))
    return ReadPlan(work, partition_scan(plan, slots, returns_rows=plan.predicate is None), arrow, plan.memory_bytes())


def _told(plan: ScanPlan) -> pa.Schema:
    told = [column.arrow if column.is_stored else column.arrow.with_type(pa.int64()) for column in plan.output]
    return pa.schema(told, plan.schema.metadata)


def _is_few(plan: ScanPlan) -> bool:
    if len(plan.tasks) > _LOOKUP_FRAGMENTS_MAX or any(task.selection is None for task in plan.tasks):
        return False
    sizes = plan.morsel_sizes()
    rows = sum(task.candidate_rows for task in plan.tasks)
    return (
        rows <= _LOOKUP_ROWS_MAX
        and sum(task.candidate_rows * sizes.row_bytes(task.fragment) for task in plan.tasks) <= _LOOKUP_BYTES_MAX
    )


def partition_scan(plan: ScanPlan, slots: int, *, returns_rows: bool = True) -> tuple[ScanPartition, ...]:
    """A scan in parts of about equally many rows: neighbours together, large fragments in pieces. So many that every
    slot has a few, so few that a task is worth its start, none larger than a worker should hold at once. `returns_rows` says
    that somebody else goes on with all the rows."""
    rows_min, bytes_min = (
        (_PARTITION_ROWS_MIN, _PARTITION_BYTES_MIN)
        if returns_rows
        else (_REDUCED_PARTITION_ROWS_MIN, _REDUCED_PARTITION_BYTES_MIN)
    )
    sizes = plan.morsel_sizes()
    sent = pack_rows(plan.tasks)
    looked_at = [
        task.fragment.live_rows if rows is None else task.candidate_rows for task, rows in zip(plan.tasks, sent, strict=True)
    ]
    total = sum(looked_at)
    spread, fair = (-(-total // max(1, slots * each)) for each in (_PARTS_PER_SLOT, 1))
    parts: list[list[tuple[ScanTask, PushedRows | None]]] = []
    room = 0
    for task, chosen, rows in zip(plan.tasks, sent, looked_at, strict=True):
        width = max(1, sizes.row_bytes(task.fragment))
        least = min(rows_min, max(1, bytes_min // width), max(fair, _PARTITION_ROWS_MIN))
        most = max(1, _PARTITION_BYTES_MAX // width)
        target = min(most, max(least, spread))
        pieces = max(1, -(-rows // target)) if chosen is None else 1
        if pieces > 1:
            step = -(-rows // pieces)
            parts += [[(ScanTask(task.fragment, skip, min(step, rows - skip)), None)] for skip in range(0, rows, step)]
            room = 0
            continue
        if room <= 0:
            parts.append([])
            room = target
        parts[-1].append((task, chosen))
        room -= max(1, rows)
    return tuple(
        ScanPartition(
            tuple(each.fragment.encode() for each, _ in part),
            tuple((each.skip, each.take, chosen) for each, chosen in part),
        )
        for part in parts
    )


def map_scan_partitions(
    base: Snapshot, plan: ScanPlan, function: "ScanPartitionFunction", runner: Runner
) -> Mapping[int, list[bytes]]:
    """What `function` gave back for each part of a scan, by the number of the part."""
    parts = partition_scan(plan, runner.slots, returns_rows=False)
    if not parts:
        return {}
    task = PartitionTask(
        VersionHeader.of(base),
        tuple(part.fragments for part in parts),
        _OnRanges(function, tuple(part.ranges for part in parts)),
    )
    return collect_results(runner.run(task, len(parts)), len(parts), uri=base.location.uri)


ScanPartitionFunction = Callable[[Snapshot, RowRanges], Iterable[bytes]]
"""What is done with rows of a part. Picklable."""


@dataclass(frozen=True, slots=True)
class _OnRanges:
    work: ScanPartitionFunction
    ranges: tuple[RowRanges, ...]

    def __call__(self, part: Snapshot, number: int) -> Iterable[bytes]:
        return self.work(part, self.ranges[number])


def count_rows(base: Snapshot, filter: str | None, *, runner: Callable[[], Runner]) -> int:
    """From the manifest alone, unless only rows that match are wanted."""
    if filter is None:
        return base.manifest.row_count()
    plan = plan_scan(base.manifest, columns=(), filter=filter, select=lookup.selector_of(base))
    known = tuple(task for task in plan.tasks if task.selection is not None and task.selection.residual is None)
    rest = replace(plan, tasks=tuple(task for task in plan.tasks if task.selection is None or task.selection.residual))
    found = count_matches(base.location, replace(plan, tasks=known))
    if not rest.tasks:
        return found
    results = map_scan_partitions(base, rest, _Count(ScanSpec((), plan.predicate)), runner())
    return found + sum(int.from_bytes(each, "little") for part in results.values() for each in part)


@dataclass(frozen=True, slots=True)
class _Count:
    wanted: ScanSpec

    def __call__(self, part: Snapshot, ranges: RowRanges) -> Iterator[bytes]:
        yield count_matches(part.location, self.wanted.plan_partition(part, ranges)).to_bytes(8, "little")


__all__ = [
    "FetchedRows",
    "ManifestStore",
    "ReadPlan",
    "ReadTask",
    "ReadWork",
    "RowRanges",
    "ScanPartition",
    "ScanPartitionFunction",
    "ScanSpec",
    "VersionRef",
    "count_rows",
    "fetch_or_plan",
    "map_scan_partitions",
    "partition_scan",
    "plan_read",
]
