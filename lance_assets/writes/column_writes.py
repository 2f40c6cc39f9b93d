"""Column writes: add columns to existing rows. They never rewrite existing data files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from lance_assets.spark import map_columns, merge_columns
from lance_assets.writes.context import WriteContext
from lance_assets.writes.write import Rows, SparkWriteOptions, Write
from lance_core import Committed

ROW_ADDRESS = "_rowaddr"


@dataclass(frozen=True, slots=True)
class SparkMergeColumns(Write):
    """Add the columns that `fn` returns, except those of `on`, to the table. Rows are matched by key, or by row
    address, which `ctx.read(with_row_address=True)` returns."""

    fn: Rows
    on: str | Sequence[str] = ROW_ADDRESS
    schema: pa.Schema | None = None
    missing: str | None = None
    summary: ClassVar[str] = "Merges columns into"

    def check(self) -> None:
        self.check_function(self.fn, signature="(spark, ctx) -> Spark DataFrame")

    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        rows = self.compute_rows(self.fn, ctx)
        version = ctx.version_read() if self.on == ROW_ADDRESS else None
        return merge_columns(
            rows, ctx.table.uri, on=self.on, schema=self.schema, missing=self.missing, version=version, **make_options()
        )


@dataclass(frozen=True, slots=True)
class SparkMapColumns(Write):
    """Compute the columns of `schema`: `fn` maps batches of `read_columns`, one task per fragment. A run that
    continues a failed run processes the remaining fragments; `resume_key` names work that continues beyond one run."""

    fn: Callable[[pa.RecordBatch], pa.RecordBatch]
    schema: pa.Schema
    read_columns: Sequence[str] | None = None
    resume_key: str | None = None
    summary: ClassVar[str] = "Computes columns of"

    def check(self) -> None:
        self.check_function(self.fn, signature="(pyarrow.RecordBatch) -> pyarrow.RecordBatch")
        if self.schema is None or not len(self.schema):
            raise self.declaration_error("schema= is missing; give the schema of the columns that fn computes")

    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        options = make_options()
        return map_columns(
            ctx.spark,
            ctx.table.uri,
            self.fn,
            read_columns=self.read_columns,
            schema=self.schema,
            resume_key=self.resume_key or options["intent"],
            progress=lambda done, total: ctx.log.info(f"{self.name}: {done} of {total} fragments"),
            **options,
        )
