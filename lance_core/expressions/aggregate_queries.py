"""Aggregate query: decomposes a query over one table into a condition, an aggregation and the steps after it.

    select city, count(*) as n from dataset where age > 17 group by city having count(*) > 2 order by n
           ───── steps ──────              ─ where ─  ── aggregation ─  ───────────── steps ──────────

Workers aggregate their rows with `Aggregation`; the driver applies the steps once, to the merged groups. DataFusion
parses and plans the query, and this module reads the plan, never the SQL text. The condition becomes a `Predicate`. A
query that cannot be decomposed is rejected, and the message names the part that prevents it. Start at
`AggregateQuery.parse`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.expressions import engine, engine_batches
from lance_core.expressions.aggregation import FUNCTIONS, Aggregation, Measure
from lance_core.expressions.compiled import Compiled, compile_expr
from lance_core.expressions.cost_limits import check_text
from lance_core.expressions.dialect import to_engine_sql
from lance_core.expressions.engine import EngineError
from lance_core.expressions.error_messages import error_for, invalid_expression_error
from lance_core.expressions.literal_coercion import InvalidExpression
from lance_core.expressions.predicate import Predicate
from lance_core.expressions.resolve import check_supported, display_text, join_balanced

if TYPE_CHECKING:
    from datafusion import DataFrame, Expr, LogicalPlan
    from datafusion.expr import Aggregate, Filter, Limit, Projection, Sort, SubqueryAlias

TABLE_NAME = "dataset"
"""Name of the table in a query, as in Lance."""
_WHAT = "query"
_NO_LIMIT = 2**63 - 1

Step: TypeAlias = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True, slots=True)
class AggregateQuery:
    """Decomposed query with aggregates.

    >>> people = pa.schema([("age", pa.int32()), ("city", pa.string())])
    >>> sql = "select city, max(age) as oldest from dataset where age > 17 group by city"
    >>> query = AggregateQuery.parse(sql, people)
    >>> query.where.columns, query.aggregation.columns
    (('age',), ('age', 'city'))
    """

    sql: str
    where: Predicate | None
    aggregation: Aggregation
    steps: tuple[Step, ...]
    schema: pa.Schema
    """Schema of the result."""

    @classmethod
    def parse(cls, sql: str, schema: pa.Schema) -> "AggregateQuery":
        """Decompose a query over a table with this schema.

        Raise an `InvalidInput` that says what is wrong, or which part cannot be computed from partial results.
        """
        if not isinstance(sql, str):
            raise InvalidInput(f"{_WHAT} is {sql!r}; write it as a SQL string: select count(*) from {TABLE_NAME}")
        check_text(_WHAT, sql)
        aliases = engine_batches.find_case_aliases(sql, schema)
        try:
            plan, result_schema = engine.plan_query(
                to_engine_sql(sql), TABLE_NAME, engine_batches.engine_schema(schema, aliases)
            )
            return _decompose(sql, plan, result_schema, schema, aliases)
        except InvalidExpression as error:
            raise invalid_expression_error(_WHAT, sql, str(error)) from error
        except EngineError as error:
            raise unknown_table_error(sql, error) or error_for(_WHAT, sql, str(error), schema) from error

    def finish(self, merged: pa.Table) -> pa.Table:
        """Return the result of the query for the merged groups of all rows."""
        try:
            groups = self.aggregation.finish_groups(merged)
            result = engine.apply_steps(groups, self.aggregation.relation, self.steps)
            return result.rename_columns(self.schema.names).cast(self.schema)
        except EngineError as error:
            raise error_for(_WHAT, self.sql, str(error), merged.schema) from error


def unknown_table_error(sql: str, error: EngineError) -> InvalidInput | None:
    """Return the error for a query that uses another table name; `None` if the engine reported something else."""
    if "not found" in str(error) and "table '" in str(error):
        return invalid_expression_error(_WHAT, sql, f"the table is called {TABLE_NAME}: select ... from {TABLE_NAME}")
    return None


def _decompose(
    sql: str, plan: "LogicalPlan", result_schema: pa.Schema, schema: pa.Schema, aliases: Mapping[str, str]
) -> AggregateQuery:
    nodes_above: list[LogicalPlan] = []
    node = plan
    while not _is_innermost_aggregate(node):
        nodes_above.append(node)
        node = input_of(node)
    aggregate = node.to_variant()
    condition, relation = scan_of(input_of(node))
    where = None if condition is None else Predicate.from_query(condition, schema, aliases=aliases, relation=relation)
    groups, measures = exprs_of(aggregate.group_by_exprs()), exprs_of(aggregate.aggregate_exprs())
    if any(group.variant_name() == "GroupingSet" for group in groups):
        raise InvalidExpression(f"grouping sets are not supported; {_SUPPORTED}")
    group_schema = engine.group_schema(groups, measures, engine_batches.engine_schema(schema, aliases), relation)

    def compile_part(expr: "Expr") -> Compiled:
        check_supported(expr)
        return compile_expr(_WHAT, display_text(expr), expr, schema, aliases=aliases, relation=relation)

    types = [field.type for field in group_schema][len(groups) :]
    aggregation = Aggregation(
        relation,
        tuple(map(compile_part, groups)),
        tuple(_measure(expr, compile_part, arrow) for expr, arrow in zip(measures, types, strict=True)),
        group_schema,
        schema,
    )
    steps = tuple(_step(above) for above in reversed(nodes_above))
    return AggregateQuery(sql, where, aggregation, steps, result_schema)


def _is_innermost_aggregate(plan: "LogicalPlan") -> bool:
    """Return whether the node is an aggregate without another aggregate below it."""
    return node_type(plan) == "Aggregate" and not any(map(_contains_aggregate, plan.inputs()))


def _contains_aggregate(plan: "LogicalPlan") -> bool:
    return node_type(plan) == "Aggregate" or any(map(_contains_aggregate, plan.inputs()))


def input_of(plan: "LogicalPlan") -> "LogicalPlan":
    """Return the single input of a plan node, or raise if the node is not supported above an aggregation."""
    inputs = plan.inputs()
    if len(inputs) != 1 or node_type(plan) not in (*_STEPS, "Aggregate"):
        node = node_type(plan)
        if node in ("TableScan", "EmptyRelation"):
            raise InvalidExpression(
                f"the query has no aggregate; use read() for rows, or one of the functions {_FUNCTION_NAMES}"
            )
        raise InvalidExpression(f"{_NODE_NAMES.get(node, node)} cannot be computed from partial results; {_SUPPORTED}")
    return inputs[0]


def scan_of(
    plan: "LogicalPlan", *, context: str = "below an aggregate", supported: str = ""
) -> "tuple[Expr | None, str]":
    """Return the condition on the scanned rows, and the name of the table in the query.

    `context` and `supported` complete the message for a node that is not supported.
    """
    conditions: list[Expr] = []
    relation = TABLE_NAME
    while (node := node_type(plan)) != "TableScan":
        variant = plan.to_variant()
        if node == "Filter":
            conditions += exprs_of([variant.predicate()])
        elif node == "SubqueryAlias" and node_type(plan.inputs()[0]) == "TableScan":
            relation = variant.alias()
        else:
            raise InvalidExpression(
                f"{_NODE_NAMES.get(node, node)} {context} is not supported; {supported or _SUPPORTED}"
            )
        plan = plan.inputs()[0]
    return (join_balanced(conditions, "AND") if conditions else None), relation


def _measure(expr: "Expr", compile_part: "Callable[[Expr], Compiled]", result_type: pa.DataType) -> Measure:
    name = expr.canonical_name().replace(f"{TABLE_NAME}.", "")
    if (parts := engine.split_aggregate(expr)) is None:
        raise InvalidExpression(
            f"{name} cannot be computed from partial results: an aggregate must have plain arguments; instead of a "
            "filter write sum(case when ... then ... end), instead of DISTINCT group by the values"
        )
    function, arguments = parts
    if function not in FUNCTIONS:
        raise InvalidExpression(f"{function}() cannot be computed from partial results; {_SUPPORTED}")
    measure = Measure(function, tuple(map(compile_part, arguments)), result_type)
    if not measure.is_supported:
        raise InvalidExpression(
            f"{name} is of type {result_type}, and such an average cannot be computed from partial results; cast it"
        )
    return measure


def _step(plan: "LogicalPlan") -> Step:
    return _STEPS[node_type(plan)](plan.to_variant())


def _projected(node: "Projection") -> Step:
    return lambda frame: frame.select(*exprs_of(node.projections()))


def _filtered(node: "Filter") -> Step:
    return lambda frame: frame.filter(*exprs_of([node.predicate()]))


def _sorted(node: "Sort") -> Step:
    return lambda frame: frame.sort(*engine.wrap_sort_keys(node.sort_exprs()))


def _limited(node: "Limit") -> Step:
    offset, limit = bounds_of(node)
    rows_max = _NO_LIMIT if limit is None else limit
    return lambda frame: frame.limit(rows_max, offset)


def _aggregated(node: "Aggregate") -> Step:
    return lambda frame: frame.aggregate(exprs_of(node.group_by_exprs()), exprs_of(node.aggregate_exprs()))


def _renamed(node: "SubqueryAlias") -> Step:
    return lambda frame: frame.alias(node.alias())


def bounds_of(node: "Limit") -> tuple[int, int | None]:
    """Return the offset and the limit of a node; `None` means no limit."""
    offset, limit = (
        None if bound is None else engine.evaluate_constant(engine.wrap_expr(bound)).as_py()
        for bound in (node.skip(), node.fetch())
    )
    return offset or 0, limit


def exprs_of(raw: "Iterable[Expr]") -> "list[Expr]":
    """Wrap the raw expressions of a plan node in the expression class of DataFusion's Python API."""
    return [engine.wrap_expr(expr) for expr in raw]


def node_type(plan: "LogicalPlan") -> str:
    """Return the name of the class of a plan node, such as `Aggregate`."""
    return type(plan.to_variant()).__name__


_STEPS: "Mapping[str, Callable[..., Step]]" = {
    "Aggregate": _aggregated,
    "Filter": _filtered,
    "Limit": _limited,
    "Projection": _projected,
    "Sort": _sorted,
    "SubqueryAlias": _renamed,
}
_NODE_NAMES = {
    "Distinct": "DISTINCT",
    "EmptyRelation": "a query without FROM",
    "Join": "a join",
    "Projection": "a subquery",
    "Union": "UNION",
    "WindowExpr": "a window function",
}
_FUNCTION_NAMES = ", ".join(FUNCTIONS)
_SUPPORTED = f"supported are WHERE, GROUP BY, HAVING, ORDER BY, LIMIT and {_FUNCTION_NAMES}"
