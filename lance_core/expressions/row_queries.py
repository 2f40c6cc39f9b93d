"""A query over one table that gives rows of it: which of them it reads, and what it shows of each.

    select id, price * 2 as twice from dataset where price < 0 limit 10

It is done as the rows come, so that nothing is held; what would need them all (an order, distinct rows) is refused by
name. Queries with aggregates are told in `aggregate_queries.py`. As there, DataFusion's plan is looked at, never the
text.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_core.expressions import compiled, engine, engine_batches
from lance_core.expressions.aggregate_queries import TABLE_NAME, bounds_of, exprs_of, input_of, node_type, unknown_table_error, scan_of
from lance_core.expressions.compiled import Compiled, compile_expr
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
    """
    >>> people = pa.schema([("age", pa.int32()), ("name", pa.string())])
    >>> selection = Selection.parse("select name from dataset where age < 0 limit 3", people)
    >>> selection.where.columns, selection.columns, selection.take
    (('age',), ('name',), 3)
    """

    where: Predicate | None
    projections: tuple[Compiled, ...]
    schema: pa.Schema
    """Of the answer."""
    offset: int
    limit: int | None

    @classmethod
    def parse(cls, sql: str, schema: pa.Schema) -> "RowQuery":
        """Raises `InvalidInput` that says what is wrong, or what cannot be done row by row."""
        spelt = engine_batches.find_case_aliases(sql, schema)
        try:
            plan, gives = engine.plan_query(sql, TABLE_NAME, engine_batches.engine_schema(schema, spelt))
            skip, take = 0, None
            if node_type(plan) == "Limit":
                skip, take = bounds_of(plan.to_variant())
                plan = input_of(plan)
            if node_type(plan) != "Projection":
                raise InvalidExpression(f"{node_type(plan)} needs all rows at once, and a query for rows goes through them; {_SUPPORTED}")
            condition, relation = scan_of(input_of(plan), under="in a query for rows", can=_SUPPORTED)
            where = None if condition is None else Predicate.from_query(condition, schema, aliases=spelt, relation=relation)
            shown = _compile_projections(plan.to_variant(), schema, spelt, relation)
            kept = [number for number, each in enumerate(shown) if not _is_case_duplicate(each, gives.names[number], sql, spelt)]
            return cls(
                where, tuple(shown[each] for each in kept), pa.schema([gives[each] for each in kept]), skip, take
            )
        except InvalidExpression as error:
            raise invalid_expression_error(_WHAT, sql, str(error)) from error
        except EngineError as error:
            raise unknown_table_error(sql, error) or error_for(_WHAT, sql, str(error), schema) from error

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that must be read, sorted."""
        return tuple(sorted({column for each in self.projections for column in each.columns}))

    def project(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What is shown of these rows, which match."""
        names = [f"c{number}" for number in range(len(self.projections))]
        for batch in rows:
            arrays = compiled.evaluate_batch(_WHAT, dict(zip(names, self.projections, strict=True)), batch)
            fields = [pa.field(name, array.type) for name, array in zip(self.schema.names, arrays, strict=True)]
            yield pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))


_SUPPORTED = "there are columns and expressions, WHERE and LIMIT, or GROUP BY with aggregates"


def _compile_projections(node: "Projection", schema: pa.Schema, spelt: Mapping[str, str], relation: str) -> list[Compiled]:
    found = []
    for expr in exprs_of(node.projections()):
        plain = engine.wrap_expr(expr.to_variant().expr()) if expr.variant_name() == "Alias" else expr
        check_supported(plain)
        found.append(compile_expr(_WHAT, display_text(plain), plain, schema, aliases=spelt, relation=relation))
    return found


def _is_case_duplicate(shown: Compiled, name: str, sql: str, spelt: Mapping[str, str]) -> bool:
    """A column that `*` shows once more, since the query spells it in another case elsewhere."""
    return "*" in sql and name in spelt and shown.names == ((name, spelt[name]),)


def is_aggregate_query(sql: str, schema: pa.Schema) -> bool:
    """Whether it is one for `aggregate_queries.py`."""
    spelt = engine_batches.find_case_aliases(sql, schema)
    try:
        plan, _gives = engine.plan_query(sql, TABLE_NAME, engine_batches.engine_schema(schema, spelt))
    except EngineError as error:
        raise unknown_table_error(sql, error) or error_for(_WHAT, sql, str(error), schema) from error
    return _contains_node(plan, "Aggregate") or _contains_node(plan, "Distinct")


def _contains_node(plan: "LogicalPlan", kind: str) -> bool:
    return node_type(plan) == kind or any(_contains_node(each, kind) for each in plan.inputs())
