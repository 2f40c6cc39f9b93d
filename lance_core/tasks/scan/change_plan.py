"""Change plan: the changes between two versions, found and read by workers.

    driver    plan_read_changes(until, since, ...) -> ChangePlan    partitions: row ranges of fragments that differ
    workers   ChangeTask(plan)(batches of numbers)                  changes of each partition, in types of `transport`

A worker compares the row ids of its partition with those of the other version (`scan/changes.py`), and then reads the
rows that changed. Row ids and row versions are part of the manifest, so no data file is read to find changes, and no
row passes through the driver. Start with `plan_read_changes`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from lance_core.datafiles.conform import Conversion, conform
from lance_core.expressions import Predicate
from lance_core.expressions.arrow_filters import Condition
from lance_core.scan.changes import CHANGE_FIELD, Comparison, RowRange, Side, plan_changes, read_rows
from lance_core.scan.plan import ScanPlan, ScanTask, plan_scan
from lance_core.tasks.partitioning import VersionHeader
from lance_core.tasks.scan.read import check_signed_addresses, name_task, output_schema, partition_scan
from lance_core.validation import check_version_number
from lance_core.versions.snapshot import Snapshot, load_at


@dataclass(frozen=True, slots=True)
class ChangedSide:
    """One of the two versions, with the fragments that the other one does not share. Picklable."""

    header: VersionHeader
    fragments: tuple[bytes, ...]

    @classmethod
    def of(cls, snapshot: Snapshot) -> "ChangedSide":
        return cls(VersionHeader.of(snapshot), tuple(each.encode() for each in snapshot.manifest.fragments))

    def snapshot(self) -> Snapshot:
        """Return the version with these fragments only."""
        return self.header.snapshot_with(self.fragments)


@dataclass(frozen=True, slots=True)
class ChangePartition:
    """Row ranges of one side that one task compares. Picklable."""

    side: Side
    ranges: tuple[tuple[int, int, int | None], ...]
    """Position of the fragment on its side, live rows to skip, live rows to take."""


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """Partitions of the rows to compare, and what workers need to read the changes."""

    since: ChangedSide
    until: ChangedSide
    columns: tuple[str, ...]
    predicate: Predicate | None
    partitions: tuple[ChangePartition, ...]
    arrow: pa.Schema
    """Schema of the changes; row ids and versions, which are unsigned, are declared as signed."""
    transport: pa.Schema
    """Schema in which batches travel: types that the receiver can hold."""
    memory_bytes: int = 0
    """Estimated size of the compared rows, of which the changes are a part."""

    def open(self) -> tuple[Comparison, ScanPlan]:
        """Return both versions, and the plan by which their rows are read."""
        comparison = Comparison(self.since.snapshot(), self.until.snapshot())
        return comparison, plan_scan(comparison.until.manifest, columns=self.columns, filter=self.predicate)


@dataclass(frozen=True, slots=True)
class ChangeTask:
    """Runs in a worker: partition numbers in, their changes out."""

    plan: ChangePlan

    @property
    def __name__(self) -> str:
        """Name of the task in Spark's query plan."""
        return name_task(self, self.plan.until.header)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        plan, header = self.plan, self.plan.until.header
        header.stamp.check()
        comparison, scan_plan = plan.open()
        for number in (number for batch in batches for number in batch.column(0).to_pylist()):
            side = plan.partitions[number].side
            fragments = comparison.own(side).manifest.fragments
            ranges = [RowRange(fragments[index], skip, take) for index, skip, take in plan.partitions[number].ranges]
            for rows in read_rows(comparison, scan_plan, side, ranges):
                yield conform(rows, plan.transport, conversion=Conversion.OUTWARD, what=header.uri)


def plan_read_changes(
    until: Snapshot,
    since: int,
    *,
    transport: Callable[[pa.Schema], pa.Schema],
    slots: int,
    columns: Sequence[str] | None = None,
    filter: Condition | None = None,
    with_row_id: bool = True,
) -> ChangePlan:
    """Plan the changes between the version `since` and a later one. Partitions are in the order of `Table.changes`.

    `transport` maps the stored schema to types that the receiver can hold.
    """
    comparison = Comparison.between(load_at(until.location, check_version_number(since)), until)
    plan = plan_changes(until, columns, filter, with_row_id=with_row_id)
    check_signed_addresses(until, plan)
    arrow = output_schema(plan).insert(0, CHANGE_FIELD)
    plans = {
        side: replace(plan, manifest=own.manifest, tasks=tuple(map(ScanTask, own.manifest.fragments)))
        for side in Side
        for own in [comparison.own(side)]
    }
    return ChangePlan(
        since=ChangedSide.of(comparison.since),
        until=ChangedSide.of(comparison.until),
        columns=plan.columns,
        predicate=plan.predicate,
        partitions=tuple(part for side, each in plans.items() for part in _partitions(side, each, slots)),
        arrow=arrow,
        transport=transport(arrow),
        memory_bytes=sum(each.memory_bytes() for each in plans.values()),
    )


def _partitions(side: Side, plan: ScanPlan, slots: int) -> Iterator[ChangePartition]:
    index = {task.fragment.encode(): number for number, task in enumerate(plan.tasks)}
    for partition in partition_scan(plan, slots):
        ranges = zip(partition.fragments, partition.ranges, strict=True)
        yield ChangePartition(side, tuple((index[each], skip, take) for each, (skip, take, _) in ranges))


__all__ = ["ChangePlan", "ChangeTask", "plan_read_changes"]
