"""Access path: plans which index segments answer which conditions of a filter, in which fragments and how precisely.

Pure: it reads a filter tree and the indices of a version and searches nothing. NOT is first pushed down to conditions
on one column; what remains is AND and OR over sets of rows for which a condition is true. `NOT leaf` and `!=` are the
rows of a fragment, minus those where the leaf is true, minus those where the column is NULL, which requires a segment
that knows both sets exactly. Start with `AccessPath.of`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import pyarrow as pa
from pyroaring import BitMap

from lance_core.expressions.resolve import Path
from lance_core.expressions.tree import (
    And,
    Call,
    Comparison,
    Constant,
    In,
    IsNull,
    Like,
    Node,
    Not,
    Op,
    Or,
    Other,
)
from lance_core.format import field_paths
from lance_core.format.schema import Field, TableSchema
from lance_core.index.coverage import SegmentCoverage
from lance_core.index.index_type import Certainty, Leaf, RangeCondition
from lance_core.index.supported_types import is_text
from lance_core.scan.column_resolution import resolve_columns

_NUMBERS = (pa.types.is_integer, pa.types.is_floating)
_NEGATED_OPS = {Op.LT: Op.GE, Op.GE: Op.LT, Op.GT: Op.LE, Op.LE: Op.GT}


@dataclass(frozen=True, slots=True)
class SegmentScope:
    """Fragments in which one segment answers a condition."""

    segment: SegmentCoverage
    column: pa.Field
    fragments: BitMap
    certainty: Certainty


@dataclass(frozen=True, slots=True)
class IndexProbe:
    """Condition that segments answer, each one in other fragments."""

    leaf: Leaf
    negated: bool
    scopes: tuple[SegmentScope, ...]


@dataclass(frozen=True, slots=True)
class AllOf:
    """Conjunction: rows that satisfy every step."""

    steps: "tuple[Step, ...]"


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Disjunction: rows that satisfy at least one step."""

    steps: "tuple[Step, ...]"


@dataclass(frozen=True, slots=True)
class Always:
    """Condition that holds for all rows, or for none."""

    holds: bool


@dataclass(frozen=True, slots=True)
class Unknown:
    """Condition that no index answers. It never occurs within `AnyOf`."""


Step: TypeAlias = IndexProbe | AllOf | AnyOf | Always | Unknown


@dataclass(frozen=True, slots=True)
class AccessPath:
    """Plan for a filter, divided into the conditions that must all hold."""

    steps: tuple[tuple[tuple[int, ...], Step], ...]
    """Steps, each with the numbers of the filter's conditions that it implements: two bounds of one column are one
    step."""

    @classmethod
    def of(cls, tree: Node, indices: "IndicesByColumn") -> "AccessPath":
        operands = tree.operands if isinstance(tree, And) else (tree,)
        steps: list[tuple[tuple[int, ...], Step]] = []
        for numbers, operand in _pair_bounds(operands):
            if isinstance(operand, RangeCondition):
                probe = _plan_leaf(operand, False, indices)
                if isinstance(probe, IndexProbe):
                    steps.append((numbers, probe))
                    continue
            steps += [((number,), _plan_node(operands[number], indices)) for number in numbers]
        return cls(tuple(steps))

    @property
    def uses_indices(self) -> bool:
        return any(not isinstance(step, Unknown) for _, step in self.steps)

    def probes(self) -> Iterator[IndexProbe]:
        for _, step in self.steps:
            yield from _probes_of(step)


