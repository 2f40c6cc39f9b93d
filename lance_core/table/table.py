"""The verbs people say to a table. Each is a few lines that call a workshop: `edit/` plans a change and writes its
files, `commit/write_protocol.py` commits it. What only looks is in `reading.py`, what changes no row in `upkeep.py`.

A `Table` is one version and never changes; a writer returns the table after it (`Committed.table`).
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa

from lance_core import validation
from lance_core.commit import write_protocol
from lance_core.commit.audit import AuditFunction
from lance_core.commit.detached import commit_detached, publish
from lance_core.commit.loop import ATTEMPTS
from lance_core.commit.write_protocol import WriteResult
from lance_core.datafiles.blob_writing import stored_schema
from lance_core.datafiles.column_layout import check_storable
from lance_core.datafiles.conform import Conversion
from lance_core.datafiles.fragment_writer import (
    BYTES_PER_FILE_MAX,
    ROWS_PER_FILE_MAX,
    BufferedRows,
    FileLimits,
    buffer_rows,
    write_fragments,
)
from lance_core.datafiles.inputs import InputRows, Rows, as_input
from lance_core.dml import delete as edit_delete
from lance_core.dml import new_columns as edit_columns
from lance_core.dml import replace_where as edit_slices
from lance_core.dml import retry, schema_evolution, settings
from lance_core.dml import update as edit_update
from lance_core.dml import upsert as edit_upsert
from lance_core.errors import AlreadyExists, InvalidInput
from lance_core.format.base_path import BasePath
from lance_core.format.fragment import Fragment, StorageVersion
from lance_core.format.ids import Version
from lance_core.format.operations import (
    Append,
    Operation,
    Overwrite,
    Restore,
    Update,
    UpdateBases,
    UpdateConfig,
)
from lance_core.format.schema import TableSchema
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from lance_core.table.branches import Branches, clone
from lance_core.table.committed import Committed
from lance_core.table.manifest_migration import migrate_manifest_names
from lance_core.table.upkeep import TableUpkeep
from lance_core.transactions.apply import NewTable
from lance_core.versions.location import Location, locate, manifest_store_config
from lance_core.versions.refs import Tags
from lance_core.versions.snapshot import Snapshot, exists, load_at
from lance_core.versions.table_id import TABLE_ID

STORAGE_VERSION = "2.2"
OVERWRITE_SLICE = "overwrite of a slice"
"""Another change than the overwrite of all rows, to an intention."""
_HELD_BYTES_MAX = 1024**2
"""Of rows in memory that are written by whoever commits them. More are written before that, side by side with others'.
"""
Audit = Callable[["Table", "Table | None"], object]
"""Shown a change before anybody else can see it: the table with it, and the table that it was made upon, None where
there is none yet. It refuses by raising, and then nothing is published (`AuditFailed`)."""


class Table(TableUpkeep):
    """
    >>> import pyarrow as pa, tempfile
    >>> place = tempfile.mkdtemp() + "/orders"
    >>> orders = Table.create(place, pa.table({"id": [1, 2], "city": ["Oslo", "Lima"]}))
    >>> orders = orders.append(pa.table({"id": [3], "city": ["Pune"]})).table
    >>> orders.version, orders.count_rows(), orders.to_table(columns=["city"])["city"].to_pylist()
    (2, 3, ['Oslo', 'Lima', 'Pune'])
    """

    # Making

    @classmethod
    def create(
        cls,
        uri: str | os.PathLike[str],
        data: Rows | pa.Schema,
        *,
        storage_options: Mapping[str, str] | None = None,
        storage_version: str = STORAGE_VERSION,
        stable_row_ids: bool = False,
        config: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        intent: str | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
        max_rows_per_file: int = ROWS_PER_FILE_MAX,
        max_bytes_per_file: int = BYTES_PER_FILE_MAX,
        manifest_store: ManifestStore | str | None = None,
        durable: bool = True,
    ) -> "Table":
        """A new table, at version 1, with these rows; with none, where `data` is a schema. `manifest_store` is where
        its versions are to be reserved, by every writer: `sqlite:///...`, `postgresql://...`, `dynamodb://table`."""
        validation.check(intent=intent, retries=retries)
        properties, config = validation.properties(properties), validation.config(config)
        location = locate(uri, storage_options=storage_options, durable=durable, manifest_store=manifest_store)
        birth = NewTable(_storage_version(storage_version), validation.flag(stable_row_ids, "stable_row_ids"))
        begun = write_protocol.begin(location, birth, verb="create", intent=intent, runtime=SYSTEM_RUNTIME)
        if isinstance(begun, WriteResult):
            return cls(begun.snapshot)
        if exists(location):
            raise AlreadyExists(f"there is a table at {location.uri} already; open it, or overwrite it")
        limits = FileLimits(max_rows_per_file, max_bytes_per_file)
        born_config = {TABLE_ID: begun.uuid, **config, **manifest_store_config(location)}
        operation = _overwriting(location, as_input(data), birth.storage_version, limits, born_config)
        return cls(
            write_protocol.finish(
                begun, operation, properties=properties, attempts=retries, audit=audit_of(audit)
            ).snapshot
        )

    # Naming

    @property
    def tags(self) -> Tags:
        return Tags(self._snapshot, SYSTEM_RUNTIME)

    @property
    def branches(self) -> "Branches[Table]":
        return Branches(self._snapshot, SYSTEM_RUNTIME, Table)

    # Changing

    def append(
        self,
        data: Rows,
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
        max_rows_per_file: int = ROWS_PER_FILE_MAX,
        max_bytes_per_file: int = BYTES_PER_FILE_MAX,
    ) -> Committed:
        """Add rows. Columns are matched by name; nullable ones may be left out. No rows make no version."""
        limits = FileLimits(max_rows_per_file, max_bytes_per_file)

        def plan(base: Snapshot) -> Append | BufferedRows | None:
            schema, version, rows = base.manifest.schema, base.manifest.storage_version, as_input(data)
            if rows.bytes is not None and rows.bytes <= _HELD_BYTES_MAX:
                return buffer_rows(
                    rows.batches,
                    schema=schema,
                    version=version,
                    limits=limits,
                    conversion=Conversion.EXACT,
                    what=base.location.uri,
                )
            fragments = _fragments(base.location, rows.batches, schema, version, limits)
            return Append(fragments) if fragments else None

        return self._changed("append", plan, intent, properties, retries, audit=audit, again=False)

    def overwrite(
        self,
        data: Rows | pa.Schema,
        *,
        where: str | None = None,
        config: Mapping[str, str] | None = None,
        stable_row_ids: bool | None = None,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
        max_rows_per_file: int = ROWS_PER_FILE_MAX,
        max_bytes_per_file: int = BYTES_PER_FILE_MAX,
    ) -> Committed:
        """Replace all rows and the schema. Config, table metadata and older versions stay; indices go. Whether rows
        have stable ids stays too; `stable_row_ids` says which of the two is expected.

        `where`, a condition in Lance's SQL, overwrites a slice: the rows that match go, and those that come, all of
        which have to match it too, take their place. The schema stays, and so do indices. The slice is what was given,
        whatever others write into it meanwhile."""
        validation.same_row_ids(stable_row_ids, self.manifest.has_stable_row_ids, what=self.uri)
        limits = FileLimits(max_rows_per_file, max_bytes_per_file)
        settings = validation.config(config)
        if where is not None:
            if settings:
                raise InvalidInput("config= is set by an overwrite of all rows; with where=, use set_config()")
            validation.text(where, "where")
            plan = edit_slices.plan_locally(as_input(data), where, limits=limits, runtime=SYSTEM_RUNTIME)
            return self._changed(OVERWRITE_SLICE, plan, intent, properties, retries, audit=audit)
        return self._changed(
            "overwrite",
            lambda base: _overwriting(base.location, as_input(data), base.manifest.storage_version, limits, settings),
            intent,
            properties,
            retries,
            audit=audit,
            again=False,
        )

    def delete(
        self,
        predicate: str,
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
    ) -> Committed:
        """Remove the rows that match, a condition in Lance's SQL. No data file is rewritten."""
        return self._changed(
            "delete",
            lambda base: edit_delete.delete(base, predicate, runtime=SYSTEM_RUNTIME),
            intent,
            properties,
            retries,
            audit=audit,
        )

    def update(
        self,
        values: Mapping[str, str],
        where: str | None = None,
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
        max_rows_per_file: int = ROWS_PER_FILE_MAX,
        max_bytes_per_file: int = BYTES_PER_FILE_MAX,
    ) -> Committed:
        """Give columns new values, `{column: SQL}`, in the rows that match `where`; in all rows without it."""
        limits = FileLimits(max_rows_per_file, max_bytes_per_file)
        return self._changed(
            "update",
            lambda base: edit_update.update(base, values, where, limits=limits, runtime=SYSTEM_RUNTIME),
            intent,
            properties,
            retries,
            audit=audit,
        )

    def upsert(
        self,
        data: Rows,
        on: str | Sequence[str],
        *,
        matched: str = "update",
        matched_if: str | None = None,
        insert: bool = True,
        delete_unmatched: bool | str | None = False,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
        max_rows_per_file: int = ROWS_PER_FILE_MAX,
        max_bytes_per_file: int = BYTES_PER_FILE_MAX,
    ) -> Committed:
        """Bring rows by the key columns `on`. A row that is there already: `matched` says "update", "delete", "fail" or
        "ignore"; `matched_if`, over `source.x` and `target.x`, says for which. The others are inserted. Rows that
        nothing matched can go, all or those of a condition (`delete_unmatched`). `data` is held in memory."""
        rules = edit_upsert.UpsertRules.of(
            on, matched=matched, matched_if=matched_if, insert=insert, delete_unmatched=delete_unmatched
        )
        limits, rows = FileLimits(max_rows_per_file, max_bytes_per_file), as_input(data).materialized()
        seen = edit_upsert.JoinCache()
        return self._changed(
            "upsert",
            lambda base: edit_upsert.upsert(base, rows, rules, limits=limits, runtime=SYSTEM_RUNTIME, seen=seen),
            intent,
            properties,
            retries,
            audit=audit,
            operation=Update.name,
        )

    def add_columns(
        self,
        columns: edit_columns.NewColumns,
        *,
        schema: pa.Schema | None = None,
        read_columns: Sequence[str] | None = None,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
    ) -> Committed:
        """New columns: `{name: SQL}`; or fields, null in every row, of which no file is written; or a function from a
        batch of `read_columns` to one of new columns, whose types are those of its first result or of `schema`."""
        return self._changed(
            "add_columns",
            lambda base: edit_columns.add_columns(
                base, columns, schema=schema, read_columns=read_columns, runtime=SYSTEM_RUNTIME
            ),
            intent,
            properties,
            retries,
            audit=audit,
        )

    def merge_columns(
        self,
        data: Rows,
        on: str | Sequence[str],
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
    ) -> Committed:
        """New columns from rows with the key columns `on`. Rows of the table without a partner get nulls; a null key
        has no partner. `data` and the table's keys are held in memory."""
        rows = as_input(data).materialized()
        return self._changed(
            "merge_columns",
            lambda base: edit_columns.merge_columns(base, rows, on, runtime=SYSTEM_RUNTIME),
            intent,
            properties,
            retries,
            audit=audit,
        )

    def drop_columns(
        self,
        columns: Sequence[str],
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
    ) -> Committed:
        """Columns, or fields within (`address.city`), with the indices on them. No file is written, unless rows would
        be left without any."""
        return self._changed(
            "drop_columns",
            lambda base: schema_evolution.drop_columns(base, columns, runtime=SYSTEM_RUNTIME),
            intent,
            properties,
            retries,
            audit=audit,
        )

    def reorder_columns(
        self,
        columns: Sequence[str],
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """All columns, in the order they are to have. No file is written."""
        return self._changed(
            "reorder_columns", lambda base: schema_evolution.reorder_columns(base, columns), intent, properties, retries
        )

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
        audit: Audit | None = None,
    ) -> Committed:
        """Another name, type or nullability for a column, or for a field within (`address.city`). Only a type takes new
        files, and it is refused while an index is on the column; the column stays where it is among the others."""
        return self._changed(
            "alter_column",
            lambda base: schema_evolution.alter_column(
                base, name, rename=rename, type=type, nullable=nullable, runtime=SYSTEM_RUNTIME
            ),
            intent,
            properties,
            retries,
            audit=audit,
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
            "set_config", lambda base: settings.set_config(base, values, replace=replace), intent, properties, retries
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
        return self._changed(
            "set_metadata", lambda _base: settings.set_metadata(values, replace=replace), intent, properties, retries
        )

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
            "set_schema_metadata",
            lambda _base: settings.set_schema_metadata(values, replace=replace),
            intent,
            properties,
            retries,
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
            "set_field_metadata",
            lambda base: settings.set_field_metadata(base, columns, replace=replace),
            intent,
            properties,
            retries,
        )

    def commit(
        self,
        operation: Operation,
        *,
        read_version: int | None = None,
        properties: Mapping[str, str] | None = None,
        intent: str | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
        detached: bool = False,
    ) -> Committed:
        """Commit an operation whose files are written already. `read_version` is the version it was planned on.
        `detached` makes a version beside the line, that only its number finds, until `publish` puts it there."""
        if not isinstance(operation, Operation):
            raise InvalidInput(f"an operation is one of lance_core.operations, not a {type(operation).__name__}")
        if isinstance(operation, Overwrite):
            validation.config(operation.config_upserts)
        if isinstance(operation, UpdateConfig) and operation.config:
            validation.check_config_keys(operation.config.entries)
        base = self._snapshot
        if read_version is not None and read_version != base.version:
            base = load_at(self._location, validation.version_number(read_version))
        if validation.flag(detached, "detached"):
            validation.check(intent=intent, retries=retries)
            if audit is not None:
                raise InvalidInput("a detached version is not audited: look at it, then publish it")
            if intent is not None:
                raise InvalidInput("a detached version has no intent; it lands once when it is published")
            noted = validation.properties(properties)
            return committed_of(commit_detached(base, operation, properties=noted, runtime=SYSTEM_RUNTIME))
        return Table(base)._changed(
            f"commit {operation.name}",
            lambda _base: operation,
            intent,
            properties,
            retries,
            audit=audit,
            again=False,
            brought=True,
        )

    def publish(self, detached_version: int, *, retries: int = ATTEMPTS) -> Committed:
        """Commit what a detached version did, unless what was committed since is in its way."""
        return committed_of(
            publish(
                self._location, validation.version_number(detached_version), attempts=retries, runtime=SYSTEM_RUNTIME
            )
        )

    def restore(
        self,
        version: int,
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
    ) -> Committed:
        """Make an older version of this line the newest: rows, schema, indices and config come back as they were then.
        What came between stays in the history."""
        number = validation.version_number(version)
        return self._changed(
            "restore",
            lambda _base: Restore(load_at(self._location, number).version),
            intent,
            properties,
            retries,
            audit=audit,
            again=False,
        )

    def clone(self, uri: str | os.PathLike[str], shallow: bool = True) -> "Table":
        """A table of its own that begins as this version. A shallow one goes on reading the files that are here, and
        is to be opened with `bases=[...]` later; `shallow=False` copies them."""
        return Table(clone(self._snapshot, uri, shallow=shallow, runtime=SYSTEM_RUNTIME))

    def add_bases(
        self,
        bases: Iterable[BasePath],
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """Places where files of the table may lie, besides its own."""
        new = validation.bases(bases)
        return self._changed("add_bases", lambda _base: UpdateBases(new), intent, properties, retries, again=False)

    def migrate_manifest_names(self) -> "Table":
        """Give the manifests of an old table, or of one half way, the names that sort. No writer may be at work."""
        migrate_manifest_names(self._location)
        return self.refresh()

    def _changed(
        self,
        verb: str,
        plan: retry.Plan,
        intent: str | None,
        properties: Mapping[str, str] | None,
        retries: int,
        *,
        audit: Audit | None = None,
        operation: str = "",
        again: bool = True,
        brought: bool = False,
    ) -> Committed:
        """What every verb does. `plan` writes its files; None where there is nothing to change, for which the caller
        names the `operation` that would have been. `again` says that it may be planned once more on a newer version,
        `brought` that its files were there before."""
        validation.check(intent=intent, retries=retries)
        noted = validation.properties(properties)
        self.manifest.check_writable()
        change = retry.Change(verb, plan, operation or Append.name, again, brought, audit_of(audit))
        return committed_of(
            retry.commit_with_retry(
                change, self._snapshot, intent=intent, properties=noted, retries=retries, runtime=SYSTEM_RUNTIME
            )
        )


def _overwriting(
    location: Location, rows: InputRows, version: StorageVersion, limits: FileLimits, config: Mapping[str, str]
) -> Overwrite:
    if rows.schema is None:
        raise InvalidInput("no batches do not say which columns the table is to have; give a pyarrow schema instead")
    schema = TableSchema.from_arrow(stored_schema(rows.schema, version))
    check_storable(schema, version)
    return Overwrite(_fragments(location, rows.batches, schema, version, limits), schema, config)


def _fragments(
    location: Location,
    batches: Iterable[pa.RecordBatch],
    schema: TableSchema,
    version: StorageVersion,
    limits: FileLimits,
) -> tuple[Fragment, ...]:
    return write_fragments(
        location.codec,
        batches,
        schema=schema,
        version=version,
        limits=limits,
        conversion=Conversion.EXACT,
        new_uuid=SYSTEM_RUNTIME.new_uuid,
        what=location.uri,
    )


def audit_of(audit: Audit | None) -> AuditFunction | None:
    """As the workshops know it."""
    if audit is None:
        return None
    if not callable(audit):
        raise InvalidInput(f"audit= is a function of two tables, not a {type(audit).__name__}")
    return lambda beside, base: audit(Table(beside), None if base is None else Table(base))


def committed_of(written: WriteResult) -> Committed:
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
        already_committed=written.landed_before,
        uncovered=written.uncovered,
    )


def _storage_version(text: str) -> StorageVersion:
    if not isinstance(text, str):
        raise InvalidInput(f"storage_version={text!r}: it is a text such as '2.2'")
    try:
        return StorageVersion.parse(STORAGE_VERSION if text == "stable" else text)
    except ValueError as error:
        raise InvalidInput(str(error)) from error
