"""Distributed scan: workers read the fragments of a version that the driver has pinned.

    driver    VersionRef(uri, ...).snapshot()         resolves the version once
              plan_read(base, ...) -> ReadPlan        partitions: whole fragments, or row ranges of a large one
    workers   ReadTask(plan)(batches of numbers)      rows of each partition, in the types of `transport`

`scan/plan.py` plans a partition as it plans a whole table. The driver parses the predicate, so that every worker
evaluates the same one, `now()` included. Counting rows takes the same steps without returning rows.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from lance_core import validation
from lance_core.datafiles.conform import Conversion, conform
from lance_core.errors import Unsupported
from lance_core.expressions import Predicate
from lance_core.expressions.arrow_filters import Condition
from lance_core.format.fragment import Fragment
from lance_core.index import lookup
from lance_core.scan.executor import count_matches, scan
from lance_core.scan.plan import ScanPlan, ScanTask, plan_scan
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from lance_core.tasks.partitioning import PartitionTask, Runner, VersionHeader, collect_results
from lance_core.tasks.scan.pushed_selection import PushedRows, pack_rows
from lance_core.versions.location import check_opened_with_own_manifest_store, locate
from lance_core.versions.refs import resolve_version
from lance_core.versions.snapshot import Snapshot

_PARTITIONS_PER_SLOT = 4
PARTITION_ROWS_MIN = 65_536
_PARTITION_BYTES_MIN = 8 * 1024**2
REDUCED_PARTITION_ROWS_MIN = 4_194_304
_REDUCED_PARTITION_BYTES_MIN = 16 * 1024**2
"""Minimum size of a partition whose rows the worker reduces to a result. A task reads this much in about the time
that it takes to start."""
PARTITION_BYTES_MAX = 256 * 1024**2
SIGNED_FRAGMENT_IDS = 1 << 31
LOOKUP_ROWS_MAX = 1024
LOOKUP_FRAGMENTS_MAX = 16
LOOKUP_BYTES_MAX = 4 * 1024**2
"""Rows, fragments and bytes up to which the driver itself reads rows that an index has found."""

RowRanges = tuple[tuple[int, int | None, PushedRows | None], ...]
"""Live rows to read of each fragment of a partition: rows to skip, rows to take, and the only rows that can match if
an index knows them."""


@dataclass(frozen=True, slots=True)
class VersionRef:
    """Reference to the version to read; the newest version by default."""

    uri: str
    version: int | None = None
    tag: str | None = None
    branch: str | None = None
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    manifest_store: ManifestStore | str | None = field(default=None, repr=False)
    bases: tuple[str, ...] = ()
    verify: str = "off"
    trusted: bool = True

    def snapshot(self) -> Snapshot:
        """Load the version."""
        location = locate(
            self.uri,
            storage_options=self.storage_options,
            bases=self.bases,
            manifest_store=self.manifest_store,
            verify=self.verify,
            trusted=self.trusted,
        )
        number = None if self.version is None else validation.check_version_number(self.version)
        snapshot = resolve_version(location, version=number, tag=self.tag, branch=self.branch)
        check_opened_with_own_manifest_store(snapshot.location, snapshot.manifest)
        return snapshot


@dataclass(frozen=True, slots=True)
class ScanPartition:
    """Fragments and row ranges that one task reads. Picklable."""

    fragments: tuple[bytes, ...]
    ranges: RowRanges


@dataclass(frozen=True, slots=True)
class ScanSpec:
    """Columns and predicate, which are the same in every partition."""

    columns: tuple[str, ...]
    predicate: Predicate | None = None

    def plan_partition(self, partition: Snapshot, ranges: RowRanges) -> ScanPlan:
        """Return the scan plan of one partition."""
        plan = plan_scan(partition.manifest, columns=self.columns, filter=self.predicate)
        tasks = zip(partition.manifest.fragments, ranges, strict=True)
        return replace(plan, tasks=tuple(_scan_task(fragment, *rows) for fragment, rows in tasks))


def _scan_task(fragment: Fragment, skip: int, take: int | None, pushed: PushedRows | None) -> ScanTask:
    return ScanTask(fragment, skip, take, None if pushed is None else pushed.selection)


@dataclass(frozen=True, slots=True)
class ReadWork:
    """Everything that a worker needs to read any partition."""

    header: VersionHeader
    scan_spec: ScanSpec
    transport: pa.Schema
    """Schema in which batches travel: types that the receiver can hold."""

    def read(self, partition: ScanPartition, transport: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the partition. `transport` overrides the schema of the plan."""
        self.header.stamp.check()
        snapshot = self.header.snapshot_with(partition.fragments)
        for batch in scan(snapshot.location, self.scan_spec.plan_partition(snapshot, partition.ranges)):
            yield conform(batch, transport or self.transport, conversion=Conversion.OUTWARD, what=self.header.uri)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Partitions of a scan, and the values that workers need to read them."""

    work: ReadWork
    partitions: tuple[ScanPartition, ...]
    arrow: pa.Schema
    """Schema in which the table stores these columns. Row addresses and row ids, which are unsigned, are declared as
    signed, since each of them fits a signed integer."""
    memory_bytes: int = 0
    """Estimated size before the predicate is applied."""

    def without_partitions(self) -> "ReadPlan":
        """Return the plan for workers that receive each partition separately."""
        return replace(self, partitions=())


def name_task(task: object, header: VersionHeader) -> str:
    """Return a name that tells which version of which table a task reads."""
    table = re.sub(r"\W+", "_", header.uri.rstrip("/").rpartition("/")[2])
    return f"{type(task).__qualname__}_of_version_{header.version}_of_{table}"


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Runs in a worker: partition numbers in, their rows out."""

    plan: ReadPlan

    @property
    def __name__(self) -> str:
        """Name of the task in Spark's query plan."""
        return name_task(self, self.plan.work.header)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.plan.work.read(self.plan.partitions[number])


