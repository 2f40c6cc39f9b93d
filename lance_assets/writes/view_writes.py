"""View writes: bring a materialized view to the newest version of its source.

The write depends on the source, if that is a declared table, and records the version that it has read as its input, so
that maintenance of the source keeps the versions that views need.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import dagster as dg

from lance_assets.lineage.render import without_credentials
from lance_assets.provenance.column_sources import ColumnSource
from lance_assets.resources.lance import LanceResource
from lance_assets.spark import refresh_view
from lance_assets.writes.context import TableReference, WriteContext
from lance_assets.writes.write import SparkWriteOptions, Write
from lance_core import Committed, InvalidInput, Table
from lance_core.tasks.views.refresh import RefreshReport, Select, ViewDefinition


@dataclass(frozen=True, slots=True)
class SparkRefreshView(Write):
    """Bring a materialized view to the newest version of the table `of`, as one version.

    `lance_view` declares a view with this write. `of` is a table of `lance_table`, or the URI of another one. The rows
    of the view are those that match `where`, with the columns `select`, in Lance SQL. A run computes only rows that
    changed, and commits no version if the source has none that is newer; `rebuild=True` computes all rows each time.
    """

    of: TableReference | str
    select: Select = None
    where: str | None = None
    rebuild: bool = False
    summary: ClassVar[str] = "Refreshes the materialized view in"

    def check(self) -> None:
        source: object = self.of
        if not isinstance(source, str) and not callable(getattr(source, "access", None)):
            raise self.declaration_error(f"of= is a table of lance_table or the URI of one, not {source!r:.100}")
        if not source:
            raise self.declaration_error("of= is empty; name the table that the view follows")
        try:
            ViewDefinition.of(self.select, self.where)
        except InvalidInput as error:
            raise self.declaration_error(str(error)) from None

    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        source = ctx.open(self.of)
        access = LanceResource().access() if isinstance(self.of, str) else self.of.access()
        self._find_column_sources(ctx, source)
        report = refresh_view(
            ctx.spark,
            ctx.table.uri,
            of=source.uri if isinstance(self.of, str) else self.of.uri,
            select=self.select,
            where=self.where,
            version=source.version,
            rebuild=self.rebuild,
            source_branch=access["branch"],
            source_storage_options=access["storage_options"],
            source_manifest_store=access["manifest_store"],
            progress=lambda state: ctx.log.info(str(state)),
            **ctx.table.creation(),
            **make_options(),
        )
        ctx.metadata |= metadata_of_refresh(report)
        ctx.log.info(f"{self.name}: {describe_refresh(report)}")
        return report.committed

    def _find_column_sources(self, ctx: WriteContext, source: Table) -> None:
        key = getattr(self.of, "key", None)
        asset = key.to_user_string() if isinstance(key, dg.AssetKey) else None
        resolved = ViewDefinition.of(self.select, self.where).resolve(source.manifest.schema, what=source.uri)
        ctx.column_sources = {
            column: tuple(ColumnSource(source.uri, name, asset) for name in names)
            for column, names in resolved.column_sources().items()
        }


def describe_refresh(report: RefreshReport) -> str:
    """Return a sentence with the result of a refresh."""
    committed = report.committed
    if report.refresh == "unchanged":
        return f"the view contains version {report.source_version} of its source already"
    rows = f"{committed.rows_added:,} rows more and {committed.rows_removed:,} fewer"
    if report.refresh == "incremental":
        return f"version {report.since} to {report.source_version} of the source applied: {rows}"
    return f"all rows computed from version {report.source_version} of the source ({report.reason}): {rows}"


def metadata_of_refresh(report: RefreshReport) -> dict[str, dg.MetadataValue]:
    """Return the result of a refresh as metadata of its asset."""
    metadata: dict[str, dg.MetadataValue] = {
        "lance/refresh": dg.MetadataValue.text(report.refresh),
        "lance/source": dg.MetadataValue.text(without_credentials(report.record.source)),
        "lance/source_version": dg.MetadataValue.int(report.source_version),
        "lance/refresh_seconds": dg.MetadataValue.float(round(report.seconds, 3)),
    }
    if report.since is not None:
        metadata["lance/source_since"] = dg.MetadataValue.int(report.since)
    if report.reason:
        metadata["lance/rebuild_reason"] = dg.MetadataValue.text(report.reason)
    return metadata


__all__ = ["SparkRefreshView", "describe_refresh", "metadata_of_refresh"]
