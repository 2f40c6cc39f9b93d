"""The verbs people say to a table. Each is a few lines that call a workshop: `writes.py` to change, `scan/`
to read.

A `Table` is one version and never changes; a writer returns the table after it (`Committed.table`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

import pyarrow as pa

from lance_core import writes
from lance_core.commit import ATTEMPTS
from lance_core.committed import Committed
from lance_core.data.conform import Conversion
from lance_core.data.incoming import Incoming, Rows, incoming
from lance_core.data.layout import check_storable
from lance_core.data.write import BYTES_PER_FILE_MAX, ROWS_PER_FILE_MAX, FileLimits, write_fragments
from lance_core.edit import delete as edit_delete
from lance_core.errors import AlreadyExists, InvalidInput
from lance_core.format.fragment import Fragment, StorageVersion
from lance_core.format.ids import Version
from lance_core.format.manifest import Fragments, Manifest
from lance_core.format.operations import Append, Operation, Overwrite
from lance_core.format.schema import TableSchema
from lance_core.format.transaction import Transaction
from lance_core.history import VersionInfo, version_infos
from lance_core.identity import TABLE_ID, table_id
from lance_core.location import Location, locate
from lance_core.ports import SYSTEM
from lance_core.scan.plan import plan_scan
from lance_core.scan.read import count, scan, scan_schema
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
        storage_options: Mapping[str, str] | None = None,
        durable: bool = True,
    ) -> "Table":
        """The newest version, or the one that is named."""
        location = locate(uri, storage_options=storage_options, durable=durable)
        return cls(load_latest(location) if version is None else load_at(location, _version(version)))

    @staticmethod
    def exists(uri: str, storage_options: Mapping[str, str] | None = None) -> bool:
        """Whether a version of a table is there; a directory that no commit ever reached is not a table."""
        return exists(locate(uri, storage_options=storage_options))

    def at(self, version: int) -> "Table":
        return Table(load_at(self._location, _version(version)))

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
    ) -> pa.Table:
        """The rows that match `filter`, a condition in Lance's SQL; all of them without one."""
        plan = plan_scan(self.manifest, columns=columns, filter=filter, limit=limit, offset=offset)
        return pa.Table.from_batches(scan(self._location, plan), scan_schema(plan))

    def to_batches(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        *,
        limit: int | None = None,
        offset: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Rows in order, a batch at a time; nothing is read before it is asked for."""
        plan = plan_scan(self.manifest, columns=columns, filter=filter, limit=limit, offset=offset)
        return scan(self._location, plan)

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

    def commit(
        self,
        operation: Operation,
        *,
        read_version: int | None = None,
        properties: Mapping[str, str] | None = None,
        intent: str | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """Commit an operation whose files are written already.
        `read_version` is the version it was planned on."""
        base = self._snapshot
        if read_version is not None and read_version != base.version:
            base = load_at(self._location, _version(read_version))
        begun = writes.begin(self._location, base, intent=intent, ports=SYSTEM)
        if isinstance(begun, Written):
            return committed_of(begun)
        return self._finish(begun, operation, properties, retries)

    @property
    def _location(self) -> Location:
        return self._snapshot.location

    def _finish(
        self, begun: Begun, operation: Operation, properties: Mapping[str, str] | None, retries: int
    ) -> Committed:
        if retries < 1:
            raise InvalidInput(f"retries={retries}: at least one attempt is needed")
        return committed_of(writes.finish(begun, operation, properties=properties or {}, attempts=retries))


def _overwriting(
    begun: Begun, rows: Incoming, version: StorageVersion, limits: FileLimits, config: Mapping[str, str]
) -> Overwrite:
    schema = TableSchema.from_arrow(rows.schema)
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
