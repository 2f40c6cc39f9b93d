"""From the expression as written to the one that Lance means: literals in the column's type, checks on what is called.

DataFusion's expressions cannot be edited, so those parts that change are built anew: AND, OR, NOT, comparisons, IN and
BETWEEN between a column and literals. The rest passes as it is. What may not stand in a predicate or a projection
(aggregates, subqueries, parameters, functions that answer differently each time) is found by kind here, never by
looking at the text.
"""

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_core.expressions import engine
from lance_core.expressions.json_functions import FUNCTIONS, UnsupportedPath, path
from lance_core.expressions.literal_coercion import Misfit, fit

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
_CHECKED = ("IS DISTINCT FROM", "IS NOT DISTINCT FROM")
_LOGIC: dict[str, Callable[["Expr", "Expr"], "Expr"]] = {"AND": operator.and_, "OR": operator.or_}
_ARITHMETIC = ("+", "-", "*", "/", "%")
_VOLATILE = ("random", "rand", "uuid")
_REFUSED = {
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
    """`expr` with every literal that meets a column in the column's type."""
    match expr.variant_name():
        case "BinaryExpr":
            return _binary(expr, schema)
        case "Not":
            return ~resolve(expr.rex_call_operands()[0], schema)
        case "Between":
            subject, low, high = expr.rex_call_operands()
            if (target := type_at(column_path(subject), schema)) is not None:
                return subject.between(_fitted(low, target), _fitted(high, target), negated=expr.to_variant().negated())
        case "InList":
            subject, *given = expr.rex_call_operands()
            if (target := type_at(column_path(subject), schema)) is not None:
                values = [_fitted(value, target) for value in given]
                if all(value is was for value, was in zip(values, given, strict=True)):
                    return expr
                return engine.is_in(subject, values, negated=expr.to_variant().negated())
        case "ScalarFunction" if expr.rex_call_operator() == "regexp_match":
            # A list of groups where a boolean is due: what is asked is whether there was a match.
            return expr.is_not_null()
    return expr


def is_settled(expr: "Expr", schema: pa.Schema) -> bool:
    """Whether simplifying would change nothing, which takes longer than all else of a lookup's condition: a column
    beside a value of its type."""
    if expr.variant_name() != "BinaryExpr" or expr.rex_call_operator() not in _COMPARE:
        return False
    left, right = expr.rex_call_operands()
    if left.variant_name() != "Column" or right.variant_name() != "Literal":
        return False
    found, value = type_at(column_path(left), schema), right.python_value()
    return found is not None and not pa.types.is_boolean(found) and value.is_valid and bool(value.type == found)


def check(expr: "Expr") -> None:
    """Raise `Misfit` for what no predicate and no projection may hold."""
    for part in walk(expr):
        kind = part.variant_name()
        if what := _REFUSED.get(kind):
            raise Misfit(f"{what} cannot be evaluated row by row; compute it first and write its value")
        if kind == "ScalarFunction" and (function := part.rex_call_operator()) in _VOLATILE:
            raise Misfit(f"{function}() answers differently each time it is asked")
        if kind == "ScalarFunction" and function in FUNCTIONS and not FUNCTIONS[function].by_key:
            _check_json_path(part)


def _check_json_path(call: "Expr") -> None:
    asked = call.rex_call_operands()[1]
    if asked.variant_name() == "Literal" and isinstance(text := asked.python_value().as_py(), str):
        try:
            path(text)
        except UnsupportedPath as error:
            raise Misfit(str(error)) from error


def walk(expr: "Expr") -> Iterator["Expr"]:
    waiting = [expr]
    while waiting:
        part = waiting.pop()
        yield part
        kind = part.variant_name()
        if kind in _REFUSED or kind in ("Column", "Literal"):
            continue
        try:
            waiting.extend(part.rex_call_operands())
        except RuntimeError as error:
            raise Misfit(f"{part.canonical_name()} is a kind of expression that is not supported") from error


def columns_in(expr: "Expr") -> frozenset[str]:
    """The top-level columns that must be read."""
    return frozenset(part.to_variant().name() for part in walk(expr) if part.variant_name() == "Column")


def column_path(expr: "Expr") -> Path | None:
    """The path of a column or of a field inside one; None for anything else."""
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
    """The type at a path through structs, if it is one."""
    if path is None or (index := schema.get_field_index(path[0])) < 0:
        return None
    found = schema.field(index).type
    for name in path[1:]:
        if not pa.types.is_struct(found) or (child := found.get_field_index(name)) < 0:
            return None
        found = found.field(child).type
    return found


def operands(expr: "Expr", operation: str) -> list["Expr"]:
    """What a chain of one logical operator joins, left to right. Not by recursion: chains are long."""
    found: list[Expr] = []
    waiting = [expr]
    while waiting:
        part = waiting.pop()
        if part.variant_name() == "BinaryExpr" and part.rex_call_operator() == operation:
            left, right = part.rex_call_operands()
            waiting += (right, left)
        else:
            found.append(part)
    return found


def joined(parts: list["Expr"], operation: str) -> "Expr":
    """The parts under one operator, as a tree that is shallow."""
    join = _LOGIC[operation]
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        parts = [join(*pair) for pair in pairs] + ([parts[-1]] if len(parts) % 2 else [])
    return parts[0]


def shown_text(expr: "Expr") -> str:
    """For people: how the expression reads, its columns without the name of a table that is none."""
    return expr.canonical_name().replace("?table?.", "")


def compare(left: "Expr", operation: str, right: "Expr") -> "Expr":
    return _COMPARE[operation](left, right)


def _binary(expr: "Expr", schema: pa.Schema) -> "Expr":
    operation = expr.rex_call_operator()
    if operation in _LOGIC:
        return joined([resolve(part, schema) for part in operands(expr, operation)], operation)
    if operation not in _COMPARE and operation not in _CHECKED:
        return expr
    left, right = expr.rex_call_operands()
    if (target := type_at(column_path(left), schema)) is not None:
        right = _narrowed(_fitted(right, target), target)
    elif (target := type_at(column_path(right), schema)) is not None:
        left = _fitted(left, target)
    else:
        return expr
    return compare(left, operation, right) if operation in _COMPARE else expr


def _fitted(expr: "Expr", target: pa.DataType) -> "Expr":
    kind = expr.variant_name()
    if kind == "Literal" or _is_literal_arithmetic(expr):
        value = expr.python_value() if kind == "Literal" else engine.constant(expr)
        fitted = fit(value, target)
        return expr if fitted is value else engine.literal(fitted)
    if kind == "Cast" and pa.types.is_timestamp(target) and target.unit != "ns":
        return _in_microseconds(expr)
    return expr


def _narrowed(expr: "Expr", target: pa.DataType) -> "Expr":
    """A whole number in the type of its column, as simplifying would have it: then nothing is left to be simplified."""
    if expr.variant_name() != "Literal" or not pa.types.is_integer(target):
        return expr
    value = expr.python_value()
    if not value.is_valid or value.type == target or not pa.types.is_integer(value.type):
        return expr
    try:
        return engine.literal(value.cast(target))
    except pa.ArrowInvalid:  # beyond all that the column can hold
        return expr


def _is_literal_arithmetic(expr: "Expr") -> bool:
    if expr.variant_name() == "Negative":
        return _is_literal_arithmetic(expr.rex_call_operands()[0])
    if expr.variant_name() != "BinaryExpr" or expr.rex_call_operator() not in _ARITHMETIC:
        return expr.variant_name() == "Literal"
    return all(_is_literal_arithmetic(part) for part in expr.rex_call_operands())


def _in_microseconds(cast: "Expr") -> "Expr":
    """`timestamp '2300-01-01'` as Lance reads it; in nanoseconds it is out of range."""
    (text,) = cast.rex_call_operands()
    if text.variant_name() != "Literal" or not cast.canonical_name().endswith(" AS Timestamp(ns))"):
        return cast
    return text.cast(pa.timestamp("us"))