class IndicesByColumn:
    """Usable indices of a version, by the column that they are on."""

    def __init__(self, schema: TableSchema, by_name: Mapping[str, Sequence[SegmentCoverage]]) -> None:
        self._schema = schema
        self._by_name = by_name
        self._columns: dict[Path, tuple[pa.Field, tuple[SegmentCoverage, ...]] | None] = {}

    def find(self, path: Path) -> tuple[pa.Field, tuple[SegmentCoverage, ...]] | None:
        """Return the column, as index types see it, and the segments on it that cover any fragment, those of the
        index with the largest coverage first. `None` if there are none."""
        if path not in self._columns:
            self._columns[path] = self._resolve(path)
        return self._columns[path]

    def _resolve(self, path: Path) -> tuple[pa.Field, tuple[SegmentCoverage, ...]] | None:
        fields = self._schema.fields
        chain: list[Field] = []
        for name in path:
            child = next((field for field in fields if field.name == name), None)
            if child is None or (chain and chain[-1].logical_type != "struct"):
                return None
            chain.append(child)
            fields = child.children
        usable = [segment for segment in self._by_field.get(chain[-1].id, ()) if segment.covered]
        if not usable:
            return None
        (column,) = resolve_columns(self._schema, [field_paths.format_path(chain)])
        if pa.types.is_null(column.arrow.type):
            return None  # In a column of the type null, the reference writer does not count the NULLs.
        return column.arrow, tuple(usable)

    @cached_property
    def _by_field(self) -> Mapping[int, list[SegmentCoverage]]:
        by_field: dict[int, list[SegmentCoverage]] = {}
        size = {name: sum(len(segment.covered) for segment in of_name) for name, of_name in self._by_name.items()}
        for name in sorted(self._by_name, key=lambda name: (-size[name], name)):
            for segment in self._by_name[name]:
                if segment.kind is not None and len(segment.metadata.field_ids) == 1:
                    by_field.setdefault(segment.metadata.field_ids[0], []).append(segment)
        return by_field


def _pair_bounds(operands: Sequence[Node]) -> Iterator[tuple[tuple[int, ...], Node | RangeCondition]]:
    """Yield each condition with its number. A lower and an upper bound of one column come as one `RangeCondition`, in
    the place of the first."""
    bounds: dict[tuple[Path, bool], int] = {}
    for number, operand in enumerate(operands):
        if isinstance(operand, Comparison) and operand.op in _NEGATED_OPS:
            bounds.setdefault((operand.path, operand.op in (Op.GT, Op.GE)), number)
    for number, operand in enumerate(operands):
        low: int | None = None
        high: int | None = None
        if isinstance(operand, Comparison) and operand.op in _NEGATED_OPS:
            low, high = (bounds.get((operand.path, is_low)) for is_low in (True, False))
        if low is None or high is None or number not in (low, high):
            yield (number,), operand
        elif number == min(low, high):
            first, second = operands[low], operands[high]
            assert isinstance(first, Comparison)
            assert isinstance(second, Comparison)
            yield (low, high), RangeCondition(first, second)


def _plan_node(node: Node, indices: IndicesByColumn, negated: bool = False) -> Step:
    """Return the step for a part of the filter tree, negated if `negated`."""
    match node:
        case Not(operand=operand):
            return _plan_node(operand, indices, not negated)
        case And(operands=operands) | Or(operands=operands):
            steps = tuple(_plan_node(operand, indices, negated) for operand in operands)
            unknown = [step for step in steps if isinstance(step, Unknown)]
            if isinstance(node, And) is not negated:
                return Unknown() if len(unknown) == len(steps) else AllOf(steps)
            return Unknown() if unknown else AnyOf(steps)
        case Constant(value=value):
            return Always(value is not None and value is not negated)
        case Other():
            return Unknown()
        case Comparison(op=Op.NE):
            return _plan_leaf(replace(node, op=Op.EQ), not negated, indices)
        case Comparison(op=op) if negated and op in _NEGATED_OPS:
            return _plan_leaf(replace(node, op=_NEGATED_OPS[op]), False, indices)
        case _:
            return _plan_leaf(node, negated, indices)


def _plan_leaf(leaf: Leaf, negated: bool, indices: IndicesByColumn) -> IndexProbe | Unknown:
    """Return the probe of a condition on one column. Each fragment is assigned to one segment, to an exact one if
    possible."""
    indexed_column = indices.find(leaf.path)
    if indexed_column is None:
        return Unknown()
    column, segments = indexed_column
    typed_leaf = _with_column_type(leaf, column.type)
    if typed_leaf is None:
        return Unknown()
    candidates = [
        (segment, certainty) for segment in segments if (certainty := _certainty_of(segment, typed_leaf, negated))
    ]
    candidates.sort(key=lambda candidate: candidate[1] is not Certainty.EXACT)
    scopes, assigned = [], BitMap()
    for segment, certainty in candidates:
        if fragments := segment.covered - assigned:
            scopes.append(SegmentScope(segment, column, fragments, certainty))
            assigned |= fragments
    return IndexProbe(typed_leaf, negated, tuple(scopes)) if scopes else Unknown()


