"""Partitioning: spreads the fragments of a version over workers.

    driver    VersionHeader.of(base)                      what every worker needs: location, schema, settings
              PartitionTask(header, partitions, function) picklable; `partitions` are the fragments of each task
    workers   PartitionTask(...)(batches of numbers)      function(snapshot, number) for each number; results are bytes
    driver    collect_results(rows, ...)                  those bytes by partition, or the first error

To lower layers a partition is a version like any other, with few fragments. So a verb that plans an operation for a
whole table plans one for a partition, too, and the driver only merges the operations (`operation_merge.py`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from lance_core.datafiles.checksums import Verify
from lance_core.errors import InvalidInput, MissingDependency, StorageError
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest
from lance_core.format.naming import NamingScheme
from lance_core.tasks import remote_errors
from lance_core.tasks.version_stamp import VersionStamp
from lance_core.versions.location import Location, locate
from lance_core.versions.snapshot import Snapshot

RESULT = pa.schema([pa.field("part", pa.int64()), pa.field("result", pa.binary()), pa.field("refusal", pa.string())])
"""Result rows of partitions. A row has a result, or the error that prevented one."""

PartitionFunction = Callable[[Snapshot, int], Iterable[bytes]]
"""Work on one partition: gets its snapshot and its number, and returns its results. Picklable."""


Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Runs in a worker: partition numbers in, rows of `RESULT` out. Picklable."""


class Runner(Protocol):
    """Runs tasks: Spark, or a loop in a test."""

    @property
    def slots(self) -> int:
        """Number of tasks that run concurrently."""

    def run(self, task: Task, partitions: int) -> pa.Table:
        """Run one task for each number below `partitions`. Return its rows of `RESULT` in any order, from one attempt
        of each task."""


@dataclass(frozen=True, slots=True)
class LocalRunner:
    """`Runner` without workers, for work that takes less time than the start of a job."""

    slots: int = 1

    def run(self, task: Task, partitions: int) -> pa.Table:
        numbers = [pa.record_batch({"part": pa.array([number], pa.int64())}) for number in range(partitions)]
        return pa.Table.from_batches(task(numbers), RESULT)


@dataclass(frozen=True, slots=True)
class VersionHeader:
    """A version without its fragments and indices. Picklable."""

    uri: str
    manifest_header: bytes
    """Manifest file without fragments, indices and transaction."""
    path: str
    scheme: NamingScheme
    durable: bool
    bases: tuple[str, ...]
    verify: Verify
    trusted: bool
    stamp: VersionStamp
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, base: Snapshot) -> "VersionHeader":
        location, manifest = base.location, base.manifest
        access = location.access
        return cls(
            uri=location.uri,
            manifest_header=manifest.header(),
            path=manifest.path,
            scheme=base.scheme,
            durable=access.durable,
            bases=access.bases,
            verify=access.verify,
            trusted=access.trusted,
            stamp=VersionStamp.of_this_process(),
            storage_options=dict(access.storage_options),
        )

    @property
    def version(self) -> int:
        return Manifest.decode(self.manifest_header, path=self.path).version

    def location(self) -> Location:
        """Return the location of the table's own files, without a manifest store: a worker never commits."""
        return locate(
            self.uri,
            storage_options=self.storage_options,
            durable=self.durable,
            bases=self.bases,
            verify=self.verify,
            trusted=self.trusted,
        )

    def snapshot_with(self, fragments: Iterable[bytes]) -> Snapshot:
        """Return the version with these encoded fragments only."""
        manifest = Manifest.decode(self.manifest_header, path=self.path).with_fragments(map(Fragment.decode, fragments))
        return Snapshot(self.location().for_manifest(manifest), manifest, self.scheme)


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """Runs in a worker: partition numbers in, results out."""

    header: VersionHeader
    partitions: tuple[tuple[bytes, ...], ...]
    """Encoded fragments of each partition."""
    function: PartitionFunction

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    self.header.stamp.check()
                    for result in self.function(self.header.snapshot_with(self.partitions[number]), number):
                        yield pa.RecordBatch.from_pylist([{"part": number, "result": result}], RESULT)
                except (InvalidInput, MissingDependency) as error:
                    # No retry can help, and an exception would reach the driver as text in a traceback.
                    row = {"part": number, "refusal": remote_errors.encode_error(error)}
                    yield pa.RecordBatch.from_pylist([row], RESULT)


def partition_fragments(fragments: Sequence[Fragment], partitions_max: int) -> tuple[tuple[bytes, ...], ...]:
    """Group neighbouring fragments into at most `partitions_max` partitions with about equal row counts."""
    rows_per_partition = max(1, -(-sum(fragment.physical_rows for fragment in fragments) // partitions_max))
    partitions: list[list[bytes]] = []
    rows_left = 0
    for fragment in fragments:
        if rows_left <= 0:
            partitions.append([])
            rows_left = rows_per_partition
        partitions[-1].append(fragment.encode())
        rows_left -= fragment.physical_rows
    return tuple(map(tuple, partitions))


def collect_results(rows: pa.Table, partition_count: int, *, uri: str) -> Mapping[int, list[bytes]]:
    """Return the results by partition; a partition without results is absent. A retried or speculative task counts
    once, since the runner returns the rows of one attempt."""
    results: dict[int, list[bytes]] = {}
    for row in rows.sort_by("part").to_pylist():
        if row["refusal"] is not None:
            raise remote_errors.decode_error(row["refusal"])
        if not 0 <= row["part"] < partition_count:
            raise StorageError(
                f"{uri}: a worker returned partition {row['part']}, but there are only {partition_count}; run the job "
                "again"
            )
        results.setdefault(row["part"], []).append(row["result"])
    return results
