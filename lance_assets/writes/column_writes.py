"""Column writes: add columns to existing rows, or replace their values. Rows never move, and existing data files are
never rewritten."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import pyarrow as pa

from lance_assets.provenance.column_sources import ColumnSources
from lance_assets.spark import map_columns, merge_columns
from lance_assets.writes.context import WriteContext
from lance_assets.writes.write import Rows, SparkWriteOptions, Write
from lance_core import Committed
from lance_core.tasks.columns.map_columns import columns_of_condition
from lance_core.tasks.driver import TableRef

ROW_ADDRESS = "_rowaddr"


@dataclass(frozen=True, slots=True)
class SparkMergeColumns(Write):
    """Add the columns that `fn` returns, except those of `on`, to the table. Rows are matched by key, or by row
    address, which `ctx.read(with_row_address=True)` returns. With `replace`, columns that exist get new values in the
    rows that have a match."""

    fn: Rows
    on: str | Sequence[str] = ROW_ADDRESS
    schema: pa.Schema | None = None
    missing: str | None = None
    replace: bool = False
    summary: ClassVar[str] = "Merges columns into"
    context_arguments: ClassVar[int] = 2

    def check(self) -> None:
        self.check_function(self.fn, signature="(spark, ctx) -> Spark DataFrame")

    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        rows = self.compute_rows(self.fn, ctx)
        version = ctx.version_read() if self.on == ROW_ADDRESS else None
        return merge_columns(
            rows,
            ctx.table.uri,
            on=self.on,
            schema=self.schema,
            missing=self.missing,
            version=version,
            replace=self.replace,
            **make_options(),
        )

    def column_sources(self, ctx: WriteContext) -> ColumnSources:
        keys = {self.on} if isinstance(self.on, str) else set(self.on)
        return {column: each for column, each in ctx.column_sources.items() if column not in keys}


@dataclass(frozen=True, slots=True)
class SparkMapColumns(Write):
    """Compute the columns of `schema`: `fn` maps batches of `read_columns`, one task per fragment. A run that
    continues a failed run processes the remaining fragments; `resume_key` names work that continues beyond one run.

    `mode="add"` refuses columns that exist, `"fill"` computes the rows in which they are null, and `"recompute"` all
    rows; `where` restricts each to the rows that match. `code_version` names the version of `fn`."""

    fn: Callable[[pa.RecordBatch], pa.RecordBatch]
    schema: pa.Schema
    read_columns: Sequence[str] | None = None
    resume_key: str | None = None
    mode: Literal["add", "fill", "recompute"] = "add"
    where: str | None = None
    summary: ClassVar[str] = "Computes columns of"

    def check(self) -> None:
        self.check_function(self.fn, signature="(pyarrow.RecordBatch) -> pyarrow.RecordBatch")
        if self.schema is None or not len(self.schema):
            raise self.declaration_error("schema= is missing; give the schema of the columns that fn computes")
        if self.mode not in ("add", "fill", "recompute"):
            raise self.declaration_error(f"mode={self.mode!r} is unknown; give 'add', 'fill' or 'recompute'")

    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        options = make_options()
        # Fragments that older code has computed are not those of this run, so a retry with newer code starts over.
        run_key = options["intent"] if self.code_version is None else f"{options['intent']} {self.code_version}"
        return map_columns(
            ctx.spark,
            ctx.table.uri,
            self.fn,
            read_columns=self.read_columns,
            schema=self.schema,
            resume_key=self.resume_key or run_key,
            progress=lambda done, total: ctx.log.info(f"{self.name}: {done} of {total} fragments"),
            mode=self.mode,
            where=self.where,
            code_version=self.code_version,
            **options,
        )

    def column_sources(self, ctx: WriteContext) -> ColumnSources:
        """Return the columns that the function reads and those of the condition, for each computed column. A function
        that reads every column of the table does not declare which ones it uses, so its result is empty."""
        if self.read_columns is None:
            return {}
        access = ctx.table.access()
        table = TableRef(ctx.table.uri, access["branch"], access["storage_options"], access["manifest_store"])
        sources = ctx.own_columns(sorted({*self.read_columns, *columns_of_condition(table, self.where)}))
        return dict.fromkeys(self.schema.names, sources)
