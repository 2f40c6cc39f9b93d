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
from lance_core.expressions.aggregate_queries import TABLE, bounds_of, exprs_of, input_of, kind_of, misnamed, rows_of
from lance_core.expressions.compiled import Compiled, compile_expr
from lance_core.expressions.engine import EngineError
from lance_core.expressions.error_messages import error_for, misfit
from lance_core.expressions.literal_coercion import Misfit
from lance_core.expressions.predicate import Predicate
from lance_core.expressions.resolve import check, shown_text

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
    shown: tuple[Compiled, ...]
    schema: pa.Schema
    """Of the answer."""
    skip: int
    take: int | None

    @classmethod
    def parse(cls, sql: str, schema: pa.Schema) -> "RowQuery":
        """Raises `InvalidInput` that says what is wrong, or what cannot be done row by row."""
        spelt = engine_batches.spellings(sql, schema)
        try:
            plan, gives = engine.query(sql, TABLE, engine_batches.engine_schema(schema, spelt))
            skip, take = 0, None
            if kind_of(plan) == "Limit":
                skip, take = bounds_of(plan.to_variant())
                plan = input_of(plan)
            if kind_of(plan) != "Projection":
                raise Misfit(f"{kind_of(plan)} needs all rows at once, and a query for rows goes through them; {_CAN}")
            condition, relation = rows_of(input_of(plan), under="in a query for rows", can=_CAN)
            where = None if condition is None else Predicate.of_query(condition, schema, spelt=spelt, relation=relation)
            shown = _shown(plan.to_variant(), schema, spelt, relation)
            kept = [number for number, each in enumerate(shown) if not _is_echo(each, gives.names[number], sql, spelt)]
            return cls(
                where, tuple(shown[each] for each in kept), pa.schema([gives[each] for each in kept]), skip, take
            )
        except Misfit as error:
            raise misfit(_WHAT, sql, str(error)) from error
        except EngineError as error:
            raise misnamed(sql, error) or error_for(_WHAT, sql, str(error), schema) from error

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that must be read, sorted."""
        return tuple(sorted({column for each in self.shown for column in each.columns}))

    def of(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What is shown of these rows, which match."""
        names = [f"c{number}" for number in range(len(self.shown))]
        for batch in rows:
            arrays = compiled.run(_WHAT, dict(zip(names, self.shown, strict=True)), batch)
            fields = [pa.field(name, array.type) for name, array in zip(self.schema.names, arrays, strict=True)]
            yield pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))


_CAN = "there are columns and expressions, WHERE and LIMIT, or GROUP BY with aggregates"


def _shown(node: "Projection", schema: pa.Schema, spelt: Mapping[str, str], relation: str) -> list[Compiled]:
    found = []
    for expr in exprs_of(node.projections()):
        plain = engine.wrapped(expr.to_variant().expr()) if expr.variant_name() == "Alias" else expr
        check(plain)
        found.append(compile_expr(_WHAT, shown_text(plain), plain, schema, spelt=spelt, relation=relation))
    return found


def _is_echo(shown: Compiled, name: str, sql: str, spelt: Mapping[str, str]) -> bool:
    """A column that `*` shows once more, since the query spells it in another case elsewhere."""
    return "*" in sql and name in spelt and shown.names == ((name, spelt[name]),)


def aggregates(sql: str, schema: pa.Schema) -> bool:
    """Whether it is one for `aggregate_queries.py`."""
    spelt = engine_batches.spellings(sql, schema)
    try:
        plan, _gives = engine.query(sql, TABLE, engine_batches.engine_schema(schema, spelt))
    except EngineError as error:
        raise misnamed(sql, error) or error_for(_WHAT, sql, str(error), schema) from error
    return _holds(plan, "Aggregate") or _holds(plan, "Distinct")


def _holds(plan: "LogicalPlan", kind: str) -> bool:
    return kind_of(plan) == kind or any(_holds(each, kind) for each in plan.inputs())
