"""An append or an overwrite whose rows are written by workers.

    driver    begin_append(uri, ...)  -> PlannedWrite, or Committed if the intent has landed before
    workers   WriteTask(plan)(batches) -> the fragments they wrote, encoded
    driver    planned.finish(results) -> Committed

A worker's files have fresh names, so retried and speculative attempts leave orphans, never rows: only fragments that
the driver collected are committed.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from lance_core import validation
from lance_core.commit import write_protocol
from lance_core.commit.change import Change, resume
from lance_core.commit.loop import ATTEMPTS
from lance_core.commit.write_protocol import StartedWrite, WriteResult, new_table_config
from lance_core.datafiles.blob_writing import schema_to_stored, stored_schema
from lance_core.datafiles.coalesce_batches import coalesce
from lance_core.datafiles.column_layout import check_storable
from lance_core.datafiles.conform import Conversion, columns_to_write
from lance_core.datafiles.fragment_writer import BYTES_PER_FILE_MAX, ROWS_PER_FILE_MAX, FileLimits, write_fragments
from lance_core.dml.replace_where import ReplaceScope
from lance_core.errors import AlreadyExists, InvalidInput, NotFound, RetryableConflict
from lance_core.format.fragment import Fragment, StorageVersion
from lance_core.format.operations import Append, Overwrite
from lance_core.format.schema import TableSchema
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from lance_core.table.committed import Committed
from lance_core.table.rows import REPLACE_WHERE_VERB
from lance_core.table.table import STORAGE_VERSION, audit_of, committed_of
from lance_core.table.write_options import Audit, WriteOptions
from lance_core.tasks import remote_errors
from lance_core.tasks.driver import TableRef
from lance_core.tasks.version_stamp import VersionStamp
from lance_core.transactions.apply import NewTable
from lance_core.versions.location import Location, locate
from lance_core.versions.refs import branch_location
from lance_core.versions.snapshot import Snapshot, load_latest

RESULT = pa.schema([pa.field("fragment", pa.binary()), pa.field("refusal", pa.string())])
"""What a worker gives back: one row a fragment, or one that says which column of its rows does not fit."""


@dataclass(frozen=True, slots=True)
class WritePlan:
    """All that a worker needs, and small."""

    uri: str
    schema: TableSchema
    storage_version: StorageVersion
    limits: FileLimits
    durable: bool
    stamp: VersionStamp
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    scope: ReplaceScope | None = None
    """Of which all rows have to be."""


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Runs in a worker: batches in, encoded fragments out."""

    plan: WritePlan

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        plan = self.plan
        try:
            plan.stamp.check()
            location = locate(plan.uri, storage_options=plan.storage_options, durable=plan.durable)
            fragments = write_fragments(
                location.codec,
                coalesce(batches),
                schema=plan.schema,
                version=plan.storage_version,
                limits=plan.limits,
                conversion=Conversion.CAST,
                new_uuid=uuid.uuid4,
                what=location.uri,
                validate=plan.scope.row_check(location.uri, counts=False) if plan.scope else None,
            )
        except InvalidInput as error:
            # Trying again would not help, and an exception would reach the driver as text in somebody's traceback.
            yield pa.RecordBatch.from_pylist([{"refusal": remote_errors.encode_error(error)}], RESULT)
            return
        if fragments:
            yield pa.RecordBatch.from_pylist([{"fragment": fragment.encode()} for fragment in fragments], RESULT)


StageFunction = Callable[[WriteTask], pa.Table]
"""Function that has workers run the task over the rows of a write, and returns all their results."""


def stage_locally(rows: pa.Table | pa.RecordBatchReader) -> StageFunction:
    """Return a stage that runs the task in this process."""

    def stage(task: WriteTask) -> pa.Table:
        batches = rows.to_batches() if isinstance(rows, pa.Table) else rows
        return pa.Table.from_batches(task(batches), RESULT)

    return stage


