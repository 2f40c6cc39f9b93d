"""Batches of a stream, each of which lands once: whoever writes it, whenever, and however often.

    one       StreamedWrite.begin(uri, ...)        picklable: on which version the batch is planned
    workers   write.written(batches, batch)        what a worker did; nothing, if the batch has landed before
    another   commit(told, number, ...)            one version, under the intent of the batch

Which query and which batch it is only workers are told, so their answers say it, and the intent is claimed when all of
them are there. It outlives the version: a batch that is brought again after a crash, a restart or a cleanup is found.
Nobody who fails deletes anything. Start with `commit_batch`.
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
from lance_core.table.committed import Committed
from lance_core.table.table import committed_of
from lance_core.tasks.write import FileLimits, PlannedWrite, begin_append, begin_overwrite, fragments_of
from lance_core.tasks.write_handle import WriteHandle, combine_results
from lance_core.versions.location import Location, locate
from lance_core.versions.snapshot import load_latest

QUERY, BATCH, RUN = "lance_assets.stream_query", "lance_assets.stream_batch", "lance_assets.stream_run"
"""Properties of a version that says which batch it is."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    query: str
    """The same from one start of the query to the next, as long as its checkpoint is."""
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
    """What a worker did. Secrets stay behind."""

    batch: MicroBatch | None
    """None where it was not told which one it works for."""
    write: "StreamedWrite"
    already_committed: bool = False
    """Whether it found that the batch has landed before, and wrote nothing."""
    results: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class StreamedWrite:
    handle: WriteHandle

    @classmethod
    def begin(
        cls,
        uri: str,
        incoming: pa.Schema,
        *,
        replaces: bool,
        create: bool = True,
        limits: FileLimits,
        branch: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        manifest_store: ManifestStore | str | None = None,
        durable: bool = True,
    ) -> "StreamedWrite":
        """On the newest version: each batch begins anew. `replaces`: the batch is all that the table is to hold."""
        if replaces:
            planned = begin_overwrite(
                uri,
                incoming,
                replace_schema=False,
                intent=None,
                limits=limits,
                branch=branch,
                storage_options=storage_options,
                manifest_store=manifest_store,
                durable=durable,
            )
        else:
            planned = begin_append(
                uri,
                incoming,
                create=create,
                intent=None,
                limits=limits,
                branch=branch,
                storage_options=storage_options,
                manifest_store=manifest_store,
                durable=durable,
            )
        assert isinstance(planned, PlannedWrite), "without an intent there is nothing that could have landed"
        return cls(WriteHandle.of(planned, manifest_store=manifest_store))

    def write_batches(self, batches: Iterable[pa.RecordBatch], batch: MicroBatch | None) -> SinkMessage:
        """In a worker. Rows of a batch that has landed are not even asked for."""
        plan = self.handle.plan
        bare = StreamedWrite(replace(self.handle, plan=replace(plan, storage_options={}), manifest_store=None))
        if batch is None:
            return SinkMessage(None, bare)
        # What this worker cannot open, an option that it lacks, it tells when it is to write.
        with suppress(InvalidInput):
            location = locate(plan.uri, storage_options=plan.storage_options, durable=plan.durable)
            if _has_landed(location, batch):
                return SinkMessage(batch, bare, already_committed=True)
        return SinkMessage(batch, bare, results=self.handle.write_batches(batches))

    def with_secrets(
        self, storage_options: Mapping[str, str] | None, manifest_store: ManifestStore | str | None
    ) -> WriteHandle:
        """With the secrets of whoever commits it."""
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
    """None where there was nothing to write. `number` is that of the batch, as the query calls it."""
    if not messages:
        return None
    handed = messages[0].write.with_secrets(storage_options, manifest_store)
    batch = _batch_of(messages, number, handed.plan.uri)
    came_back = combine_results(each.results for each in messages if not each.already_committed)
    landed = any(each.already_committed for each in messages)
    if not landed and not handed.replaces and not fragments_of(came_back):
        return None
    noted = {**(properties or {}), **batch.properties}
    try:
        return _finished(handed.to_planned_write(), batch, came_back, noted, retries, landed=landed, handed=handed)
    except RetryableConflict as conflict:
        if conflict.rule != "created_meanwhile" or (planned := _beside(handed)) is None:
            raise
    return _finished(planned, batch, came_back, noted, retries, landed=landed, handed=handed)


def _finished(
    planned: PlannedWrite,
    batch: MicroBatch,
    came_back: pa.Table,
    properties: Mapping[str, str],
    retries: int,
    *,
    landed: bool,
    handed: WriteHandle,
) -> Committed:
    location, base = planned.begun.location, planned.begun.base
    verb = "overwrite" if planned.replaces else "append"
    begun = write_protocol.begin(location, base, verb=verb, intent=batch.intent, runtime=SYSTEM_RUNTIME)
    if isinstance(begun, WriteResult):
        return committed_of(begun)
    if landed:
        raise StorageError(
            f"{location.uri}: batch {batch.number} of the query {batch.query} was found to have landed when its rows "
            "were to be written, and is not found any more; start the query again"
        )
    begun = replace(begun, moment=planned.begun.started_at)
    return PlannedWrite(handed.plan, planned.replaces, begun).finish(came_back, properties=properties, retries=retries)


def _beside(handed: WriteHandle) -> PlannedWrite | None:
    """The same on the table that somebody else created meanwhile, if the files fit in there."""
    planned = handed.to_planned_write()
    snapshot = load_latest(planned.begun.location)
    fits = snapshot.manifest.schema == handed.plan.schema
    if not fits or snapshot.manifest.storage_version != handed.plan.storage_version:
        return None
    return replace(planned, begun=replace(planned.begun, base=snapshot, location=snapshot.location))


def _batch_of(told: Sequence[SinkMessage], number: int, uri: str) -> MicroBatch:
    batches = {each.batch for each in told}
    if None in batches:
        raise InvalidInput(
            f"{uri}: this Spark does not tell its tasks which streaming query they work for, so a batch that is "
            "repeated could not be told from a new one, and its rows would be there twice. Write in foreachBatch, "
            "with an intent of your own for each batch"
        )
    batch = told[0].batch
    if batch is None or len(batches) > 1 or batch.number != number:
        raise InvalidInput(
            f"{uri}: batch {number} holds rows of {sorted(str(each) for each in batches)}; a table is written in "
            "micro-batches, not with a continuous trigger"
        )
    return batch


def _has_landed(location: Location, batch: MicroBatch) -> bool:
    try:
        return idempotency.read(location.store, idempotency.path_of(batch.intent)).landing is not None
    except NotFound:
        return False
