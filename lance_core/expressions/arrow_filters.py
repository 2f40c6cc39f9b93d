"""Arrow filters: translates a `pyarrow.compute.Expression` to a condition in Lance SQL that selects the same rows.

The SQL follows pyarrow where the two languages differ: no comparison with NaN is true except `!=`, `is_in` is never
null, and a literal is not rounded to the type of its column. Indices use the SQL like one that a user wrote, and the
history shows it. Parts that have no SQL of the same meaning are not translated: a scan evaluates them with pyarrow
(`split_filter`), and a write refuses them by name (`to_sql`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInput
from lance_core.expressions.arrow_expressions import ArrowNode, CallNode, FieldNode, LiteralNode, fields_of, read_tree
from lance_core.format.field_paths import unknown_column_message

Condition: TypeAlias = str | pc.Expression
"""Condition in Lance SQL, or as an expression of pyarrow."""

_COMPARISONS = {
    "equal": "=",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_LOGIC = {"and_kleene": " AND ", "or_kleene": " OR "}
_MATCH_NULL, _SKIP_NULL = 0, 1
"""Behaviours of `is_in` that return true or false for a null; the others return null."""
_NESTING_MAX = 12
"""Maximum nesting of the translated SQL, below the limit of its parser."""
_LIST_VALUES_MAX = 50_000
_UNIT_SECONDS = {"s": Fraction(1), "ms": Fraction(1, 10**3), "us": Fraction(1, 10**6), "ns": Fraction(1, 10**9)}
_DAY_SECONDS = Fraction(86_400)
_EXACT_IN_FLOATS, _EXACT_IN_DOUBLES = 2**24, 2**53
_TEXT_YEARS = range(1700, 2200)
"""Years whose nanoseconds since 1970 are 64-bit integers, so that the engine reads timestamps in text exactly."""


class _Untranslatable(Exception):
    """A part of an expression that has no SQL of the same meaning. The message names it."""


@dataclass(frozen=True, slots=True)
class SplitFilter:
    """Filter that is evaluated in two steps."""

    sql: str | None
    """Condition that a scan evaluates, with its indices. Every row that matches the filter matches it."""
    residual: pc.Expression | None = None
    """The whole filter, if `sql` expresses only a part of it. pyarrow evaluates it on the rows that match `sql`."""
    columns: tuple[str, ...] = ()
    """Columns that the residual reads."""


def to_sql(condition: Condition, schema: pa.Schema, what: str = "filter") -> str:
    """Return a condition as SQL. Raise `InvalidInput` that names the part of an expression that SQL cannot express.

    >>> to_sql((pc.field("price") > 1.5) & pc.field("city").isin(["Oslo"]), pa.schema(
    ...     [("price", pa.int64()), ("city", pa.string())]))
    "`price` > 1 AND (`city` IS NOT NULL AND `city` IN ('Oslo'))"
    """
    if not isinstance(condition, pc.Expression):
        return condition
    tree = read_tree(condition)
    _check_fields(tree, schema)
    try:
        return _Translator(schema).condition(tree)
    except _Untranslatable as error:
        raise InvalidInput(
            f"{what}={condition} cannot be evaluated here: {error}; write the condition as a string of SQL"
        ) from error


def split_filter(condition: Condition | None, schema: pa.Schema) -> SplitFilter:
    """Return the part of a condition that SQL expresses, and the rest."""
    if condition is None or not isinstance(condition, pc.Expression):
        return SplitFilter(condition)
    tree = read_tree(condition)
    _check_fields(tree, schema)
    translator, translated, is_complete = _Translator(schema), list[str](), True
    for part in _operands(tree, "and_kleene"):
        try:
            translated.append(translator.condition(part))
        except _Untranslatable:
            is_complete = False
    sql = _join(translated, " AND ") if translated else None
    if is_complete:
        return SplitFilter(sql)
    return SplitFilter(sql, condition, tuple(dict.fromkeys(path[0] for path in fields_of(tree))))


def _check_fields(tree: ArrowNode, schema: pa.Schema) -> None:
    for path in fields_of(tree):
        if schema.get_field_index(path[0]) < 0:
            raise InvalidInput(unknown_column_message(path[0], schema.names))


def _operands(node: ArrowNode, function: str) -> list[ArrowNode]:
    """Return the operands of a chain of calls of one function, left to right."""
    operands, pending = list[ArrowNode](), [node]
    while pending:
        part = pending.pop()
        if isinstance(part, CallNode) and part.function == function:
            pending += reversed(part.arguments)
        else:
            operands.append(part)
    return operands


def _join(parts: list[str], operation: str) -> str:
    return operation.join(parts) if len(parts) == 1 else operation.join(map(_enclose, parts))


def _enclose(sql: str) -> str:
    return f"({sql})" if " AND " in sql or " OR " in sql or sql.startswith("NOT ") else sql


class _Translator:
    """Translator of the conditions over one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def condition(self, node: ArrowNode, depth: int = 0) -> str:
        """Return the SQL of a boolean expression."""
        if depth > _NESTING_MAX:
            raise _Untranslatable(f"its conditions are nested deeper than {_NESTING_MAX}")
        if isinstance(node, LiteralNode):
            return _boolean(node.value)
        if isinstance(node, FieldNode):
            if not pa.types.is_boolean(self._type(node)):
                raise _Untranslatable(f"the column {node.path[-1]!r} is not boolean")
            return self._name(node)
        if node.function in _LOGIC:
            parts = [self.condition(each, depth + 1) for each in _operands(node, node.function)]
            return _join(parts, _LOGIC[node.function])
        if node.function == "invert":
            return f"NOT ({self.condition(node.arguments[0], depth + 1)})"
        if node.function in _COMPARISONS:
            return self._comparison(_COMPARISONS[node.function], *node.arguments)
        if (translate := _FUNCTIONS.get(node.function)) is None:
            raise _Untranslatable(f"the function {node.function!r} of pyarrow has no equal in SQL")
        return translate(self, node)

    def is_null(self, node: CallNode) -> str:
        field = self._field(node)
        nan_is_null = node.options["nan_is_null"].as_py() and pa.types.is_floating(self._type(field))
        name = self._name(field)
        return f"{name} IS NULL OR isnan({name})" if nan_is_null else f"{name} IS NULL"

    def is_valid(self, node: CallNode) -> str:
        return f"{self._name(self._field(node))} IS NOT NULL"

    def is_nan(self, node: CallNode) -> str:
        field = self._field(node)
        if not pa.types.is_floating(self._type(field)):
            raise _Untranslatable(f"is_nan() of the column {field.path[-1]!r}, which has no floats")
        return f"isnan({self._name(field)})"

    def matches_text(self, node: CallNode) -> str:
        """Return the SQL of a function that searches for a literal string."""
        field, pattern = self._field(node), node.options["pattern"].as_py()
        if node.options.get("ignore_case", pa.scalar(False)).as_py():
            raise _Untranslatable(f"the function {node.function!r} ignores case by other rules than SQL")
        if not _is_text(self._type(field)):
            raise _Untranslatable(f"the column {field.path[-1]!r} holds no text")
        before, after = {"starts_with": ("", "%"), "ends_with": ("%", ""), "match_substring": ("%", "%")}[node.function]
        for special in ("\\", "%", "_"):
            pattern = pattern.replace(special, f"\\{special}")
        return f"{self._name(field)} LIKE {_quote(f'{before}{pattern}{after}')}"

    def is_in(self, node: CallNode) -> str:
        """Return the SQL of `is_in`, which returns true or false for a null too."""
        field, options = self._field(node), node.options
        behaviour = options["null_matching_behavior"].as_py() if "null_matching_behavior" in options else _MATCH_NULL
        if behaviour not in (_MATCH_NULL, _SKIP_NULL):
            raise _Untranslatable("is_in() that returns null")
        name, in_list = self._name(field), self._in_list(node, field)
        selected = [f"{name} IS NOT NULL AND {in_list}"] if in_list else []
        if behaviour == _MATCH_NULL and options["value_set"].values.null_count:
            selected.append(f"{name} IS NULL")
        return _join(selected, " OR ") if selected else "false"

    def _in_list(self, node: CallNode, field: FieldNode) -> str:
        """Return the SQL of `is_in` for other rows than nulls; empty if the list has no values."""
        arrow, values = self._type(field), node.options["value_set"].values
        if len(values) > _LIST_VALUES_MAX:
            raise _Untranslatable(f"is_in() with {len(values):,} values")
        listed = [_literal(value, arrow) for value in _converted(values.drop_null(), arrow)]
        return f"{self._name(field)} IN ({', '.join(listed)})" if listed else ""

    def if_else(self, node: CallNode) -> str:
        """Return the SQL of `is_in` that is null for a null, which is how DuckDB passes IN."""
        condition, listed, other = node.arguments
        is_null_of_null = isinstance(other, LiteralNode) and not other.value.is_valid
        if (
            isinstance(condition, CallNode)
            and isinstance(listed, CallNode)
            and (condition.function, listed.function) == ("is_valid", "is_in")
            and condition.arguments == listed.arguments
            and listed.options["value_set"].values.null_count < len(listed.options["value_set"].values)
            and is_null_of_null
        ):
            return self._in_list(listed, self._field(listed))
        raise _Untranslatable("the function 'if_else' of pyarrow has no equal in SQL")

    def _field(self, node: CallNode) -> FieldNode:
        field = node.arguments[0]
        if not isinstance(field, FieldNode):
            raise _Untranslatable(f"the function {node.function!r} of another value than a column")
        return field

    def _type(self, field: FieldNode) -> pa.DataType:
        arrow = self._schema.field(field.path[0]).type
        for name in field.path[1:]:
            if not pa.types.is_struct(arrow) or (at := arrow.get_field_index(name)) < 0:
                raise InvalidInput(f"there is no column {'.'.join(field.path)!r}: {name!r} is no field of {arrow}")
            arrow = arrow.field(at).type
        return arrow.value_type if pa.types.is_dictionary(arrow) else arrow

    def _name(self, field: FieldNode) -> str:
        return ".".join("`" + name.replace("`", "``") + "`" for name in field.path)

    def _comparison(self, operation: str, left: ArrowNode, right: ArrowNode) -> str:
        if isinstance(left, LiteralNode) and isinstance(right, FieldNode):
            left, right, operation = right, left, _MIRRORED.get(operation, operation)
        if not isinstance(left, FieldNode):
            raise _Untranslatable("it compares other values than a column with a literal or with a column")
        arrow, name = self._type(left), self._name(left)
        if isinstance(right, LiteralNode):
            return _compare(name, arrow, operation, right.value)
        if isinstance(right, FieldNode) and self._type(right) == arrow and _is_comparable(arrow):
            return f"{name} {operation} {self._name(right)}"
        raise _Untranslatable("it compares a column with another value than a literal or a column of the same type")


