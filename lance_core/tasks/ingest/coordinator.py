"""Files into a table, each of them once: found on the driver, read by workers, committed with the record of them.

    driver    the files there are, less those that the version has       sources.py, ingest_log.py
              shares of them                                             worker.py
    workers   read, convert, write fragments; divert bad records         row_conversion.py
    driver    a segment of the record -> one commit -> bad records       bad_records.py

The record is part of the version (`format/ingest_records.py`): of two ingests at once, the second is refused by the
commit, looks what the first one took, reads again only shares that have such a file in them, and commits what is left.
Start with `ingest_id`; why it is so, says 001-atomic-file-ingest.md.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from lance_core import validation
from lance_core.commit import write_protocol
from lance_core.commit.write_protocol import StartedWrite, WriteResult
from lance_core.coordination.backoff import Backoff
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
from lance_core.format.operations import Append, Operation, Overwrite
from lance_core.format.schema import TableSchema
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.storage.factory import without_secrets
from lance_core.storage.options import options_for
from lance_core.table.committed import Committed
from lance_core.table.table import STORAGE_VERSION, audit_of, committed_of
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.ingest import bad_records
from lance_core.tasks.ingest import ingest_log as records
from lance_core.tasks.ingest.file_readers import FileSplit
from lance_core.tasks.ingest.formats import Changed, CsvFormat, Extra, ReadOptions
from lance_core.tasks.ingest.ingest_log import IngestLog
from lance_core.tasks.ingest.sources import SourceFile, list_files, normalize_files
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
from lance_core.versions.location import Location, locate, manifest_store_config
from lance_core.versions.snapshot import Snapshot
from lance_core.versions.table_id import TABLE_ID

FILES_PROPERTY = "lance_assets.ingested_files"
BAD_RECORDS_PROPERTY = "lance_assets.bad_records"
"""Properties of the transaction: how many it took, and how many records of them it diverted."""
_VERB = "ingest"


@dataclass(frozen=True, slots=True)
class IngestRequest:
    """What is to be ingested, and how."""

    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    read_options: ReadOptions
    schema: pa.Schema | None
    on_bad_record: str
    changed: Changed
    limits: FileLimits
    source_options: Mapping[str, str] | None = field(default=None, repr=False)


def ingest(table: TableRef, request: IngestRequest, *, options: WriteOptions, runner: Runner) -> Committed:
    validation.check_intent_and_retries(intent=options.intent, retries=options.retries)
    properties = validation.check_properties(options.properties)
    if request.changed not in ("fail", "again", "skip"):
        raise InvalidInput(f"changed={request.changed!r}: files that changed since are 'fail', 'again' or 'skip'")
    validation.check_text(request.on_bad_record, "on_bad_record")
    return committed_of(_Ingest(table, request, options, runner, properties).run())


class _Ingest:
    """One call. What workers gave back is kept for as long as it holds."""

    def __init__(
        self, where: TableRef, what: IngestRequest, how: WriteOptions, runner: Runner, properties: Mapping[str, str]
    ) -> None:
        self._where, self._what, self._how, self._runner = where, what, how, runner
        self._properties = properties
        self._location, base = _base(where)
        self._base: Snapshot | NewTable = base
        first = self._first_file()
        options = what.source_options
        if options is None:
            options = options_for(self._location.access.storage_options, own=self._location.uri, other=first)
        self._source_options: Mapping[str, str] = options
        self._side = None
        if what.on_bad_record != "fail":
            self._side = self._location.locate_other(what.on_bad_record)
            if self._side.uri == self._location.uri:
                raise InvalidInput(f"on_bad_record= is the table itself, {self._side.uri}; name another place")
        self._done: dict[bytes, list[bytes]] = {}
        self._done_for: TableSchema | None = None
        self._new_schema: TableSchema | None = None

    def run(self) -> WriteResult:
        location, how = self._location, self._how
        begun = write_protocol.begin(location, self._base, verb=_VERB, intent=how.intent, runtime=SYSTEM_RUNTIME)
        if isinstance(begun, WriteResult):
            self._settle()
            return begun
        self._settle()
        files = list_files(self._what.files, self._source_options)
        pace = Backoff(SYSTEM_RUNTIME)
        for before in range(how.retries):
            try:
                written = self._once(begun, files)
            except (RetryableConflict, AlreadyExists) as conflict:
                told = conflict.rule if isinstance(conflict, RetryableConflict) else ""
                if told == "exhausted" or before + 1 == how.retries or pace.is_expired:
                    raise
                pace.wait()
                self._location, self._base = _base(self._where)
                begun = replace(begun, location=self._location, base=self._base)
                if landed := write_protocol.find_committed(begun):
                    self._settle()
                    return landed
            else:
                return replace(written, attempts=written.attempts + before) if written.attempts else written
        raise AssertionError("the last attempt returns or raises")

    def _once(self, begun: StartedWrite, files: Sequence[SourceFile]) -> WriteResult:
        base = self._base if isinstance(self._base, Snapshot) else None
        record = records.load_log(self._location, base)
        fresh = records.select_new_files(files, record, self._what.changed)
        if not fresh:
            if base is None:
                raise NotFound(
                    f"no file matches {self._shown()}, and there is no table at {self._location.uri}; look at files="
                )
            return write_protocol.finish_unchanged(begun)
        schema = self._schema(fresh)
        self._what.read_options.check_mapping(schema, what=self._location.uri)
        outcome = self._outcome(begun, fresh, schema)
        name = records.new_segment_name()
        if outcome.diverted:
            assert self._side is not None
            bad_records.put_pending(record.location, name, self._side.uri, outcome.diverted)
        properties = {
            **self._properties,
            INGESTED: encode_segments(record.append_segment(fresh, name)),
            FOLLOWS: encode_segments(record.segments),
            FILES_PROPERTY: str(len(fresh)),
            BAD_RECORDS_PROPERTY: str(outcome.bad_count),
        }
        operation: Operation = Append(outcome.fragments)
        if base is None:
            config = {TABLE_ID: begun.uuid, **manifest_store_config(self._location)}
            operation = Overwrite(outcome.fragments, schema, config)
        try:
            look = audit_of(self._how.audit)
            written = write_protocol.finish(
                begun, operation, properties=properties, attempts=self._how.retries, audit=look
            )
        # What an audit refused may still be published: then its bad records count.
        except (AlreadyExists, RetryableConflict):
            bad_records.delete_pending(record.location, name)
            raise
        if outcome.diverted:
            self._finish_bad(record, name, written)
        return written

    def _outcome(self, begun: StartedWrite, fresh: Sequence[SourceFile], schema: TableSchema) -> IngestResult:
        """What was read before stands, where nothing of a share has gone and the table's columns are the same."""
        if self._done_for != schema:
            self._done, self._done_for = {}, schema
        version = self._storage_version()
        check_storable(schema, version)
        kept = self._kept(fresh)
        left = [file for file in fresh if file not in {part.file for share in kept for part in share}]
        shares = [*map(encode_partition, partition_files(left, self._what.read_options, self._runner.slots))]
        plan = IngestPlan(
            read_options=self._what.read_options,
            target=IngestTarget.of(self._location, schema, version, self._what.limits),
            bad_records_target=self._side_target(),
            ingest_id=self._how.intent or begun.uuid,
            stamp=VersionStamp.of_this_process(),
            source_options=self._source_options,
        )
        results = self._run(IngestTask(plan, tuple(shares)), len(shares)) if shares else {}
        self._done = {encode_partition(share): self._done[encode_partition(share)] for share in kept}
        self._done |= {share: results.get(number, []) for number, share in enumerate(shares)}
        return IngestResult.of(result for found in self._done.values() for result in found)

    def _kept(self, fresh: Sequence[SourceFile]) -> list[FilePartition]:
        """Shares that are done, of which no file has gone, with no file of which a part is in one that is not."""
        there = set(fresh)
        shares = [decode_partition(share) for share in self._done]
        spoilt: set[SourceFile] = set()
        while True:
            bad = [share for share in shares if any(part.file not in there or part.file in spoilt for part in share)]
            if not bad:
                return shares
            spoilt |= {part.file for share in bad for part in share}
            shares = [share for share in shares if share not in bad]

    def _run(self, task: Task, count: int) -> Mapping[int, list[bytes]]:
        return collect_results(self._runner.run(task, count), count, uri=self._location.uri)

    def _schema(self, files: Sequence[SourceFile]) -> TableSchema:
        if isinstance(self._base, Snapshot):
            return self._base.manifest.schema
        if self._new_schema is None:
            arrow = self._what.schema if self._what.schema is not None else self._found_schema(files)
            self._new_schema = TableSchema.from_arrow(stored_schema(arrow, self._storage_version()))
        return self._new_schema

    def _found_schema(self, files: Sequence[SourceFile]) -> pa.Schema:
        whole = [files[at : at + _FILES_A_LOOK] for at in range(0, len(files), _FILES_A_LOOK)]
        shares = tuple(encode_partition(tuple(map(FileSplit, some))) for some in whole)
        diverts = self._side is not None
        task = SchemaTask(
            self._what.read_options, shares, diverts, VersionStamp.of_this_process(), self._source_options
        )
        found = self._run(task, len(shares))
        schemas: dict[str, tuple[str, pa.Schema]] = {}
        for number in sorted(found):
            for uri, schema in map(json.loads, found[number]):
                schemas.setdefault(schema, (uri, pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(schema)))))
        return unify_schemas([*schemas.values()], uri=self._location.uri)

    def _side_target(self) -> IngestTarget | None:
        if self._side is None:
            return None
        base = bad_records.load_base(self._side)
        version = base.storage_version if isinstance(base, NewTable) else base.manifest.storage_version
        return IngestTarget.of(self._side, bad_records.checked_schema(base), version, self._what.limits)

    def _settle(self) -> None:
        """What ingests that have landed left to be done."""
        base = self._base if isinstance(self._base, Snapshot) else None
        if base is None:
            return
        main = self._location.locate_main_branch(base.manifest.branch)
        if waiting := bad_records.list_pending(main):
            newest = _base(self._where)[1]
            assert isinstance(newest, Snapshot)
            record = records.load_log(self._location, newest)
            for segment in waiting:
                if record.has_segment(segment):
                    bad_records.commit_pending(main, segment)

    def _finish_bad(self, record: IngestLog, name: str, written: WriteResult) -> None:
        """Where another holder of the intention was first, its own bad records are the ones that count."""
        if written.already_committed:
            bad_records.delete_pending(record.location, name)
            self._settle()
            return
        try:
            bad_records.commit_pending(record.location, name)
        except LanceError as error:
            raise StorageError(
                f"{self._location.uri}: the rows landed as version {written.summary.version}, and the bad records did "
                f"not get into their table: {error}. They are kept, and the next ingest into this table puts them there"
            ) from error

    def _storage_version(self) -> StorageVersion:
        return self._base.storage_version if isinstance(self._base, NewTable) else self._base.manifest.storage_version

    def _first_file(self) -> str:
        return next(iter(normalize_files(self._what.files)), "")

    def _shown(self) -> str:
        return without_secrets(self._first_file()) or "an empty list"


