"""Writes that add columns to the rows that are there; no file of theirs is written again."""

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
    """All columns that `fn` returns, but those of `on`, become columns of the table: by key, or by the address of the
    row, which `ctx.read(with_row_address=True)` gives."""

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
    """The columns of `schema`, which `fn` computes from batches of `read_columns`, one task a fragment. A run that goes
    on for one that failed does what is left, and `resume_key` names work that goes on beyond that."""

    fn: Callable[[pa.RecordBatch], pa.RecordBatch]
    schema: pa.Schema
    read_columns: Sequence[str] | None = None
    resume_key: str | None = None
    summary: ClassVar[str] = "Computes columns of"

    def check(self) -> None:
        self.check_function(self.fn, signature="(pyarrow.RecordBatch) -> pyarrow.RecordBatch")
        if self.schema is None or not len(self.schema):
            raise self.declaration_error("schema= says which columns fn computes")

    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        given = make_options()
        return map_columns(
            ctx.spark,
            ctx.table.uri,
            self.fn,
            read_columns=self.read_columns,
            schema=self.schema,
            resume_key=self.resume_key or given["intent"],
            progress=lambda done, of: ctx.log.info(f"{self.name}: {done} of {of} fragments"),
            **given,
        )
