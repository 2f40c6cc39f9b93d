"""Expression resolution: coerces literals to the types of their columns, and rejects unsupported expressions.

DataFusion expressions are immutable, so the parts that change are rebuilt: AND, OR, NOT, and comparisons, IN and
BETWEEN between a column and literals. All other parts stay unchanged. Expressions that a predicate or projection must
not contain (aggregates, subqueries, parameters, nondeterministic functions) are recognized by their type, never by
the SQL text. Start at `resolve` and `check_supported`.
"""

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_core.expressions import engine
from lance_core.expressions.cost_limits import check_cost
from lance_core.expressions.json_functions import FUNCTIONS, UnsupportedPath, parse_path
from lance_core.expressions.literal_coercion import InvalidExpression, coerce_literal

if TYPE_CHECKING:
    from datafusion import Expr

Path = tuple[str, ...]

_COMPARE: dict[str, Callable[["Expr", "Expr"], "Expr"]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CHECKED_ONLY = ("IS DISTINCT FROM", "IS NOT DISTINCT FROM")
_LOGIC: dict[str, Callable[["Expr", "Expr"], "Expr"]] = {"AND": operator.and_, "OR": operator.or_}
_ARITHMETIC = ("+", "-", "*", "/", "%")
_VOLATILE = ("random", "rand", "uuid")
_UNSUPPORTED = {
    "AggregateFunction": "an aggregate",
    "Exists": "a subquery",
    "GroupingSet": "a grouping set",
    "InSubquery": "a subquery",
    "OuterReferenceColumn": "a column of an outer query",
    "Placeholder": "a parameter",
    "ScalarSubquery": "a subquery",
    "ScalarVariable": "a variable",
    "SetComparison": "a subquery",
    "Unnest": "unnest",
    "Wildcard": "a wildcard",
    "WindowFunction": "a window function",
}


def resolve(expr: "Expr", schema: pa.Schema) -> "Expr":
    """Return the expression with every literal that is compared with a column in the type of the column."""
    match expr.variant_name():
        case "BinaryExpr":
            return _resolve_binary(expr, schema)
        case "Not":
            return ~resolve(expr.rex_call_operands()[0], schema)
        case "Between":
            subject, low, high = expr.rex_call_operands()
            if (target := type_at(column_path(subject), schema)) is not None:
                return subject.between(_coerce(low, target), _coerce(high, target), negated=expr.to_variant().negated())
        case "InList":
            subject, *listed = expr.rex_call_operands()
            if (target := type_at(column_path(subject), schema)) is not None:
                values = [_coerce(value, target) for value in listed]
                if all(value is original for value, original in zip(values, listed, strict=True)):
                    return expr
                return engine.is_in(subject, values, negated=expr.to_variant().negated())
        case "ScalarFunction" if expr.rex_call_operator() == "regexp_match":
            # It returns a list of groups; as a condition it asks whether there was a match.
            return expr.is_not_null()
    return expr


def is_simplified(expr: "Expr", schema: pa.Schema) -> bool:
    """Return whether the expression compares a column with a literal of its type, and needs no simplification.

    Simplifying takes longer than everything else that a point lookup does with its condition.
    """
    if expr.variant_name() != "BinaryExpr" or expr.rex_call_operator() not in _COMPARE:
        return False
    left, right = expr.rex_call_operands()
    if left.variant_name() != "Column" or right.variant_name() != "Literal":
        return False
    column_type, value = type_at(column_path(left), schema), right.python_value()
    if column_type is None or pa.types.is_boolean(column_type):
        return False
    return value.is_valid and bool(value.type == column_type)


def check_supported(expr: "Expr") -> None:
    """Raise `InvalidExpression` for an expression that a predicate or a projection must not contain.

    The cost comes first: a walk over the operands of a CASE visits the tested expression once for each branch.
    """
    check_cost(expr)
    for part in walk_expr(expr):
        variant = part.variant_name()
        if description := _UNSUPPORTED.get(variant):
            raise InvalidExpression(
                f"{description} cannot be evaluated row by row; compute it first and write its value"
            )
        if variant == "ScalarFunction" and (function := part.rex_call_operator()) in _VOLATILE:
            raise InvalidExpression(f"{function}() is not deterministic; write a value, or compute a column first")
        if variant == "ScalarFunction" and function in FUNCTIONS and not FUNCTIONS[function].by_key:
            _check_json_path(part)


def _check_json_path(call: "Expr") -> None:
    path = call.rex_call_operands()[1]
    if path.variant_name() == "Literal" and isinstance(text := path.python_value().as_py(), str):
        try:
            parse_path(text)
        except UnsupportedPath as error:
            raise InvalidExpression(str(error)) from error


def walk_expr(expr: "Expr") -> Iterator["Expr"]:
    """Yield the expression and all its parts, except those of literals, columns and unsupported expressions."""
    pending = [expr]
    while pending:
        part = pending.pop()
        yield part
        variant = part.variant_name()
        if variant in _UNSUPPORTED or variant in ("Column", "Literal"):
            continue
        try:
            pending.extend(part.rex_call_operands())
        except RuntimeError as error:
            raise InvalidExpression(f"the expression {part.canonical_name()} is not supported; remove it") from error


def columns_in(expr: "Expr") -> frozenset[str]:
    """Return the top-level columns that the expression reads."""
    return frozenset(part.to_variant().name() for part in walk_expr(expr) if part.variant_name() == "Column")


def column_path(expr: "Expr") -> Path | None:
    """Return the path of a column or of a field inside one; `None` for any other expression."""
    names: list[str] = []
    while expr.variant_name() == "ScalarFunction" and expr.rex_call_operator() == "get_field":
        expr, *fields = expr.rex_call_operands()
        for field in reversed(fields):
            if field.variant_name() != "Literal" or not isinstance(name := field.python_value().as_py(), str):
                return None
            names.append(name)
    if expr.variant_name() != "Column":
        return None
    return (expr.to_variant().name(), *reversed(names))


def type_at(path: Path | None, schema: pa.Schema) -> pa.DataType | None:
    """Return the type of a column or of a field inside structs; `None` if the path leads to none."""
    if path is None or (index := schema.get_field_index(path[0])) < 0:
        return None
    arrow = schema.field(index).type
    for name in path[1:]:
        if not pa.types.is_struct(arrow) or (child := arrow.get_field_index(name)) < 0:
            return None
        arrow = arrow.field(child).type
    return arrow


def flatten_operands(expr: "Expr", operation: str) -> list["Expr"]:
    """Return the operands of a chain of one logical operator, left to right.

    The chain is walked without recursion, because it can be long.
    """
    operands: list[Expr] = []
    pending = [expr]
    while pending:
        part = pending.pop()
        if part.variant_name() == "BinaryExpr" and part.rex_call_operator() == operation:
            left, right = part.rex_call_operands()
            pending += (right, left)
        else:
            operands.append(part)
    return operands


def join_balanced(parts: list["Expr"], operation: str) -> "Expr":
    """Join expressions by one logical operator, as a balanced tree of logarithmic depth."""
    join = _LOGIC[operation]
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        parts = [join(*pair) for pair in pairs] + ([parts[-1]] if len(parts) % 2 else [])
    return parts[0]


def display_text(expr: "Expr") -> str:
    """Return the expression as text for messages, its columns without DataFusion's placeholder for the table."""
    return expr.canonical_name().replace("?table?.", "")


def build_comparison(left: "Expr", operation: str, right: "Expr") -> "Expr":
    return _COMPARE[operation](left, right)


def _resolve_binary(expr: "Expr", schema: pa.Schema) -> "Expr":
    operation = expr.rex_call_operator()
    if operation in _LOGIC:
        return join_balanced([resolve(part, schema) for part in flatten_operands(expr, operation)], operation)
    if operation not in _COMPARE and operation not in _CHECKED_ONLY:
        return expr
    left, right = expr.rex_call_operands()
    if (target := type_at(column_path(left), schema)) is not None:
        right = _cast_integer(_coerce(right, target), target)
    elif (target := type_at(column_path(right), schema)) is not None:
        left = _coerce(left, target)
    else:
        return expr
    return build_comparison(left, operation, right) if operation in _COMPARE else expr


def _coerce(expr: "Expr", target: pa.DataType) -> "Expr":
    variant = expr.variant_name()
    if variant == "Literal" or _is_literal_arithmetic(expr):
        value = expr.python_value() if variant == "Literal" else engine.evaluate_constant(expr)
        coerced = coerce_literal(value, target)
        return expr if coerced is value else engine.literal(coerced)
    if variant == "Cast" and pa.types.is_timestamp(target) and target.unit != "ns":
        return _in_microseconds(expr)
    return expr


def _cast_integer(expr: "Expr", target: pa.DataType) -> "Expr":
    """Return an integer literal in the type of its column, as simplifying would do, so that `is_simplified` holds."""
    if expr.variant_name() != "Literal" or not pa.types.is_integer(target):
        return expr
    value = expr.python_value()
    if not value.is_valid or value.type == target or not pa.types.is_integer(value.type):
        return expr
    try:
        return engine.literal(value.cast(target))
    except pa.ArrowInvalid:  # out of the range of the column
        return expr


def _is_literal_arithmetic(expr: "Expr") -> bool:
    if expr.variant_name() == "Negative":
        return _is_literal_arithmetic(expr.rex_call_operands()[0])
    if expr.variant_name() != "BinaryExpr" or expr.rex_call_operator() not in _ARITHMETIC:
        return expr.variant_name() == "Literal"
    return all(_is_literal_arithmetic(part) for part in expr.rex_call_operands())


def _in_microseconds(cast: "Expr") -> "Expr":
    """Return a cast like `timestamp '2300-01-01'` in microseconds, as Lance does; in nanoseconds it is out of range."""
    (text,) = cast.rex_call_operands()
    if text.variant_name() != "Literal" or not cast.canonical_name().endswith(" AS Timestamp(ns))"):
        return cast
    return text.cast(pa.timestamp("us"))
