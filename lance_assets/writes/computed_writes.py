"""Computed column writes: keep a column filled that is a function of other columns of its table.

A run computes only stale rows: new ones, those whose inputs changed, and those of an older version of the code.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import dagster as dg
import pyarrow as pa

from lance_assets.provenance.column_sources import ColumnSources
from lance_assets.spark import compute_columns
from lance_assets.writes.context import WriteContext
from lance_assets.writes.write import SparkWriteOptions, Write
from lance_core import Committed, InvalidInput, Table
from lance_core.tasks.columns.computed_fill import ComputedColumn, ErrorPolicy, FillReport, Function

_NON_WORD = re.compile(r"\W+", re.ASCII)
_SQL_TEXT = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*\"""")
# A name that is no function, no field inside a column and no type after AS.
_SQL_NAME = re.compile(r"(?<!\.)`([^`]+)`|(?<![.\w])(?<!\bas )(?<!\bAS )([A-Za-z_]\w*)\b(?!\s*\()")
_FAILED_SHOWN = 10


@dataclass(frozen=True, slots=True)
class SparkComputedColumn(Write):
    """Keep a column filled with the values of a function, or of an SQL expression, of other columns.

        SparkComputedColumn("words", type=pa.int64(), fn=count_words, inputs=["title", "body"])
        SparkComputedColumn("total", type=pa.float64(), sql="price * quantity")

    Declare it with `lance_table(computed=[...])`. The first run adds the column and computes every row. Each later run
    calls the function only for rows that are new, whose inputs changed, or that another `code_version` computed, and
    commits no version if there is none. Rows stay where they are, and other columns are not read or written.

    `fn` receives Arrow batches of `inputs` in the workers, and returns one value for each row: an array of Arrow or
    numpy (with two dimensions for vectors), a series, or a tensor of PyTorch. `setup` is given instead of `fn` if a
    model has to be loaded: it returns the function, and is called once in each worker. `on_error` is the policy for a
    row for which the function raises: "fail" ends the run, "null" stores null, and "skip" leaves the row for the next
    run. `rows_max` and `minutes_max` bound a run; the next one continues.

    `name` is the name of the asset; the default is `<table>_<column>`.
    """

    name: str = field(default="", kw_only=True)
    column: str
    type: pa.DataType = field(kw_only=True)
    fn: Function | None = field(default=None, kw_only=True)
    inputs: Sequence[str] = field(default=(), kw_only=True)
    sql: str | None = field(default=None, kw_only=True)
    setup: Callable[[], Function] | None = field(default=None, kw_only=True)
    on_error: ErrorPolicy = field(default="fail", kw_only=True)
    rows_max: int | None = field(default=None, kw_only=True)
    minutes_max: float | None = field(default=None, kw_only=True)
    summary: ClassVar[str] = "Computes a column of"
    is_named_by_its_table: ClassVar[bool] = True

    def check(self) -> None:
        try:
            self.computed_column.check()
        except InvalidInput as error:
            raise self.declaration_error(str(error)) from None

    @property
    def computed_column(self) -> ComputedColumn:
        """Declaration of the column, which the table stores."""
        return ComputedColumn(
            self.column,
            self.type,
            fn=self.fn,
            inputs=self.inputs,
            code_version=self.code_version or "1",
            sql=self.sql,
            setup=self.setup,
            on_error=self.on_error,
        )

    def names_read(self) -> Sequence[str]:
        """Return the inputs; for SQL, every name in it, since the columns of the table are not known yet."""
        if self.sql is None:
            return self.inputs
        matches = _SQL_NAME.findall(_SQL_TEXT.sub("", self.sql))
        return tuple(dict.fromkeys(quoted or name for quoted, name in matches if (quoted or name) != self.column))

    @property
    def function(self) -> object:
        return self.fn or self.setup

    def for_table(self, table: str) -> "SparkComputedColumn":
        if self.name:
            return self
        return replace(self, name=_NON_WORD.sub("_", f"{table}_{self.column}").rstrip("_"))

    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        (report,) = compute_columns(
            ctx.spark,
            ctx.table.uri,
            self.computed_column,
            rows_max=self.rows_max,
            seconds_max=None if self.minutes_max is None else 60 * self.minutes_max,
            progress=lambda state: ctx.log.info(str(state)),
            **make_options(),
        )
        ctx.metadata |= metadata_of_fill(report)
        ctx.log.info(f"{self.name}: {describe_fill(report)}")
        return report.committed

    def column_sources(self, ctx: WriteContext) -> ColumnSources:
        """Return the inputs as the sources of the column; for SQL, the names in it that are columns of the table."""
        existing = Table.open(ctx.table.uri, **ctx.table.access()).schema.names
        inputs = [name for name in self.names_read() if name in existing and name != self.column]
        return {self.column: ctx.own_columns(inputs)} if inputs else {}

    def declaration_error(self, reason: str) -> InvalidInput:
        return InvalidInput(f"SparkComputedColumn({(self.name or self.column)!r}): {reason}")


def describe_fill(report: FillReport) -> str:
    """Return a sentence with the numbers of a run."""
    before = report.before
    reasons = [f"{before.new:,} new", f"{before.inputs_changed:,} with changed inputs"]
    reasons += [f"{rows:,} of code {name!r}" for name, rows in before.older_code.items()]
    sentence = f"{report.computed:,} of {before.rows:,} rows computed in {report.seconds:,.1f} s ({', '.join(reasons)})"
    if report.failed_count:
        sentence += f"; the function raised for {report.failed_count:,} rows"
    if report.remaining:
        sentence += f"; {report.remaining:,} rows are stale"
    return sentence


def metadata_of_fill(report: FillReport) -> dict[str, dg.MetadataValue]:
    """Return the numbers of a run as metadata, which Dagster plots over the runs."""
    before = report.before
    rows = before.rows
    filled = (rows - report.remaining) / rows if rows else 1.0
    metadata: dict[str, dg.MetadataValue] = {
        "lance/rows_filled": dg.MetadataValue.int(rows - report.remaining),
        "lance/filled_share": dg.MetadataValue.float(round(filled, 6)),
        "lance/rows_computed": dg.MetadataValue.int(report.computed),
        "lance/rows_new": dg.MetadataValue.int(before.new),
        "lance/rows_with_changed_inputs": dg.MetadataValue.int(before.inputs_changed),
        "lance/rows_of_older_code": dg.MetadataValue.int(sum(before.older_code.values())),
        "lance/rows_stale": dg.MetadataValue.int(report.remaining),
        "lance/rows_failed": dg.MetadataValue.int(report.failed_count),
        "lance/code_version": dg.MetadataValue.text(report.declaration.code_version),
    }
    if report.computed:
        rate = report.computed / max(report.seconds, 1e-6)
        metadata["lance/rows_per_second"] = dg.MetadataValue.float(round(rate, 1))
    if report.seconds_left is not None:
        metadata["lance/minutes_left"] = dg.MetadataValue.float(round(report.seconds_left / 60, 2))
    if before.older_code:
        metadata["lance/older_code"] = dg.MetadataValue.json(dict(before.older_code))
    if report.failed:
        rows_shown = [f"- row address {each.row_address}: {each.error}" for each in report.failed[:_FAILED_SHOWN]]
        metadata["lance/failed_rows"] = dg.MetadataValue.md("\n".join(rows_shown))
    return metadata
