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
from lance_core.expressions.error_messages import failure

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
    given: tuple[Compiled, ...]
    gives: pa.DataType

    @property
    def is_average(self) -> bool:
        return self.function == "avg"

    @property
    def is_supported(self) -> bool:
        return not self.is_average or pa.types.is_float64(self.gives) or pa.types.is_decimal(self.gives)

    @property
    def counts_rows(self) -> bool:
        return self.function == "count" and not any(each.names for each in self.given) and not self._counts_null

    @property
    def _counts_null(self) -> bool:
        return any(pa.types.is_null(each.type) or not engine.constant(each.expr).is_valid for each in self.given)

    def partial(self, name: str) -> "dict[str, Expr]":
        given = [each.expr for each in self.given]
        if not self.is_average:
            return {name: engine.aggregated(self.function, given)}
        values = given[0].cast(pa.float64()) if pa.types.is_float64(self.gives) else given[0]
        return {name: engine.aggregated("sum", [values]), _counted(name): engine.aggregated("count", given)}

    def joining(self, name: str) -> "dict[str, Expr]":
        joined = {name: engine.aggregated(FUNCTIONS[self.function], [engine.column([name])])}
        if self.is_average:
            joined[_counted(name)] = engine.aggregated("sum", [engine.column([_counted(name)])])
        return joined

    def finished(self, together: pa.Table, name: str) -> pa.ChunkedArray:
        values = together[name]
        if not self.is_average:
            return values.cast(self.gives)
        counts = together[_counted(name)]
        if pa.types.is_float64(self.gives):
            return pc.divide(values, counts.cast(pa.float64()))
        means = [_mean(*each, self.gives.scale) for each in zip(values.to_pylist(), counts.to_pylist(), strict=True)]
        return pa.chunked_array([pa.array(means, self.gives)])


@dataclass(frozen=True, slots=True)
class Aggregation:
    relation: str
    """What the query calls the table."""
    groups: tuple[Compiled, ...]
    measures: tuple[Measure, ...]
    told: pa.Schema
    """What a query has of the groups, under the names that its other parts use."""
    table: pa.Schema
    """The columns that there are."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that must be read, sorted."""
        return tuple(sorted({column for each in self._compiled() for column in each.columns}))

    @property
    def only_counts_rows(self) -> bool:
        return not self.groups and all(measure.counts_rows for measure in self.measures)

    def counted(self, rows: int) -> pa.Table:
        """Of so many rows, where nothing but their number is asked for."""
        return pa.table({name: pa.array([rows], pa.int64()) for name in self._names(self.measures, "m")})

    def of(self, rows: Sequence[pa.RecordBatch]) -> pa.Table:
        """Groups of these rows."""
        names = {name: column for each in self._compiled() for name, column in each.names}
        groups = {name: each.expr for name, each in zip(self._names(self.groups, "g"), self.groups, strict=True)}
        try:
            return engine.grouped(
                groups,
                self._each(Measure.partial),
                [engine_batches.to_engine(batch, names) for batch in rows],
                self.relation,
            )
        except EngineError as error:
            raise failure("query", ", ".join(each.sql for each in self._compiled()), str(error)) from error

    def nothing(self) -> pa.Table:
        """What `of` gives for no row."""
        none = pa.schema([self.table.field(name) for name in self.columns])
        return self.of([pa.RecordBatch.from_pylist([], none) if none.names else _no_rows()])

    def together(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Groups of the rows of all; tables that `of` or `together` gave."""
        schema = tables[0].schema
        if len(tables) == 1:
            return tables[0]
        rows = [batch for table in tables for batch in table.cast(schema).to_batches()]
        groups = {name: engine.column([name]) for name in self._names(self.groups, "g")}
        try:
            found = engine.grouped(groups, self._each(Measure.joining), rows)
            return found.cast(schema)  # a sum of sums is wider than it need be
        except (EngineError, pa.ArrowInvalid) as error:
            raise InvalidInput(f"the query's groups cannot be put together: {error}; cast what is summed") from error

    def finished(self, together: pa.Table) -> pa.Table:
        arrays = [together[name] for name in self._names(self.groups, "g")]
        arrays += [
            measure.finished(together, name)
            for name, measure in zip(self._names(self.measures, "m"), self.measures, strict=True)
        ]
        return pa.table(arrays, schema=pa.schema([field.with_nullable(True) for field in self.told]))

    def _compiled(self) -> list[Compiled]:
        return [*self.groups, *(each for measure in self.measures for each in measure.given)]

    def _each(self, part: "Callable[[Measure, str], dict[str, Expr]]") -> "dict[str, Expr]":
        named = zip(self._names(self.measures, "m"), self.measures, strict=True)
        return {name: expr for prefix, measure in named for name, expr in part(measure, prefix).items()}

    @staticmethod
    def _names(of: Sequence[Compiled] | Sequence[Measure], letter: str) -> list[str]:
        return [f"{letter}{number}" for number in range(len(of))]


_EXACT = Context(prec=160)


def _no_rows() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0)], names=["no column"])


def _counted(name: str) -> str:
    return f"{name} of"


def _mean(total: Decimal | None, count: int, scale: int) -> Decimal | None:
    """As the engine has it: what does not fit is cut off."""
    if total is None or not count:
        return None
    units = int(_EXACT.scaleb(total, scale))
    whole = abs(units) // count
    return _EXACT.scaleb(Decimal(whole if units >= 0 else -whole), -scale)
