"""Side table: a Lance table beside another one, to which jobs append rows about what they could not store.

Workers write its files, and the driver commits them. The table is created by the first row. Start with `SideTable`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from lance_core.commit.loop import ATTEMPTS
from lance_core.commit.write_protocol import Change, StartedWrite, WriteResult, commit_with_retry, new_table_config
from lance_core.datafiles.conform import Conversion
from lance_core.datafiles.fragment_writer import FileLimits, write_fragments
from lance_core.errors import NotFound, SchemaMismatch
from lance_core.format.fragment import Fragment, StorageVersion
from lance_core.format.operations import Append, Overwrite
from lance_core.format.schema import TableSchema
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.table.base import NewTableOptions
from lance_core.transactions.apply import NewTable
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, load_latest


@dataclass(frozen=True, slots=True)
class SideTable:
    """Kind of side table: its columns, and how it is called in messages."""

    schema: pa.Schema
    rows: str
    """Plural noun for its rows, such as "bad records"."""
    option: str
    """Argument that names the table, such as `on_bad_record`."""
    verb: str
    """Verb of the operation that appends to it."""
    stable_row_ids: bool = False

    def load_base(self, location: Location) -> Snapshot | NewTable:
        """Load the side table, or return a `NewTable` if it does not exist."""
        try:
            base = load_latest(location)
        except NotFound:
            return NewTableOptions(stable_row_ids=self.stable_row_ids).new_table()
        base.manifest.check_writable()
        return base

    def checked_schema(self, base: Snapshot | NewTable) -> TableSchema:
        """Return the schema of the side table. Raise `SchemaMismatch` if it is not a table of this kind."""
        if isinstance(base, NewTable):
            return TableSchema.from_arrow(self.schema)
        schema = base.manifest.schema
        types = {field.name: field.type for field in schema.arrow}
        for field in self.schema:
            if types.get(field.name) != field.type:
                raise SchemaMismatch(
                    f"{self.option}={base.location.uri} is not a table of {self.rows}: its column "
                    f"{field.name!r} is {types.get(field.name, 'missing')}, not {field.type}. Give another location",
                    column=field.name,
                    expected=str(field.type),
                    got=str(types.get(field.name, "nothing")),
                )
        return schema

    def target(self, location: Location) -> "SideTableTarget":
        """Return what workers need to write files of the table."""
        base = self.load_base(location)
        version = base.storage_version if isinstance(base, NewTable) else base.manifest.storage_version
        return SideTableTarget(self.checked_schema(base), version)

    def append(self, location: Location, fragments: tuple[Fragment, ...], intent: str | None) -> WriteResult:
        """Commit fragments to the table, once for each intent."""

        def append(version: Snapshot) -> Append:
            self.checked_schema(version)
            return Append(fragments)

        def create(started: StartedWrite) -> Overwrite:
            return Overwrite(fragments, TableSchema.from_arrow(self.schema), new_table_config(started))

        return commit_with_retry(
            Change(self.verb, append, create=create),
            location,
            self.load_base(location),
            intent=intent,
            properties={},
            retries=ATTEMPTS,
            runtime=SYSTEM_RUNTIME,
        )


@dataclass(frozen=True, slots=True)
class SideTableTarget:
    """Schema and storage version of the files of a side table. Picklable."""

    schema: TableSchema
    storage_version: StorageVersion

    def write(self, location: Location, batches: Iterable[pa.RecordBatch]) -> tuple[Fragment, ...]:
        """Write files, which no version of the table has yet."""
        return write_fragments(
            location.codec,
            batches,
            schema=self.schema,
            version=self.storage_version,
            limits=FileLimits(),
            conversion=Conversion.CAST,
            new_uuid=SYSTEM_RUNTIME.new_uuid,
            what=location.uri,
        )
