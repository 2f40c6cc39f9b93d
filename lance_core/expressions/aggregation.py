"""Rows grouped in parts, and groups put together: a frozen value that travels to workers.

    worker    of(batches) -> table                 groups of some rows; together(tables) those of all that it reads
    driver    together(tables) -> table            groups of all rows
              finished(table) -> table             what the query calls them, averages divided out

What is kept of a group while it is not finished is a column for each function, and how many values it had for an
average. Pure but for DataFusion, which does the grouping both times, so that NaN, nulls and negative zeros fall into
the groups that they fall into in one go.
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
"""What can be done in parts, and how the results of two parts become one."""


@dataclass(frozen=True, slots=True)
class Measure:
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
        return self.function == "count" and not any(each.names for each in self.arguments) and not self._counts_null

    @property
    def _counts_null(self) -> bool:
        return any(pa.types.is_null(each.type) or not engine.evaluate_constant(each.expr).is_valid for each in self.arguments)

    def partial_exprs(self, name: str) -> "dict[str, Expr]":
        given = [each.expr for each in self.arguments]
        if not self.is_average:
            return {name: engine.aggregate_call(self.function, given)}
        values = given[0].cast(pa.float64()) if pa.types.is_float64(self.result_type) else given[0]
        return {name: engine.aggregate_call("sum", [values]), _count_column(name): engine.aggregate_call("count", given)}

    def merge_exprs(self, name: str) -> "dict[str, Expr]":
        joined = {name: engine.aggregate_call(FUNCTIONS[self.function], [engine.column([name])])}
        if self.is_average:
            joined[_count_column(name)] = engine.aggregate_call("sum", [engine.column([_count_column(name)])])
        return joined

    def finish(self, together: pa.Table, name: str) -> pa.ChunkedArray:
        values = together[name]
        if not self.is_average:
            return values.cast(self.result_type)
        counts = together[_count_column(name)]
        if pa.types.is_float64(self.result_type):
            return pc.divide(values, counts.cast(pa.float64()))
        means = [_mean(*each, self.result_type.scale) for each in zip(values.to_pylist(), counts.to_pylist(), strict=True)]
        return pa.chunked_array([pa.array(means, self.result_type)])


@dataclass(frozen=True, slots=True)
class Aggregation:
    relation: str
    """What the query calls the table."""
    groups: tuple[Compiled, ...]
    measures: tuple[Measure, ...]
    group_schema: pa.Schema
    """What a query has of the groups, under the names that its other parts use."""
    table_schema: pa.Schema
    """The columns that there are."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that must be read, sorted."""
        return tuple(sorted({column for each in self._all_compiled() for column in each.columns}))

    @property
    def only_counts_rows(self) -> bool:
        return not self.groups and all(measure.counts_rows for measure in self.measures)

    def count_groups(self, rows: int) -> pa.Table:
        """Of so many rows, where nothing but their number is asked for."""
        return pa.table({name: pa.array([rows], pa.int64()) for name in self._names(self.measures, "m")})

    def group_rows(self, rows: Sequence[pa.RecordBatch]) -> pa.Table:
        """Groups of these rows."""
        names = {name: column for each in self._all_compiled() for name, column in each.names}
        groups = {name: each.expr for name, each in zip(self._names(self.groups, "g"), self.groups, strict=True)}
        try:
            return engine.group_rows(
                groups,
                self._measure_exprs(Measure.partial_exprs),
                [engine_batches.to_engine(batch, names) for batch in rows],
                self.relation,
            )
        except EngineError as error:
            raise evaluation_error("query", ", ".join(each.sql for each in self._all_compiled()), str(error)) from error

    def empty_groups(self) -> pa.Table:
        """What `group_rows` gives for no row."""
        none = pa.schema([self.table_schema.field(name) for name in self.columns])
        return self.group_rows([pa.RecordBatch.from_pylist([], none) if none.names else _empty_batch()])

    def merge_groups(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Groups of the rows of all; tables that `group_rows` or `merge_groups` gave."""
        schema = tables[0].schema
        if len(tables) == 1:
            return tables[0]
        rows = [batch for table in tables for batch in table.cast(schema).to_batches()]
        groups = {name: engine.column([name]) for name in self._names(self.groups, "g")}
        try:
            found = engine.group_rows(groups, self._measure_exprs(Measure.merge_exprs), rows)
            return found.cast(schema)  # a sum of sums is wider than it need be
        except (EngineError, pa.ArrowInvalid) as error:
            raise InvalidInput(f"the query's groups cannot be put together: {error}; cast what is summed") from error

    def finish_groups(self, together: pa.Table) -> pa.Table:
        arrays = [together[name] for name in self._names(self.groups, "g")]
        arrays += [
            measure.finish(together, name)
            for name, measure in zip(self._names(self.measures, "m"), self.measures, strict=True)
        ]
        return pa.table(arrays, schema=pa.schema([field.with_nullable(True) for field in self.group_schema]))

    def _all_compiled(self) -> list[Compiled]:
        return [*self.groups, *(each for measure in self.measures for each in measure.arguments)]

    def _measure_exprs(self, part: "Callable[[Measure, str], dict[str, Expr]]") -> "dict[str, Expr]":
        named = zip(self._names(self.measures, "m"), self.measures, strict=True)
        return {name: expr for prefix, measure in named for name, expr in part(measure, prefix).items()}

    @staticmethod
    def _names(of: Sequence[Compiled] | Sequence[Measure], letter: str) -> list[str]:
        return [f"{letter}{number}" for number in range(len(of))]


_DECIMAL_CONTEXT = Context(prec=160)


def _empty_batch() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0)], names=["no column"])


def _count_column(name: str) -> str:
    return f"{name} of"


def _mean(total: Decimal | None, count: int, scale: int) -> Decimal | None:
    """As the engine has it: what does not fit is cut off."""
    if total is None or not count:
        return None
    units = int(_DECIMAL_CONTEXT.scaleb(total, scale))
    whole = abs(units) // count
    return _DECIMAL_CONTEXT.scaleb(Decimal(whole if units >= 0 else -whole), -scale)
