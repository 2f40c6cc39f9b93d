"""A write that is begun in one process and finished in another.

    one       HandedOn.of(planned)           picklable: on which version it was planned, under which uuid
    workers   WriteTask(handed.plan)         as ever
    another   handed.planned().finish(...)   on the version that the first one saw, whatever the newest is by then

The uuid travels, so that the commit finds what an attempt before it made, and a write that lands twice is one version.
Nobody who fails deletes anything: that a commit ended with an error does not mean that it made no version.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from lance_core.commit.fencing import ClockReading
from lance_core.commit.write_protocol import StartedWrite
from lance_core.coordination.idempotency import IntentRecord
from lance_core.format.ids import Version
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from lance_core.tasks.write import RESULT, PlannedWrite, WritePlan, WriteTask
from lance_core.transactions.apply import NewTable
from lance_core.versions.location import locate
from lance_core.versions.snapshot import Snapshot, load_at


@dataclass(frozen=True, slots=True)
class WriteHandle:
    plan: WritePlan
    replaces: bool
    version: int | None
    """Which it was planned on; None for a table that was not there."""
    uuid: str
    record: IntentRecord | None
    started_ns: int
    manifest_store: ManifestStore | str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, planned: PlannedWrite, *, manifest_store: ManifestStore | str | None = None) -> "WriteHandle":
        """`manifest_store` as it was given where the write was begun."""
        begun = planned.begun
        version = int(begun.base.version) if isinstance(begun.base, Snapshot) else None
        since = begun.moment.now_ns if begun.moment else SYSTEM_RUNTIME.now_ns()
        return cls(planned.plan, planned.replaces, version, begun.uuid, begun.record, since, manifest_store)

    def to_planned_write(self) -> PlannedWrite:
        plan = self.plan
        location = locate(
            plan.uri,
            storage_options=plan.storage_options,
            durable=plan.durable,
            manifest_store=self.manifest_store,
        )
        base: Snapshot | NewTable = NewTable(plan.storage_version)
        if self.version is not None:
            base = load_at(location, Version(self.version))
            location = base.location
        moment = ClockReading(SYSTEM_RUNTIME.elapsed_ns(), self.started_ns)
        return PlannedWrite(
            plan, self.replaces, StartedWrite(location, base, self.uuid, self.record, SYSTEM_RUNTIME, moment)
        )

    def write_batches(self, batches: Iterable[pa.RecordBatch]) -> bytes:
        """In a worker: what it gives back, in one piece."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, RESULT) as stream:
            for batch in WriteTask(self.plan)(batches):
                stream.write_batch(batch)
        return bytes(sink.getvalue().to_pybytes())


def combine_results(pieces: Iterable[bytes]) -> pa.Table:
    """What all workers gave back, for `finish`."""
    return pa.concat_tables([RESULT.empty_table(), *(pa.ipc.open_stream(piece).read_all() for piece in pieces)])