@dataclass(frozen=True, slots=True)
class FetchedRows:
    """Rows that the driver has read itself, because a job would take longer."""

    rows: pa.Table
    """Rows in the types of `transport`."""
    arrow: pa.Schema
    """Stored schema, as in `ReadPlan`."""


def plan_read(
    base: Snapshot,
    *,
    transport: Callable[[pa.Schema], pa.Schema],
    slots: int,
    columns: Sequence[str] | None = None,
    filter: Condition | Predicate | None = None,
    with_row_id: bool = False,
    with_row_address: bool = False,
) -> ReadPlan:
    """Plan a scan whose partitions are in scan order. `transport` maps the stored schema to types that the receiver
    can hold. A blob column returns the locations of its blobs, as in `to_table`."""
    plan = _plan_scan(base, columns, filter, with_row_id, with_row_address)
    return _partition_read(base, plan, transport, slots)


def fetch_or_plan(
    base: Snapshot,
    *,
    transport: Callable[[pa.Schema], pa.Schema],
    slots: int,
    columns: Sequence[str] | None = None,
    filter: Condition | Predicate | None = None,
    with_row_id: bool = False,
    with_row_address: bool = False,
) -> FetchedRows | ReadPlan:
    """Plan a scan as `plan_read` does, or return the rows if indices show that only a few can match."""
    plan = _plan_scan(base, columns, filter, with_row_id, with_row_address)
    if not plan.output or not _is_small_lookup(plan):
        return _partition_read(base, plan, transport, slots)
    arrow = output_schema(plan)
    schema, uri = transport(arrow), base.location.uri
    batches = [conform(rows, schema, conversion=Conversion.OUTWARD, what=uri) for rows in scan(base.location, plan)]
    return FetchedRows(pa.Table.from_batches(batches, schema), arrow)


