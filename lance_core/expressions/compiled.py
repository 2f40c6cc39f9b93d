"""Compiled expression: SQL turned into an expression that is typed, checked, simplified and serialized.

`Predicate` and `Projection` hold a `Compiled`. It travels as bytes: a worker decodes the expression that the driver
compiled, so that `now()` is the same moment on all workers, and no worker parses SQL. Start at `compile_sql`.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.expressions import engine, engine_batches
from lance_core.expressions.cost_limits import BATCH_BYTES_MAX, NOTHING, Size, check_cost, check_text
from lance_core.expressions.dialect import to_engine_sql
from lance_core.expressions.engine import EngineError
from lance_core.expressions.error_messages import error_for, evaluation_error, invalid_expression_error
from lance_core.expressions.literal_coercion import InvalidExpression
from lance_core.expressions.resolve import check_supported, columns_in, is_simplified, resolve

if TYPE_CHECKING:
    from datafusion import Expr


@dataclass(frozen=True, slots=True)
class Compiled:
    """Expression in serialized form, with its type and the columns it reads."""

    sql: str
    encoded: bytes
    names: tuple[tuple[str, str], ...]
    """Names in the expression, each with its column in the table. The two differ if the SQL uses another case."""
    type: pa.DataType
    relation: str | None = None
    """Name of the table in the expression, if it is part of a query."""
    function_output: Size = NOTHING
    """Bound for the values that the functions of the expression return, apart from small ones."""

    @property
    def expr(self) -> "Expr":
        return engine.decode(self.encoded)

    @property
    def columns(self) -> tuple[str, ...]:
        """Top-level columns that the expression reads, sorted."""
        return tuple(sorted({column for _, column in self.names}))


def compile_sql(what: str, sql: str, schema: pa.Schema, *, cast_to: pa.DataType | None = None) -> Compiled:
    """Compile SQL. `what` names the SQL in messages, such as "predicate"."""
    if not isinstance(sql, str):
        raise InvalidInput(
            f"{what.rstrip(',')} is {sql!r}; write it as a SQL string: a number as '5', a string as \"'five'\""
        )
    if not sql.strip():
        raise InvalidInput(f"{what} is empty; write a condition over columns, or leave it out")
    check_text(what, sql)
    aliases = engine_batches.find_case_aliases(sql, schema)
    shown_schema = engine_batches.engine_schema(schema, aliases)
    try:
        expr = engine.parse(to_engine_sql(sql), shown_schema)
        check_supported(expr)
        expr = resolve(expr, shown_schema)
    except InvalidExpression as error:
        raise invalid_expression_error(what, sql, str(error)) from error
    except EngineError as error:
        raise error_for(what, sql, str(error), schema) from error
    return compile_expr(what, sql, expr, schema, aliases=aliases, cast_to=cast_to)


def compile_expr(
    what: str,
    sql: str,
    expr: "Expr",
    schema: pa.Schema,
    *,
    aliases: Mapping[str, str],
    cast_to: pa.DataType | None = None,
    relation: str | None = None,
) -> Compiled:
    """Compile a resolved expression: cast, simplify, check and serialize it. `relation` is its name for the table."""
    shown_schema = engine_batches.engine_schema(schema, aliases)
    try:
        output = check_cost(expr)
        if (
            cast_to is not None
            and engine.type_of(expr, shown_schema, relation) != cast_to
            and not _is_stored_as(expr, cast_to, schema, aliases)
        ):
            expr = expr.cast(cast_to)
        elif relation is None and is_simplified(expr, shown_schema):
            return Compiled(sql, engine.encode(expr), _column_names(expr, aliases), pa.bool_())
        expr = engine.simplify(expr, shown_schema, relation)
        check_supported(expr)
        names = _column_names(expr, aliases)
        if expr.variant_name() == "Column":
            return Compiled(sql, engine.encode(expr), names, schema.field(names[0][1]).type, relation)
        arrow = engine.type_of(expr, shown_schema, relation)
        return Compiled(sql, engine.encode(expr), names, arrow, relation, output)
    except InvalidExpression as error:
        raise invalid_expression_error(what, sql, str(error)) from error
    except EngineError as error:
        raise error_for(what, sql, str(error), schema) from error


def _column_names(expr: "Expr", aliases: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, aliases.get(name, name)) for name in sorted(columns_in(expr)))


def _is_stored_as(expr: "Expr", target: pa.DataType, schema: pa.Schema, aliases: Mapping[str, str]) -> bool:
    """Return whether the expression is an extension column with this storage type.

    Such a column is copied unchanged: the engine sees JSON in another form, which cannot be cast to the storage type.
    """
    if expr.variant_name() != "Column":
        return False
    (name,) = columns_in(expr)
    arrow = schema.field(aliases.get(name, name)).type
    return bool(isinstance(arrow, pa.BaseExtensionType) and arrow.storage_type == target)


def evaluate_batch(what: str, compiled: Mapping[str, Compiled], batch: pa.RecordBatch) -> tuple[pa.Array, ...]:
    """Return one array for each expression, evaluated together over a batch that has at least the columns they read."""
    arrays = _evaluate(what, compiled, [batch])
    return tuple(
        array if array.type == expression.type else batch.column(expression.columns[0])  # an unchanged JSON column
        for array, expression in zip(arrays, compiled.values(), strict=True)
    )


def evaluate_condition(what: str, condition: Compiled, batches: Sequence[pa.RecordBatch]) -> list[pa.Array]:
    """Return one boolean array for each batch. All batches are evaluated together."""
    (matches,) = _evaluate(what, {"matches": condition}, batches)
    starts = itertools.accumulate((batch.num_rows for batch in batches), initial=0)
    return [matches.slice(start, batch.num_rows) for start, batch in zip(starts, batches, strict=False)]


def _evaluate(what: str, compiled: Mapping[str, Compiled], batches: Sequence[pa.RecordBatch]) -> tuple[pa.Array, ...]:
    names = {name: column for expression in compiled.values() for name, column in expression.names}
    missing = sorted(set(names.values()) - set(batches[0].schema.names))
    if missing:
        raise InvalidInput(f"{what} reads column {missing[0]!r}, which the batch does not have")
    shown = [engine_batches.to_engine(batch, names) for batch in batches]
    try:
        (relation,) = {expression.relation for expression in compiled.values()}
        exprs = {name: expression.expr for name, expression in compiled.items()}
        slices = _slices(shown, sum((expression.function_output for expression in compiled.values()), NOTHING))
        results = [engine.evaluate(exprs, part, relation) for part in slices]
    except EngineError as error:
        sql = ", ".join(expression.sql for expression in compiled.values())
        raise evaluation_error(what, sql, str(error)) from error
    return results[0] if len(results) == 1 else tuple(map(pa.concat_arrays, zip(*results, strict=True)))


def _slices(batches: Sequence[pa.RecordBatch], output: Size) -> list[Sequence[pa.RecordBatch]]:
    """Divide batches so that the output of functions for each slice stays below `BATCH_BYTES_MAX`, unless that of a
    single row exceeds it."""
    rows = sum(batch.num_rows for batch in batches)
    total = output.of_rows(rows, sum(batch.nbytes for batch in batches))
    if total <= BATCH_BYTES_MAX:
        return [batches]
    step = max(1, int(rows * BATCH_BYTES_MAX / total))
    return [[batch.slice(start, step)] for batch in batches for start in range(0, max(1, batch.num_rows), step)]


def can_be_null(compiled: Compiled, schema: pa.Schema) -> bool:
    """Return whether the expression can be null for a row of `schema`. The nullability of its fields is trusted."""
    columns = [schema.field(column) for _, column in compiled.names]
    shown_schema = engine_batches.engine_schema(
        pa.schema(columns), {name: column for name, column in compiled.names if name != column}
    )
    nullable = {name: schema.field(column).nullable for name, column in compiled.names}
    fields = [field.with_nullable(nullable.get(field.name, True)) for field in shown_schema]
    return engine.can_be_null(compiled.expr, pa.schema(fields))