_FILES_A_LOOK = 256


def unify_schemas(schemas: Sequence[tuple[str, pa.Schema]], *, uri: str) -> pa.Schema:
    """Of all files; a column that two have in types of different kinds is told with both."""
    if not schemas:
        raise InvalidInput(f"{uri}: there is no table yet, and no record in the files tells its columns; give schema=")
    fields: dict[str, tuple[str, pa.Field]] = {}
    for file, schema in schemas:
        for found in schema:
            field_ = found.remove_metadata() if not _is_extension(found) else found
            first, known = fields.get(field_.name, (file, field_))
            try:
                together = pa.unify_schemas([pa.schema([known]), pa.schema([field_])], promote_options="permissive")
            except (pa.ArrowException, TypeError) as error:
                raise SchemaMismatch(
                    f"{uri}: there is no table yet, and its files differ: column {field_.name!r} is {known.type} in "
                    f"{first}, and {field_.type} in {file}. Give schema=, which says what it is to be",
                    column=field_.name,
                    expected=str(known.type),
                    got=str(field_.type),
                ) from error
            fields[field_.name] = (first, together.field(0).with_nullable(True))
    return pa.schema([found for _file, found in fields.values()])


def _is_extension(found: pa.Field) -> bool:
    return b"ARROW:extension:name" in (found.metadata or {})


def _base(where: TableRef) -> tuple[Location, Snapshot | NewTable]:
    try:
        base = where.newest()
    except NotFound:
        if where.branch is not None:
            raise
        location = locate(
            where.uri,
            storage_options=where.storage_options,
            manifest_store=where.manifest_store,
            durable=where.durable,
        )
        return location, NewTable(StorageVersion.parse(STORAGE_VERSION))
    base.manifest.check_writable()
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
