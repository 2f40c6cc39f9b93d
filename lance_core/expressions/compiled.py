"""SQL text to an expression that is typed, checked, small to send and ready to run; the way there, for both users.

`Predicate` and `Projection` hold a `Compiled`. It travels as bytes: a worker decodes what the driver decided, so
that `now()` is one moment for all of them and nobody parses twice.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.expressions import engine, engine_batches
from lance_core.expressions.engine import EngineError
from lance_core.expressions.error_messages import error_for, failure, misfit
from lance_core.expressions.literal_coercion import Misfit
from lance_core.expressions.resolve import check, columns_in, is_settled, resolve

if TYPE_CHECKING:
    from datafusion import Expr

MAX_SQL_LENGTH = 4_000_000
MAX_JOINTS = 2_000  # the engine recurses once for each; at 10,000 it overflows the stack of the process


@dataclass(frozen=True, slots=True)
class Compiled:
    """`names` maps each name in the expression to the column it is; they differ where the SQL's case does."""

    sql: str
    encoded: bytes
    names: tuple[tuple[str, str], ...]
    type: pa.DataType
    relation: str | None = None
    """What it calls the table that its columns are of, where it is part of a query."""

    @property
    def expr(self) -> "Expr":
        return engine.decode(self.encoded)

    @property
    def columns(self) -> tuple[str, ...]:
        """The top-level columns it reads, sorted."""
        return tuple(sorted({column for _, column in self.names}))


def compile_sql(what: str, sql: str, schema: pa.Schema, *, cast_to: pa.DataType | None = None) -> Compiled:
    """`what` names the SQL in errors, such as "predicate"."""
    if not isinstance(sql, str):
        raise InvalidInput(f"{what} is {sql!r}; write it as a text of SQL: a number as '5', a text as \"'five'\"")
    if not sql.strip():
        raise InvalidInput(f"{what} is empty; write a condition over columns, or leave it out")
    if len(sql) > MAX_SQL_LENGTH:
        raise InvalidInput(f"{what} has {len(sql):,} characters; above {MAX_SQL_LENGTH:,} join with a table instead")
    if (found := engine_batches.joints(sql)) > MAX_JOINTS:
        raise InvalidInput(
            f"{what} joins {found:,} expressions by AND, OR or arithmetic; at most {MAX_JOINTS:,} can be, write long "
            "lists as `x IN (...)`"
        )
    spelt = engine_batches.spellings(sql, schema)
    seen = engine_batches.engine_schema(schema, spelt)
    try:
        expr = engine.parse(sql, seen)
        check(expr)
        expr = resolve(expr, seen)
    except Misfit as error:
        raise misfit(what, sql, str(error)) from error
    except EngineError as error:
        raise error_for(what, sql, str(error), schema) from error
    return compile_expr(what, sql, expr, schema, spelt=spelt, cast_to=cast_to)


def compile_expr(
    what: str,
    sql: str,
    expr: "Expr",
    schema: pa.Schema,
    *,
    spelt: Mapping[str, str],
    cast_to: pa.DataType | None = None,
    relation: str | None = None,
) -> Compiled:
    seen = engine_batches.engine_schema(schema, spelt)
    try:
        if (
            cast_to is not None
            and engine.type_of(expr, seen, relation) != cast_to
            and not _is_stored_as(expr, cast_to, schema, spelt)
        ):
            expr = expr.cast(cast_to)
        elif relation is None and is_settled(expr, seen):
            return Compiled(sql, engine.encode(expr), _names(expr, spelt), pa.bool_())
        expr = engine.simplify(expr, seen, relation)
        check(expr)
        names = _names(expr, spelt)
        if expr.variant_name() == "Column":
            return Compiled(sql, engine.encode(expr), names, schema.field(names[0][1]).type, relation)
        return Compiled(sql, engine.encode(expr), names, engine.type_of(expr, seen, relation), relation)
    except Misfit as error:
        raise misfit(what, sql, str(error)) from error
    except EngineError as error:
        raise error_for(what, sql, str(error), schema) from error


def _names(expr: "Expr", spelt: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, spelt.get(name, name)) for name in sorted(columns_in(expr)))


def _is_stored_as(expr: "Expr", wanted: pa.DataType, schema: pa.Schema, spelt: Mapping[str, str]) -> bool:
    """A column as it is: what the engine is shown of JSON is not what is stored, and is not cast to it."""
    if expr.variant_name() != "Column":
        return False
    (name,) = columns_in(expr)
    arrow = schema.field(spelt.get(name, name)).type
    return bool(isinstance(arrow, pa.BaseExtensionType) and arrow.storage_type == wanted)


def run(what: str, compiled: Mapping[str, Compiled], batch: pa.RecordBatch) -> tuple[pa.Array, ...]:
    """One array for each, evaluated in one go over one batch that has at least the columns they read."""
    found = _found(what, compiled, [batch])
    return tuple(
        array if array.type == each.type else batch.column(each.columns[0])  # a column as it is, such as JSON
        for array, each in zip(found, compiled.values(), strict=True)
    )


def run_condition(what: str, condition: Compiled, parts: Sequence[pa.RecordBatch]) -> list[pa.Array]:
    """One array for each batch; all are evaluated in one go."""
    (found,) = _found(what, {"matches": condition}, parts)
    starts = itertools.accumulate((part.num_rows for part in parts), initial=0)
    return [found.slice(start, part.num_rows) for start, part in zip(starts, parts, strict=False)]


def _found(what: str, compiled: Mapping[str, Compiled], parts: Sequence[pa.RecordBatch]) -> tuple[pa.Array, ...]:
    names = {name: column for each in compiled.values() for name, column in each.names}
    missing = sorted(set(names.values()) - set(parts[0].schema.names))
    if missing:
        raise InvalidInput(f"{what} reads column {missing[0]!r}, which the batch does not have")
    shown = [engine_batches.to_engine(part, names) for part in parts]
    try:
        (relation,) = {each.relation for each in compiled.values()}
        return engine.evaluate({name: each.expr for name, each in compiled.items()}, shown, relation)
    except EngineError as error:
        raise failure(what, ", ".join(each.sql for each in compiled.values()), str(error)) from error


def can_be_null(compiled: Compiled, schema: pa.Schema) -> bool:
    """Over rows of `schema`, whose own nullability is believed."""
    columns = [schema.field(column) for _, column in compiled.names]
    seen = engine_batches.engine_schema(
        pa.schema(columns), {name: column for name, column in compiled.names if name != column}
    )
    nullable = {name: schema.field(column).nullable for name, column in compiled.names}
    believed = [field.with_nullable(nullable.get(field.name, True)) for field in seen]
    return engine.can_be_null(compiled.expr, pa.schema(believed))
