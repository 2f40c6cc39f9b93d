"""Reading a table: open a version, its properties, scans, lookups, queries and consistency checks.

Nothing in here writes. Each method is a few lines that call `scan/` for rows and `versions/` for other versions.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Self, cast

import pyarrow as pa
import pyarrow.compute as pc

from lance_core import validation
from lance_core.dml.computed_column import declared_columns
from lance_core.dml.failed_rows import current_entries, load_errors, locate_errors
from lance_core.dml.freshness import measure_freshness
from lance_core.dml.stale_rows import Freshness
from lance_core.errors import Corrupt, InvalidInput
from lance_core.expressions.arrow_filters import Condition
from lance_core.format.ids import Version
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.manifest import Fragments, Manifest
from lance_core.format.transaction import Transaction
from lance_core.fsck import DataCheck, Extent, Report
from lance_core.index import explain as explain_module
from lance_core.index import lookup
from lance_core.index.statistics import IndexStatistics, index_statistics
from lance_core.progress import ProgressArgument, reporting
from lance_core.scan import take as scan_take
from lance_core.scan.blobs import BlobFile, open_blobs
from lance_core.scan.changes import read_changes
from lance_core.scan.executor import count_matches, scan, split_batches
from lance_core.scan.explain import explain_plan
from lance_core.scan.plan import ScanPlan, plan_scan
from lance_core.scan.query import run_query
from lance_core.scan.selection import RowSelector
from lance_core.scan.take import By, RowNumbers
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from lance_core.table.base import CommitListener, TableBase
from lance_core.table.lazy_scan import Columns, Scan, check_plain_names
from lance_core.versions.history import VersionInfo, version_info, version_infos
from lance_core.versions.location import Location, check_opened_with_own_manifest_store, locate
from lance_core.versions.refs import resolve_version
from lance_core.versions.snapshot import list_versions, load_at, load_latest, load_transaction, table_exists, table_id
from lance_core.versions.version_watch import VersionWatch


class TableReading(TableBase):
    """Part of `Table` that reads."""

    def __repr__(self) -> str:
        try:
            rows = f", rows={self.manifest.row_count()}"
        except Corrupt:  # a representation appears in messages, and must not raise
            rows = ""
        return f"Table({self.uri!r}, version={self.version}{rows})"

    # Opening a version

    @classmethod
    def open(
        cls,
        uri: str | os.PathLike[str],
        *,
        version: int | None = None,
        tag: str | None = None,
        branch: str | None = None,
        timestamp: datetime | None = None,
        storage_options: Mapping[str, str] | None = None,
        manifest_store: ManifestStore | str | None = None,
        bases: Sequence[str] = (),
        durable: bool = True,
        verify: str = "off",
        trusted: bool = True,
        on_commit: CommitListener | None = None,
    ) -> Self:
        """Open the newest version, or the one that `version`, `tag`, `branch` or `timestamp` selects.

        `timestamp` selects the newest version that was committed at or before it. `bases` lists the locations outside
        the table whose files may be read, such as the source of a shallow clone. `manifest_store` is the store that
        reserves the table's versions, as it was passed to `create`. Raise `NotFound` if there is no such version.

        `verify="read"` compares each data and index file with its recorded checksum before it is decoded, once for each
        process, and `"sample"` one file in sixteen; a damaged file raises `Corrupt`. Deletion files are always
        compared. A damaged index is not used (`IndexIgnored`).

        With `trusted=False`, all data and index files are decoded in another process with limits of memory and time,
        here and by writers on the table. A damaged or hostile file then raises `Corrupt` or `StorageError`, and cannot
        end this process. Use it for tables of unknown origin; see `docs/tables.md`.

        `on_commit` is called with the result of each write of the opened table and of the tables that come from it.

        >>> Table.open(table.uri).count_rows(), Table.open(table.uri, version=1).version
        (3, 1)
        """
        location = locate(
            uri,
            storage_options=storage_options,
            durable=durable,
            bases=bases,
            manifest_store=manifest_store,
            verify=verify,
            trusted=trusted,
        )
        number = None if version is None else validation.check_version_number(version)
        snapshot = resolve_version(location, version=number, tag=tag, branch=branch, timestamp=timestamp)
        check_opened_with_own_manifest_store(snapshot.location, snapshot.manifest)
        if on_commit is not None and not callable(on_commit):
            raise InvalidInput(f"on_commit= must be a function of a Committed, not {on_commit!r:.80}")
        return cls(snapshot, on_commit)

    @staticmethod
    def exists(
        uri: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        *,
        manifest_store: ManifestStore | str | None = None,
    ) -> bool:
        """Return whether a table exists at `uri`: a directory without a committed version is not a table.

        >>> Table.exists(table.uri), Table.exists(directory + "/nothing")
        (True, False)
        """
        return table_exists(locate(uri, storage_options=storage_options, manifest_store=manifest_store))

    def at(self, version: int | None = None, *, tag: str | None = None, timestamp: datetime | None = None) -> Self:
        """Open another version: of this branch, or of the branch of `tag`.

        >>> newer = table.append({"id": [4]}).table
        >>> newer.at(1).count_rows(), newer.count_rows()
        (3, 4)
        """
        if version is not None and tag is None and timestamp is None:
            return self._at(load_at(self._location, validation.check_version_number(version)))
        number = None if version is None else validation.check_version_number(version)
        if tag is None:
            return self._at(resolve_version(self._location, version=number, timestamp=timestamp))
        main = self._location.locate_main_branch(self.branch)
        return self._at(resolve_version(main, version=number, tag=tag, timestamp=timestamp))

    def refresh(self) -> Self:
        """Open the newest version of this branch.

        >>> _ = table.append({"id": [4]})
        >>> table.version, table.refresh().version
        (1, 2)
        """
        return self._at(load_latest(self._location, self._snapshot))

    # Properties of the version

    @property
    def uri(self) -> str:
        return self._location.address

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
    def indices(self) -> tuple[IndexMetadata, ...]:
        """Index segments. The segments of one index share a name."""
        return self.manifest.indices

    def index_statistics(self) -> tuple[IndexStatistics, ...]:
        """Return the statistics of each index: coverage, size, age and whether queries use it. No index file is
        opened.

        >>> [statistics] = table.create_index("id", "BTREE").table.index_statistics()
        >>> statistics.name
        'id_idx'
        """
        return index_statistics(self._snapshot)

    def freshness(self, column: str) -> Freshness | None:
        """Return how many rows have an up-to-date value in a computed column, and why the others are stale; `None` if
        the column is not computed. Inputs are read where they may have changed since the last run.

        >>> table.freshness("price") is None
        True
        """
        declaration = declared_columns(self._columns).get(column)
        return None if declaration is None else measure_freshness(self._snapshot, declaration)

    def failed_rows(self, column: str | None = None, *, errors_uri: str | None = None) -> pa.Table:
        """Return the rows for which the function of a computed column raised, of one column or of all: row id, declared
        key, error, version of the code, run and time. Rows that have been computed since are left out.

        `errors_uri` is the table that the runs have named for such rows; by default it is beside this table, as
        `pages_errors.lance` is beside `pages.lance`.

        >>> table.failed_rows().num_rows
        0
        """
        return current_entries(self._snapshot, load_errors(locate_errors(self._snapshot, errors_uri)), column)

    @property
    def config(self) -> Mapping[str, str]:
        return self.manifest.config

    @property
    def metadata(self) -> Mapping[str, str]:
        """Metadata of the table. Arrow's metadata of the schema is in `schema.metadata`."""
        return self.manifest.table_metadata

    @property
    def id(self) -> str | None:
        """Permanent identity of the table: set at creation, or else the uuid of the transaction that created it.
        `None` if another library created the table and its first version is removed or damaged."""
        return table_id(self._snapshot)

    @property
    def branch(self) -> str | None:
        """Name of the branch; `None` on the main branch."""
        return self.manifest.branch

    @property
    def bases(self) -> tuple[str, ...]:
        """Locations outside the table that may be read, as they were passed to `open`."""
        return self._location.access.bases

    @property
    def manifest(self) -> Manifest:
        return self._snapshot.manifest

    @property
    def timestamp(self) -> datetime:
        return self.manifest.timestamp

    def versions(self, since: int = 0) -> list[VersionInfo]:
        """Return all versions that exist, or those after `since`, oldest first.

        >>> newer = table.append({"id": [4]}).table
        >>> [(info.version, info.operation) for info in newer.versions()]
        [(1, 'Overwrite'), (2, 'Append')]
        """
        from_ = validation.check_integer(since, "since", at_least=0, too_small="versions count from 1")
        return version_infos(self._location, from_)

    def version_numbers(self) -> tuple[Version, ...]:
        """Return the numbers of all versions that exist, ascending, from a listing alone.

        >>> table.append({"id": [4]}).table.version_numbers()
        (1, 2)
        """
        return list_versions(self._location).numbers

    def watch(self) -> VersionWatch:
        """Return a watch that shows, by one listing, whether the versions of this branch have changed.

        >>> watch = table.watch()
        >>> before = watch.read()
        >>> _ = table.append({"id": [4]})
        >>> before.numbers, watch.read().numbers, watch.read() == before
        ((1,), (1, 2), False)
        """
        return VersionWatch.on(self._location)

    def version_info(self, version: int | None = None) -> VersionInfo:
        """Return what `versions()` returns for this version, or for the given one, even if others are removed.

        >>> table.append({"id": [4]}).table.version_info().rows
        4
        """
        return version_info(
            self._snapshot if version is None else load_at(self._location, validation.check_version_number(version))
        )

    def transaction(self, version: int | None = None) -> Transaction | None:
        """Return the transaction of this version, or of the given one; `None` if its writer recorded none.

        >>> table.append({"id": [4]}).table.transaction().operation.name
        'Append'
        """
        manifest = (
            self.manifest
            if version is None
            else load_at(self._location, validation.check_version_number(version)).manifest
        )
        return load_transaction(self._location, manifest)

    # Rows

    def to_table(
        self,
        columns: Columns | None = None,
        filter: Condition | None = None,
        *,
        limit: int | None = None,
        offset: int | None = None,
        with_row_id: bool = False,
        with_row_address: bool = False,
        use_indices: bool = True,
    ) -> pa.Table:
        """Return the rows that match `filter`, or all rows. An index changes neither the rows nor their order;
        `use_indices=False` uses none. Filters and columns have the forms of `scan`.

        >>> table.to_table(["id"], filter="city = 'Oslo'").to_pylist()
        [{'id': 1}]
        >>> table.to_table({"gross": "price * 2"}, filter=pc.field("city") == "Oslo").to_pylist()
        [{'gross': 20.0}]
        """
        window = _Window(limit, offset, with_row_id, with_row_address)
        if not _is_plain(columns, filter):
            return self._scan(columns, filter, window, use_indices).to_table()
        plan = self._plan(columns, filter, window, self._select(use_indices))
        return pa.Table.from_batches(scan(self._location, plan), plan.schema)

    def to_batches(
        self,
        columns: Columns | None = None,
        filter: Condition | None = None,
        *,
        limit: int | None = None,
        offset: int | None = None,
        with_row_id: bool = False,
        with_row_address: bool = False,
        use_indices: bool = True,
        batch_size: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Return an iterator over the rows in batches, in the order of `to_table`. A batch is read when it is
        requested, and has at most `batch_size` rows.

        >>> sum(batch.num_rows for batch in table.to_batches(["id"], filter="price > 15"))
        2
        """
        window = _Window(limit, offset, with_row_id, with_row_address)
        if not _is_plain(columns, filter):
            return self._scan(columns, filter, window, use_indices).to_batches(batch_size=batch_size)
        rows_max = None if batch_size is None else validation.check_batch_size(batch_size)
        batches = scan(self._location, self._plan(columns, filter, window, self._select(use_indices)))
        return batches if rows_max is None else split_batches(batches, rows_max)

    def take(
        self,
        rows: RowNumbers,
        columns: Sequence[str] | None = None,
        *,
        by: Literal["offset", "row_id", "row_address"] = "offset",
    ) -> pa.Table:
        """Return the rows at these positions among the live rows, or with these row ids or addresses, in the given
        order and with repetitions. Raise `InvalidInput` if a row does not exist.

        >>> table.take([2, 0], ["id"])["id"].to_pylist()
        [3, 1]
        """
        return scan_take.take(self._location, self.manifest, rows, columns, by=By.of(by))

    def blobs(
        self, column: str, rows: RowNumbers, *, by: Literal["offset", "row_id", "row_address"] = "offset"
    ) -> list[BlobFile | None]:
        """Return the blobs of these rows as file objects that read lazily; `None` for a row without a blob.

        >>> field = pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
        >>> rows = pa.table([[b"a long image"]], pa.schema([field]))
        >>> images = Table.create(directory + "/images", rows, storage_version="2.1")
        >>> [image] = images.blobs("image", [0])
        >>> image.seek(2), image.read(4)
        (2, b'long')
        """
        return open_blobs(self._location, self.manifest, column, rows, by=By.of(by))

    def changes(
        self,
        since: int,
        until: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        filter: Condition | None = None,
        with_row_id: bool = True,
    ) -> pa.Table:
        """Return the rows that differ between the versions `since` and `until` (default: this one). The column
        `_change` is "insert", "update" or "delete". The table needs stable row ids, which identify the rows.

        `columns` are those of the table to return; `_change` and the row versions always come with them. `filter`
        selects changes by the new values of inserted and updated rows, and by the old values of deleted ones.

        >>> events = Table.create(directory + "/events", {"id": [1, 2]}, stable_row_ids=True)
        >>> events = events.delete("id = 1").table
        >>> events.changes(since=1).select(["id", "_change"]).to_pylist()
        [{'id': 1, '_change': 'delete'}]
        """
        later = self._snapshot if until is None else load_at(self._location, validation.check_version_number(until))
        earlier = load_at(self._location, validation.check_version_number(since))
        return read_changes(earlier, later, columns=columns, filter=filter, with_row_id=with_row_id)

    def explain(
        self,
        filter: Condition | None = None,
        columns: Columns | None = None,
        *,
        limit: int | None = None,
        offset: int | None = None,
        with_row_id: bool = False,
        with_row_address: bool = False,
        use_indices: bool = True,
    ) -> str:
        """Return the plan of `to_table` as text: the fragments and columns it reads, the indices it uses, and why it
        uses no other. Nothing is read or searched.

        >>> table.explain("price > 15").splitlines()[-1].split(maxsplit=1)
        ['indices', 'none used: every fragment is scanned']
        """
        window = _Window(limit, offset, with_row_id, with_row_address)
        if not _is_plain(columns, filter):
            return self._scan(columns, filter, window, use_indices).explain()
        plan = self._plan(columns, filter, window, None)
        indices = explain_module.explain_indices(
            self._snapshot, plan.predicate, use_indices=validation.check_flag(use_indices, "use_indices")
        )
        return explain_plan(self._location, plan, indices)

    def count_rows(self, filter: Condition | None = None, *, use_indices: bool = True) -> int:
        """Return the number of rows, or of those that match `filter`. Without a filter the manifest answers; with one,
        an index that answers it exactly makes reading data files unnecessary.

        >>> table.count_rows(), table.count_rows("city like 'L%'")
        (3, 1)
        """
        if filter is None:
            return self.manifest.row_count()
        if not _is_plain(None, filter):
            return self._scan((), filter, _Window(), use_indices).count_rows()
        plan = plan_scan(self.manifest, columns=(), filter=filter, select=self._select(use_indices))
        return count_matches(self._location, plan)

    def query(self, sql: str, *, limit: int | None = None) -> pa.Table:
        """Return the result of a SQL query over this table, which is called `dataset` in it, as in Lance. At most
        `limit` rows are returned. Rows are streamed; only the groups are kept in memory.

        >>> table.query("select max(price) as highest from dataset where city <> 'Pune'").to_pylist()
        [{'highest': 20.0}]
        """
        rows = (
            None if limit is None else validation.check_integer(limit, "limit", at_least=0, too_small="it counts rows")
        )
        return run_query(self._location, self.manifest, sql, limit=rows, select=self._select(True))

    # Consistency

    def fsck(
        self,
        versions: Literal["all", "head"] = "all",
        *,
        data: bool = False,
        progress: ProgressArgument = False,
        resume: str | os.PathLike[str] | None = None,
    ) -> Report:
        """Check the table, as it is stored now, for contradictions, and return each with its severity and its remedy.
        Nothing is written to the table.

        `data=True` also reads every data, deletion and index file and compares it with its recorded checksum.
        `progress` is that of `compact`. `resume` is a local file that records verified files, so
        that a call after an interrupted one continues there.

        >>> table.fsck(data=True).is_clean
        True
        """
        with reporting(progress, "fsck"):
            return _examined(self._location, versions, _data_check(data, resume))

    @staticmethod
    def check(
        uri: str,
        versions: Literal["all", "head"] = "all",
        *,
        storage_options: Mapping[str, str] | None = None,
        manifest_store: ManifestStore | str | None = None,
        bases: Sequence[str] = (),
        data: bool = False,
        progress: ProgressArgument = False,
        resume: str | os.PathLike[str] | None = None,
    ) -> Report:
        """Run `fsck` on a table that may be too damaged to be opened.

        >>> Table.check(table.uri).is_sound
        True
        """
        location = locate(uri, storage_options=storage_options, bases=bases, manifest_store=manifest_store)
        with reporting(progress, "fsck"):
            return _examined(location, versions, _data_check(data, resume))

    def _scan(self, columns: Columns | None, filter: Condition | None, window: "_Window", use_indices: bool) -> Scan:
        return Scan.create(
            self._snapshot,
            columns,
            filter,
            limit=window.limit,
            offset=window.offset,
            with_row_id=window.with_row_id,
            with_row_address=window.with_row_address,
            use_indices=validation.check_flag(use_indices, "use_indices"),
        )

    def _plan(
        self, columns: Columns | None, filter: Condition | None, window: "_Window", select: RowSelector | None
    ) -> ScanPlan:
        """Return the plan of a scan with plain arguments."""
        check_plain_names(columns, (), self.manifest.schema)
        return plan_scan(
            self.manifest,
            columns=cast("Sequence[str] | None", columns),
            filter=filter,
            limit=window.limit,
            offset=window.offset,
            with_row_id=window.with_row_id,
            with_row_address=window.with_row_address,
            select=select,
        )

    def _select(self, use_indices: bool) -> RowSelector | None:
        return lookup.selector_of(self._snapshot) if validation.check_flag(use_indices, "use_indices") else None


@dataclass(frozen=True, slots=True)
class _Window:
    """Selection among the matching rows of a scan, and its system columns."""

    limit: int | None = None
    offset: int | None = None
    with_row_id: bool = False
    with_row_address: bool = False


def _is_plain(columns: Columns | None, filter: Condition | None) -> bool:
    """Return whether one plan reads the rows: names of columns, and a condition in SQL."""
    return not isinstance(filter, pc.Expression) and (
        columns is None
        or isinstance(columns, str)
        or not (isinstance(columns, Mapping) or any(isinstance(each, pc.Expression) for each in columns))
    )


def _examined(location: Location, versions: str, data: DataCheck | None) -> Report:
    from lance_core.fsck.examine import examine

    return examine(location, validation.check_choice(Extent, versions, "versions"), data)


def _data_check(data: bool, resume: str | os.PathLike[str] | None) -> DataCheck | None:
    if not validation.check_flag(data, "data"):
        if resume is not None:
            raise InvalidInput("resume= belongs to the verification of files; add data=True")
        return None
    return DataCheck(resume)