_FUNCTIONS: dict[str, Callable[[_Translator, CallNode], str]] = {
    "is_null": _Translator.is_null,
    "is_valid": _Translator.is_valid,
    "is_nan": _Translator.is_nan,
    "is_in": _Translator.is_in,
    "if_else": _Translator.if_else,
    "starts_with": _Translator.matches_text,
    "ends_with": _Translator.matches_text,
    "match_substring": _Translator.matches_text,
}


def _compare(name: str, arrow: pa.DataType, operation: str, literal: pa.Scalar) -> str:
    """Return the SQL of a comparison of a column with a literal of any type."""
    if not literal.is_valid:
        return "cast(null as boolean)"
    if _is_same_kind(arrow, literal.type):
        if not pa.types.is_boolean(arrow) or operation in ("=", "!="):
            return f"{name} {operation} {_literal(literal, arrow)}"
    elif (steps := _steps(literal, arrow)) is not None:
        return _compare_steps(name, arrow, operation, steps)
    elif pa.types.is_floating(arrow) and (value := _float(literal, arrow)) is not None:
        return _compare_float(name, arrow, operation, value)
    raise _Untranslatable(f"it compares a column of type {arrow} with a literal of type {literal.type}")


def _is_same_kind(arrow: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether both types are boolean, both hold text or both hold bytes."""
    return any(holds(arrow) and holds(kind) for holds in (pa.types.is_boolean, _is_text, _is_bytes))


def _float(literal: pa.Scalar, arrow: pa.DataType) -> float | None:
    """Return a literal as the float with which pyarrow compares a column of floats; `None` if pyarrow compares it in
    another way."""
    value = literal.as_py()
    if pa.types.is_floating(literal.type):
        return float(value)
    exact = _EXACT_IN_FLOATS if arrow.bit_width == 32 else _EXACT_IN_DOUBLES
    return float(value) if pa.types.is_integer(literal.type) and abs(value) < exact else None


def _steps(literal: pa.Scalar, arrow: pa.DataType) -> Fraction | None:
    """Return the literal in units of the smallest difference between two values of a column, such as 0.01 for a decimal
    with two digits, microseconds or days. `None` if the two types are not compared like exact numbers."""
    kind = literal.type
    if pa.types.is_integer(arrow) or pa.types.is_decimal(arrow):
        unit = Fraction(1, 10**arrow.scale) if pa.types.is_decimal(arrow) else Fraction(1)
        if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
            return Fraction(literal.as_py()) / unit
        if pa.types.is_floating(kind) and pa.types.is_integer(arrow) and math.isfinite(literal.as_py()):
            return Fraction(literal.as_py())
        return None
    column_unit, literal_unit = _seconds(arrow), _seconds(kind)
    if column_unit is None or literal_unit is None or column_unit[0] != literal_unit[0]:
        return None
    bits = pa.int32() if kind.bit_width == 32 else pa.int64()
    return Fraction(literal.cast(bits).as_py()) * literal_unit[1] / column_unit[1]


def _seconds(arrow: pa.DataType) -> tuple[str, Fraction] | None:
    """Return the kind of a temporal type and the seconds of its unit. Types of one kind are compared as numbers."""
    if pa.types.is_date(arrow):
        return "local", _DAY_SECONDS if pa.types.is_date32(arrow) else _UNIT_SECONDS["ms"]
    if pa.types.is_timestamp(arrow):
        return "local" if arrow.tz is None else "instant", _UNIT_SECONDS[arrow.unit]
    if pa.types.is_time(arrow):
        return "time", _UNIT_SECONDS[arrow.unit]
    if pa.types.is_duration(arrow):
        return "duration", _UNIT_SECONDS[arrow.unit]
    return None


def _compare_steps(name: str, arrow: pa.DataType, operation: str, steps: Fraction) -> str:
    """Return the SQL of a comparison of exact numbers. A literal between two values of the column is not rounded."""
    lowest, highest = _step_range(arrow)
    floor = math.floor(steps)
    if lowest <= floor <= highest and floor == steps:
        return f"{name} {operation} {_step_literal(floor, arrow)}"
    lower = _step_literal(min(max(floor, lowest), highest), arrow)
    if operation in ("=", "!="):
        never = f"{name} > {lower} AND {name} < {lower}"
        return never if operation == "=" else f"NOT ({never})"
    is_above = operation in (">", ">=")
    if floor < lowest:
        return f"{name} >= {lower}" if is_above else f"{name} < {lower}"
    return f"{name} > {lower}" if is_above else f"{name} <= {lower}"


def _step_range(arrow: pa.DataType) -> tuple[int, int]:
    if pa.types.is_decimal(arrow):
        return 1 - 10**arrow.precision, 10**arrow.precision - 1
    if pa.types.is_unsigned_integer(arrow):
        return 0, 2**arrow.bit_width - 1
    return -(2 ** (arrow.bit_width - 1)), 2 ** (arrow.bit_width - 1) - 1


def _step_literal(steps: int, arrow: pa.DataType, *, as_text: bool = True) -> str:
    """Return a value of the column, given in its smallest unit, as SQL: a timestamp as text, or with its type."""
    if pa.types.is_integer(arrow):
        return str(steps)
    if pa.types.is_decimal(arrow):
        sign, digits = "-" if steps < 0 else "", str(abs(steps)).rjust(arrow.scale + 1, "0")
        return f"'{sign}{digits[: -arrow.scale]}.{digits[-arrow.scale :]}'" if arrow.scale > 0 else f"'{steps}'"
    if pa.types.is_timestamp(arrow):
        moment = np.datetime64(steps, arrow.unit)
        if as_text and int(moment.astype("datetime64[Y]").astype(np.int64)) + 1970 in _TEXT_YEARS:
            return f"'{moment}{'' if arrow.tz is None else 'Z'}'"
        zone = "None" if arrow.tz is None else f'Some("{arrow.tz}")'
        return f"arrow_cast({steps}, 'Timestamp({_UNIT_NAMES[arrow.unit]}, {zone})')"
    bits = "Int32" if arrow.bit_width == 32 else "Int64"
    return f"arrow_cast(arrow_cast({steps}, '{bits}'), '{_engine_type(arrow)}')"


_UNIT_NAMES = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}


def _engine_type(arrow: pa.DataType) -> str:
    if pa.types.is_date(arrow):
        return f"Date{arrow.bit_width}"
    if pa.types.is_duration(arrow):
        return f"Duration({_UNIT_NAMES[arrow.unit]})"
    return f"Time{arrow.bit_width}({_UNIT_NAMES[arrow.unit]})"


def _compare_float(name: str, arrow: pa.DataType, operation: str, value: float) -> str:
    """Return the SQL of a comparison of floats. The engine orders NaN above all numbers; pyarrow does not order it."""
    if pa.types.is_float16(arrow):
        raise _Untranslatable(f"it compares a column of type {arrow}")
    if math.isnan(value):
        never = f"{name} > 1 AND {name} < 0"
        return f"NOT ({never})" if operation == "!=" else never
    lower = _floor_float(value, arrow)
    if operation in ("=", "!="):
        if lower == value:
            return f"{name} {operation} {_float_text(value)}"
        never = f"{name} > 1 AND {name} < 0"
        return never if operation == "=" else f"NOT ({never})"
    if lower != value:
        operation = ">" if operation in (">", ">=") else "<="
    return f"{name} {operation} {_float_text(lower)} AND NOT isnan({name})"


def _floor_float(value: float, arrow: pa.DataType) -> float:
    """Return the largest float of the column that is not above the value."""
    if pa.types.is_float64(arrow):
        return value
    with np.errstate(over="ignore"):
        nearest = np.float32(value)
    return float(nearest if float(nearest) <= value else np.nextafter(nearest, np.float32("-inf")))


def _float_text(value: float) -> str:
    return repr(value) if math.isfinite(value) else f"cast('{value}' as double)"


def _converted(values: pa.Array, arrow: pa.DataType) -> list[pa.Scalar]:
    """Return the values in the type of the column."""
    try:
        converted = values.cast(arrow)
    except pa.ArrowException as error:
        raise _Untranslatable(f"is_in() compares a column of type {arrow} with values of {values.type}") from error
    if pa.types.is_floating(arrow) and any(not math.isfinite(value) or value == 0 for value in converted.to_pylist()):
        raise _Untranslatable("is_in() compares floats with zero, infinity or NaN")
    return list(converted)


def _literal(value: pa.Scalar, arrow: pa.DataType) -> str:
    """Return a value that has the type of its column as SQL."""
    if pa.types.is_boolean(arrow):
        return _boolean(value)
    if _is_text(arrow):
        return _quote(value.as_py())
    if _is_bytes(arrow):
        if pa.types.is_fixed_size_binary(arrow) and len(value.as_py()) != arrow.byte_width:
            raise _Untranslatable(f"it compares a column of type {arrow} with {len(value.as_py())} bytes")
        return f"X'{value.as_py().hex()}'"
    if pa.types.is_float32(arrow) or pa.types.is_float64(arrow):
        return repr(value.as_py())
    if (steps := _steps(value, arrow)) is not None:
        return _step_literal(int(steps), arrow, as_text=False)  # the engine needs one type for the values of a list
    raise _Untranslatable(f"it compares a column of type {arrow}")


def _boolean(value: pa.Scalar) -> str:
    if pa.types.is_null(value.type) or (pa.types.is_boolean(value.type) and not value.is_valid):
        return "cast(null as boolean)"
    if not pa.types.is_boolean(value.type):
        raise _Untranslatable(f"the literal {value} is not boolean")
    return "true" if value.as_py() else "false"


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _is_text(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_string(arrow) or pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow))


def _is_bytes(arrow: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(arrow)
        or pa.types.is_large_binary(arrow)
        or pa.types.is_binary_view(arrow)
        or pa.types.is_fixed_size_binary(arrow)
    )


def _is_comparable(arrow: pa.DataType) -> bool:
    """Return whether two columns of this type are compared alike by pyarrow and by the engine."""
    is_exact = pa.types.is_integer(arrow) or pa.types.is_decimal(arrow) or _seconds(arrow) is not None
    return bool(is_exact or _is_text(arrow) or pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow))
