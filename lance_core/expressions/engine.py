"""DataFusion behind a handful of functions: text to expression, expression to type, bytes or column.

The only module that loads DataFusion, and only when the first predicate is used. Its errors are bare exceptions
and panics; here both become `EngineError`, which stays inside the room: whoever asked knows the SQL and turns it
into an error for the caller. What Lance means that DataFusion does not is not here: see `resolve.py`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_core.expressions.json_functions import FUNCTIONS

if TYPE_CHECKING:
    from datafusion import DataFrame, Expr, LogicalPlan, SessionContext
    from datafusion.expr import SortExpr

# Rules that move expressions between plan nodes; without them the simplified one stays where it is looked for.
_REMOVED_RULES = (
    "common_sub_expression_eliminate",
    "extract_leaf_expressions",
    "optimize_projections",
    "push_down_leaf_projections",
)
# How a JSON column is shown to the engine: as nothing that it can compare or cast.
JSON_FIELD_NAME = "json text"
JSON_ENGINE_TYPE = pa.struct([(JSON_FIELD_NAME, pa.string())])
# Back-ticks for names, both quotes for strings, no backslash escapes: how Lance reads SQL.
_DIALECT = "databricks"
_BATCH_ROWS = 1 << 24
_DECODED_CACHE_SIZE = 256
_FRAME_CACHE_SIZE = 16


class EngineError(Exception):
    """What DataFusion said, without its prefix. Never leaves this room."""


def parse(sql: str, schema: pa.Schema) -> "Expr":
    """The expression as written: names resolved, nothing typed or simplified yet."""
    with _translate_errors():
        return _cached_empty_frame(schema).parse_sql_expr(sql)


def simplify(expr: "Expr", schema: pa.Schema, relation: str | None = None) -> "Expr":
    """Typed, constants folded (the clock read, if it was asked for), and known to be executable. `relation` is what
    the expression calls the table, where it names one."""
    from datafusion import Expr

    with _translate_errors():
        frame = _empty_frame(schema, relation).select(expr.alias("it"))
        frame.execution_plan()
        plan = frame.optimized_logical_plan().to_variant()
        return Expr(plan.projections()[0].rex_call_operands()[0])


def type_of(expr: "Expr", schema: pa.Schema, relation: str | None = None) -> pa.DataType:
    with _translate_errors():
        return _cached_empty_frame(schema, relation).select(expr.alias("it")).schema().field(0).type


def can_be_null(expr: "Expr", schema: pa.Schema) -> bool:
    """Whether any row could have no value for it, by the nullability of the columns in `schema`."""
    with _translate_errors():
        return bool(_cached_empty_frame(schema).select(expr.alias("it")).schema().field(0).nullable)


def evaluate(
    exprs: Mapping[str, "Expr"], batches: Sequence[pa.RecordBatch], relation: str | None = None
) -> tuple[pa.Array, ...]:
    """One array an expression, as long as the batches, which have one schema, are together. What a call costs beside
    its rows is as much as tens of thousands of them."""
    filled = [batch for batch in batches if batch.num_rows]
    if not filled:
        return tuple(pa.nulls(0, type_of(expr, batches[0].schema, relation)) for expr in exprs.values())
    with _translate_errors():
        frame = _with_alias(_execution_context().read_batches(filled), relation)
        found = frame.select(*(expr.alias(name) for name, expr in exprs.items())).collect()
    if len(found) == 1:
        return tuple(found[0].columns)
    return tuple(pa.concat_arrays([part.column(index) for part in found]) for index in range(len(exprs)))


def evaluate_constant(expr: "Expr") -> pa.Scalar:
    """The value of an expression without columns."""
    row = pa.RecordBatch.from_arrays([pa.array([0], pa.int8())], names=["row"])
    return evaluate({"it": expr}, [row])[0][0]


def encode(expr: "Expr") -> bytes:
    """What `decode` is known to read back: not every expression has a form in bytes."""
    with _translate_errors():
        encoded = expr.to_bytes(_execution_context())
    decode(encoded)
    return encoded


@lru_cache(maxsize=_DECODED_CACHE_SIZE)
def decode(encoded: bytes) -> "Expr":
    from datafusion import Expr

    with _translate_errors():
        return Expr.from_bytes(encoded, _execution_context())


def column(path: Sequence[str]) -> "Expr":
    from datafusion import Expr

    quoted = path[0].replace('"', '""')
    expr = Expr.column(f'"{quoted}"')  # unquoted it would be lowered, and split at dots
    for name in path[1:]:
        expr = expr[name]
    return expr


def literal(value: pa.Scalar) -> "Expr":
    from datafusion import Expr

    return Expr.literal(value)


def is_in(expr: "Expr", values: Sequence["Expr"], *, negated: bool = False) -> "Expr":
    from datafusion import functions

    return functions.in_list(expr, list(values), negated=negated)


def call(function: str, arguments: Sequence["Expr"]) -> "Expr":
    """A call of a scalar function by its SQL name."""
    with _translate_errors():
        return _execution_context().udf(function)(*arguments)


def plan_query(sql: str, table: str, schema: pa.Schema) -> "tuple[LogicalPlan, pa.Schema]":
    """What a query over one table asks for, as written, and what it gives. Nothing but a query is planned."""
    from datafusion import SQLOptions

    with _translate_errors():
        context = _new_context({})
        context.register_record_batches(table, [[_empty_batch(schema)]])
        only = SQLOptions().with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)
        frame = context.sql_with_options(sql, only)
        return frame.logical_plan(), frame.schema()


def split_aggregate(aggregate: "Expr") -> tuple[str, list["Expr"]] | None:
    """Its name and what it is given; None where it is asked for more than that: distinct values, a filter, an order."""
    with _translate_errors():
        found = aggregate.to_variant()
        name, given = found.aggregate_type(), [wrap_expr(each) for each in found.args()]
        plain = aggregate_call(name, given)
    return (name, given) if plain.canonical_name() == aggregate.canonical_name() else None


def aggregate_call(name: str, given: Sequence["Expr"]) -> "Expr":
    with _translate_errors():
        return _execution_context().udaf(name)(*given)


def group_rows(
    groups: Mapping[str, "Expr"],
    measures: Mapping[str, "Expr"],
    batches: Sequence[pa.RecordBatch],
    relation: str | None = None,
) -> pa.Table:
    """A row for each group; without groups one row, of no batch with rows too."""
    with _translate_errors():
        frame = _with_alias(_execution_context().read_batches(list(batches)), relation)
        by, what = ([expr.alias(name) for name, expr in each.items()] for each in (groups, measures))
        return frame.aggregate(by, what).to_arrow_table()


def group_schema(groups: Sequence["Expr"], measures: Sequence["Expr"], schema: pa.Schema, relation: str) -> pa.Schema:
    """As a query has it, under the names that its other parts use."""
    with _translate_errors():
        return _empty_frame(schema, relation).aggregate(list(groups), list(measures)).schema()


def wrap_expr(raw: "Expr") -> "Expr":
    """The parts of a plan come without their methods."""
    from datafusion import Expr

    return Expr(getattr(raw, "expr", raw))


def wrap_sort_keys(raw: Sequence["SortExpr"]) -> "list[SortExpr]":
    from datafusion.expr import SortExpr

    return [SortExpr(wrap_expr(each.expr()), each.ascending(), each.nulls_first()) for each in raw]


def apply_steps(table: pa.Table, relation: str, steps: Sequence[Callable[["DataFrame"], "DataFrame"]]) -> pa.Table:
    with _translate_errors():
        batches = table.to_batches() or [_empty_batch(table.schema)]
        frame = _with_alias(_new_context({}).read_batches(batches), relation)
        for step in steps:
            frame = step(frame)
        return frame.to_arrow_table()


def _empty_frame(schema: pa.Schema, relation: str | None = None) -> "DataFrame":
    """For the clock of what is planned upon it, it is now when this is made, however late it is planned."""
    return _with_alias(_planning_context().read_batch(_empty_batch(schema)), relation)


_cached_empty_frame = lru_cache(maxsize=_FRAME_CACHE_SIZE)(_empty_frame)
"""For what is asked without planning, which reads no clock."""


def _empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, each.type) for each in schema], schema=schema)


def _with_alias(frame: "DataFrame", relation: str | None) -> "DataFrame":
    return frame if relation is None else frame.alias(relation)


@cache
def _planning_context() -> "SessionContext":
    context = _new_context({})
    for rule in _REMOVED_RULES:
        context.remove_optimizer_rule(rule)
    return context


@cache
def _execution_context() -> "SessionContext":
    """For expressions that are simplified already: no optimizer pass, one partition, batches as they come."""
    return _new_context({"datafusion.optimizer.max_passes": "0", "datafusion.execution.batch_size": str(_BATCH_ROWS)})


def _new_context(options: Mapping[str, str]) -> "SessionContext":
    from datafusion import SessionConfig, SessionContext, udf

    config = SessionConfig().with_target_partitions(1)
    for name, value in {
        "datafusion.sql_parser.dialect": _DIALECT,
        "datafusion.sql_parser.enable_ident_normalization": "false",
        "datafusion.sql_parser.map_string_types_to_utf8view": "false",
        **options,
    }.items():
        config = config.set(name, value)
    # By name only: an expression in bytes may then carry no code of its own.
    context = SessionContext(config).with_python_udf_inlining(enabled=False)
    for name, function in FUNCTIONS.items():
        given = [JSON_ENGINE_TYPE, *[pa.string()] * function.arguments]
        context.register_udf(udf(function, given, function.returns, "immutable", name=name))
    return context


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        # The package raises Exception itself, and the panics of its runtime, which are no Exception at all.
        bare = type(error) is Exception or type(error).__name__ == "PanicException"
        if not bare and not isinstance(error, pa.ArrowException | KeyError | RuntimeError | ValueError):
            raise
        raise EngineError(str(error).removeprefix("DataFusion error: ")) from error
