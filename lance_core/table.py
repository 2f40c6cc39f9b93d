"""The verbs people say to a table. Each is a few lines that call a workshop: `writes.py` to change, `scan/`
to read.

A `Table` is one version and never changes; a writer returns the table after it (`Committed.table`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal

import pyarrow as pa

from lance_core import writes
from lance_core.commit import ATTEMPTS
from lance_core.committed import Committed
from lance_core.data.blob_writing import stored_schema
from lance_core.data.conform import Conversion
from lance_core.data.incoming import Incoming, Rows, incoming
from lance_core.data.layout import check_storable
from lance_core.data.write import BYTES_PER_FILE_MAX, ROWS_PER_FILE_MAX, FileLimits, write_fragments
from lance_core.detached import commit_detached, publish
from lance_core.edit import columns as edit_columns
from lance_core.edit import delete as edit_delete
from lance_core.edit import evolve, settings
from lance_core.edit import update as edit_update
from lance_core.edit import upsert as edit_upsert
from lance_core.errors import AlreadyExists, InvalidInput
from lance_core.format.base_path import BasePath
from lance_core.format.fragment import Fragment, StorageVersion
from lance_core.format.ids import Version
from lance_core.format.manifest import Fragments, Manifest
from lance_core.format.operations import Append, Operation, Overwrite, Restore, Rewrite, UpdateBases
from lance_core.format.schema import TableSchema
from lance_core.format.transaction import Transaction
from lance_core.fsck import Extent, Report, examine
from lance_core.history import VersionInfo, version_infos
from lance_core.identity import TABLE_ID, table_id
from lance_core.location import Location, locate
from lance_core.maintenance import cleanup, compaction
from lance_core.maintenance.cleanup import CleanupReport, Retention
from lance_core.manifest_names import migrate
from lance_core.offshoots import Branches, clone
from lance_core.ports import SYSTEM
from lance_core.refs import Tags, find
from lance_core.scan import take as scan_take
from lance_core.scan.blobs import BlobFile, blobs
from lance_core.scan.changes import changes
from lance_core.scan.explain import explained
from lance_core.scan.plan import plan_scan
from lance_core.scan.read import count, scan
from lance_core.scan.take import By, RowNumbers
from lance_core.snapshot import Snapshot, exists, load_at, load_latest, load_transaction
from lance_core.transactions.apply import Birth
from lance_core.writes import Begun, Written

STORAGE_VERSION = "2.2"


class Table:
    """
    >>> import pyarrow as pa, tempfile
    >>> place = tempfile.mkdtemp() + "/orders"
    >>> orders = Table.create(place, pa.table({"id": [1, 2], "city": ["Oslo", "Lima"]}))
    >>> orders = orders.append(pa.table({"id": [3], "city": ["Pune"]})).table
    >>> orders.version, orders.count_rows(), orders.to_table(columns=["city"])["city"].to_pylist()
    (2, 3, ['Oslo', 'Lima', 'Pune'])
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def __repr__(self) -> str:
        return f"Table({self.uri!r}, version={self.version})"

    # Finding and making

    @classmethod
    def create(
        cls,
        uri: str,
        data: Rows | pa.Schema,
        *,
        storage_options: Mapping[str, str] | None = None,
        storage_version: str = STORAGE_VERSION,
        stable_row_ids: bool = False,
        config: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        intent: str | None = None,
        max_rows_per_file: int = ROWS_PER_FILE_MAX,
        max_bytes_per_file: int = BYTES_PER_FILE_MAX,
        durable: bool = True,
    ) -> "Table":
        """A new table, at version 1, with these rows; with none, where `data` is a schema."""
        location = locate(uri, storage_options=storage_options, durable=durable)
        birth = Birth(_storage_version(storage_version), stable_row_ids)
        begun = writes.begin(location, birth, intent=intent, ports=SYSTEM)
        if isinstance(begun, Written):
            return cls(begun.snapshot)
        if exists(location):
            raise AlreadyExists(f"there is a table at {location.uri} already; open it, or overwrite it")
        limits = FileLimits(max_rows_per_file, max_bytes_per_file)
        born_config = {TABLE_ID: begun.uuid, **(config or {})}
        operation = _overwriting(begun, incoming(data), birth.storage_version, limits, born_config)
        return cls(writes.finish(begun, operation, properties=properties or {}, attempts=ATTEMPTS).snapshot)

    @classmethod
    def open(
        cls,
        uri: str,
        *,
        version: int | None = None,
        tag: str | None = None,
        branch: str | None = None,
        timestamp: datetime | None = None,
        storage_options: Mapping[str, str] | None = None,
        bases: Sequence[str] = (),
        durable: bool = True,
    ) -> "Table":
        """The newest version, or the one that is named: by its number, by a tag, or by a time, the newest that was made
        until then. `bases` are places outside the table whose files it may read, a shallow clone's source for one."""
        location = locate(uri, storage_options=storage_options, durable=durable, bases=bases)
        if tag is None and branch is None and timestamp is None:
            return cls(load_latest(location) if version is None else load_at(location, _version(version)))
        number = None if version is None else _version(version)
        return cls(find(location, version=number, tag=tag, branch=branch, timestamp=timestamp))

    @staticmethod
    def exists(uri: str, storage_options: Mapping[str, str] | None = None) -> bool:
        """Whether a version of a table is there; a directory that no commit ever reached is not a table."""
        return exists(locate(uri, storage_options=storage_options))

    def at(self, version: int | None = None, *, tag: str | None = None, timestamp: datetime | None = None) -> "Table":
        """Another version: of this line, or of the line that a tag is on."""
        if version is not None and tag is None and timestamp is None:
            return Table(load_at(self._location, _version(version)))
        number = None if version is None else _version(version)
        if tag is None:
            return Table(find(self._location, version=number, timestamp=timestamp))
        main = self._location.main_line(self.branch)
        return Table(find(main, version=number, tag=tag, timestamp=timestamp))

    def refresh(self) -> "Table":
        """The newest version."""
        return Table(load_latest(self._location))

    # Looking

    @property
    def uri(self) -> str:
        return self._location.uri

    @property
    def version(self) -> Version:
        return self._snapshot.version

    @property
    def schema(self) -> pa.Schema:
        return self.manifest.schema.arrow

    @property
    def fragments(self) -> Fragments:
        return self.manifest.fragments

    @property
    def config(self) -> Mapping[str, str]:
        return self.manifest.config

    @property
    def metadata(self) -> Mapping[str, str]:
        """The table's own keys and values; Arrow's are in `schema.metadata`."""
        return self.manifest.table_metadata

    @property
    def id(self) -> str | None:
        """Which table this is, for life: set at its creation, or the uuid of the transaction that created it.
        None where a table of another library has lost its first version."""
        return table_id(self._snapshot)

    @property
    def branch(self) -> str | None:
        """None on the main line."""
        return self.manifest.branch

    @property
    def bases(self) -> tuple[str, ...]:
        """Places outside the table that it may read, as they were given when it was opened."""
        return self._location.access.bases

    @property
    def tags(self) -> Tags:
        return Tags(self._snapshot, SYSTEM)

    @property
    def branches(self) -> "Branches[Table]":
        return Branches(self._snapshot, SYSTEM, Table)

    @property
    def manifest(self) -> Manifest:
        return self._snapshot.manifest

    @property
    def timestamp(self) -> datetime:
        return self.manifest.timestamp

    def versions(self) -> list[VersionInfo]:
        """Every version that exists, oldest first."""
        return version_infos(self._location)

    def transaction(self, version: int | None = None) -> Transaction | None:
        """What made this version, or the one that is named; None where its writer left no record."""
        manifest = self.manifest if version is None else load_at(self._location, _version(version)).manifest
        return load_transaction(self._location, manifest)

    # Reading

    def to_table(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        *,
        limit: int | None = None,
        offset: int | None = None,
        with_row_id: bool = False,
        with_row_address: bool = False,
    ) -> pa.Table:
        """The rows that match `filter`, a condition in Lance's SQL; all of them without one."""
        plan = plan_scan(
            self.manifest,
            columns=columns,
            filter=filter,
            limit=limit,
            offset=offset,
            with_row_id=with_row_id,
            with_row_address=with_row_address,
        )
        return pa.Table.from_batches(scan(self._location, plan), plan.schema)

    def to_batches(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        *,
        limit: int | None = None,
        offset: int | None = None,
        with_row_id: bool = False,
        with_row_address: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Rows in order, a batch at a time; nothing is read before it is asked for."""
        plan = plan_scan(
            self.manifest,
            columns=columns,
            filter=filter,
            limit=limit,
            offset=offset,
            with_row_id=with_row_id,
            with_row_address=with_row_address,
        )
        return scan(self._location, plan)

    def take(
        self,
        rows: RowNumbers,
        columns: Sequence[str] | None = None,
        *,
        by: Literal["offset", "row_id", "row_address"] = "offset",
    ) -> pa.Table:
        """These rows, in the order asked for and as often; `by` says what the numbers are: places among the live rows,
        ids or addresses. A row that is not there is an error."""
        return scan_take.take(self._location, self.manifest, rows, columns, by=By.of(by))

    def blobs(
        self, column: str, rows: RowNumbers, *, by: Literal["offset", "row_id", "row_address"] = "offset"
    ) -> list[BlobFile | None]:
        """The blobs of these rows as open files, None where a row has none. They are read when they are read from."""
        return blobs(self._location, self.manifest, column, rows, by=By.of(by))

    def changes(self, since: int, until: int | None = None) -> pa.Table:
        """The rows that differ between two versions, `until` this one if it is not named: a column `_change` says
        "insert", "update" or "delete". The table needs stable row ids, by which that is told."""
        later = self._snapshot if until is None else load_at(self._location, _version(until))
        return changes(load_at(self._location, _version(since)), later)

    def explain(
        self,
        filter: str | None = None,
        columns: Sequence[str] | None = None,
        *,
        limit: int | None = None,
        offset: int | None = None,
    ) -> str:
        """What `to_table` would do, in words; nothing is read."""
        plan = plan_scan(self.manifest, columns=columns, filter=filter, limit=limit, offset=offset)
        return explained(self._location, plan)

    def count_rows(self, filter: str | None = None) -> int:
        """From the manifest alone, unless only rows that match are wanted."""
        if filter is None:
            return self.manifest.row_count()
        return count(self._location, plan_scan(self.manifest, columns=(), filter=filter))

    # Changing

    def append(
        self,
        data: Rows,
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        max_rows_per_file: int = ROWS_PER_FILE_MAX,
        max_bytes_per_file: int = BYTES_PER_FILE_MAX,
    ) -> Committed:
        """Add rows. Columns are matched by name; nullable ones may be left out. No rows make no version."""
        self.manifest.check_writable()
        begun = writes.begin(self._location, self._snapshot, intent=intent, ports=SYSTEM)
        if isinstance(begun, Written):
            return committed_of(begun)
        limits = FileLimits(max_rows_per_file, max_bytes_per_file)
        schema, version = self.manifest.schema, self.manifest.storage_version
        fragments = _fragments(begun, incoming(data).batches, schema, version, limits)
        if not fragments:
            return committed_of(writes.nothing_to_write(begun))
        return self._finish(begun, Append(fragments), properties, retries)

    def overwrite(
        self,
        data: Rows | pa.Schema,
        *,
        config: Mapping[str, str] | None = None,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        max_rows_per_file: int = ROWS_PER_FILE_MAX,
        max_bytes_per_file: int = BYTES_PER_FILE_MAX,
    ) -> Committed:
        """Replace all rows and the schema. Config, table metadata and older versions stay; indices go."""
        self.manifest.check_writable()
        begun = writes.begin(self._location, self._snapshot, intent=intent, ports=SYSTEM)
        if isinstance(begun, Written):
            return committed_of(begun)
        limits = FileLimits(max_rows_per_file, max_bytes_per_file)
        operation = _overwriting(begun, incoming(data), self.manifest.storage_version, limits, config or {})
        return self._finish(begun, operation, properties, retries)

    def delete(
        self,
        predicate: str,
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """Remove the rows that match, a condition in Lance's SQL. No data file is rewritten."""
        self.manifest.check_writable()
        begun = writes.begin(self._location, self._snapshot, intent=intent, ports=SYSTEM)
        if isinstance(begun, Written):
            return committed_of(begun)
        operation = edit_delete.delete(self._snapshot, predicate, ports=SYSTEM)
        return self._finish(begun, operation, properties, retries)

    def compact(
        self,
        *,
        target_rows: int = ROWS_PER_FILE_MAX,
        materialize_deletions: bool = True,
        remap: Literal["now", "reuse", "none"] = "now",
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """Write small fragments, and those with many deleted rows, anew as full ones. The rows stay as they are, with
        their ids and versions. A table in shape gets no version.

        `remap` says what becomes of an index that stores where rows are: kept up `"now"`, which is refused where the
        index cannot be rewritten; `"reuse"`, the table notes where the rows went; `"none"`, queries scan instead.
        """
        self.manifest.check_writable()
        begun = writes.begin(self._location, self._snapshot, intent=intent, ports=SYSTEM)
        if isinstance(begun, Written):
            return committed_of(begun)
        operation = compaction.compact(
            self._snapshot,
            target_rows=target_rows,
            materialize_deletions=materialize_deletions,
            remap=compaction.Remap.of(remap),
            ports=SYSTEM,
        )
        if operation is None:
            return committed_of(writes.nothing_to_write(begun, Rewrite.name))
        return self._finish(begun, operation, properties, retries)

    def fsck(self, versions: Literal["all", "head"] = "all") -> Report:
        """Look the table over, as it is on the store now: what contradicts the format or itself, how bad that is, and
        what to do about it. Nothing is written."""
        return _examined(self._location, versions)

    @staticmethod
    def check(
        uri: str,
        versions: Literal["all", "head"] = "all",
        *,
        storage_options: Mapping[str, str] | None = None,
        bases: Sequence[str] = (),
    ) -> Report:
        """`fsck` of a table that may be too damaged to be opened."""
        return _examined(locate(uri, storage_options=storage_options, bases=bases), versions)

    def cleanup(
        self,
        *,
        older_than: timedelta = timedelta(days=14),
        keep: int = 10,
        orphan_grace: timedelta = cleanup.GRACE,
        dry_run: bool = False,
        force: bool = False,
    ) -> CleanupReport:
        """Remove versions that are older than `older_than` and not among the newest `keep`, and the files that only
        they name. Versions that a tag, a branch or a clone names stay, and so do this version and newer ones.

        Files that no version names go too, once they are older than `orphan_grace`; `force` lets them go even where
        they are most of what is there. A dry run tells what would go.
        """
        self.manifest.check_writable()
        retention = Retention(older_than, keep, orphan_grace)
        return cleanup.clean(self._snapshot, retention, dry_run=dry_run, force=force, ports=SYSTEM)

    def update(
        self,
        values: Mapping[str, str],
        where: str | None = None,
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        max_rows_per_file: int = ROWS_PER_FILE_MAX,
        max_bytes_per_file: int = BYTES_PER_FILE_MAX,
    ) -> Committed:
        """Give columns new values, `{column: SQL}`, in the rows that match `where`; in all rows without it."""
        self.manifest.check_writable()
        begun = writes.begin(self._location, self._snapshot, intent=intent, ports=SYSTEM)
        if isinstance(begun, Written):
            return committed_of(begun)
        limits = FileLimits(max_rows_per_file, max_bytes_per_file)
        operation = edit_update.update(self._snapshot, values, where, limits=limits, ports=SYSTEM)
        return self._finish(begun, operation, properties, retries)

    def upsert(
        self,
        data: Rows,
        on: str | Sequence[str],
        *,
        matched: str = "update",
        matched_if: str | None = None,
        insert: bool = True,
        delete_unmatched: bool | str = False,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        max_rows_per_file: int = ROWS_PER_FILE_MAX,
        max_bytes_per_file: int = BYTES_PER_FILE_MAX,
    ) -> Committed:
        """Bring rows by the key columns `on`. A row that is there already: `matched` says "update", "delete", "fail" or
        "ignore"; `matched_if`, over `source.x` and `target.x`, says for which. The others are inserted. Rows that
        nothing matched can go, all or those of a condition (`delete_unmatched`). `data` is held in memory."""
        self.manifest.check_writable()
        begun = writes.begin(self._location, self._snapshot, intent=intent, ports=SYSTEM)
        if isinstance(begun, Written):
            return committed_of(begun)
        rules = edit_upsert.Rules.of(
            on, matched=matched, matched_if=matched_if, insert=insert, delete_unmatched=delete_unmatched
        )
        limits = FileLimits(max_rows_per_file, max_bytes_per_file)
        operation = edit_upsert.upsert(self._snapshot, incoming(data), rules, limits=limits, ports=SYSTEM)
        return self._finish(begun, operation, properties, retries)

    def add_columns(
        self,
        columns: edit_columns.NewColumns,
        *,
        schema: pa.Schema | None = None,
        read_columns: Sequence[str] | None = None,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """New columns: `{name: SQL}`; or fields, null in every row, of which no file is written; or a function from a
        batch of `read_columns` to one of new columns, whose types are those of its first result or of `schema`."""
        return self._changed(
            lambda base: edit_columns.add_columns(
                base, columns, schema=schema, read_columns=read_columns, ports=SYSTEM
            ),
            intent,
            properties,
            retries,
        )

    def merge_columns(
        self,
        data: Rows,
        on: str | Sequence[str],
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """New columns from rows with the key columns `on`. Rows of the table without a partner get nulls; a null key
        has no partner. `data` and the table's keys are held in memory."""
        return self._changed(
            lambda base: edit_columns.merge_columns(base, incoming(data), on, ports=SYSTEM), intent, properties, retries
        )

    def drop_columns(
        self,
        columns: Sequence[str],
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """Columns, or fields within (`address.city`), with the indices on them. No file is written."""
        return self._changed(lambda base: evolve.drop_columns(base, columns), intent, properties, retries)

    def reorder_columns(
        self,
        columns: Sequence[str],
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """All columns, in the order they are to have. No file is written."""
        return self._changed(lambda base: evolve.reorder_columns(base, columns), intent, properties, retries)

    def alter_column(
        self,
        name: str,
        rename: str | None = None,
        type: pa.DataType | None = None,
        nullable: bool | None = None,
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """Another name, type or nullability for a column, or for a field within (`address.city`). Only a type takes new
        files, and it is refused while an index is on the column; the column stays where it is among the others."""
        return self._changed(
            lambda base: evolve.alter_column(base, name, rename=rename, type=type, nullable=nullable, ports=SYSTEM),
            intent,
            properties,
            retries,
        )

    def set_config(
        self,
        values: settings.Values,
        *,
        replace: bool = False,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """Entries of the config; a None deletes. `replace` deletes what is not given, but for the library's own."""
        return self._changed(
            lambda base: settings.set_config(base, values, replace=replace), intent, properties, retries
        )

    def set_metadata(
        self,
        values: settings.Values,
        *,
        replace: bool = False,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """The table's own keys and values; a None deletes. `replace` deletes what is not given."""
        return self._changed(lambda _base: settings.set_metadata(values, replace=replace), intent, properties, retries)

    def set_schema_metadata(
        self,
        values: settings.Values,
        *,
        replace: bool = False,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """Arrow's metadata of the schema; a None deletes. `replace` deletes what is not given."""
        return self._changed(
            lambda _base: settings.set_schema_metadata(values, replace=replace), intent, properties, retries
        )

    def set_field_metadata(
        self,
        columns: Mapping[str, settings.Values],
        *,
        replace: bool = False,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """Metadata of columns, `{column: {key: value}}`; a None deletes. Files written from now on follow what it says
        of encodings."""
        return self._changed(
            lambda base: settings.set_field_metadata(base, columns, replace=replace), intent, properties, retries
        )

    def commit(
        self,
        operation: Operation,
        *,
        read_version: int | None = None,
        properties: Mapping[str, str] | None = None,
        intent: str | None = None,
        retries: int = ATTEMPTS,
        detached: bool = False,
    ) -> Committed:
        """Commit an operation whose files are written already. `read_version` is the version it was planned on.
        `detached` makes a version beside the line, that only its number finds, until `publish` puts it there."""
        base = self._snapshot
        if read_version is not None and read_version != base.version:
            base = load_at(self._location, _version(read_version))
        if detached:
            if intent is not None:
                raise InvalidInput("a detached version has no intent; it lands once when it is published")
            return committed_of(commit_detached(base, operation, properties=properties or {}, ports=SYSTEM))
        begun = writes.begin(self._location, base, intent=intent, ports=SYSTEM)
        if isinstance(begun, Written):
            return committed_of(begun)
        return self._finish(begun, operation, properties, retries)

    def publish(self, detached_version: int, *, retries: int = ATTEMPTS) -> Committed:
        """Commit what a detached version did, unless what was committed since is in its way."""
        return committed_of(publish(self._location, _version(detached_version), attempts=retries, ports=SYSTEM))

    def restore(
        self,
        version: int,
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """Make an older version of this line the newest: rows, schema, indices and config come back as they were then.
        What came between stays in the history."""
        number = load_at(self._location, _version(version)).version
        return self._changed(lambda _base: Restore(number), intent, properties, retries)

    def clone(self, uri: str, shallow: bool = True) -> "Table":
        """A table of its own that begins as this version. A shallow one goes on reading the files that are here, and
        is to be opened with `bases=[...]` later; `shallow=False` copies them."""
        return Table(clone(self._snapshot, uri, shallow=shallow, ports=SYSTEM))

    def add_bases(
        self,
        bases: Iterable[BasePath],
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """Places where files of the table may lie, besides its own."""
        new = tuple(bases)
        return self._changed(lambda _base: UpdateBases(new), intent, properties, retries)

    def migrate_manifest_names(self) -> "Table":
        """Give the manifests of an old table, or of one half way, the names that sort. No writer may be at work."""
        migrate(self._location)
        return self.refresh()

    @property
    def _location(self) -> Location:
        return self._snapshot.location

    def _changed(
        self,
        plan: Callable[[Snapshot], Operation],
        intent: str | None,
        properties: Mapping[str, str] | None,
        retries: int,
    ) -> Committed:
        """What a verb does whose plan is an operation, its files written when it is made."""
        self.manifest.check_writable()
        begun = writes.begin(self._location, self._snapshot, intent=intent, ports=SYSTEM)
        if isinstance(begun, Written):
            return committed_of(begun)
        return self._finish(begun, plan(self._snapshot), properties, retries)

    def _finish(
        self, begun: Begun, operation: Operation, properties: Mapping[str, str] | None, retries: int
    ) -> Committed:
        if retries < 1:
            raise InvalidInput(f"retries={retries}: at least one attempt is needed")
        return committed_of(writes.finish(begun, operation, properties=properties or {}, attempts=retries))


def _examined(location: Location, versions: str) -> Report:
    if versions not in {each.value for each in Extent}:
        raise InvalidInput(f"versions={versions!r}: it is one of {', '.join(repr(each.value) for each in Extent)}")
    return examine(location, Extent(versions))


def _overwriting(
    begun: Begun, rows: Incoming, version: StorageVersion, limits: FileLimits, config: Mapping[str, str]
) -> Overwrite:
    schema = TableSchema.from_arrow(stored_schema(rows.schema, version))
    check_storable(schema, version)
    return Overwrite(_fragments(begun, rows.batches, schema, version, limits), schema, config)


def _fragments(
    begun: Begun,
    batches: Iterable[pa.RecordBatch],
    schema: TableSchema,
    version: StorageVersion,
    limits: FileLimits,
) -> tuple[Fragment, ...]:
    return write_fragments(
        begun.location.codec,
        batches,
        schema=schema,
        version=version,
        limits=limits,
        conversion=Conversion.EXACT,
        new_uuid=begun.ports.new_uuid,
        what=begun.location.uri,
    )


def committed_of(written: Written) -> Committed:
    """What a writer returns, from what the workshop knows."""
    landing = written.landing
    return Committed(
        version=Version(landing.version),
        table=Table(written.snapshot),
        operation=landing.operation,
        rows_added=landing.rows_added,
        rows_removed=landing.rows_removed,
        files=landing.files,
        bytes=landing.bytes,
        attempts=written.attempts,
        rebased_over=written.rebased_over,
        landed_before=written.landed_before,
    )


def _storage_version(text: str) -> StorageVersion:
    try:
        return StorageVersion.parse(STORAGE_VERSION if text == "stable" else text)
    except ValueError as error:
        raise InvalidInput(str(error)) from error


def _version(number: int) -> Version:
    if number < 1:
        raise InvalidInput(f"versions count from 1; there is no version {number}")
    return Version(number)
