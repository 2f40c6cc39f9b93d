"""Computed column writes: keep a column filled that is a function of other columns of its table.

A run computes only stale rows: new ones, those whose inputs changed, and those of an older version of the code.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

import dagster as dg
import pyarrow as pa

from lance_assets.checks.computed_check import metadata_of_codes
from lance_assets.common.text import first_paragraph
from lance_assets.provenance.column_sources import ColumnSources
from lance_assets.spark import compute_columns
from lance_assets.writes.context import WriteContext
from lance_assets.writes.write import SparkWriteOptions, Write
from lance_core import Committed, InvalidInput, Table
from lance_core.tasks.columns.computed_fill import (
    BlobForm,
    CallSettings,
    CallUnit,
    ComputedColumn,
    ErrorPolicy,
    FillReport,
    Function,
    InputFormat,
    RetriedError,
)

_NON_WORD = re.compile(r"\W+", re.ASCII)
_SQL_TEXT = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*\"""")
# A name that is no function, no field inside a column and no type after AS.
_SQL_NAME = re.compile(r"(?<!\.)`([^`]+)`|(?<![.\w])(?<!\bas )(?<!\bAS )([A-Za-z_]\w*)\b(?!\s*\()")
_FAILED_SHOWN = 10
_MODES = ("stale", "recompute")