@dataclass(frozen=True, slots=True)
class PlannedWrite:
    """A write that has begun: the workers run its plan, and `finish` commits their results. Single use."""

    plan: WritePlan
    replaces: bool
    started: StartedWrite

    def finish(
        self,
        results: pa.Table,
        *,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
    ) -> Committed:
        """Commit the results of all workers, in any order."""
        return self.run(lambda _task: results, WriteOptions(None, properties, retries, audit))

    def run(self, stage: StageFunction, options: WriteOptions) -> Committed:
        """Have `stage` run the task of the workers, and commit their results."""
        properties = options.check()
        plan = self.plan

        def fragments() -> tuple[Fragment, ...]:
            return tuple(map(Fragment.decode, collect_fragments(stage(WriteTask(plan)))))

        def append(_base: Snapshot) -> Append | None:
            written = fragments()
            return Append(written) if written else None

        change = Change(
            verb_of(replaces=self.replaces, only=plan.scope),
            plan=(lambda _base: Overwrite(fragments(), plan.schema, {})) if self.replaces else append,
            create=lambda started: Overwrite(fragments(), plan.schema, new_table_config(started)),
            can_replan=False,
            audit=audit_of(options.audit),
        )
        try:
            return committed_of(resume(change, self.started, properties=properties, retries=options.retries))
        except AlreadyExists as error:
            raise RetryableConflict(
                f"{plan.uri} did not exist when this write was planned, and was created meanwhile; repeat it",
                ours=Overwrite.name,
                theirs=Overwrite.name,
                version=1,
                rule="created_meanwhile",
            ) from error


def collect_fragments(results: pa.Table) -> list[bytes]:
    """Encoded; what workers refused is raised."""
    for refusal in results["refusal"].to_pylist():
        if refusal is not None:
            raise remote_errors.decode_error(refusal)
    fragments: list[bytes] = results["fragment"].to_pylist()
    return fragments


def append_rows(
    table: TableRef,
    incoming: pa.Schema,
    stage: StageFunction,
    *,
    create: bool = True,
    limits: FileLimits,
    options: WriteOptions,
) -> Committed:
    """Append the rows of `stage` as one version. `incoming` is the schema that a new table would store; no rows commit
    no version of a table that exists."""
    planned = begin_append(
        table.uri,
        incoming,
        create=create,
        intent=options.intent,
        limits=limits,
        storage_options=table.storage_options,
        manifest_store=table.manifest_store,
        branch=table.branch,
        durable=table.durable,
    )
    return planned if isinstance(planned, Committed) else planned.run(stage, options)


def overwrite_rows(
    table: TableRef,
    incoming: pa.Schema,
    stage: StageFunction,
    *,
    replace_schema: bool = False,
    limits: FileLimits,
    options: WriteOptions,
) -> Committed:
    """Replace all rows by those of `stage`. `incoming` is the schema that a new table would store."""
    planned = begin_overwrite(
        table.uri,
        incoming,
        replace_schema=replace_schema,
        intent=options.intent,
        limits=limits,
        storage_options=table.storage_options,
        manifest_store=table.manifest_store,
        branch=table.branch,
        durable=table.durable,
    )
    return planned if isinstance(planned, Committed) else planned.run(stage, options)


def begin_append(
    uri: str,
    incoming: pa.Schema,
    *,
    create: bool,
    intent: str | None,
    limits: FileLimits,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    branch: str | None = None,
    durable: bool = True,
) -> PlannedWrite | Committed:
    """`incoming` is what a new table would store; a table that exists decides by its own schema."""
    location = locate(uri, storage_options=storage_options, durable=durable, manifest_store=manifest_store)
    location = branch_location(location, branch)
    base = _base(location, create=create)
    if isinstance(base, NewTable):
        schema = TableSchema.from_arrow(stored_schema(incoming, _storage_version(base)))
    else:
        schema = base.manifest.schema
        columns_to_write(schema_to_stored(incoming, schema), schema, conversion=Conversion.CAST, what=location.uri)
    return _begin(
        location,
        base,
        schema,
        replaces=False,
        intent=intent,
        limits=limits,
        options=storage_options,
        durable=durable,
    )


