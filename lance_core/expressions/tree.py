"""A predicate as its readers see it: planners, indices and conflict detection look here, never at DataFusion.

`node_from_expr` turns a simplified expression into small frozen nodes, `expr_from_node` turns nodes into an expression, so that other
rooms can build predicates without building text. A literal has the type of its column; a comparison where that is not
so (the column had to be widened), like everything else a reader could not use, is `Other`. BETWEEN appears as two
comparisons, equalities joined by OR as one `In`. Nothing here evaluates.
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
    column_path,
    columns_in,
    build_comparison,
    join_balanced,
    flatten_operands,
    display_text,
    type_at,
)
from lance_core.expressions.widening import is_widening

if TYPE_CHECKING:
    from datafusion import Expr


class Op(enum.Enum):
    EQ = "="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="

    @property
    def mirrored(self) -> "Op":
        """The same comparison with its sides exchanged."""
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
    """`path op value`; a boolean column standing alone is `= true`."""

    path: Path
    op: Op
    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class In:
    """No value is null: what a null in the list would do stays an `Other` beside it."""

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
        """What every match begins with; empty where nothing is certain."""
        found = None if self.ignore_case else _PREFIX.match(self.pattern)
        return re.sub(r"\\(.)", r"\1", found.group(), flags=re.DOTALL) if found else ""

    @property
    def is_prefix(self) -> bool:
        """Whether it asks for the prefix and nothing else."""
        found = None if self.ignore_case else _PREFIX.match(self.pattern)
        return found is not None and self.pattern[found.end() :] == "%"


@dataclass(frozen=True, slots=True)
class Call:
    """A boolean function of one column and literals, such as `array_has_any(tags, ['a'])`."""

    function: str
    path: Path
    arguments: tuple[pa.Scalar, ...]


@dataclass(frozen=True, slots=True)
class Constant:
    value: bool | None


@dataclass(frozen=True, slots=True)
class Other:
    """Something to be evaluated, not understood; `columns` are the top-level ones it reads."""

    text: str
    columns: frozenset[str]
    encoded: bytes


Node: TypeAlias = And | Or | Not | Comparison | In | IsNull | Like | Call | Constant | Other

_PREFIX = re.compile(r"(?:[^\\%_]|\\.)*", re.DOTALL)


def node_from_expr(expr: "Expr", schema: pa.Schema) -> Node:
    """The nodes of a simplified boolean expression."""
    node = _node_or_none(expr, schema)
    return node if node is not None else Other(display_text(expr), columns_in(expr), engine.encode(expr))


def _node_or_none(expr: "Expr", schema: pa.Schema) -> Node | None:
    match expr.variant_name():
        case "BinaryExpr":
            return _node_from_binary(expr, schema)
        case "Not":
            return Not(node_from_expr(expr.rex_call_operands()[0], schema))
        case "InList":
            subject, *given = expr.rex_call_operands()
            path = column_path(subject)
            values = tuple(_literal_value(each, type_at(path, schema)) for each in given)
            found = [value for value in values if value is not None and value.is_valid]
            if path is None or len(found) < len(values):
                return None
            node = In(path, tuple(found))
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
        case "Alias":  # a function by another of its names
            return _node_or_none(expr.rex_call_operands()[0], schema)
    return None


def expr_from_node(node: Node) -> "Expr":
    """The expression that `node` stands for, to be simplified like any other."""
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
    """The same nodes over other top-level columns. What an `Other` evaluates keeps its spelling."""
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
    """OR, its equalities of one path gathered into one `In`, where the first of them stood."""
    gathered: dict[Path, list[pa.Scalar]] = {}
    for part in parts:
        if isinstance(part, Comparison) and part.op is Op.EQ:
            gathered.setdefault(part.path, []).append(part.value)
        elif isinstance(part, In):
            gathered.setdefault(part.path, []).extend(part.values)
    found: list[Node] = []
    done: set[Path] = set()
    for part in parts:
        if (isinstance(part, Comparison) and part.op is Op.EQ) or isinstance(part, In):
            if part.path not in done:
                done.add(part.path)
                values = gathered[part.path]
                found.append(In(part.path, tuple(values)) if len(values) > 1 else part)
        else:
            found.append(part)
    return found[0] if len(found) == 1 else Or(tuple(found))


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
    found = type_at(path, schema)
    if path is None or found is None or any(each.variant_name() != "Literal" for each in arguments):
        return None
    scalars = tuple(each.python_value() for each in arguments)
    if is_cast and not (
        scalars and _is_list(found) and all(_is_widened(found.value_type, each.type) for each in scalars)
    ):
        return None  # somebody asked for another type: its values are not those of the column
    return Call(expr.rex_call_operator(), path, scalars)


def _is_list(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_list(arrow) or pa.types.is_large_list(arrow))


def _is_widened(element: pa.DataType, literal: pa.DataType) -> bool:
    """Whether a list was but cast to have elements of the type of the literal beside it, by the engine, in a way that
    makes no two of them one."""
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
