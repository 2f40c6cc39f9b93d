"""Stream sink: commits each micro-batch exactly once, even if several processes write it, or write it repeatedly.

    planner    StreamedWrite.begin(uri, ...)         picklable: the version on which the batch is planned
    workers    write.write_batches(batches, batch)   what a worker wrote; nothing if the batch is already committed
    committer  commit_batch(messages, number, ...)   one version, under the intent of the batch

Spark tells only workers which query and batch they write, so their messages carry it, and the committer claims the
intent when it has all messages. The intent outlives the version: a batch that is repeated after a crash, a restart
or a cleanup is recognized. A process that fails deletes nothing. Start with `commit_batch`.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa

from lance_core.commit import write_protocol
from lance_core.commit.loop import ATTEMPTS
from lance_core.commit.write_protocol import WriteResult
from lance_core.coordination import idempotency
from lance_core.errors import InvalidInput, NotFound, RetryableConflict, StorageError
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from lance_core.table.base import Committed, NewTableOptions
from lance_core.table.table import Table
from lance_core.tasks.rows.write import (
    DEFAULTS,
    FileLimits,
    PlannedWrite,
    begin_append,
    begin_overwrite,
    collect_fragments,
)
from lance_core.tasks.rows.write_handle import WriteHandle, combine_results
from lance_core.versions.location import Location, locate
from lance_core.versions.snapshot import load_latest

QUERY, BATCH, RUN = "lance_assets.stream_query", "lance_assets.stream_batch", "lance_assets.stream_run"
"""Transaction properties that identify the micro-batch of a version."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch of a streaming query."""

    query: str
    """Id of the query, which is stable across restarts as long as its checkpoint exists."""
    number: int
    run: str | None = None

    @property
    def intent(self) -> str:
        return f"stream/{self.query}/{self.number}"

    @property
    def properties(self) -> dict[str, str]:
        run = {} if self.run is None else {RUN: self.run}
        return {QUERY: self.query, BATCH: str(self.number), **run}


@dataclass(frozen=True, slots=True)
class SinkMessage:
    """Report of a worker about the files that it wrote. It contains no secrets."""

    batch: MicroBatch | None
    """`None` if Spark did not tell the worker which batch it writes."""
    write: "StreamedWrite"
    already_committed: bool = False
    """True if the worker wrote nothing, because it found the batch committed."""
    results: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class StreamedWrite:
    """The planned write of one micro-batch. Picklable."""

    handle: WriteHandle
    new_table: NewTableOptions = DEFAULTS

    @classmethod
    def begin(
        cls,
        uri: str,
        incoming: pa.Schema,
        *,
        replaces: bool,
        create: bool = True,
        new_table: NewTableOptions = DEFAULTS,
        limits: FileLimits,
        branch: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        manifest_store: ManifestStore | str | None = None,
        durable: bool = True,
        verify: str = "off",
        trusted: bool = True,
    ) -> "StreamedWrite":
        """Plan a micro-batch on the newest version. With `replaces`, the batch replaces all rows of the table."""
        if replaces:
            planned = begin_overwrite(
                uri,
                incoming,
                replace_schema=False,
                new_table=new_table,
                intent=None,
                limits=limits,
                branch=branch,
                storage_options=storage_options,
                manifest_store=manifest_store,
                durable=durable,
                verify=verify,
                trusted=trusted,
            )
        else:
            planned = begin_append(
                uri,
                incoming,
                create=create,
                new_table=new_table,
                intent=None,
                limits=limits,
                branch=branch,
                storage_options=storage_options,
                manifest_store=manifest_store,
                durable=durable,
                verify=verify,
                trusted=trusted,
            )
        assert isinstance(planned, PlannedWrite), "a write without an intent cannot be committed already"
        return cls(WriteHandle.of(planned, manifest_store=manifest_store), new_table)

    def write_batches(self, batches: Iterable[pa.RecordBatch], batch: MicroBatch | None) -> SinkMessage:
        """Write rows in a worker. Does not read the rows of a batch that is already committed."""
        plan = self.handle.plan
        without_secrets = StreamedWrite(
            replace(self.handle, plan=replace(plan, storage_options={}), manifest_store=None), self.new_table
        )
        if batch is None:
            return SinkMessage(None, without_secrets)
        # A location that this worker cannot open is reported when it writes.
        with suppress(InvalidInput):
            location = locate(plan.uri, storage_options=plan.storage_options, durable=plan.durable)
            if _is_committed(location, batch):
                return SinkMessage(batch, without_secrets, already_committed=True)
        return SinkMessage(batch, without_secrets, results=self.handle.write_batches(batches))

    def with_secrets(
        self, storage_options: Mapping[str, str] | None, manifest_store: ManifestStore | str | None
    ) -> WriteHandle:
        """Return the handle with the storage options and manifest store of the committer."""
        plan = replace(self.handle.plan, storage_options=dict(storage_options or {}))
        return replace(self.handle, plan=plan, manifest_store=manifest_store)


