"""Expression engine: the only module that imports DataFusion, behind functions on expressions and batches.

DataFusion is imported when the first expression is used. Its errors are bare exceptions and panics; both become an
`EngineError`, which stays inside this package: the caller knows the SQL and turns it into an error for the user. The
differences between the SQL of Lance and of DataFusion are handled in `resolve.py`. Start at `parse` and `evaluate`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_core.errors import MissingDependency
from lance_core.expressions.json_functions import FUNCTIONS

if TYPE_CHECKING:
    from datafusion import DataFrame, Expr, LogicalPlan, SessionContext
    from datafusion.expr import SortExpr

# These optimizer rules move expressions between plan nodes. Without them, the simplified expression stays in the
# projection from which `simplify` reads it.
_REMOVED_RULES = (
    "common_sub_expression_eliminate",
    "extract_leaf_expressions",
    "optimize_projections",
    "push_down_leaf_projections",
)
# Type of a JSON column in the engine: a struct, which the engine can neither compare with a literal nor cast.
JSON_FIELD_NAME = "json text"
JSON_ENGINE_TYPE = pa.struct([(JSON_FIELD_NAME, pa.string())])
# The dialect of Lance: back-ticks quote names, both quotes delimit strings, and a backslash escapes nothing.
_DIALECT = "databricks"
_BATCH_ROWS = 1 << 24
_DECODED_CACHE_SIZE = 256
_FRAME_CACHE_SIZE = 16


class EngineError(Exception):
    """Error of DataFusion, with its message but without its prefix. It does not leave this package."""


def parse(sql: str, schema: pa.Schema) -> "Expr":
    """Return the expression as written, with resolved names, but neither typed nor simplified."""
    with _translate_errors():
        return _cached_empty_frame(schema).parse_sql_expr(sql)


def simplify(expr: "Expr", schema: pa.Schema, relation: str | None = None) -> "Expr":
    """Return the expression typed, with constants folded (including the current time), and verified to be executable.

    `relation` is the name of the table in the expression, if it uses one.
    """
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
    """Return whether the expression can be null for some row, given the nullability of the columns in `schema`."""
    with _translate_errors():
        return bool(_cached_empty_frame(schema).select(expr.alias("it")).schema().field(0).nullable)


def evaluate(
    exprs: Mapping[str, "Expr"], batches: Sequence[pa.RecordBatch], relation: str | None = None
) -> tuple[pa.Array, ...]:
    """Return one array for each expression, over the rows of all batches, which share one schema.

    The fixed cost of a call equals that of tens of thousands of rows.
    """
    nonempty = [batch for batch in batches if batch.num_rows]
    if not nonempty:
        return tuple(pa.nulls(0, type_of(expr, batches[0].schema, relation)) for expr in exprs.values())
    with _translate_errors():
        frame = _with_alias(_execution_context().read_batches(nonempty), relation)
        results = frame.select(*(expr.alias(name) for name, expr in exprs.items())).collect()
    if len(results) == 1:
        return tuple(results[0].columns)
    return tuple(pa.concat_arrays([batch.column(index) for batch in results]) for index in range(len(exprs)))


def evaluate_constant(expr: "Expr") -> pa.Scalar:
    """Return the value of an expression without columns."""
    row = pa.RecordBatch.from_arrays([pa.array([0], pa.int8())], names=["row"])
    return evaluate({"it": expr}, [row])[0][0]


def encode(expr: "Expr") -> bytes:
    """Serialize an expression, and verify that `decode` can read it, because some expressions cannot be serialized."""
    with _translate_errors():
        encoded = expr.to_bytes(_execution_context())
    decode(encoded)
    return encoded


@lru_cache(maxsize=_DECODED_CACHE_SIZE)
def decode(encoded: bytes) -> "Expr":
    _check_installed()
    from datafusion import Expr

    with _translate_errors():
        return Expr.from_bytes(encoded, _execution_context())


def column(path: Sequence[str]) -> "Expr":
    _check_installed()
    from datafusion import Expr

    quoted = path[0].replace('"', '""')
    expr = Expr.column(f'"{quoted}"')  # an unquoted name would be lowercased and split at dots
    for name in path[1:]:
        expr = expr[name]
    return expr


def literal(value: pa.Scalar) -> "Expr":
    _check_installed()
    from datafusion import Expr

    return Expr.literal(value)


def is_in(expr: "Expr", values: Sequence["Expr"], *, negated: bool = False) -> "Expr":
    from datafusion import functions

    return functions.in_list(expr, list(values), negated=negated)


def call(function: str, arguments: Sequence["Expr"]) -> "Expr":
    """Return a call of a scalar function by its SQL name."""
    with _translate_errors():
        return _execution_context().udf(function)(*arguments)


def plan_query(sql: str, table: str, schema: pa.Schema) -> "tuple[LogicalPlan, pa.Schema]":
    """Return the unoptimized logical plan and the result schema of a query over one table. DDL, DML and other
    statements are rejected.
    """
    _check_installed()
    from datafusion import SQLOptions

    with _translate_errors():
        context = _new_context({})
        context.register_record_batches(table, [[_empty_batch(schema)]])
        queries_only = SQLOptions().with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)
        frame = context.sql_with_options(sql, queries_only)
        return frame.logical_plan(), frame.schema()


def split_aggregate(aggregate: "Expr") -> tuple[str, list["Expr"]] | None:
    """Return the function and arguments of an aggregate; `None` if it also has DISTINCT, a filter or an order."""
    with _translate_errors():
        node = aggregate.to_variant()
        name, arguments = node.aggregate_type(), [wrap_expr(argument) for argument in node.args()]
        plain = aggregate_call(name, arguments)
    return (name, arguments) if plain.canonical_name() == aggregate.canonical_name() else None


def aggregate_call(name: str, arguments: Sequence["Expr"]) -> "Expr":
    with _translate_errors():
        return _execution_context().udaf(name)(*arguments)


def group_rows(
    groups: Mapping[str, "Expr"],
    measures: Mapping[str, "Expr"],
    batches: Sequence[pa.RecordBatch],
    relation: str | None = None,
) -> pa.Table:
    """Return one row for each group. Without group expressions, return one row even if the batches have none."""
    with _translate_errors():
        frame = _with_alias(_execution_context().read_batches(list(batches)), relation)
        group_exprs, measure_exprs = (
            [expr.alias(name) for name, expr in exprs.items()] for exprs in (groups, measures)
        )
        return frame.aggregate(group_exprs, measure_exprs).to_arrow_table()


def group_schema(groups: Sequence["Expr"], measures: Sequence["Expr"], schema: pa.Schema, relation: str) -> pa.Schema:
    """Return the schema of an aggregation under the names that the other parts of its query use."""
    with _translate_errors():
        return _empty_frame(schema, relation).aggregate(list(groups), list(measures)).schema()


def wrap_expr(raw: "Expr") -> "Expr":
    """Return a part of a plan as an `Expr`; plans contain raw expressions without the methods of that class."""
    from datafusion import Expr

    return Expr(getattr(raw, "expr", raw))


def wrap_sort_keys(raw: Sequence["SortExpr"]) -> "list[SortExpr]":
    from datafusion.expr import SortExpr

    return [SortExpr(wrap_expr(key.expr()), key.ascending(), key.nulls_first()) for key in raw]


def apply_steps(table: pa.Table, relation: str, steps: Sequence[Callable[["DataFrame"], "DataFrame"]]) -> pa.Table:
    """Return the result of applying steps such as a sort or a limit to a table."""
    with _translate_errors():
        batches = table.to_batches() or [_empty_batch(table.schema)]
        frame = _with_alias(_new_context({}).read_batches(batches), relation)
        for step in steps:
            frame = step(frame)
        return frame.to_arrow_table()


def _empty_frame(schema: pa.Schema, relation: str | None = None) -> "DataFrame":
    """Return an empty data frame. Plans on it read the time of its creation as the current time."""
    return _with_alias(_planning_context().read_batch(_empty_batch(schema)), relation)


_cached_empty_frame = lru_cache(maxsize=_FRAME_CACHE_SIZE)(_empty_frame)
"""Cached `_empty_frame`, for calls that do not plan and therefore do not read the time."""


def _empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


@cache
def _check_installed() -> None:
    """Raise `MissingDependency` without DataFusion, as in a small archive of executors."""
    try:
        import_module("datafusion")
    except ImportError as error:
        raise MissingDependency(
            "evaluating SQL needs the package datafusion, which is not installed or does not load "
            f"({error}); install it with: pip install datafusion. If this process runs from an archive of executors, "
            "write the archive with lance-assets pack-executors, without the option --without-sql"
        ) from error


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
    """Context for expressions that are already simplified: no optimizer pass, one partition, unchanged batch sizes."""
    return _new_context({"datafusion.optimizer.max_passes": "0", "datafusion.execution.batch_size": str(_BATCH_ROWS)})


def _new_context(options: Mapping[str, str]) -> "SessionContext":
    _check_installed()
    from datafusion import SessionConfig, SessionContext, udf

    config = SessionConfig().with_target_partitions(1)
    for name, value in {
        "datafusion.sql_parser.dialect": _DIALECT,
        "datafusion.sql_parser.enable_ident_normalization": "false",
        "datafusion.sql_parser.map_string_types_to_utf8view": "false",
        **options,
    }.items():
        config = config.set(name, value)
    # Functions are serialized by name only, so that a serialized expression cannot carry code.
    context = SessionContext(config).with_python_udf_inlining(enabled=False)
    for name, function in FUNCTIONS.items():
        argument_types = [JSON_ENGINE_TYPE, *[pa.string()] * function.arguments]
        context.register_udf(udf(function, argument_types, function.returns, "immutable", name=name))
    return context


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        # DataFusion raises `Exception` itself, and for panics a `BaseException` that is no `Exception`.
        is_bare = type(error) is Exception or type(error).__name__ == "PanicException"
        if not is_bare and not isinstance(error, pa.ArrowException | KeyError | RuntimeError | ValueError):
            raise
        raise EngineError(str(error).removeprefix("DataFusion error: ")) from error
