"""Cost limits: refuses an expression that would take unbounded time to plan, or unbounded memory to evaluate.

A user or a request can pass any expression, and DataFusion bounds neither cost. Its planner copies some operands:
BETWEEN becomes two comparisons, COALESCE and CASE repeat the tested expression in each branch, and a comparison with a
boolean repeats it, too. Such expressions nested twenty deep take minutes. `lpad(s, 2147483647, 'x')` allocates two
gigabytes for each row, and a failed allocation ends the process.

Both costs follow from the shape of the expression, so `check_cost` computes them before anything is planned, and visits
each part once. The parser tries alternatives at each parenthesis, so `check_text` limits the nesting before the SQL is
parsed. `002-cost-limits-of-expressions.md` gives the measurements.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.expressions import engine
from lance_core.expressions.literal_coercion import InvalidExpression

if TYPE_CHECKING:
    from datafusion import Expr

SQL_CHARACTERS_MAX = 4_000_000
OPERATORS_MAX = 2_000
"""Largest number of operators. The engine recurses for each; 10,000 overflow the stack of the process."""
NESTING_MAX = 32
"""Largest depth of parentheses, brackets and CASE. The parser stops at 50 nested calls, and then tries every
alternative at every depth: 40 nested NOT take minutes."""
COPIES_MAX = 10_000
"""Largest number of parts that the planner may add by copying operands; planning them takes about a second."""
ROW_BYTES_MAX = 1 << 20
"""Largest number of bytes that the functions of an expression may return for a row from literals alone."""
GROWTH_MAX = 1_000
"""Largest factor by which the functions of an expression may multiply the bytes of a row."""
BATCH_BYTES_MAX = 1 << 27
"""Bytes that are evaluated at once. Larger batches are evaluated in slices."""
QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`")
"""Text and names in quotes."""
QUOTED_OR_COMMENT = re.compile(rf"{QUOTED.pattern}|--[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
"""Quoted text, quoted names and comments, whichever begins first."""
_OPERATOR = re.compile(r"\b(?:and|or)\b|[\w)\]]\s*[-+*/%|&^]", re.IGNORECASE)
_NESTING = re.compile(r"(?P<open>[(\[{]|\bcase\b)|(?P<close>[)\]}]|\bend\b)", re.IGNORECASE)
_SCALAR_BYTES = 16
_CHARACTER_BYTES = 4
_COPIED_TWICE = ("Between", "Cast", "TryCast")
_COPIED_FUNCTIONS = ("coalesce", "ifnull", "nullif", "nvl", "nvl2")


@dataclass(frozen=True, slots=True)
class Size:
    """Upper bound for the size of a value: `constant` bytes plus `growth` times the bytes of the columns of the row."""

    constant: float = 0
    growth: float = 0

    def __add__(self, other: "Size") -> "Size":
        return Size(self.constant + other.constant, self.growth + other.growth)

    def times(self, count: float) -> "Size":
        return Size(self.constant * count, self.growth * count)

    def of_rows(self, rows: int, nbytes: int) -> float:
        """Return the bound for `rows` rows whose columns have `nbytes` bytes in total."""
        return self.constant * rows + self.growth * nbytes


NOTHING = Size()
_COLUMN = Size(growth=1)


def check_text(what: str, sql: str) -> None:
    """Raise `InvalidInput` if SQL is too long, has too many operators, or is nested too deep for its parser."""
    if len(sql) > SQL_CHARACTERS_MAX:
        raise InvalidInput(
            f"{what} has {len(sql):,} characters, and at most {SQL_CHARACTERS_MAX:,} are supported; join with a table "
            "instead"
        )
    if any("/*" in comment[2:] for comment in QUOTED_OR_COMMENT.findall(sql) if comment.startswith("/*")):
        raise InvalidInput(f"{what} has a comment within a comment; remove it")
    unquoted = QUOTED_OR_COMMENT.sub("x", sql)
    if (count := len(_OPERATOR.findall(unquoted))) > OPERATORS_MAX:
        raise InvalidInput(
            f"{what} has {count:,} operators (AND, OR, arithmetic), and at most {OPERATORS_MAX:,} are supported; write "
            "long lists as `x IN (...)`"
        )
    if (depth := _nesting_of(unquoted)) > NESTING_MAX:
        raise InvalidInput(
            f"{what} is nested too deeply: parentheses, brackets and CASE are {depth} deep, and at most {NESTING_MAX} "
            "are supported; remove parentheses that are not needed, or compute a column first"
        )


def _nesting_of(unquoted: str) -> int:
    """Return the depth of parentheses, brackets and CASE. A word END outside of a CASE closes nothing."""
    opened: list[bool] = []
    deepest = 0
    for match in _NESTING.finditer(unquoted):
        is_case = match[0].isalpha()
        if match["open"]:
            opened.append(is_case)
            deepest = max(deepest, len(opened))
        elif opened and opened[-1] == is_case:
            opened.pop()
    return deepest


def check_cost(expr: "Expr") -> Size:
    """Return the bound for the output of the functions of an expression. Raise `InvalidExpression` if it is too
    expensive."""
    cost = _cost_of(expr)
    output = cost.function_output
    if cost.planned - cost.parts > COPIES_MAX:
        raise InvalidExpression(
            "CASE, BETWEEN, COALESCE and casts are nested so deep that planning would take minutes; nest fewer of "
            "them, or compute a column first"
        )
    if output.constant > ROW_BYTES_MAX:
        raise InvalidExpression(
            f"its functions return up to {output.constant:,.0f} bytes for each row, and at most {ROW_BYTES_MAX:,} are "
            "supported; use smaller numbers in repeat(), lpad(), rpad(), replace() or range()"
        )
    if output.growth > GROWTH_MAX:
        raise InvalidExpression(
            f"its functions return up to {output.growth:,.0f} times the bytes of a row, and at most {GROWTH_MAX:,} "
            "times are supported; use smaller numbers in repeat() and shorter texts in replace()"
        )
    return output


@dataclass(frozen=True, slots=True)
class _Cost:
    """Cost of an expression, or of a part of one."""

    parts: float
    """Number of parts of the expression as written."""
    planned: float
    """Number of parts after the planner has copied operands."""
    size: Size
    """Bound for the value of the expression."""
    function_output: Size = NOTHING
    """Bound for the total of the values that functions of `_SIZES` in the expression return."""


def _cost_of(expr: "Expr") -> _Cost:
    match variant := expr.variant_name():
        case "Column":
            return _Cost(1, 1, _COLUMN)
        case "Literal":
            return _Cost(1, 1, _size_of_literal(expr))
        case "Case":
            return _cost_of_case(expr)
        case "InList":  # a list may have a hundred thousand values, and they are not copied
            return _sum([_cost_of(expr.rex_call_operands()[0])])
        case "BinaryExpr":
            return _sum([_cost_of(operand) for operand in _operands_of_chain(expr)])
    try:
        operands = expr.rex_call_operands()
    except RuntimeError:
        return _Cost(1, 1, NOTHING)  # `check_supported` names the variant
    costs = [_cost_of(operand) for operand in operands]
    if variant != "ScalarFunction":
        return _sum(costs, 2 if variant in _COPIED_TWICE else 1)
    function = expr.rex_call_operator()
    cost = _sum(costs, 2 if function in _COPIED_FUNCTIONS else 1)
    if (size_of := _SIZES.get(function)) is None:
        return cost
    size = size_of(function, operands, [cost.size for cost in costs])
    return replace(cost, size=size, function_output=cost.function_output + size)


def _operands_of_chain(expr: "Expr") -> list["Expr"]:
    """Return the operands of a chain of binary operators, without recursion: a chain may have two thousand."""
    operands = []
    while expr.variant_name() == "BinaryExpr":
        expr, right = expr.rex_call_operands()
        operands.append(right)
    return [*operands, expr]


def _cost_of_case(expr: "Expr") -> _Cost:
    """Return the cost of a CASE; `case x when 1 ... when 2 ...` compares a copy of `x` in each branch."""
    case = expr.to_variant()
    branches = case.when_then_expr()
    costs = [_cost_of(part) for branch in branches for part in branch]
    if (default := case.else_expr()) is not None:
        costs.append(_cost_of(default))
    total = _sum(costs)
    if (tested := case.expr()) is None:
        return total
    cost = _cost_of(tested)
    return replace(
        total,
        parts=total.parts + cost.parts,
        planned=total.planned + cost.planned * len(branches),
        function_output=total.function_output + cost.function_output.times(len(branches)),
    )


def _sum(costs: Sequence[_Cost], copies: int = 1) -> _Cost:
    return _Cost(
        1 + sum(cost.parts for cost in costs),
        1 + copies * sum(cost.planned for cost in costs),
        _total([cost.size for cost in costs]),
        _total([cost.function_output for cost in costs]),
    )


def _total(sizes: Sequence[Size]) -> Size:
    return sum(sizes, NOTHING)


def _size_of_literal(expr: "Expr") -> Size:
    value = expr.python_value()
    text = value.as_py() if pa.types.is_large_string(value.type) or _is_text(value.type) else None
    return Size(len(text) * _CHARACTER_BYTES if isinstance(text, str) else len(text) if text else _SCALAR_BYTES)


def _is_text(arrow: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(arrow)
        or pa.types.is_string_view(arrow)
        or pa.types.is_binary(arrow)
        or pa.types.is_large_binary(arrow)
        or pa.types.is_binary_view(arrow)
    )


def _size_of_repetition(function: str, operands: Sequence["Expr"], sizes: Sequence[Size]) -> Size:
    return sizes[0].times(_literal_count(function, operands[1]))


def _size_of_padding(function: str, operands: Sequence["Expr"], _sizes: Sequence[Size]) -> Size:
    return Size(_CHARACTER_BYTES * _literal_count(function, operands[1]))


def _size_of_resized(function: str, operands: Sequence["Expr"], sizes: Sequence[Size]) -> Size:
    added = sizes[2] if len(sizes) > 2 else Size(_SCALAR_BYTES)
    return sizes[0] + added.times(_literal_count(function, operands[1]))


def _size_of_replacement(function: str, operands: Sequence["Expr"], sizes: Sequence[Size]) -> Size:
    """Return the bound for `replace(text, pattern, replacement)`: each match, of at least one character, is replaced.

    A replacement may be inserted at every match. If both it and the text are from columns, the result may have the
    square of the bytes of a row, which has no bound.
    """
    replaced, replacement = sizes[0], sizes[2]
    if replaced.growth and replacement.growth:
        raise _unbounded(function, "both its text and its replacement from columns")
    shortest = 1
    is_literal = operands[1].variant_name() == "Literal"
    if function == "replace" and is_literal and isinstance(text := operands[1].python_value().as_py(), str):
        shortest = max(1, len(text))
    matches = replaced.constant / shortest + 1
    return replaced.times(max(1, replacement.constant / shortest)) + replacement.times(matches)


def _size_of_series(function: str, operands: Sequence["Expr"], _sizes: Sequence[Size]) -> Size:
    numbers = [_literal_number(function, operand) for operand in operands]
    start, stop, step = (0.0, *numbers, 1.0)[-3:] if len(numbers) == 1 else (*numbers, 1.0)[:3]
    return Size(_SCALAR_BYTES * (abs(stop - start) / max(1, abs(step)) + 1))


def _size_of_joined(function: str, _operands: Sequence["Expr"], sizes: Sequence[Size]) -> Size:
    if sizes[0].growth and sizes[1].growth:
        raise _unbounded(function, "both its list and its separator from columns")
    return sizes[0].times(1 + sizes[1].constant) + _total(sizes[1:])


def _size_of_separated(_function: str, operands: Sequence["Expr"], sizes: Sequence[Size]) -> Size:
    return _total(sizes[1:]) + sizes[0].times(len(operands))


def _size_of_translated(_function: str, _operands: Sequence["Expr"], sizes: Sequence[Size]) -> Size:
    return sizes[0].times(_CHARACTER_BYTES)


def _unbounded(function: str, arguments: str) -> InvalidExpression:
    return InvalidExpression(
        f"{function}() takes {arguments}, so its result may have the square of the bytes of a row; write one of them "
        "as a literal"
    )


def _literal_count(function: str, expr: "Expr") -> float:
    return max(0.0, _literal_number(function, expr))


def _literal_number(function: str, expr: "Expr") -> float:
    """Return the number that an argument evaluates to. Raise if it depends on the row, since nothing would bound it."""
    value = engine.evaluate_constant(expr).as_py() if _is_constant(expr) else None
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    raise InvalidExpression(
        f"{function}() has an argument that is not a number but {expr.canonical_name()}, so the size of its result is "
        "not known before it is evaluated; write a number"
    )


def _is_constant(expr: "Expr") -> bool:
    """Return whether an expression is arithmetic of literals."""
    match expr.variant_name():
        case "Literal":
            return True
        case "BinaryExpr" | "Negative" | "Cast":
            return all(map(_is_constant, expr.rex_call_operands()))
    return False


_SIZES: dict[str, Callable[[str, Sequence["Expr"], Sequence[Size]], Size]] = {
    "array_join": _size_of_joined,
    "array_repeat": _size_of_repetition,
    "array_resize": _size_of_resized,
    "array_to_string": _size_of_joined,
    "concat_ws": _size_of_separated,
    "generate_series": _size_of_series,
    "gen_series": _size_of_series,
    "list_join": _size_of_joined,
    "list_repeat": _size_of_repetition,
    "list_resize": _size_of_resized,
    "list_to_string": _size_of_joined,
    "lpad": _size_of_padding,
    "range": _size_of_series,
    "regexp_replace": _size_of_replacement,
    "repeat": _size_of_repetition,
    "replace": _size_of_replacement,
    "rpad": _size_of_padding,
    "translate": _size_of_translated,
}
"""Bounds of the functions whose results can be larger than their arguments."""
