"""Aggregation: groups rows partition by partition and merges the partial groups. A frozen value that travels to
workers.

    worker    group_rows(batches) -> table         partial groups of some rows
              merge_groups(tables) -> table        partial groups of all rows that the worker reads
    driver    merge_groups(tables) -> table        groups of all rows
              finish_groups(table) -> table        names of the query, averages computed

A partial group has one column for each function, and a second one, the number of values, for an average. This module
is pure except for DataFusion, which groups the rows and merges the groups, so that NaN, null and negative zero get
into the same groups as in a single aggregation.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInput
from lance_core.expressions import engine, engine_batches
from lance_core.expressions.compiled import Compiled
from lance_core.expressions.engine import EngineError
from lance_core.expressions.error_messages import evaluation_error

if TYPE_CHECKING:
    from datafusion import Expr

FUNCTIONS: Mapping[str, str] = {
    "count": "sum",
    "sum": "sum",
    "min": "min",
    "max": "max",
    "avg": "sum",
    "bool_and": "bool_and",
    "bool_or": "bool_or",
    "bit_and": "bit_and",
    "bit_or": "bit_or",
    "bit_xor": "bit_xor",
}
"""Supported functions, and the function that merges the partial results of each."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Aggregate function with its arguments."""

    function: str
    arguments: tuple[Compiled, ...]
    result_type: pa.DataType

    @property
    def is_average(self) -> bool:
        return self.function == "avg"

    @property
    def is_supported(self) -> bool:
        return not self.is_average or pa.types.is_float64(self.result_type) or pa.types.is_decimal(self.result_type)

    @property
    def counts_rows(self) -> bool:
        """True if the result is the number of rows, as for count(*)."""
        reads_columns = any(argument.names for argument in self.arguments)
        return self.function == "count" and not reads_columns and not self._counts_null

    @property
    def _counts_null(self) -> bool:
        return any(
            pa.types.is_null(argument.type) or not engine.evaluate_constant(argument.expr).is_valid
            for argument in self.arguments
        )

    def partial_exprs(self, name: str) -> "dict[str, Expr]":
        """Return the aggregates that compute a partial result from rows."""
        arguments = [argument.expr for argument in self.arguments]
        if not self.is_average:
            return {name: engine.aggregate_call(self.function, arguments)}
        values = arguments[0].cast(pa.float64()) if pa.types.is_float64(self.result_type) else arguments[0]
        return {
            name: engine.aggregate_call("sum", [values]),
            _count_column(name): engine.aggregate_call("count", arguments),
        }

    def merge_exprs(self, name: str) -> "dict[str, Expr]":
        """Return the aggregates that merge partial results."""
        exprs = {name: engine.aggregate_call(FUNCTIONS[self.function], [engine.column([name])])}
        if self.is_average:
            exprs[_count_column(name)] = engine.aggregate_call("sum", [engine.column([_count_column(name)])])
        return exprs

    def finish(self, groups: pa.Table, name: str) -> pa.ChunkedArray:
        """Return the final result for each merged group."""
        values = groups[name]
        if not self.is_average:
            return values.cast(self.result_type)
        counts = groups[_count_column(name)]
        if pa.types.is_float64(self.result_type):
            return pc.divide(values, counts.cast(pa.float64()))
        scale = self.result_type.scale
        totals = zip(values.to_pylist(), counts.to_pylist(), strict=True)
        means = [_mean(total, count, scale) for total, count in totals]
        return pa.chunked_array([pa.array(means, self.result_type)])


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Group expressions and measures over the rows of one table."""

    relation: str
    """Name of the table in the query."""
    groups: tuple[Compiled, ...]
    measures: tuple[Measure, ...]
    group_schema: pa.Schema
    """Schema of the groups under the names that the other parts of the query use."""
    table_schema: pa.Schema
    """Columns of the table."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Top-level columns that must be read, sorted."""
        return tuple(sorted({column for compiled in self._all_compiled() for column in compiled.columns}))

    @property
    def only_counts_rows(self) -> bool:
        return not self.groups and all(measure.counts_rows for measure in self.measures)

    def count_groups(self, rows: int) -> pa.Table:
        """Return the merged group of a number of rows for an aggregation that `only_counts_rows`."""
        return pa.table({name: pa.array([rows], pa.int64()) for name in self._names(self.measures, "m")})

    def group_rows(self, rows: Sequence[pa.RecordBatch]) -> pa.Table:
        """Return the partial groups of some rows."""
        names = {name: column for compiled in self._all_compiled() for name, column in compiled.names}
        groups = {
            name: compiled.expr for name, compiled in zip(self._names(self.groups, "g"), self.groups, strict=True)
        }
        try:
            return engine.group_rows(
                groups,
                self._measure_exprs(Measure.partial_exprs),
                [engine_batches.to_engine(batch, names) for batch in rows],
                self.relation,
            )
        except EngineError as error:
            sql = ", ".join(compiled.sql for compiled in self._all_compiled())
            raise evaluation_error("query", sql, str(error)) from error

    def empty_groups(self) -> pa.Table:
        """Return the partial groups of no rows."""
        schema = pa.schema([self.table_schema.field(name) for name in self.columns])
        return self.group_rows([pa.RecordBatch.from_pylist([], schema) if schema.names else _empty_batch()])

    def merge_groups(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Return the groups of all rows of several partial groups."""
        schema = tables[0].schema
        if len(tables) == 1:
            return tables[0]
        batches = [batch for table in tables for batch in table.cast(schema).to_batches()]
        groups = {name: engine.column([name]) for name in self._names(self.groups, "g")}
        try:
            merged = engine.group_rows(groups, self._measure_exprs(Measure.merge_exprs), batches)
            return merged.cast(schema)  # the engine makes the type of a sum of sums wider than necessary
        except (EngineError, pa.ArrowInvalid) as error:
            raise InvalidInput(
                f"the partial groups of the query cannot be merged: {error}; cast the summed values"
            ) from error

    def finish_groups(self, groups: pa.Table) -> pa.Table:
        """Return the final result for merged groups, with the schema `group_schema`."""
        arrays = [groups[name] for name in self._names(self.groups, "g")]
        arrays += [
            measure.finish(groups, name)
            for name, measure in zip(self._names(self.measures, "m"), self.measures, strict=True)
        ]
        return pa.table(arrays, schema=pa.schema([field.with_nullable(True) for field in self.group_schema]))

    def _all_compiled(self) -> list[Compiled]:
        return [*self.groups, *(argument for measure in self.measures for argument in measure.arguments)]

    def _measure_exprs(self, exprs_of: "Callable[[Measure, str], dict[str, Expr]]") -> "dict[str, Expr]":
        named = zip(self._names(self.measures, "m"), self.measures, strict=True)
        return {name: expr for prefix, measure in named for name, expr in exprs_of(measure, prefix).items()}

    @staticmethod
    def _names(items: Sequence[Compiled] | Sequence[Measure], letter: str) -> list[str]:
        """Return the column names of groups or measures in partial groups."""
        return [f"{letter}{number}" for number in range(len(items))]


_DECIMAL_CONTEXT = Context(prec=160)


def _empty_batch() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0)], names=["no column"])


def _count_column(name: str) -> str:
    return f"{name} of"


def _mean(total: Decimal | None, count: int, scale: int) -> Decimal | None:
    """Return the mean truncated to the scale, as the engine computes it."""
    if total is None or not count:
        return None
    units = int(_DECIMAL_CONTEXT.scaleb(total, scale))
    whole = abs(units) // count
    return _DECIMAL_CONTEXT.scaleb(Decimal(whole if units >= 0 else -whole), -scale)
