"""Write handle: a write that one process plans and another process commits.

    planner    WriteHandle.of(planned)                picklable: the version it was planned on and its transaction uuid
    workers    WriteTask(handle.plan)                 as for any other write
    committer  handle.to_planned_write().finish(...)  on the version that the planner saw, even if newer ones exist

The uuid travels with the handle, so a commit finds what an earlier attempt committed, and a write that is finished
twice makes one version. A process that fails deletes nothing: a commit that ended with an error may have created its
version.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from lance_core.commit.fencing import ClockReading
from lance_core.commit.write_protocol import StartedWrite
from lance_core.coordination.idempotency import IntentRecord
from lance_core.datafiles.checksums import Verify
from lance_core.format.ids import Version
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from lance_core.tasks.rows.write import RESULT, PlannedWrite, WritePlan, WriteTask, verb_of
from lance_core.transactions.apply import NewTable
from lance_core.versions.location import locate
from lance_core.versions.snapshot import Snapshot, load_at


@dataclass(frozen=True, slots=True)
class WriteHandle:
    """Picklable form of a `PlannedWrite`."""

    plan: WritePlan
    replaces: bool
    version: int | None
    """Version on which the write was planned; `None` if the table did not exist."""
    uuid: str
    record: IntentRecord | None
    started_ns: int
    """Wall-clock time at which the write began."""
    manifest_store: ManifestStore | str | None = field(default=None, repr=False)
    verify: Verify = Verify.OFF
    trusted: bool = True
    stable_row_ids: bool = False
    """Kind of row ids of the table, if the write creates it."""

    @classmethod
    def of(cls, planned: PlannedWrite, *, manifest_store: ManifestStore | str | None = None) -> "WriteHandle":
        """Return the handle of a planned write. `manifest_store` is the one with which the write was begun."""
        started = planned.started
        version = int(started.base.version) if isinstance(started.base, Snapshot) else None
        started_ns = started.started_at.now_ns if started.started_at else SYSTEM_RUNTIME.now_ns()
        access = started.location.access
        return cls(
            planned.plan,
            planned.replaces,
            version,
            started.uuid,
            started.record,
            started_ns,
            manifest_store,
            access.verify,
            access.trusted,
            isinstance(started.base, NewTable) and started.base.stable_row_ids,
        )

    def to_planned_write(self) -> PlannedWrite:
        """Return the planned write, to be finished in this process."""
        plan = self.plan
        location = locate(
            plan.uri,
            storage_options=plan.storage_options,
            durable=plan.durable,
            manifest_store=self.manifest_store,
            verify=self.verify,
            trusted=self.trusted,
        )
        base: Snapshot | NewTable = NewTable(plan.storage_version, self.stable_row_ids)
        if self.version is not None:
            base = load_at(location, Version(self.version))
            location = base.location
        moment = ClockReading(SYSTEM_RUNTIME.elapsed_ns(), self.started_ns)
        verb = verb_of(replaces=self.replaces, scope=plan.scope)
        started = StartedWrite(location, base, self.uuid, self.record, SYSTEM_RUNTIME, moment, verb)
        return PlannedWrite(plan, self.replaces, started)

    def write_batches(self, batches: Iterable[pa.RecordBatch]) -> bytes:
        """Write rows in a worker and return the result rows as one Arrow IPC stream."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, RESULT) as stream:
            for batch in WriteTask(self.plan)(batches):
                stream.write_batch(batch)
        return bytes(sink.getvalue().to_pybytes())


def combine_results(streams: Iterable[bytes]) -> pa.Table:
    """Return the result rows of all workers as one table, for `PlannedWrite.finish`."""
    return pa.concat_tables([RESULT.empty_table(), *(pa.ipc.open_stream(stream).read_all() for stream in streams)])
