"""What a write's function gets to know, and its way to read tables: each of them at one version, which is noted."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import dagster as dg

from lance_assets.resources.lance import Access, LanceResource
from lance_assets.spark import read
from lance_core import InvalidInput, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class TableReference(Protocol):
    """A table to read from: a `LanceTable`."""

    @property
    def uri(self) -> str: ...
    def access(self) -> Access: ...


@dataclass(slots=True)
class WriteContext:
    spark: "SparkSession"
    dagster: dg.AssetExecutionContext
    partition_key: str | None
    table: TableReference
    """The table that is written."""
    inputs: dict[str, int] = field(default_factory=dict)
    """The tables read so far and their versions; they are noted in the transaction."""

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
        """One version of a Lance table (None: the one that is written): the version named, else the newest, which then
        stays the same for this write."""
        table = table or self.table
        uri, access = (table, LanceResource().access()) if isinstance(table, str) else (table.uri, table.access())
        wanted = version or self.inputs.get(Table.open(uri, **access).uri)
        opened = Table.open(uri, version=wanted, **access)
        if self.inputs.setdefault(opened.uri, opened.version) != opened.version:
            raise InvalidInput(
                f"this write has read version {self.inputs[opened.uri]} of {opened.uri} already and now asks for "
                f"version {opened.version}; read one version of a table in one write, so that its inputs are clear"
            )
        return read(
            self.spark,
            uri,
            columns=columns,
            filter=filter,
            version=opened.version,
            with_row_address=with_row_address,
            **access,
        )

    def version_read(self) -> int | None:
        """Of the table that is written, if this write has read it."""
        own = Table.open(self.table.uri, **self.table.access()).uri if self.inputs else ""
        return self.inputs.get(own)
