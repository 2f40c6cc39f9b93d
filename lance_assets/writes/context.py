"""Context of a write's function: the Spark session, the partition key, and table reads that are recorded as inputs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import dagster as dg

from lance_assets.provenance.column_sources import ColumnSource
from lance_assets.provenance.run_provenance import open_for_run
from lance_assets.resources.lance import Access, Creation, LanceResource
from lance_assets.spark import read
from lance_assets.spark.plan_lineage import column_sources
from lance_core import InvalidInput, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class TableReference(Protocol):
    """Table to read from, such as a `LanceTable`."""

    @property
    def uri(self) -> str: ...
    def access(self) -> Access: ...


class ChangedTable(TableReference, Protocol):
    """Table that a write changes, and creates if it does not exist."""

    def creation(self) -> Creation: ...


class NoSession:
    """Session of a remote write in the Dagster process: every use of it is an error."""

    def __getattr__(self, name: str) -> object:
        raise InvalidInput(
            "a remote write has no Spark session in the Dagster process; use `spark` of the remote process, or read "
            "the table with lance_core.Table"
        )


@dataclass(slots=True)
class WriteContext:
    """Argument `ctx` of the functions of a write."""

    spark: "SparkSession"
    dagster: dg.AssetExecutionContext
    partition_keys: Sequence[str]
    """Partitions that this version is for; empty without partitions. Several only with `commit_per="run"`."""
    table: ChangedTable
    """The table that this write changes."""
    input_values: Mapping[str, object] = field(default_factory=dict)
    """Values of the inputs, resources and `config` of the write, by name."""
    inputs: dict[str, int] = field(default_factory=dict)
    """Versions of the tables read so far, by URI. The transaction records them."""
    metadata: dict[str, dg.MetadataValue] = field(default_factory=dict)
    """Metadata that the write adds to that of the version, on the page of its asset."""
    check_results: list[dg.AssetCheckResult] = field(default_factory=list)
    """Results of checks that the write itself evaluated."""
    column_sources: dict[str, tuple[ColumnSource, ...]] = field(default_factory=dict)
    """Sources of the columns of this version, as far as they are known without guessing: by the plan of the DataFrame
    that the function returned, or by the SQL of the write."""
    _reads: list[tuple["DataFrame", str]] = field(default_factory=list)
    _asset_keys: dict[str, str] = field(default_factory=dict)

    @property
    def partition_key(self) -> str | None:
        """Key of the partition; `None` without partitions. Raise `InvalidInput` if there are several."""
        if len(self.partition_keys) > 1:
            raise InvalidInput(
                f"this version is for {len(self.partition_keys)} partitions, from {self.partition_keys[0]} to "
                f"{self.partition_keys[-1]}; use ctx.partition_keys, or commit_per='partition' for one version each"
            )
        return self.partition_keys[0] if self.partition_keys else None

    @property
    def log(self) -> dg.DagsterLogManager:
        return self.dagster.log

    def read(
        self,
        table: TableReference | str | None = None,
        version: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        with_row_address: bool = False,
    ) -> "DataFrame":
        """Read one version of a Lance table; `table=None` reads the table that this write changes.

        Without `version`, the first reader of the run chooses the newest version of a table, and all later ones use the
        same one, or one that the run has committed since. The table that this write changes is read at its newest
        version, so that a retry after a conflict sees what another writer has committed. Raise `InvalidInput` if one
        write reads two versions of a table.
        """
        table = table or self.table
        opened = self.open(table, version)
        uri, access = _address(table)
        frame = read(
            self.spark,
            uri,
            columns=columns,
            filter=filter,
            version=opened.version,
            with_row_address=with_row_address,
            **access,
        )
        self._reads.append((frame, opened.uri))
        if isinstance(key := getattr(table, "key", None), dg.AssetKey):
            self._asset_keys[opened.uri] = key.to_user_string()
        return frame

    def open(self, table: TableReference | str, version: int | None = None) -> Table:
        """Open one version of a Lance table, chosen and recorded as an input as by `read`."""
        uri, access = _address(table)

        def open_version(number: int | None) -> Table:
            return Table.open(uri, version=number, **access)

        opened = open_version(version)
        if version is None and (read_before := self.inputs.get(opened.uri)):
            opened = opened if read_before == opened.version else open_version(read_before)
        elif version is None and uri != self.table.uri:
            run_id, branch = self.dagster.run.run_id, access["branch"]
            opened = open_for_run(self.dagster.instance, run_id, opened, open_version, branch=branch)
        if self.inputs.setdefault(opened.uri, opened.version) != opened.version:
            raise InvalidInput(
                f"this write has already read version {self.inputs[opened.uri]} of {opened.uri} and cannot also read "
                f"version {opened.version}; read one version of each table in a write, so that its inputs are clear"
            )
        return opened

    def own_columns(self, names: Iterable[str]) -> tuple[ColumnSource, ...]:
        """Return columns of the table that this write changes, as sources."""
        key = getattr(self.table, "key", None)
        asset = key.to_user_string() if isinstance(key, dg.AssetKey) else None
        uri = Table.open(self.table.uri, **self.table.access()).uri
        return tuple(ColumnSource(uri, name, asset) for name in names)

    def find_column_sources(self, frame: "DataFrame") -> None:
        """Follow the plan of the DataFrame that the function returned to the tables that it has read."""
        self.column_sources = {
            column: tuple(ColumnSource(uri, name, self._asset_keys.get(uri)) for uri, name in sorted(sources))
            for column, sources in column_sources(frame, self._reads).items()
        }

    def version_read(self) -> int | None:
        """Return the version of the changed table that this write has read, or `None` if it has read none."""
        own_uri = Table.open(self.table.uri, **self.table.access()).uri if self.inputs else ""
        return self.inputs.get(own_uri)


def _address(table: TableReference | str) -> tuple[str, Access]:
    """Return the URI of a table and the arguments for access to it."""
    return (table, LanceResource().access()) if isinstance(table, str) else (table.uri, table.access())
