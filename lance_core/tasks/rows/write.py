"""Row writes: an append or an overwrite of all rows whose rows are written by workers.

    driver    begin_append(uri, ...)           -> PlannedWrite, or Committed if the intent was committed before
    workers   WriteTask(plan)(batches)         -> the fragments that they wrote, encoded
    driver    planned.finish(results)          -> Committed

`append_rows` and `overwrite_rows` run all three steps; they may also run in different processes (`write_handle.py`).
Workers give their files new names, so that repeated and speculative tasks leave orphan files, never rows: only
fragments that the driver collected are committed.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from lance_core import validation
from lance_core.commit import write_protocol
from lance_core.commit.loop import ATTEMPTS
from lance_core.commit.write_protocol import Change, StartedWrite, WriteResult, new_table_config, resume
from lance_core.datafiles.blob_writing import schema_to_stored, stored_schema
from lance_core.datafiles.coalesce_batches import coalesce
from lance_core.datafiles.column_layout import check_storable, is_blob
from lance_core.datafiles.conform import Conversion, columns_to_write
from lance_core.datafiles.fragment_writer import BYTES_PER_FILE_MAX, ROWS_PER_FILE_MAX, FileLimits, write_fragments
from lance_core.dml.replace_where import ReplaceScope
from lance_core.errors import AlreadyExists, InvalidInput, NotFound, RetryableConflict
from lance_core.format.fragment import Fragment, StorageVersion
from lance_core.format.operations import Append, Overwrite
from lance_core.format.schema import TableSchema
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from lance_core.table.base import Audit, Committed, NewTableOptions, WriteOptions
from lance_core.table.rows import REPLACE_WHERE_VERB
from lance_core.table.table import Table
from lance_core.tasks import remote_errors
from lance_core.tasks.driver import TableRef
from lance_core.tasks.version_stamp import VersionStamp
from lance_core.transactions.apply import NewTable
from lance_core.versions.location import Location, locate
from lance_core.versions.refs import branch_location
from lance_core.versions.snapshot import Snapshot, load_latest

DEFAULTS = NewTableOptions()
RESULT = pa.schema([pa.field("fragment", pa.binary()), pa.field("refusal", pa.string())])
"""Schema of the results of a worker: one row per fragment, or one row with the error that refuses its rows."""


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Plan of a row write, with all that a worker needs. It is small and picklable."""

    uri: str
    schema: TableSchema
    storage_version: StorageVersion
    limits: FileLimits
    durable: bool
    stamp: VersionStamp
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    scope: ReplaceScope | None = None
    """Slice that all rows must belong to; None for no restriction."""


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Function for workers: writes batches and yields the encoded fragments."""

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
            # A retry would not help, and an exception would reach the driver only as the text of a traceback.
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
    """Row write that has begun: workers run its plan, and `finish` commits their results. It is used once."""

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
        """Commit the results of all workers, which may be in any order."""
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
            verb_of(replaces=self.replaces, scope=plan.scope),
            plan=(lambda _base: Overwrite(fragments(), plan.schema, {})) if self.replaces else append,
            create=lambda started: Overwrite(fragments(), plan.schema, new_table_config(started)),
            can_replan=False,
            audit=options.audit_function(Table),
        )
        try:
            return Committed.of(resume(change, self.started, properties=properties, retries=options.retries), Table)
        except AlreadyExists as error:
            raise RetryableConflict(
                f"{plan.uri} did not exist when this write was planned, and was created meanwhile; repeat the write",
                ours=Overwrite.name,
                theirs=Overwrite.name,
                version=1,
                rule="created_meanwhile",
            ) from error


def collect_fragments(results: pa.Table) -> list[bytes]:
    """Return the encoded fragments of all workers, or raise the error of a worker that refused its rows."""
    for error in results["refusal"].to_pylist():
        if error is not None:
            raise remote_errors.decode_error(error)
    fragments: list[bytes] = results["fragment"].to_pylist()
    return fragments


def append_rows(
    table: TableRef,
    incoming: pa.Schema,
    stage: StageFunction,
    *,
    create: bool = True,
    new_table: NewTableOptions = DEFAULTS,
    limits: FileLimits,
    options: WriteOptions,
) -> Committed:
    """Append the rows of `stage` as one version. `incoming` is the schema that a new table would store. Without rows,
    no version of an existing table is committed."""
    planned = begin_append(
        table.uri,
        incoming,
        create=create,
        new_table=new_table,
        intent=options.intent,
        limits=limits,
        storage_options=table.storage_options,
        manifest_store=table.manifest_store,
        branch=table.branch,
        durable=table.durable,
        verify=table.verify,
        trusted=table.trusted,
    )
    return planned if isinstance(planned, Committed) else planned.run(stage, options)


def overwrite_rows(
    table: TableRef,
    incoming: pa.Schema,
    stage: StageFunction,
    *,
    replace_schema: bool = False,
    new_table: NewTableOptions = DEFAULTS,
    limits: FileLimits,
    options: WriteOptions,
) -> Committed:
    """Replace all rows by those of `stage`. `incoming` is the schema that a new table would store."""
    planned = begin_overwrite(
        table.uri,
        incoming,
        replace_schema=replace_schema,
        new_table=new_table,
        intent=options.intent,
        limits=limits,
        storage_options=table.storage_options,
        manifest_store=table.manifest_store,
        branch=table.branch,
        durable=table.durable,
        verify=table.verify,
        trusted=table.trusted,
    )
    return planned if isinstance(planned, Committed) else planned.run(stage, options)


def begin_append(
    uri: str,
    incoming: pa.Schema,
    *,
    create: bool,
    new_table: NewTableOptions = DEFAULTS,
    intent: str | None,
    limits: FileLimits,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    branch: str | None = None,
    durable: bool = True,
    verify: str = "off",
    trusted: bool = True,
) -> PlannedWrite | Committed:
    """Begin an append. `incoming` is the schema that a new table would store; the schema of an existing table stays."""
    location = locate(
        uri,
        storage_options=storage_options,
        durable=durable,
        manifest_store=manifest_store,
        verify=verify,
        trusted=trusted,
    )
    location = location if branch is None else branch_location(location, branch)
    base = _load_base(location, new_table, create=create)
    schema = _schema_to_write(location, base, incoming, replace_schema=False)
    return _begin(location, base, schema, replaces=False, intent=intent, limits=limits)


def begin_overwrite(
    uri: str,
    incoming: pa.Schema,
    *,
    replace_schema: bool,
    new_table: NewTableOptions = DEFAULTS,
    intent: str | None,
    limits: FileLimits,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    branch: str | None = None,
    durable: bool = True,
    verify: str = "off",
    trusted: bool = True,
) -> PlannedWrite | Committed:
    """Begin an overwrite of all rows. The stored schema stays unless `replace_schema`: it has details that `incoming`
    may have lost."""
    location = locate(
        uri,
        storage_options=storage_options,
        durable=durable,
        manifest_store=manifest_store,
        verify=verify,
        trusted=trusted,
    )
    location = location if branch is None else branch_location(location, branch)
    base = _load_base(location, new_table, create=True)
    schema = _schema_to_write(location, base, incoming, replace_schema=replace_schema)
    return _begin(location, base, schema, replaces=True, intent=intent, limits=limits)


def begin_create(
    location: Location,
    incoming: pa.Schema,
    where: str,
    *,
    new_table: NewTableOptions = DEFAULTS,
    intent: str | None,
    limits: FileLimits,
) -> PlannedWrite | Committed:
    """Begin a table whose first version is a slice: all rows have to match `where`."""
    base = new_table.new_table()
    schema = _schema_to_write(location, base, incoming, replace_schema=True)
    scope = ReplaceScope.of(where, schema, what=location.uri)
    return _begin(location, base, schema, replaces=True, intent=intent, limits=limits, scope=scope)


def _schema_to_write(
    location: Location, base: Snapshot | NewTable, incoming: pa.Schema, *, replace_schema: bool
) -> TableSchema:
    """Return the schema of the files; raise `SchemaMismatch` if the rows do not fit the stored schema."""
    if isinstance(base, NewTable) or replace_schema:
        return TableSchema.from_arrow(stored_schema(incoming, _storage_version(base)))
    schema = base.manifest.schema
    if any(map(is_blob, schema.fields)):
        incoming = schema_to_stored(incoming, schema)
    columns_to_write(incoming, schema, conversion=Conversion.CAST, what=location.uri)
    return schema


def _begin(
    location: Location,
    base: Snapshot | NewTable,
    schema: TableSchema,
    *,
    replaces: bool,
    intent: str | None,
    limits: FileLimits,
    scope: ReplaceScope | None = None,
) -> PlannedWrite | Committed:
    validation.check_intent_and_retries(intent=intent)
    if isinstance(base, Snapshot):
        base.manifest.check_writable()
    version = _storage_version(base)
    check_storable(schema, version)
    verb = verb_of(replaces=replaces, scope=scope)
    started = write_protocol.begin(location, base, verb=verb, intent=intent, runtime=SYSTEM_RUNTIME)
    if isinstance(started, WriteResult):
        return Committed.of(started, Table)
    plan = WritePlan(
        uri=location.uri,
        schema=schema,
        storage_version=version,
        limits=limits,
        durable=location.access.durable,
        stamp=VersionStamp.of_this_process(),
        storage_options=dict(location.access.storage_options),
        scope=scope,
    )
    return PlannedWrite(plan, replaces, started)


def verb_of(*, replaces: bool, scope: ReplaceScope | None) -> str:
    """Return the verb of a row write, as it is recorded with the intent."""
    return REPLACE_WHERE_VERB if scope else "overwrite" if replaces else "append"


def _storage_version(base: Snapshot | NewTable) -> StorageVersion:
    return base.storage_version if isinstance(base, NewTable) else base.manifest.storage_version


def _load_base(location: Location, options: NewTableOptions, *, create: bool) -> Snapshot | NewTable:
    """Load the newest version; if there is no table, return a new one if `create`, and raise `NotFound` otherwise."""
    try:
        base = load_latest(location)
    except NotFound:
        if not create:
            raise
        return options.new_table()
    options.check_existing(base)
    return base


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
