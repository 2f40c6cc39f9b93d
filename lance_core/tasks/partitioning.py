"""A version spread over workers: each has all of it but the fragments of the others.

    driver    Whole.of(base)                       what every worker knows: where the table is, its schema, its settings
              PartTask(whole, parts, work)         picklable; `partitions` are the fragments of each task
    workers   PartTask(...)(batches of numbers)    work(part, ...) for each number, whose results travel as bytes
    driver    results_of(table)                    those bytes by part, or the refusal of the first part that has one

To the rooms below, a part is a version like any other, with few fragments. So a verb that plans an operation for a
whole table plans one for a part too, and who spreads it has only to put the operations together (`operation_merge.py`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from lance_core.errors import InvalidInput, StorageError
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest
from lance_core.format.naming import NamingScheme
from lance_core.tasks import remote_errors
from lance_core.tasks.version_stamp import VersionStamp
from lance_core.versions.location import Location, locate
from lance_core.versions.snapshot import Snapshot

RESULT = pa.schema([pa.field("part", pa.int64()), pa.field("result", pa.binary()), pa.field("refusal", pa.string())])
"""What comes back: rows of a part's results, or one that says why it cannot be done."""

PartitionFunction = Callable[[Snapshot, int], Iterable[bytes]]
"""What is done with a part; the number is the part's own. Picklable."""


Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Runs in a worker: numbers of parts in, rows of `RESULT` out. Picklable."""


class Runner(Protocol):
    """Whoever runs tasks: Spark, or a loop in a test."""

    @property
    def slots(self) -> int:
        """How many tasks run at once."""

    def run(self, task: Task, partitions: int) -> pa.Table:
        """One task for each number below `partitions`, with the task's own answer for it: rows of `RESULT`, in any order,
        of one attempt each."""


@dataclass(frozen=True, slots=True)
class LocalRunner:
    """A `Runner` without workers, for so little that to send it off would take longer."""

    slots: int = 1

    def run(self, task: Task, partitions: int) -> pa.Table:
        numbers = [pa.record_batch({"part": pa.array([number], pa.int64())}) for number in range(partitions)]
        return pa.Table.from_batches(task(numbers), RESULT)


@dataclass(frozen=True, slots=True)
class VersionHeader:
    uri: str
    manifest_header: bytes
    """The manifest, as a file without fragments, indices and transaction."""
    path: str
    scheme: NamingScheme
    durable: bool
    bases: tuple[str, ...]
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
            stamp=VersionStamp.of_this_process(),
            storage_options=dict(access.storage_options),
        )

    @property
    def version(self) -> int:
        return Manifest.decode(self.manifest_header, path=self.path).version

    def location(self) -> Location:
        """Of the table's own files. A worker never commits, so it needs to know of no manifest store."""
        return locate(self.uri, storage_options=self.storage_options, durable=self.durable, bases=self.bases)

    def snapshot_with(self, fragments: Iterable[bytes]) -> Snapshot:
        manifest = Manifest.decode(self.manifest_header, path=self.path).with_fragments(map(Fragment.decode, fragments))
        return Snapshot(self.location().for_manifest(manifest), manifest, self.scheme)


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """Runs in a worker: numbers of parts in, results out."""

    header: VersionHeader
    partitions: tuple[tuple[bytes, ...], ...]
    """Encoded fragments, of each part."""
    function: PartitionFunction

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    self.header.stamp.check()
                    for result in self.function(self.header.snapshot_with(self.partitions[number]), number):
                        yield pa.RecordBatch.from_pylist([{"part": number, "result": result}], RESULT)
                except InvalidInput as error:
                    # Trying again would not help, and an exception would reach the driver as text in a traceback.
                    told = {"part": number, "refusal": remote_errors.encode_error(error)}
                    yield pa.RecordBatch.from_pylist([told], RESULT)


def partition_fragments(fragments: Sequence[Fragment], partitions_max: int) -> tuple[tuple[bytes, ...], ...]:
    """Neighbours together, in at most so many parts of about equally many rows."""
    rows_per_part = max(1, -(-sum(fragment.physical_rows for fragment in fragments) // partitions_max))
    parts: list[list[bytes]] = []
    room = 0
    for fragment in fragments:
        if room <= 0:
            parts.append([])
            room = rows_per_part
        parts[-1].append(fragment.encode())
        room -= fragment.physical_rows
    return tuple(map(tuple, parts))


def collect_results(came_back: pa.Table, parts: int, *, uri: str) -> Mapping[int, list[bytes]]:
    """By part; a part without results is missing. A retried or speculative task counts once, since whoever runs the
    tasks takes one answer of each."""
    results: dict[int, list[bytes]] = {}
    for row in came_back.sort_by("part").to_pylist():
        if row["refusal"] is not None:
            raise remote_errors.decode_error(row["refusal"])
        if not 0 <= row["part"] < parts:
            raise StorageError(f"{uri}: a worker answered for part {row['part']}, and there are {parts}")
        results.setdefault(row["part"], []).append(row["result"])
    return results