def begin_overwrite(
    uri: str,
    incoming: pa.Schema,
    *,
    replace_schema: bool,
    intent: str | None,
    limits: FileLimits,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    branch: str | None = None,
    durable: bool = True,
) -> PlannedWrite | Committed:
    """Keeps the stored schema, which knows what `incoming` has forgotten, unless it is to be replaced."""
    location = locate(uri, storage_options=storage_options, durable=durable, manifest_store=manifest_store)
    location = branch_location(location, branch)
    base = _base(location, create=True)
    if isinstance(base, NewTable) or replace_schema:
        schema = TableSchema.from_arrow(stored_schema(incoming, _storage_version(base)))
    else:
        schema = base.manifest.schema
        columns_to_write(schema_to_stored(incoming, schema), schema, conversion=Conversion.CAST, what=location.uri)
    return _begin(
        location,
        base,
        schema,
        replaces=True,
        intent=intent,
        limits=limits,
        options=storage_options,
        durable=durable,
    )


def begin_create(
    location: Location, incoming: pa.Schema, where: str, *, intent: str | None, limits: FileLimits
) -> PlannedWrite | Committed:
    """Of a table that begins with a slice of it: all rows have to match `where`."""
    base = NewTable(StorageVersion.parse(STORAGE_VERSION))
    schema = TableSchema.from_arrow(stored_schema(incoming, base.storage_version))
    return _begin(
        location,
        base,
        schema,
        replaces=True,
        intent=intent,
        limits=limits,
        options=location.access.storage_options,
        durable=location.access.durable,
        only=ReplaceScope.of(where, schema, what=location.uri),
    )


def _begin(
    location: Location,
    base: Snapshot | NewTable,
    schema: TableSchema,
    *,
    replaces: bool,
    intent: str | None,
    limits: FileLimits,
    options: Mapping[str, str] | None,
    durable: bool,
    only: ReplaceScope | None = None,
) -> PlannedWrite | Committed:
    validation.check_intent_and_retries(intent=intent)
    if isinstance(base, Snapshot):
        base.manifest.check_writable()
    version = _storage_version(base)
    check_storable(schema, version)
    verb = verb_of(replaces=replaces, only=only)
    begun = write_protocol.begin(location, base, verb=verb, intent=intent, runtime=SYSTEM_RUNTIME)
    if isinstance(begun, WriteResult):
        return committed_of(begun)
    plan = WritePlan(
        uri=location.uri,
        schema=schema,
        storage_version=version,
        limits=limits,
        durable=durable,
        stamp=VersionStamp.of_this_process(),
        storage_options=dict(options or {}),
        scope=only,
    )
    return PlannedWrite(plan, replaces, begun)


def verb_of(*, replaces: bool, only: ReplaceScope | None) -> str:
    return REPLACE_WHERE_VERB if only else "overwrite" if replaces else "append"


def _storage_version(base: Snapshot | NewTable) -> StorageVersion:
    return base.storage_version if isinstance(base, NewTable) else base.manifest.storage_version


def _base(location: Location, *, create: bool) -> Snapshot | NewTable:
    try:
        return load_latest(location)
    except NotFound:
        if not create:
            raise
        return NewTable(StorageVersion.parse(STORAGE_VERSION))


__all__ = [
    "ATTEMPTS",
    "BYTES_PER_FILE_MAX",
    "ROWS_PER_FILE_MAX",
    "FileLimits",
    "ManifestStore",
    "PlannedWrite",
    "StageFunction",
    "WritePlan",
    "WriteTask",
    "append_rows",
    "begin_append",
    "begin_create",
    "begin_overwrite",
    "collect_fragments",
    "overwrite_rows",
    "stage_locally",
]