@dataclass(frozen=True, slots=True)
class SparkComputedColumn(Write):
    """Keep a column filled with the values of a function, or of an SQL expression, of other columns.

        SparkComputedColumn("words", type=pa.int64(), fn=count_words, inputs=["title", "body"])
        SparkComputedColumn("total", sql="price * quantity")

    Declare it with `lance_table(computed=[...])`. The first run adds the column and computes every row. Each later run
    calls the function only for rows that are new, whose inputs changed, or that another `code_version` computed, and
    commits no version if there is none. Rows stay where they are, and other columns are not read or written.

    `fn` receives Arrow batches of `inputs` in the workers, and returns one value for each row: an array of Arrow or
    numpy (with two dimensions for vectors), a series, or a tensor of PyTorch. `setup` is given instead of `fn` if a
    model has to be loaded: it returns the function, and is called once in each worker. `on_error` is the policy for a
    row for which the function raises: "fail" ends the run, "null" stores null, and "skip" leaves the row for the next
    run. In the last two, the table `errors_uri` (by default `pages_errors.lance` beside `pages.lance`) has an entry for
    each failed row, with the values of `error_keys`. `rows_max` and `minutes_max` bound a run; the next one continues.

    `per`, `batch_rows`, `input_format`, `blobs`, `blob_identity`, `concurrency`, `rate_limit`, `timeout`, `retries`,
    `retry_on`, `retry_seconds` and `resources` are settings of the calls, as `ComputedColumn` has them.
    `mode="recompute"` computes all rows in each run, without the bounds; the config `mode` of a run, which the
    launchpad shows, takes precedence.

    `name` is the name of the asset; the default is `<table>_<column>`.
    """

    name: str = field(default="", kw_only=True)
    column: str
    type: pa.DataType | None = field(default=None, kw_only=True)
    fn: Function | None = field(default=None, kw_only=True)
    inputs: Sequence[str] = field(default=(), kw_only=True)
    sql: str | None = field(default=None, kw_only=True)
    setup: Callable[[], object] | None = field(default=None, kw_only=True)
    on_error: ErrorPolicy = field(default="fail", kw_only=True)
    rows_max: int | None = field(default=None, kw_only=True)
    minutes_max: float | None = field(default=None, kw_only=True)
    errors_uri: str | None = field(default=None, kw_only=True)
    error_keys: Sequence[str] = field(default=(), kw_only=True)
    mode: Literal["stale", "recompute"] = field(default="stale", kw_only=True)
    input_format: InputFormat = field(default="arrow", kw_only=True)
    per: CallUnit = field(default="batch", kw_only=True)
    batch_rows: int | None = field(default=None, kw_only=True)
    blobs: BlobForm | None = field(default=None, kw_only=True)
    blob_identity: Sequence[str] = field(default=(), kw_only=True)
    concurrency: int | None = field(default=None, kw_only=True)
    rate_limit: float | None = field(default=None, kw_only=True)
    timeout: float | None = field(default=None, kw_only=True)
    retries: int = field(default=0, kw_only=True)
    retry_on: Sequence[RetriedError] = field(default=("ConnectionError", "TimeoutError"), kw_only=True)
    retry_seconds: float = field(default=1.0, kw_only=True)
    resources: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    is_named_by_its_table: ClassVar[bool] = True

    def default_description(self, table: str) -> str:
        what = f"Computes the column {self.column} of the Lance table {table}"
        if self.sql and "`" not in self.sql:
            return f"{what}: `{self.sql}`"
        documented = first_paragraph(self.fn or self.setup)
        return f"{what}: {documented}" if documented else f"{what}."

    def check(self) -> None:
        try:
            self.computed_column.check()
        except InvalidInput as error:
            raise self.declaration_error(str(error)) from None
        if self.mode not in _MODES:
            raise self.declaration_error(f"mode={self.mode!r} is unknown; give 'stale' or 'recompute'")

    @property
    def asset_config_schema(self) -> object:
        if self.config_schema is not None:
            return self.config_schema
        mode = dg.Field(
            dg.Enum("ComputedColumnMode", [dg.EnumValue(each) for each in _MODES]),
            default_value=self.mode,
            is_required=False,
            description="stale: compute rows that are new or have changed; recompute: compute all rows.",
        )
        return {"mode": mode}

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
            blob_identity=self.blob_identity,
            errors_uri=self.errors_uri,
            error_keys=self.error_keys,
            **{each.name: getattr(self, each.name) for each in fields(CallSettings)},
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
        return self.with_options(name=_NON_WORD.sub("_", f"{table}_{self.column}").rstrip("_"))

    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        recompute = self._mode_of_run(ctx) == "recompute"
        (report,) = compute_columns(
            ctx.spark,
            ctx.table.uri,
            self.computed_column,
            recompute=recompute,
            rows_max=None if recompute else self.rows_max,
            seconds_max=None if recompute or self.minutes_max is None else 60 * self.minutes_max,
            **make_options(),
        )
        ctx.metadata |= metadata_of_fill(report)
        ctx.metadata |= self._metadata_of_errors(ctx, report)
        ctx.log.info(f"{self.name}: {describe_fill(report)}")
        return report.committed

    def _metadata_of_errors(self, ctx: WriteContext, report: FillReport) -> dict[str, dg.MetadataValue]:
        """Return where the failed rows are, and the first ones."""
        if report.errors_uri is None:
            return {}
        rows = Table.open(ctx.table.uri, **ctx.table.access()).failed_rows(self.column, errors_uri=self.errors_uri)
        shown = rows.slice(0, _FAILED_SHOWN).drop_columns(["column"]).to_pylist()
        records = [
            dg.TableRecord({name: value if isinstance(value, int) else str(value or "") for name, value in row.items()})
            for row in shown
        ]
        return {
            "lance/errors_table": dg.MetadataValue.path(report.errors_uri),
            "lance/rows_failed_total": dg.MetadataValue.int(report.failed_total),
            **({"lance/failed_rows": dg.MetadataValue.table(records)} if records else {}),
        }

    def _mode_of_run(self, ctx: WriteContext) -> str:
        if self.config_schema is not None:
            return self.mode
        config = ctx.dagster.op_execution_context.op_config
        return str(config["mode"])

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
        sentence += f"; the function raised for {report.failed_count:,} rows, which are in {report.errors_uri}"
    if report.remaining:
        sentence += f"; {report.remaining:,} rows are stale"
    if report.remaining and report.seconds_left is not None:
        sentence += f", which take about {max(report.seconds_left / 60, 0.1):,.1f} minutes"
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
        "lance/seconds": dg.MetadataValue.float(round(report.seconds, 3)),
        **metadata_of_codes(report.after, report.declaration),
    }
    if report.computed:
        rate = report.computed / max(report.seconds, 1e-6)
        metadata["lance/rows_per_second"] = dg.MetadataValue.float(round(rate, 1))
    if report.seconds_left is not None:
        metadata["lance/minutes_left"] = dg.MetadataValue.float(round(report.seconds_left / 60, 2))
    if before.older_code:
        metadata["lance/older_code"] = dg.MetadataValue.json(dict(before.older_code))
    return metadata
