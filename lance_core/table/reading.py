"""One version of a table, looked at and read: whatever changes nothing. Each verb is a few lines that call a workshop,
`scan/` for rows, `versions/refs.py` and `versions/snapshot.py` for other versions.

`Table` (table.py) adds what changes one.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Literal, Self

import pyarrow as pa

from lance_core import validation
from lance_core.format.ids import Version
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.manifest import Fragments, Manifest
from lance_core.format.transaction import Transaction
from lance_core.fsck import Extent, Report, examine
from lance_core.index import explain as explain_module
from lance_core.index import lookup
from lance_core.index.statistics import IndexStatistics, statistics
from lance_core.scan import take as scan_take
from lance_core.scan.blobs import BlobFile, blobs
from lance_core.scan.changes import changes
from lance_core.scan.executor import count, scan
from lance_core.scan.explain import explained
from lance_core.scan.plan import plan_scan
from lance_core.scan.query import query
from lance_core.scan.selection import Select
from lance_core.scan.take import By, RowNumbers
from lance_core.scan.vector_search import Vector, search
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from lance_core.versions.history import VersionInfo, version_info, version_infos
from lance_core.versions.location import Location, locate
from lance_core.versions.refs import resolve_version
from lance_core.versions.snapshot import Snapshot, exists, list_versions, load_at, load_latest, load_transaction
from lance_core.versions.table_id import table_id


class TableReader:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def __repr__(self) -> str:
        return f"Table({self.uri!r}, version={self.version})"

    # Finding

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
    ) -> Self:
        """The newest version, or the one that is named: by its number, by a tag, or by a time, the newest that was made
        until then. `bases` are places outside the table whose files it may read, a shallow clone's source for one.
        `manifest_store` is where its versions are reserved, as it was told to `create`."""
        location = locate(
            uri, storage_options=storage_options, durable=durable, bases=bases, manifest_store=manifest_store
        )
        if tag is None and branch is None and timestamp is None:
            return cls(
                load_latest(location) if version is None else load_at(location, validation.version_number(version))
            )
        number = None if version is None else validation.version_number(version)
        return cls(resolve_version(location, version=number, tag=tag, branch=branch, timestamp=timestamp))

    @staticmethod
    def exists(
        uri: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        *,
        manifest_store: ManifestStore | str | None = None,
    ) -> bool:
        """Whether a version of a table is there; a directory that no commit ever reached is not a table."""
        return exists(locate(uri, storage_options=storage_options, manifest_store=manifest_store))

    def at(self, version: int | None = None, *, tag: str | None = None, timestamp: datetime | None = None) -> Self:
        """Another version: of this line, or of the line that a tag is on."""
        if version is not None and tag is None and timestamp is None:
            return type(self)(load_at(self._location, validation.version_number(version)))
        number = None if version is None else validation.version_number(version)
        if tag is None:
            return type(self)(resolve_version(self._location, version=number, timestamp=timestamp))
        main = self._location.main_line(self.branch)
        return type(self)(resolve_version(main, version=number, tag=tag, timestamp=timestamp))

    def refresh(self) -> Self:
        """The newest version."""
        return type(self)(load_latest(self._location))

    # Looking

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
        """One entry a segment; segments of one index share a name."""
        return self.manifest.indices

    def index_statistics(self) -> tuple[IndexStatistics, ...]:
        """Of each index: what it covers and what not, how large and how old it is, and whether queries use it. No file
        of it is opened."""
        return statistics(self._snapshot)

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
        None where a table of another library has lost its first version, or that is damaged."""
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
    def manifest(self) -> Manifest:
        return self._snapshot.manifest

    @property
    def timestamp(self) -> datetime:
        return self.manifest.timestamp

    def versions(self, since: int = 0) -> list[VersionInfo]:
        """Every version that exists, or every one after `since`, oldest first."""
        from_ = validation.whole_number(since, "since", at_least=0, too_small="versions count from 1")
        return version_infos(self._location, from_)

    def version_numbers(self) -> tuple[Version, ...]:
        """Which versions exist, ascending, by their names alone."""
        return list_versions(self._location).numbers

    def version_info(self, version: int | None = None) -> VersionInfo:
        """What `versions()` says of this version, or of the one that is named, whatever became of others."""
        return version_info(
            self._snapshot if version is None else load_at(self._location, validation.version_number(version))
        )

    def transaction(self, version: int | None = None) -> Transaction | None:
        """What made this version, or the one that is named; None where its writer left no record."""
        manifest = (
            self.manifest if version is None else load_at(self._location, validation.version_number(version)).manifest
        )
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
        use_indices: bool = True,
    ) -> pa.Table:
        """The rows that match `filter`, a condition in Lance's SQL; all of them without one. Indices are used where
        they help, for the same rows in the same order; without `use_indices` none is."""
        plan = plan_scan(
            self.manifest,
            columns=columns,
            filter=filter,
            limit=limit,
            offset=offset,
            with_row_id=with_row_id,
            with_row_address=with_row_address,
            select=self._select(use_indices),
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
        use_indices: bool = True,
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
            select=self._select(use_indices),
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

    def search(
        self,
        column: str,
        vector: Vector,
        k: int,
        *,
        metric: Literal["l2", "cosine", "dot", "hamming"] | None = None,
        nprobes: int | None = None,
        refine: int | None = None,
        filter: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """The `k` rows whose vectors are nearest to this one, the nearest first, with a column `_distance`; of those
        that match `filter`, if there is one. The metric is "l2" (squared) unless told, and "hamming" for bytes.

            table.search("embedding", model.encode("a red bicycle"), 10, metric="cosine", filter="price < 100")

        Every vector is looked at, so that the answer is exact. `nprobes` and `refine` say how a vector index is used;
        they change nothing where there is none.
        """
        return search(
            self._location,
            self.manifest,
            column,
            vector,
            k,
            metric=metric,
            nprobes=nprobes,
            refine=refine,
            filter=filter,
            columns=columns,
            select=self._select(True),
        )

    def changes(self, since: int, until: int | None = None) -> pa.Table:
        """The rows that differ between two versions, `until` this one if it is not named: a column `_change` says
        "insert", "update" or "delete". The table needs stable row ids, by which that is told."""
        later = self._snapshot if until is None else load_at(self._location, validation.version_number(until))
        return changes(load_at(self._location, validation.version_number(since)), later)

    def explain(
        self,
        filter: str | None = None,
        columns: Sequence[str] | None = None,
        *,
        limit: int | None = None,
        offset: int | None = None,
        with_row_id: bool = False,
        with_row_address: bool = False,
        use_indices: bool = True,
    ) -> str:
        """What `to_table` would do, in words: what is read, which indices are asked what, and which are not and why.
        Nothing is read or searched."""
        plan = plan_scan(
            self.manifest,
            columns=columns,
            filter=filter,
            limit=limit,
            offset=offset,
            with_row_id=with_row_id,
            with_row_address=with_row_address,
        )
        indices = explain_module.explained(
            self._snapshot, plan.predicate, use_indices=validation.flag(use_indices, "use_indices")
        )
        return explained(self._location, plan, indices)

    def count_rows(self, filter: str | None = None, *, use_indices: bool = True) -> int:
        """From the manifest alone, unless only rows that match are wanted, and no data file is read either where an
        index knows them exactly."""
        if filter is None:
            return self.manifest.row_count()
        plan = plan_scan(self.manifest, columns=(), filter=filter, select=self._select(use_indices))
        return count(self._location, plan)

    def query(self, sql: str, *, limit: int | None = None) -> pa.Table:
        """What a query gives, such as `select city, avg(age) from dataset where age > 17 group by city`, or, of rows as
        they are, `select id from dataset where age < 0`. The table is called `dataset` in it, as in Lance, and of the
        answer at most `limit` rows are made. Rows go through it; only groups are held."""
        rows = (
            None if limit is None else validation.whole_number(limit, "limit", at_least=0, too_small="it counts rows")
        )
        return query(self._location, self.manifest, sql, limit=rows, select=self._select(True))

    # Judging

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
        manifest_store: ManifestStore | str | None = None,
        bases: Sequence[str] = (),
    ) -> Report:
        """`fsck` of a table that may be too damaged to be opened."""
        location = locate(uri, storage_options=storage_options, bases=bases, manifest_store=manifest_store)
        return _examined(location, versions)

    def _select(self, use_indices: bool) -> Select | None:
        return lookup.select(self._snapshot) if validation.flag(use_indices, "use_indices") else None

    @property
    def _location(self) -> Location:
        return self._snapshot.location


def _examined(location: Location, versions: str) -> Report:
    return examine(location, validation.choice(Extent, versions, "versions"))
