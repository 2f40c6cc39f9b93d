"""Row query: decomposes a query without aggregates over one table into a condition, expressions and a limit.

    select id, price * 2 as twice from dataset where price < 0 limit 10

The query streams: it holds no rows in memory. A part that would need all rows at once (an order, distinct rows) is
rejected by name. Queries with aggregates are in `aggregate_queries.py`; here too, the plan of DataFusion is read,
never the SQL text. Start at `RowQuery.parse`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_core.expressions import compiled, engine, engine_batches
from lance_core.expressions.aggregate_queries import (
    TABLE_NAME,
    bounds_of,
    exprs_of,
    input_of,
    node_type,
    scan_of,
    unknown_table_error,
)
from lance_core.expressions.compiled import Compiled, compile_expr
from lance_core.expressions.cost_limits import check_text
from lance_core.expressions.dialect import to_engine_sql
from lance_core.expressions.engine import EngineError
from lance_core.expressions.error_messages import error_for, invalid_expression_error
from lance_core.expressions.literal_coercion import InvalidExpression
from lance_core.expressions.predicate import Predicate
from lance_core.expressions.resolve import check_supported, display_text

if TYPE_CHECKING:
    from datafusion import LogicalPlan
    from datafusion.expr import Projection

_WHAT = "query"


@dataclass(frozen=True, slots=True)
class RowQuery:
    """Decomposed query without aggregates.

    >>> people = pa.schema([("age", pa.int32()), ("name", pa.string())])
    >>> query = RowQuery.parse("select name from dataset where age < 0 limit 3", people)
    >>> query.where.columns, query.columns, query.limit
    (('age',), ('name',), 3)
    """

    where: Predicate | None
    projections: tuple[Compiled, ...]
    schema: pa.Schema
    """Schema of the result."""
    offset: int
    limit: int | None

    @classmethod
    def parse(cls, sql: str, schema: pa.Schema) -> "RowQuery":
        """Decompose a query over a table with this schema.

        Raise an `InvalidInput` that says what is wrong, or which part cannot be computed row by row.
        """
        check_text(_WHAT, sql)
        aliases = engine_batches.find_case_aliases(sql, schema)
        try:
            plan, result = engine.plan_query(
                to_engine_sql(sql), TABLE_NAME, engine_batches.engine_schema(schema, aliases)
            )
            offset, limit = 0, None
            if node_type(plan) == "Limit":
                offset, limit = bounds_of(plan.to_variant())
                plan = input_of(plan)
            if node_type(plan) != "Projection":
                raise InvalidExpression(
                    f"{node_type(plan)} needs all rows at once, but a query for rows streams them; {_SUPPORTED}"
                )
            condition, relation = scan_of(input_of(plan), context="in a query for rows", supported=_SUPPORTED)
            where = None
            if condition is not None:
                where = Predicate.from_query(condition, schema, aliases=aliases, relation=relation)
            projections = _compile_projections(plan.to_variant(), schema, aliases, relation)
            kept = [
                number
                for number, projection in enumerate(projections)
                if not _is_case_duplicate(projection, result.names[number], sql, aliases)
            ]
            result_schema = pa.schema([result[number] for number in kept])
            return cls(where, tuple(projections[number] for number in kept), result_schema, offset, limit)
        except InvalidExpression as error:
            raise invalid_expression_error(_WHAT, sql, str(error)) from error
        except EngineError as error:
            raise unknown_table_error(sql, error) or error_for(_WHAT, sql, str(error), schema) from error

    @property
    def columns(self) -> tuple[str, ...]:
        """Top-level columns that must be read for the result, without those of the condition, sorted."""
        return tuple(sorted({column for projection in self.projections for column in projection.columns}))

    def project(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the result for matching rows."""
        names = [f"c{number}" for number in range(len(self.projections))]
        for batch in rows:
            arrays = compiled.evaluate_batch(_WHAT, dict(zip(names, self.projections, strict=True)), batch)
            fields = [pa.field(name, array.type) for name, array in zip(self.schema.names, arrays, strict=True)]
            yield pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))


_SUPPORTED = "supported are columns and expressions, WHERE and LIMIT, or GROUP BY with aggregates"


def _compile_projections(
    node: "Projection", schema: pa.Schema, aliases: Mapping[str, str], relation: str
) -> list[Compiled]:
    projections = []
    for expr in exprs_of(node.projections()):
        plain = engine.wrap_expr(expr.to_variant().expr()) if expr.variant_name() == "Alias" else expr
        check_supported(plain)
        projections.append(compile_expr(_WHAT, display_text(plain), plain, schema, aliases=aliases, relation=relation))
    return projections


def _is_case_duplicate(projection: Compiled, name: str, sql: str, aliases: Mapping[str, str]) -> bool:
    """Return whether `*` expanded to a column a second time, because the query also spells it in another case."""
    return "*" in sql and name in aliases and projection.names == ((name, aliases[name]),)


def is_aggregate_query(sql: str, schema: pa.Schema) -> bool:
    """Return whether the query has aggregates or DISTINCT, so that `AggregateQuery` handles it."""
    check_text(_WHAT, sql)
    aliases = engine_batches.find_case_aliases(sql, schema)
    try:
        plan, _result = engine.plan_query(to_engine_sql(sql), TABLE_NAME, engine_batches.engine_schema(schema, aliases))
    except EngineError as error:
        raise unknown_table_error(sql, error) or error_for(_WHAT, sql, str(error), schema) from error
    return _contains_node(plan, "Aggregate") or _contains_node(plan, "Distinct")


def _contains_node(plan: "LogicalPlan", node: str) -> bool:
    return node_type(plan) == node or any(_contains_node(child, node) for child in plan.inputs())