def commit_batch(
    messages: Sequence[SinkMessage],
    number: int,
    *,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
) -> Committed | None:
    """Commit the messages of all workers as one version. Returns `None` if there is nothing to write. `number` is
    that of the micro-batch in its query."""
    if not messages:
        return None
    handle = messages[0].write.with_secrets(storage_options, manifest_store)
    batch = _micro_batch_of(messages, number, handle.plan.uri)
    rows = combine_results(message.results for message in messages if not message.already_committed)
    already_committed = any(message.already_committed for message in messages)
    if not already_committed and not handle.replaces and not collect_fragments(rows):
        return None
    all_properties = {**(properties or {}), **batch.properties}
    try:
        return _finish(
            handle.to_planned_write(),
            batch,
            rows,
            all_properties,
            retries,
            already_committed=already_committed,
            handle=handle,
        )
    except RetryableConflict as conflict:
        if (
            conflict.rule != "created_meanwhile"
            or (planned := _replan_on_existing_table(handle, messages[0].write.new_table)) is None
        ):
            raise
    return _finish(planned, batch, rows, all_properties, retries, already_committed=already_committed, handle=handle)


def _finish(
    planned: PlannedWrite,
    batch: MicroBatch,
    rows: pa.Table,
    properties: Mapping[str, str],
    retries: int,
    *,
    already_committed: bool,
    handle: WriteHandle,
) -> Committed:
    location, base = planned.started.location, planned.started.base
    verb = "overwrite" if planned.replaces else "append"
    started = write_protocol.begin(location, base, verb=verb, intent=batch.intent, runtime=SYSTEM_RUNTIME)
    if isinstance(started, WriteResult):
        return Committed.of(started, Table)
    if already_committed:
        raise StorageError(
            f"{location.uri}: batch {batch.number} of the query {batch.query} was already committed when a worker "
            "checked, but its record is gone now; restart the query"
        )
    started = replace(started, started_at=planned.started.started_at)
    return PlannedWrite(handle.plan, planned.replaces, started).finish(rows, properties=properties, retries=retries)


def _replan_on_existing_table(handle: WriteHandle, new_table: NewTableOptions) -> PlannedWrite | None:
    """Return the write on a table that another writer has created meanwhile; `None` if the files do not fit its
    schema. Raise `InvalidInput` if the table differs from what was requested for a new one."""
    planned = handle.to_planned_write()
    snapshot = load_latest(planned.started.location)
    new_table.check_existing(snapshot)
    fits = snapshot.manifest.schema == handle.plan.schema
    if not fits or snapshot.manifest.storage_version != handle.plan.storage_version:
        return None
    return replace(planned, started=replace(planned.started, base=snapshot, location=snapshot.location))


def _micro_batch_of(messages: Sequence[SinkMessage], number: int, uri: str) -> MicroBatch:
    """Return the micro-batch that all messages name."""
    batches = {message.batch for message in messages}
    if None in batches:
        raise InvalidInput(
            f"{uri}: this Spark does not tell its tasks which streaming query they belong to, so a repeated batch "
            "cannot be recognized, and its rows would be written twice. Write in foreachBatch, with an intent of your "
            "own for each batch"
        )
    batch = messages[0].batch
    if batch is None or len(batches) > 1 or batch.number != number:
        raise InvalidInput(
            f"{uri}: batch {number} holds rows of {sorted(map(str, batches))}; a table is written in "
            "micro-batches, not with a continuous trigger"
        )
    return batch


def _is_committed(location: Location, batch: MicroBatch) -> bool:
    try:
        return idempotency.read_record(location.store, idempotency.path_of(batch.intent)).landing is not None
    except NotFound:
        return False