def _certainty_of(segment: SegmentCoverage, leaf: Leaf, negated: bool) -> Certainty | None:
    assert segment.kind is not None
    certainty = segment.kind.answers(leaf, segment.metadata)
    if not negated or isinstance(leaf, IsNull):
        return certainty if not negated or certainty is Certainty.EXACT else None
    nulls = segment.kind.answers(IsNull(leaf.path), segment.metadata)
    return Certainty.EXACT if certainty is nulls is Certainty.EXACT else None


def _with_column_type(leaf: Leaf, column: pa.DataType) -> Leaf | None:
    """Return the condition with literals of the column's type, or `None` if a literal has another type."""
    match leaf:
        case RangeCondition(low=low, high=high):
            return leaf if low.value.type == high.value.type == column else None
        case Comparison(value=value):
            return leaf if value.type == column else None
        case In(values=values):
            return leaf if all(value.type == column for value in values) else None
        case Like():
            return leaf if is_text(column) else None
        case Call(arguments=arguments):
            cast = tuple(_cast_argument(argument, column) for argument in arguments)
            return None if None in cast else replace(leaf, arguments=cast)
    return leaf


def _cast_argument(value: pa.Scalar, column: pa.DataType) -> pa.Scalar | None:
    """Return the argument of a function as the index type compares it, or `None` if it cannot.

    For a list column, an argument is one element or a list of elements. Numbers may have a wider type than the
    elements, which the index type handles. An argument of any other type is cast to the column's type, which must
    preserve its value.
    """
    if not value.is_valid:
        return None
    if not (pa.types.is_list(column) or pa.types.is_large_list(column)):
        return value if value.type == column or (is_text(value.type) and is_text(column)) else None
    element, is_list = column.value_type, pa.types.is_nested(value.type)
    target, given = (pa.list_(element), value.type.value_type) if is_list else (element, value.type)
    if value.type == target or any(is_number(element) and is_number(given) for is_number in _NUMBERS):
        return value
    try:
        cast = value.cast(target)
        return cast if cast.cast(value.type).equals(value) else None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _probes_of(step: Step) -> Iterator[IndexProbe]:
    match step:
        case IndexProbe():
            yield step
        case AllOf(steps=steps) | AnyOf(steps=steps):
            for inner in steps:
                yield from _probes_of(inner)


def describe(probe: IndexProbe) -> str:
    """Return the condition as text for people."""
    path = ".".join(probe.leaf.path)
    match probe.leaf:
        case Comparison(op=Op.EQ, value=value) if probe.negated:
            return f"{path} != {_literal_text(value)}"
        case RangeCondition(low=low, high=high):
            bounds = (f"{path} {bound.op.value} {_literal_text(bound.value)}" for bound in (low, high))
            return " AND ".join(bounds)
        case Comparison(op=op, value=value):
            text = f"{path} {op.value} {_literal_text(value)}"
        case In(values=values):
            shown = ", ".join(map(_literal_text, values[:_SHOWN_VALUES]))
            more = f", … {len(values)} values" if len(values) > _SHOWN_VALUES else ""
            return f"{path} {'NOT IN' if probe.negated else 'IN'} ({shown}{more})"
        case IsNull():
            return f"{path} IS {'NOT ' if probe.negated else ''}NULL"
        case Like(pattern=pattern, ignore_case=ignore_case):
            word = "ILIKE" if ignore_case else "LIKE"
            return f"{path} {'NOT ' if probe.negated else ''}{word} {pattern!r}"
        case Call(function=function, arguments=arguments):
            text = f"{function}({', '.join([path, *map(_literal_text, arguments)])})"
    return f"NOT {text}" if probe.negated else text


_SHOWN_VALUES = 5
_SHOWN_CHARACTERS = 60


def _literal_text(value: pa.Scalar) -> str:
    text = repr(value.as_py())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
