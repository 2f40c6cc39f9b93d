"""Predicate tree: the nodes that planners, indices and conflict detection read instead of DataFusion expressions.

`node_from_expr` turns a simplified expression into small frozen nodes, `expr_from_node` turns nodes into an
expression, so that other packages can build predicates without building SQL text. A literal has the type of its
column. A comparison for which the column had to be widened, like every other expression that a reader cannot use, is
`Other`. BETWEEN appears as two comparisons, equalities of one column joined by OR as one `In`. This module evaluates
nothing.
"""

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from lance_core.expressions import engine
from lance_core.expressions.resolve import (
    Path,
    build_comparison,
    column_path,
    columns_in,
    display_text,
    flatten_operands,
    join_balanced,
    type_at,
)
from lance_core.expressions.widening import is_widening

if TYPE_CHECKING:
    from datafusion import Expr


class Op(enum.Enum):
    """Comparison operator."""

    EQ = "="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="

    @property
    def mirrored(self) -> "Op":
        """Operator of the same comparison with its sides exchanged."""
        return _MIRRORED.get(self, self)


_MIRRORED = {Op.LT: Op.GT, Op.LE: Op.GE, Op.GT: Op.LT, Op.GE: Op.LE}


@dataclass(frozen=True, slots=True)
class And:
    operands: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Or:
    operands: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Not:
    operand: "Node"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Condition `path op value`. A boolean column alone is `path = true`."""

    path: Path
    op: Op
    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class In:
    """Condition `path IN values`. A list with nulls is `Other`, so no value is null."""

    path: Path
    values: tuple[pa.Scalar, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    path: Path


@dataclass(frozen=True, slots=True)
class Like:
    path: Path
    pattern: str
    ignore_case: bool = False

    @property
    def prefix(self) -> str:
        """Prefix of every match; empty if the pattern determines none."""
        literal = None if self.ignore_case else _PREFIX.match(self.pattern)
        return re.sub(r"\\(.)", r"\1", literal.group(), flags=re.DOTALL) if literal else ""

    @property
    def is_prefix(self) -> bool:
        """True if the pattern is a literal prefix followed by `%`."""
        literal = None if self.ignore_case else _PREFIX.match(self.pattern)
        return literal is not None and self.pattern[literal.end() :] == "%"


@dataclass(frozen=True, slots=True)
class Call:
    """Boolean function of one column and literals, such as `array_has_any(tags, ['a'])`."""

    function: str
    path: Path
    arguments: tuple[pa.Scalar, ...]


@dataclass(frozen=True, slots=True)
class Constant:
    value: bool | None


@dataclass(frozen=True, slots=True)
class Other:
    """Condition that no node type describes. It can only be evaluated; `columns` are the top-level ones it reads."""

    text: str
    columns: frozenset[str]
    encoded: bytes


Node: TypeAlias = And | Or | Not | Comparison | In | IsNull | Like | Call | Constant | Other

_PREFIX = re.compile(r"(?:[^\\%_]|\\.)*", re.DOTALL)


def node_from_expr(expr: "Expr", schema: pa.Schema) -> Node:
    """Return the tree of a simplified boolean expression."""
    node = _node_or_none(expr, schema)
    return node if node is not None else Other(display_text(expr), columns_in(expr), engine.encode(expr))


def _node_or_none(expr: "Expr", schema: pa.Schema) -> Node | None:
    match expr.variant_name():
        case "BinaryExpr":
            return _node_from_binary(expr, schema)
        case "Not":
            return Not(node_from_expr(expr.rex_call_operands()[0], schema))
        case "InList":
            subject, *listed = expr.rex_call_operands()
            path = column_path(subject)
            values = tuple(_literal_value(item, type_at(path, schema)) for item in listed)
            valid = [value for value in values if value is not None and value.is_valid]
            if path is None or len(valid) < len(values):
                return None
            node = In(path, tuple(valid))
            return Not(node) if expr.to_variant().negated() else node
        case "IsNull" | "IsNotNull" as kind:
            path = column_path(expr.rex_call_operands()[0])
            if path is None:
                return None
            return IsNull(path) if kind == "IsNull" else Not(IsNull(path))
        case "Like" | "ILike" as kind:
            return _node_from_like(expr, ignore_case=kind == "ILike" or " ILIKE " in expr.canonical_name())
        case "Literal":
            return Constant(expr.python_value().as_py())
        case "Column":
            return _node_from_boolean_column(expr)
        case "ScalarFunction":
            return _node_from_boolean_column(expr) or _node_from_call(expr, schema)
        case "Alias":  # a function under another of its names
            return _node_or_none(expr.rex_call_operands()[0], schema)
    return None


def expr_from_node(node: Node) -> "Expr":
    """Return the expression that the node stands for. The caller simplifies it like any other."""
    match node:
        case And(operands=parts) | Or(operands=parts):
            if not parts:
                return engine.literal(pa.scalar(isinstance(node, And)))
            return join_balanced([expr_from_node(part) for part in parts], "AND" if isinstance(node, And) else "OR")
        case Not(operand=part):
            return ~expr_from_node(part)
        case Comparison(path=path, op=op, value=value):
            return build_comparison(engine.column(path), op.value, engine.literal(value))
        case In(path=path, values=values):
            return engine.is_in(engine.column(path), [engine.literal(value) for value in values])
        case IsNull(path=path):
            return engine.column(path).is_null()
        case Like(path=path, pattern=pattern, ignore_case=ignore_case):
            arguments = [engine.literal(pa.scalar(_as_regex(pattern)))]
            if ignore_case:
                arguments.append(engine.literal(pa.scalar("i")))
            return engine.call("regexp_like", [engine.column(path), *arguments])
        case Call(function=function, path=path, arguments=scalars):
            return engine.call(function, [engine.column(path), *map(engine.literal, scalars)])
        case Constant(value=value):
            return engine.literal(pa.scalar(value, pa.bool_()))
        case Other(encoded=encoded):
            return engine.decode(encoded)


def rename_columns(node: Node, names: Mapping[str, str]) -> Node:
    """Return the tree with other names for top-level columns. The expression inside an `Other` keeps the old names."""
    match node:
        case And(operands=parts):
            return And(tuple(rename_columns(part, names) for part in parts))
        case Or(operands=parts):
            return disjunction([rename_columns(part, names) for part in parts])
        case Not(operand=part):
            return Not(rename_columns(part, names))
        case Other(columns=columns):
            return replace(node, columns=frozenset(names.get(name, name) for name in columns))
        case Constant():
            return node
        case _:
            first, *rest = node.path
            return replace(node, path=(names.get(first, first), *rest))


def _node_from_binary(expr: "Expr", schema: pa.Schema) -> Node | None:
    operation = expr.rex_call_operator()
    if operation == "AND":
        return And(tuple(node_from_expr(part, schema) for part in flatten_operands(expr, operation)))
    if operation == "OR":
        return disjunction([node_from_expr(part, schema) for part in flatten_operands(expr, operation)])
    if operation not in {op.value for op in Op}:
        return None
    left, right = expr.rex_call_operands()
    op = Op(operation)
    path = column_path(left)
    if path is None:
        left, right, op, path = right, left, op.mirrored, column_path(right)
    value = _literal_value(right, type_at(path, schema))
    if path is None or value is None or not value.is_valid:
        return None
    return Comparison(path, op, value)


def disjunction(parts: Sequence[Node]) -> Node:
    """Return the OR of conditions, with all equalities of one path combined into one `In` at the place of the first."""
    values_by_path: dict[Path, list[pa.Scalar]] = {}
    for part in parts:
        if isinstance(part, Comparison) and part.op is Op.EQ:
            values_by_path.setdefault(part.path, []).append(part.value)
        elif isinstance(part, In):
            values_by_path.setdefault(part.path, []).extend(part.values)
    combined: list[Node] = []
    done: set[Path] = set()
    for part in parts:
        if (isinstance(part, Comparison) and part.op is Op.EQ) or isinstance(part, In):
            if part.path not in done:
                done.add(part.path)
                values = values_by_path[part.path]
                combined.append(In(part.path, tuple(values)) if len(values) > 1 else part)
        else:
            combined.append(part)
    return combined[0] if len(combined) == 1 else Or(tuple(combined))


def _node_from_like(expr: "Expr", *, ignore_case: bool) -> Node | None:
    subject, pattern = expr.rex_call_operands()
    path = column_path(subject)
    if path is None or pattern.variant_name() != "Literal" or not pattern.python_value().is_valid:
        return None
    node = Like(path, str(pattern.python_value().as_py()), ignore_case)
    return Not(node) if expr.to_variant().negated() else node


def _node_from_boolean_column(expr: "Expr") -> Comparison | None:
    path = column_path(expr)
    return None if path is None else Comparison(path, Op.EQ, pa.scalar(True))


def _node_from_call(expr: "Expr", schema: pa.Schema) -> Call | None:
    subject, *arguments = expr.rex_call_operands() or [expr]
    is_cast = subject.variant_name() == "Cast"
    if is_cast:
        (subject,) = subject.rex_call_operands()
    path = column_path(subject)
    column_type = type_at(path, schema)
    if path is None or column_type is None or any(argument.variant_name() != "Literal" for argument in arguments):
        return None
    scalars = tuple(argument.python_value() for argument in arguments)
    if is_cast and not (
        scalars
        and _is_list(column_type)
        and all(_is_widened(column_type.value_type, scalar.type) for scalar in scalars)
    ):
        return None  # a cast in the SQL: the function sees other values than those of the column
    return Call(expr.rex_call_operator(), path, scalars)


def _is_list(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_list(arrow) or pa.types.is_large_list(arrow))


def _is_widened(element: pa.DataType, literal: pa.DataType) -> bool:
    """Return whether casting elements to the type of the literal preserves equality, as when the engine widens a list
    column for a comparison with a literal.
    """
    return is_widening(element, literal.value_type if pa.types.is_nested(literal) else literal)


def _literal_value(expr: "Expr", target: pa.DataType | None) -> pa.Scalar | None:
    if target is None or expr.variant_name() != "Literal":
        return None
    value: pa.Scalar = expr.python_value()
    if pa.types.is_dictionary(target):
        target = target.value_type
        if isinstance(value, pa.DictionaryScalar):
            value = value.value
    return value if value.type == target else None


def _as_regex(pattern: str) -> str:
    parts = re.findall(r"\\.|.", pattern, flags=re.DOTALL)
    wild = {"%": ".*", "_": "."}
    return "(?s)^" + "".join(wild.get(part) or re.escape(part[-1]) for part in parts) + "$"
