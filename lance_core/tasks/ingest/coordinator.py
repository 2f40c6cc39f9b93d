"""Ingest coordinator: lists files on the driver, has workers load them, and commits the rows with the record of the
files.

    driver    the files that exist, without those that the version has       sources.py, ingest_log.py
              partitions of them                                             worker.py
    workers   read, convert, write fragments; divert bad records             row_conversion.py
    driver    a segment of the ingest log -> one commit -> bad records       bad_records.py

The ingest log is part of the version (`format/ingest_records.py`). The commit refuses the second of two concurrent
ingests, which then checks what the first one took, reads again only the partitions that contain such a file, and
commits what is left. Start with `ingest`; the reasons are in `001-atomic-file-ingest.md`.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from lance_core import validation
from lance_core.commit import write_protocol
from lance_core.commit.write_protocol import Change, Planned, StartedWrite, WriteResult, new_table_config, resume
from lance_core.datafiles.blob_writing import stored_schema
from lance_core.datafiles.column_layout import check_storable
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.errors import (
    AlreadyExists,
    InvalidInput,
    LanceError,
    NotFound,
    RetryableConflict,
    SchemaMismatch,
    StorageError,
)
from lance_core.format.fragment import StorageVersion
from lance_core.format.ingest_records import FOLLOWS, INGESTED, encode_segments
from lance_core.format.operations import Append, Overwrite
from lance_core.format.schema import TableSchema
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.storage.factory import without_secrets
from lance_core.table.base import Committed, NewTableOptions
from lance_core.table.table import Table
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.ingest import bad_records, ingest_log
from lance_core.tasks.ingest.file_readers import FileSplit
from lance_core.tasks.ingest.formats import Changed, CsvFormat, Extra, ReadOptions
from lance_core.tasks.ingest.ingest_log import IngestLog
from lance_core.tasks.ingest.source_options import SourceOptions, check_source_options, inherited_options
from lance_core.tasks.ingest.sources import SourceFile, list_files, normalize_files, read_process_files
from lance_core.tasks.ingest.worker import (
    FilePartition,
    IngestPlan,
    IngestResult,
    IngestTarget,
    IngestTask,
    SchemaTask,
    decode_partition,
    encode_partition,
    partition_files,
)
from lance_core.tasks.partitioning import Runner, Task, collect_results
from lance_core.tasks.version_stamp import VersionStamp
from lance_core.transactions.apply import NewTable
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot

FILES_PROPERTY = "lance_assets.ingested_files"
BAD_RECORDS_PROPERTY = "lance_assets.bad_records"
"""Transaction properties: the number of ingested files, and the number of their records that were diverted."""
_VERB = "ingest"


@dataclass(frozen=True, slots=True)
class IngestRequest:
    """Parameters of an ingest."""

    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    read_options: ReadOptions
    schema: pa.Schema | None
    on_bad_record: str
    changed: Changed
    limits: FileLimits
    source_options: SourceOptions | None = field(default=None, repr=False)
    new_table: NewTableOptions = field(default_factory=NewTableOptions)


def ingest(table: TableRef, request: IngestRequest, *, options: WriteOptions, runner: Runner) -> Committed:
    """Ingest the files that the table does not have yet, as one version."""
    validation.check_intent_and_retries(intent=options.intent, retries=options.retries)
    properties = validation.check_properties(options.properties)
    if request.changed not in ("fail", "again", "skip"):
        raise InvalidInput(
            f"changed={request.changed!r}: it must be 'fail', 'again' or 'skip', for files that changed since"
        )
    validation.check_text(request.on_bad_record, "on_bad_record")
    return Committed.of(_Ingest(table, request, options, runner, properties).run(), Table)


class _Ingest:
    """One call of `ingest`. It keeps what workers have returned across attempts."""

    def __init__(
        self,
        table: TableRef,
        request: IngestRequest,
        options: WriteOptions,
        runner: Runner,
        properties: Mapping[str, str],
    ) -> None:
        self._table, self._request, self._options, self._runner = table, request, options, runner
        self._properties = properties
        self._location, base = _load_base(table, request.new_table)
        self._base: Snapshot | NewTable = base
        if request.source_options is not None:
            check_source_options(request.source_options)
        self._source_options: SourceOptions = (
            inherited_options(
                self._location.access.storage_options, table=self._location.uri, files=normalize_files(request.files)
            )
            if request.source_options is None
            else request.source_options
        )
        self._bad_records_location = None
        if request.on_bad_record != "fail":
            self._bad_records_location = self._location.locate_other(request.on_bad_record)
            if self._bad_records_location.uri == self._location.uri:
                raise InvalidInput(
                    f"on_bad_record= is the table itself, {self._bad_records_location.uri}; give another location"
                )
        self._results: dict[bytes, list[bytes]] = {}
        self._results_schema: TableSchema | None = None
        self._new_schema: TableSchema | None = None
        self._files: Sequence[SourceFile] = ()
        self._ingest_id = ""
        self._pending: tuple[IngestLog, str] | None = None
        """Ingest log and segment of the bad records that the current attempt left pending."""

    def run(self) -> WriteResult:
        options = self._options
        started = write_protocol.begin(
            self._location, self._base, verb=_VERB, intent=options.intent, runtime=SYSTEM_RUNTIME
        )
        self._finish_pending()
        if isinstance(started, WriteResult):
            return started
        self._ingest_id = options.intent or started.uuid
        self._files = list_files(self._request.files, self._source_options)
        change = Change(_VERB, self._plan, create=self._create, audit=options.audit_function(Table))
        try:
            result = resume(change, started, properties=self._properties, retries=options.retries)
        # A version that an audit refused may still be published, and its bad records count then.
        except (AlreadyExists, RetryableConflict):
            self._delete_pending()
            raise
        if result.already_committed:
            # The bad records of the attempt that was committed count.
            self._delete_pending()
            self._finish_pending()
        elif self._pending is not None:
            self._commit_bad_records(*self._pending, result)
        return result

    def _plan(self, base: Snapshot) -> Planned | None:
        """Plan the ingest into a version: select the new files and have them read."""
        base.manifest.check_writable()
        self._request.new_table.check_existing(base)
        self._location, self._base = base.location, base
        loaded = self._load_new_files()
        if loaded is None:
            return None
        _, result, properties = loaded
        return Planned(Append(result.fragments), properties)

    def _create(self, started: StartedWrite) -> Planned:
        """Plan the first version of a new table."""
        loaded = self._load_new_files()
        if loaded is None:
            raise NotFound(
                f"no file matches {self._files_label()}, and there is no table at {self._location.uri}; check files="
            )
        schema, result, properties = loaded
        return Planned(Overwrite(result.fragments, schema, new_table_config(started)), properties)

    def _load_new_files(self) -> tuple[TableSchema, IngestResult, Mapping[str, str]] | None:
        """Have workers read the new files; `None` if there are none. Return the schema, the result, and the transaction
        properties."""
        self._delete_pending()  # of an attempt that was not committed
        log = ingest_log.load_log(self._location, self._base if isinstance(self._base, Snapshot) else None)
        new_files = ingest_log.select_new_files(self._files, log, self._request.changed)
        if not new_files:
            return None
        schema = self._schema(new_files)
        self._request.read_options.check_mapping(schema, what=self._location.uri)
        result = self._read_files(new_files, schema)
        name = ingest_log.new_segment_name()
        if result.diverted:
            assert self._bad_records_location is not None
            bad_records.put_pending(log.location, name, self._bad_records_location.uri, result.diverted)
            self._pending = log, name
        properties = {
            INGESTED: encode_segments(log.append_segment(new_files, name)),
            FOLLOWS: encode_segments(log.segments),
            FILES_PROPERTY: str(len(new_files)),
            BAD_RECORDS_PROPERTY: str(result.bad_count),
        }
        return schema, result, properties

    def _read_files(self, new_files: Sequence[SourceFile], schema: TableSchema) -> IngestResult:
        """Have workers read the new files. Earlier results stay valid if all files of their partition are still new,
        and the columns of the table are unchanged."""
        if self._results_schema != schema:
            self._results, self._results_schema = {}, schema
        version = self._storage_version()
        check_storable(schema, version)
        reusable = self._reusable_partitions(new_files)
        unread = [
            file for file in new_files if file not in {split.file for partition in reusable for split in partition}
        ]
        partitions = [*map(encode_partition, partition_files(unread, self._request.read_options, self._runner.slots))]
        plan = IngestPlan(
            read_options=self._request.read_options,
            target=IngestTarget.of(self._location, schema, version, self._request.limits),
            bad_records_target=self._bad_records_target(),
            ingest_id=self._ingest_id,
            stamp=VersionStamp.of_this_process(),
            source_options=self._source_options,
            contents=read_process_files(unread, self._source_options),
        )
        results = self._run(IngestTask(plan, tuple(partitions)), len(partitions)) if partitions else {}
        self._results = {
            encode_partition(partition): self._results[encode_partition(partition)] for partition in reusable
        }
        self._results |= {partition: results.get(number, []) for number, partition in enumerate(partitions)}
        return IngestResult.of(result for results in self._results.values() for result in results)

    def _reusable_partitions(self, new_files: Sequence[SourceFile]) -> list[FilePartition]:
        """Return the partitions that are read already, all of whose files are still new, and that share no file with
        a partition that must be read again."""
        files = set(new_files)
        partitions = [decode_partition(partition) for partition in self._results]
        invalid_files: set[SourceFile] = set()
        while True:
            invalid = [
                partition
                for partition in partitions
                if any(split.file not in files or split.file in invalid_files for split in partition)
            ]
            if not invalid:
                return partitions
            invalid_files |= {split.file for partition in invalid for split in partition}
            partitions = [partition for partition in partitions if partition not in invalid]

    def _run(self, task: Task, count: int) -> Mapping[int, list[bytes]]:
        return collect_results(self._runner.run(task, count), count, uri=self._location.uri)

    def _schema(self, files: Sequence[SourceFile]) -> TableSchema:
        if isinstance(self._base, Snapshot):
            return self._base.manifest.schema
        if self._new_schema is None:
            arrow = self._request.schema if self._request.schema is not None else self._infer_schema(files)
            self._new_schema = TableSchema.from_arrow(stored_schema(arrow, self._storage_version()))
        return self._new_schema

    def _infer_schema(self, files: Sequence[SourceFile]) -> pa.Schema:
        """Return the schema of a new table, from the files."""
        batches = [files[at : at + _FILES_PER_SCHEMA_TASK] for at in range(0, len(files), _FILES_PER_SCHEMA_TASK)]
        partitions = tuple(encode_partition(tuple(map(FileSplit, batch))) for batch in batches)
        diverts_bad_records = self._bad_records_location is not None
        task = SchemaTask(
            self._request.read_options,
            partitions,
            diverts_bad_records,
            VersionStamp.of_this_process(),
            self._source_options,
            read_process_files(files, self._source_options),
        )
        results = self._run(task, len(partitions))
        schemas: dict[str, tuple[str, pa.Schema]] = {}
        for number in sorted(results):
            for uri, schema in map(json.loads, results[number]):
                schemas.setdefault(schema, (uri, pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(schema)))))
        return unify_schemas([*schemas.values()], uri=self._location.uri)

    def _bad_records_target(self) -> IngestTarget | None:
        if self._bad_records_location is None:
            return None
        side = bad_records.SIDE_TABLE.target(self._bad_records_location)
        return IngestTarget.of(self._bad_records_location, side.schema, side.storage_version, self._request.limits)

    def _finish_pending(self) -> None:
        """Commit the bad records that earlier ingests have left pending."""
        base = self._base if isinstance(self._base, Snapshot) else None
        if base is None:
            return
        main = self._location.locate_main_branch(base.manifest.branch)
        if pending := bad_records.list_pending(main):
            newest = _load_base(self._table, self._request.new_table)[1]
            assert isinstance(newest, Snapshot)
            log = ingest_log.load_log(self._location, newest)
            for segment in pending:
                if log.has_segment(segment):
                    bad_records.commit_pending(main, segment)

    def _delete_pending(self) -> None:
        """Delete the bad records of an attempt that was not committed."""
        if self._pending is not None:
            log, name = self._pending
            self._pending = None
            bad_records.delete_pending(log.location, name)

    def _commit_bad_records(self, log: IngestLog, name: str, written: WriteResult) -> None:
        try:
            bad_records.commit_pending(log.location, name)
        except LanceError as error:
            raise StorageError(
                f"{self._location.uri}: the rows were committed as version {written.summary.version}, but the bad "
                f"records could not be written to their table: {error}. They are pending, and the next ingest into "
                "this table writes them"
            ) from error

    def _storage_version(self) -> StorageVersion:
        return self._base.storage_version if isinstance(self._base, NewTable) else self._base.manifest.storage_version

    def _first_file(self) -> str:
        return next(iter(normalize_files(self._request.files)), "")

    def _files_label(self) -> str:
        return without_secrets(self._first_file()) or "an empty list"


_FILES_PER_SCHEMA_TASK = 256


def unify_schemas(schemas: Sequence[tuple[str, pa.Schema]], *, uri: str) -> pa.Schema:
    """Return the common schema of all files. Raises if two files have a column in types that no type unifies."""
    if not schemas:
        raise InvalidInput(
            f"{uri}: there is no table yet, and the files have no record from which to infer its columns; give schema="
        )
    fields: dict[str, tuple[str, pa.Field]] = {}
    for file, schema in schemas:
        for column in schema:
            arrow_field = column.remove_metadata() if not _is_extension(column) else column
            first, known = fields.get(arrow_field.name, (file, arrow_field))
            try:
                common = pa.unify_schemas([pa.schema([known]), pa.schema([arrow_field])], promote_options="permissive")
            except (pa.ArrowException, TypeError) as error:
                raise SchemaMismatch(
                    f"{uri}: there is no table yet, and its files differ: column {arrow_field.name!r} is {known.type} "
                    f"in {first}, and {arrow_field.type} in {file}. Give schema= with its type",
                    column=arrow_field.name,
                    expected=str(known.type),
                    got=str(arrow_field.type),
                ) from error
            fields[arrow_field.name] = (first, common.field(0).with_nullable(True))
    return pa.schema([column for _file, column in fields.values()])


def _is_extension(field: pa.Field) -> bool:
    return b"ARROW:extension:name" in (field.metadata or {})


def _load_base(table: TableRef, options: NewTableOptions) -> tuple[Location, Snapshot | NewTable]:
    try:
        base = table.newest()
    except NotFound:
        if table.branch is not None:
            raise
        return table.locate(), options.new_table()
    base.manifest.check_writable()
    options.check_existing(base)
    return base.location, base


__all__ = [
    "BAD_RECORDS_PROPERTY",
    "FILES_PROPERTY",
    "Changed",
    "CsvFormat",
    "Extra",
    "IngestRequest",
    "ReadOptions",
    "ingest",
]
