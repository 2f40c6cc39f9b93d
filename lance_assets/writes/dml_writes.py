"""DML writes: delete and update rows, and compact fragments. Conditions are Lance SQL with `:name` for parameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from lance_assets.spark import compact, delete, update
from lance_assets.writes.context import WriteContext
from lance_assets.writes.write import Parameters, SparkWriteOptions, Write, substitute_parameters
from lance_core import Committed
from lance_core.tasks.driver import TableRef
from lance_core.tasks.rows.update import columns_read_by
from lance_core.tasks.rows.write import ROWS_PER_FILE_MAX


@dataclass(frozen=True, slots=True)
class SparkDelete(Write):
    """Delete the rows that match `predicate`: `SparkDelete("purge", predicate="at < :cutoff", parameters={"cutoff":
    f})`."""

    predicate: str
    parameters: Parameters = field(default_factory=dict)
    summary: ClassVar[str] = "Deletes rows from"

    def check(self) -> None:
        if not self.predicate:
            raise self.declaration_error(
                "predicate= is empty; give the condition of the rows to delete, 'true' for all"
            )
        self.check_parameters(self.parameters, self.predicate)

    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        predicate = substitute_parameters(self.predicate, self.parameters, ctx)
        return delete(ctx.spark, ctx.table.uri, predicate, **make_options())


@dataclass(frozen=True, slots=True)
class SparkUpdate(Write):
    """Set columns to new values, `set={column: SQL}`, in the rows that match `where`, or in all rows without it."""

    set: Mapping[str, str]
    where: str | None = None
    parameters: Parameters = field(default_factory=dict)
    summary: ClassVar[str] = "Updates rows of"

    def check(self) -> None:
        if not self.set:
            raise self.declaration_error("set= is empty; give the columns to update and the SQL of their values")
        self.check_parameters(self.parameters, self.where, *self.set.values())

    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        values = {name: substitute_parameters(value, self.parameters, ctx) for name, value in self.set.items()}
        where = None if self.where is None else substitute_parameters(self.where, self.parameters, ctx)
        access = ctx.table.access()
        table = TableRef(ctx.table.uri, access["branch"], access["storage_options"], access["manifest_store"])
        columns = columns_read_by(table, values, where)
        ctx.column_sources = {name: ctx.own_columns(sources) for name, sources in columns.items()}
        return update(ctx.spark, ctx.table.uri, values, where, **make_options())


@dataclass(frozen=True, slots=True)
class SparkCompact(Write):
    """Rewrite small fragments and fragments with many deleted rows. Each completed group becomes a version."""

    target_rows: int | None = None
    summary: ClassVar[str] = "Compacts"
    commits_several_versions: ClassVar[bool] = True

    def check(self) -> None:
        if self.target_rows is not None and self.target_rows < 1:
            raise self.declaration_error(f"target_rows={self.target_rows} is below 1; a file has at least one row")

    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        options = make_options()
        return compact(
            ctx.spark,
            ctx.table.uri,
            target_rows=self.target_rows or ROWS_PER_FILE_MAX,
            intent=options["intent"],
            properties=options["properties"],
            **ctx.table.access(),
        )
