"""A query with aggregates over one table, taken apart: which rows it reads, how they are grouped, what comes after.

    select city, count(*) as n from dataset where age > 17 group by city having count(*) > 2 order by n
           ───── after ──────              ─ where ─  ── aggregation ─  ───────────── after ──────────

Rows are grouped wherever they are (`Aggregation`, which travels); what comes after is done once, with the groups of
all. The query is parsed and planned by DataFusion, and what is looked at is its plan, never its text. The condition is
one of Lance's, like any other. What cannot be taken apart is refused by name.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.expressions import engine, engine_batches
from lance_core.expressions.aggregation import FUNCTIONS, Aggregation, Measure
from lance_core.expressions.compiled import Compiled, compile_expr
from lance_core.expressions.engine import EngineError
from lance_core.expressions.error_messages import error_for, invalid_expression_error
from lance_core.expressions.literal_coercion import InvalidExpression
from lance_core.expressions.predicate import Predicate
from lance_core.expressions.resolve import check_supported, join_balanced, display_text

if TYPE_CHECKING:
    from datafusion import DataFrame, Expr, LogicalPlan
    from datafusion.expr import Aggregate, Filter, Limit, Projection, Sort, SubqueryAlias

TABLE_NAME = "dataset"
"""What a query calls the table, as in Lance."""
_WHAT = "query"

Step: TypeAlias = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True, slots=True)
class AggregateQuery:
    """
    >>> people = pa.schema([("age", pa.int32()), ("city", pa.string())])
    >>> query = Query.parse("select city, max(age) as oldest from dataset where age > 17 group by city", people)
    >>> query.where.columns, query.aggregation.columns
    (('age',), ('age', 'city'))
    """

    sql: str
    where: Predicate | None
    aggregation: Aggregation
    steps: tuple[Step, ...]
    schema: pa.Schema
    """Of the answer."""

    @classmethod
    def parse(cls, sql: str, schema: pa.Schema) -> "AggregateQuery":
        """Raises `InvalidInput` that says what is wrong, or what cannot be done in parts."""
        if not isinstance(sql, str):
            raise InvalidInput(f"{_WHAT} is {sql!r}; write it as a text of SQL: select count(*) from {TABLE_NAME}")
        spelt = engine_batches.find_case_aliases(sql, schema)
        try:
            plan, gives = engine.plan_query(sql, TABLE_NAME, engine_batches.engine_schema(schema, spelt))
            return _decompose(sql, plan, gives, schema, spelt)
        except InvalidExpression as error:
            raise invalid_expression_error(_WHAT, sql, str(error)) from error
        except EngineError as error:
            raise unknown_table_error(sql, error) or error_for(_WHAT, sql, str(error), schema) from error

    def finish(self, together: pa.Table) -> pa.Table:
        """From the groups of all rows."""
        try:
            groups = self.aggregation.finish_groups(together)
            found = engine.apply_steps(groups, self.aggregation.relation, self.steps)
            return found.rename_columns(self.schema.names).cast(self.schema)
        except EngineError as error:
            raise error_for(_WHAT, self.sql, str(error), together.schema) from error


def unknown_table_error(sql: str, error: EngineError) -> InvalidInput | None:
    """What is wrong, where a query calls the table something else."""
    if "not found" in str(error) and "table '" in str(error):
        return invalid_expression_error(_WHAT, sql, f"the table is called {TABLE_NAME}: select ... from {TABLE_NAME}")
    return None


def _decompose(
    sql: str, plan: "LogicalPlan", gives: pa.Schema, schema: pa.Schema, spelt: Mapping[str, str]
) -> AggregateQuery:
    above: list[LogicalPlan] = []
    below = plan
    while not _is_innermost_aggregate(below):
        above.append(below)
        below = input_of(below)
    node = below.to_variant()
    condition, relation = scan_of(input_of(below))
    where = None if condition is None else Predicate.from_query(condition, schema, aliases=spelt, relation=relation)
    groups, measures = exprs_of(node.group_by_exprs()), exprs_of(node.aggregate_exprs())
    if any(each.variant_name() == "GroupingSet" for each in groups):
        raise InvalidExpression(f"grouping sets are not supported; {_SUPPORTED}")
    told = engine.group_schema(groups, measures, engine_batches.engine_schema(schema, spelt), relation)

    def compiled(expr: "Expr") -> Compiled:
        check_supported(expr)
        return compile_expr(_WHAT, display_text(expr), expr, schema, aliases=spelt, relation=relation)

    types = [field.type for field in told][len(groups) :]
    aggregation = Aggregation(
        relation,
        tuple(map(compiled, groups)),
        tuple(_measure(each, compiled, gives) for each, gives in zip(measures, types, strict=True)),
        told,
        schema,
    )
    return AggregateQuery(sql, where, aggregation, tuple(_step(each) for each in reversed(above)), gives)


def _is_innermost_aggregate(plan: "LogicalPlan") -> bool:
    """Whether it is the aggregate that is nearest to the rows."""
    return node_type(plan) == "Aggregate" and not any(_contains_aggregate(each) for each in plan.inputs())


def _contains_aggregate(plan: "LogicalPlan") -> bool:
    return node_type(plan) == "Aggregate" or any(map(_contains_aggregate, plan.inputs()))


def input_of(plan: "LogicalPlan") -> "LogicalPlan":
    below = plan.inputs()
    if len(below) != 1 or node_type(plan) not in (*_STEPS, "Aggregate"):
        kind = node_type(plan)
        if kind in ("TableScan", "EmptyRelation"):
            raise InvalidExpression(f"it aggregates nothing; give rows by read(), and ask here for one of {_FUNCTION_NAMES}")
        raise InvalidExpression(f"{_NODE_NAMES.get(kind, kind)} cannot be put together from parts; {_SUPPORTED}")
    return below[0]


def scan_of(plan: "LogicalPlan", *, under: str = "below an aggregate", can: str = "") -> "tuple[Expr | None, str]":
    """The condition on the rows that are read, and what the table is called. `under` and `can` are what a refusal says
    of the place, and of what there is."""
    conditions: list[Expr] = []
    relation = TABLE_NAME
    while (kind := node_type(plan)) != "TableScan":
        node = plan.to_variant()
        if kind == "Filter":
            conditions += exprs_of([node.predicate()])
        elif kind == "SubqueryAlias" and node_type(plan.inputs()[0]) == "TableScan":
            relation = node.alias()
        else:
            raise InvalidExpression(f"{_NODE_NAMES.get(kind, kind)} {under} is not supported; {can or _SUPPORTED}")
        plan = plan.inputs()[0]
    return (join_balanced(conditions, "AND") if conditions else None), relation


def _measure(expr: "Expr", compiled: "Callable[[Expr], Compiled]", gives: pa.DataType) -> Measure:
    name = expr.canonical_name().replace(f"{TABLE_NAME}.", "")
    if (found := engine.split_aggregate(expr)) is None:
        raise InvalidExpression(
            f"{name} cannot be put together from parts: what the function is given may be no more than an expression; "
            "for a condition of its own write sum(case when ... then ... end), for distinct values group by them"
        )
    function, given = found
    if function not in FUNCTIONS:
        raise InvalidExpression(f"{function}() cannot be put together from parts; {_SUPPORTED}")
    measure = Measure(function, tuple(map(compiled, given)), gives)
    if not measure.is_supported:
        raise InvalidExpression(f"{name} is of type {gives}, and such averages cannot be put together from parts; cast it")
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
    skip, take = bounds_of(node)
    most = sys.maxsize if take is None else take
    return lambda frame: frame.limit(most, skip)


def _aggregated(node: "Aggregate") -> Step:
    return lambda frame: frame.aggregate(exprs_of(node.group_by_exprs()), exprs_of(node.aggregate_exprs()))


def _renamed(node: "SubqueryAlias") -> Step:
    return lambda frame: frame.alias(node.alias())


def bounds_of(node: "Limit") -> tuple[int, int | None]:
    """How many rows are skipped, and how many are taken then."""
    bounds = (node.skip(), node.fetch())
    skip, take = (None if each is None else engine.evaluate_constant(engine.wrap_expr(each)).as_py() for each in bounds)
    return skip or 0, take


def exprs_of(raw: "Iterable[Expr]") -> "list[Expr]":
    return [engine.wrap_expr(each) for each in raw]


def node_type(plan: "LogicalPlan") -> str:
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
_SUPPORTED = f"there are WHERE, GROUP BY, HAVING, ORDER BY, LIMIT and {_FUNCTION_NAMES}"