def _plan_scan(
    base: Snapshot,
    columns: Sequence[str] | None,
    filter: Condition | Predicate | None,
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
    check_signed_addresses(base, plan)
    return plan


def check_signed_addresses(base: Snapshot, plan: ScanPlan) -> None:
    """Raise `Unsupported` if the plan reads row addresses that a signed integer cannot hold."""
    if not all(column.is_stored for column in plan.output) and base.manifest.max_fragment_id >= SIGNED_FRAGMENT_IDS:
        raise Unsupported(
            f"{base.location.uri} has fragment ids above {SIGNED_FRAGMENT_IDS}, and a signed integer cannot hold the "
            "addresses of their rows; read it without them"
        )


def _partition_read(
    base: Snapshot, plan: ScanPlan, transport: Callable[[pa.Schema], pa.Schema], slots: int
) -> ReadPlan:
    arrow = output_schema(plan)
    work = ReadWork(VersionHeader.of(base), ScanSpec(plan.columns, plan.predicate), transport(arrow))
    return ReadPlan(work, partition_scan(plan, slots, returns_rows=plan.predicate is None), arrow, plan.memory_bytes())


def output_schema(plan: ScanPlan) -> pa.Schema:
    """Return the stored schema of the columns, with system columns as signed integers."""
    fields = [column.arrow if column.is_stored else column.arrow.with_type(pa.int64()) for column in plan.output]
    return pa.schema(fields, plan.schema.metadata)


def _is_small_lookup(plan: ScanPlan) -> bool:
    """Return whether indices know all candidate rows, and these are few."""
    if len(plan.tasks) > LOOKUP_FRAGMENTS_MAX or any(task.selection is None for task in plan.tasks):
        return False
    sizes = plan.morsel_sizes()
    rows = sum(task.candidate_rows for task in plan.tasks)
    return (
        rows <= LOOKUP_ROWS_MAX
        and sum(task.candidate_rows * sizes.row_bytes(task.fragment) for task in plan.tasks) <= LOOKUP_BYTES_MAX
    )


def partition_scan(plan: ScanPlan, slots: int, *, returns_rows: bool = True) -> tuple[ScanPartition, ...]:
    """Split a scan into partitions of about equal row counts: neighbouring fragments together, large fragments by row
    ranges. Every slot gets a few partitions, a partition is large enough to justify the start of a task, and none
    exceeds `PARTITION_BYTES_MAX`. `returns_rows` means that the rows leave the worker, which makes smaller partitions
    worthwhile."""
    rows_min, bytes_min = (
        (PARTITION_ROWS_MIN, _PARTITION_BYTES_MIN)
        if returns_rows
        else (REDUCED_PARTITION_ROWS_MIN, _REDUCED_PARTITION_BYTES_MIN)
    )
    sizes = plan.morsel_sizes()
    pushed = pack_rows(plan.tasks)
    row_counts = [
        task.fragment.live_rows if rows is None else task.candidate_rows
        for task, rows in zip(plan.tasks, pushed, strict=True)
    ]
    total = sum(row_counts)
    spread, fair = (-(-total // max(1, slots * factor)) for factor in (_PARTITIONS_PER_SLOT, 1))
    partitions: list[list[tuple[ScanTask, PushedRows | None]]] = []
    rows_left = 0
    for task, pushed_rows, rows in zip(plan.tasks, pushed, row_counts, strict=True):
        row_bytes = max(1, sizes.row_bytes(task.fragment))
        target_min = min(rows_min, max(1, bytes_min // row_bytes), max(fair, PARTITION_ROWS_MIN))
        target_max = max(1, PARTITION_BYTES_MAX // row_bytes)
        target = min(target_max, max(target_min, spread))
        ranges = max(1, -(-rows // target)) if pushed_rows is None else 1
        if ranges > 1:
            step = -(-rows // ranges)
            partitions += [
                [(ScanTask(task.fragment, skip, min(step, rows - skip)), None)] for skip in range(0, rows, step)
            ]
            rows_left = 0
            continue
        if rows_left <= 0:
            partitions.append([])
            rows_left = target
        partitions[-1].append((task, pushed_rows))
        rows_left -= max(1, rows)
    return tuple(
        ScanPartition(
            tuple(task.fragment.encode() for task, _ in partition),
            tuple((task.skip, task.take, pushed_rows) for task, pushed_rows in partition),
        )
        for partition in partitions
    )


def map_scan_partitions(
    base: Snapshot, plan: ScanPlan, function: "ScanPartitionFunction", runner: Runner
) -> Mapping[int, list[bytes]]:
    """Return the results of `function` for each partition of a scan, by partition number."""
    partitions = partition_scan(plan, runner.slots, returns_rows=False)
    if not partitions:
        return {}
    task = PartitionTask(
        VersionHeader.of(base),
        tuple(partition.fragments for partition in partitions),
        _WithRanges(function, tuple(partition.ranges for partition in partitions)),
    )
    return collect_results(runner.run(task, len(partitions)), len(partitions), uri=base.location.uri)


ScanPartitionFunction = Callable[[Snapshot, RowRanges], Iterable[bytes]]
"""Work on the rows of one partition. Picklable."""


@dataclass(frozen=True, slots=True)
class _WithRanges:
    """Partition function that adds the row ranges of the partition."""

    function: ScanPartitionFunction
    ranges: tuple[RowRanges, ...]

    def __call__(self, partition: Snapshot, number: int) -> Iterable[bytes]:
        return self.function(partition, self.ranges[number])


def count_rows(base: Snapshot, filter: Condition | None, *, runner: Callable[[], Runner]) -> int:
    """Return the number of matching rows. Without a filter, the count comes from the manifest alone."""
    if filter is None:
        return base.manifest.row_count()
    plan = plan_scan(base.manifest, columns=(), filter=filter, select=lookup.selector_of(base))
    exact = tuple(task for task in plan.tasks if task.selection is not None and task.selection.residual is None)
    other = replace(plan, tasks=tuple(task for task in plan.tasks if task.selection is None or task.selection.residual))
    total = count_matches(base.location, replace(plan, tasks=exact))
    if not other.tasks:
        return total
    results = map_scan_partitions(base, other, _CountTask(ScanSpec((), plan.predicate)), runner())
    return total + sum(int.from_bytes(count, "little") for counts in results.values() for count in counts)


@dataclass(frozen=True, slots=True)
class _CountTask:
    """Counts the matching rows of one partition."""

    scan_spec: ScanSpec

    def __call__(self, partition: Snapshot, ranges: RowRanges) -> Iterator[bytes]:
        yield count_matches(partition.location, self.scan_spec.plan_partition(partition, ranges)).to_bytes(8, "little")


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
