"""Which segments of which indices answer which parts of a filter, in which fragments, and how certainly. Pure: a tree
and what there is in, a route out; nothing is searched.

NOT is pushed down to conditions on one column first. What is left is AND and OR over sets of rows where a condition is
true. `NOT leaf` and `!=` are the rows of a fragment less those where the leaf is true, less those where the column is
NULL, which takes a segment that knows both exactly. Start with `AccessPath.of`.
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
_FLIPPED = {Op.LT: Op.GE, Op.GE: Op.LT, Op.GT: Op.LE, Op.LE: Op.GT}


@dataclass(frozen=True, slots=True)
class SegmentScope:
    """What one segment answers of a condition."""

    segment: SegmentCoverage
    column: pa.Field
    fragments: BitMap
    certainty: Certainty


@dataclass(frozen=True, slots=True)
class IndexProbe:
    """A condition that segments answer, each in other fragments."""

    leaf: Leaf
    negated: bool
    scopes: tuple[SegmentScope, ...]


@dataclass(frozen=True, slots=True)
class AllOf:
    steps: "tuple[Step, ...]"


@dataclass(frozen=True, slots=True)
class AnyOf:
    steps: "tuple[Step, ...]"


@dataclass(frozen=True, slots=True)
class Always:
    """All rows, or none."""

    holds: bool


@dataclass(frozen=True, slots=True)
class Unknown:
    """What no index knows; it is no part of `AnyOf`."""


Step: TypeAlias = IndexProbe | AllOf | AnyOf | Always | Unknown


@dataclass(frozen=True, slots=True)
class AccessPath:
    """A filter, by the conditions that must all hold."""

    steps: tuple[tuple[tuple[int, ...], Step], ...]
    """Each with the numbers of the conditions that it is about: two bounds of one column are one step."""

    @classmethod
    def of(cls, tree: Node, indices: "IndicesByColumn") -> "AccessPath":
        parts = tree.operands if isinstance(tree, And) else (tree,)
        steps: list[tuple[tuple[int, ...], Step]] = []
        for numbers, part in _paired(parts):
            if isinstance(part, RangeCondition):
                between = _asked(part, False, indices)
                if isinstance(between, IndexProbe):
                    steps.append((numbers, between))
                    continue
            steps += [((number,), _routed(parts[number], indices)) for number in numbers]
        return cls(tuple(steps))

    @property
    def uses_indices(self) -> bool:
        return any(not isinstance(step, Unknown) for _, step in self.steps)

    def probes(self) -> Iterator[IndexProbe]:
        for _, step in self.steps:
            yield from _asks(step)


class IndicesByColumn:
    """What there is in a version, by the column that it is on."""

    def __init__(self, schema: TableSchema, by_name: Mapping[str, Sequence[SegmentCoverage]]) -> None:
        self._schema = schema
        self._by_name = by_name
        self._columns: dict[Path, tuple[pa.Field, tuple[SegmentCoverage, ...]] | None] = {}

    def find(self, path: Path) -> tuple[pa.Field, tuple[SegmentCoverage, ...]] | None:
        """The column as kinds know it, and segments on it that cover anything: those of the index that covers most
        come first."""
        if path not in self._columns:
            self._columns[path] = self._found(path)
        return self._columns[path]

    def _found(self, path: Path) -> tuple[pa.Field, tuple[SegmentCoverage, ...]] | None:
        fields = self._schema.fields
        chain: list[Field] = []
        for name in path:
            found = next((field for field in fields if field.name == name), None)
            if found is None or (chain and chain[-1].logical_type != "struct"):
                return None
            chain.append(found)
            fields = found.children
        usable = [each for each in self._by_field.get(chain[-1].id, ()) if each.covered]
        if not usable:
            return None
        (column,) = resolve_columns(self._schema, [field_paths.format_path(chain)])
        if pa.types.is_null(column.arrow.type):
            return None  # the reference writer counts no NULL in a column of nothing else
        return column.arrow, tuple(usable)

    @cached_property
    def _by_field(self) -> Mapping[int, list[SegmentCoverage]]:
        found: dict[int, list[SegmentCoverage]] = {}
        size = {name: sum(len(each.covered) for each in of_name) for name, of_name in self._by_name.items()}
        for name in sorted(self._by_name, key=lambda name: (-size[name], name)):
            for each in self._by_name[name]:
                if each.kind is not None and len(each.metadata.field_ids) == 1:
                    found.setdefault(each.metadata.field_ids[0], []).append(each)
        return found


def _paired(parts: Sequence[Node]) -> Iterator[tuple[tuple[int, ...], Node | RangeCondition]]:
    """A lower and an upper bound of one column together, at the place of the first."""
    bounds: dict[tuple[Path, bool], int] = {}
    for number, part in enumerate(parts):
        if isinstance(part, Comparison) and part.op in _FLIPPED:
            bounds.setdefault((part.path, part.op in (Op.GT, Op.GE)), number)
    for number, part in enumerate(parts):
        low: int | None = None
        high: int | None = None
        if isinstance(part, Comparison) and part.op in _FLIPPED:
            low, high = (bounds.get((part.path, is_low)) for is_low in (True, False))
        if low is None or high is None or number not in (low, high):
            yield (number,), part
        elif number == min(low, high):
            first, second = parts[low], parts[high]
            assert isinstance(first, Comparison)
            assert isinstance(second, Comparison)
            yield (low, high), RangeCondition(first, second)


def _routed(node: Node, indices: IndicesByColumn, negated: bool = False) -> Step:
    match node:
        case Not(operand=part):
            return _routed(part, indices, not negated)
        case And(operands=parts) | Or(operands=parts):
            steps = tuple(_routed(part, indices, negated) for part in parts)
            unknown = [step for step in steps if isinstance(step, Unknown)]
            if isinstance(node, And) is not negated:
                return Unknown() if len(unknown) == len(steps) else AllOf(steps)
            return Unknown() if unknown else AnyOf(steps)
        case Constant(value=value):
            return Always(value is not None and value is not negated)
        case Other():
            return Unknown()
        case Comparison(op=Op.NE):
            return _asked(replace(node, op=Op.EQ), not negated, indices)
        case Comparison(op=op) if negated and op in _FLIPPED:
            return _asked(replace(node, op=_FLIPPED[op]), False, indices)
        case _:
            return _asked(node, negated, indices)


def _asked(leaf: Leaf, negated: bool, indices: IndicesByColumn) -> IndexProbe | Unknown:
    found = indices.find(leaf.path)
    if found is None:
        return Unknown()
    column, standings = found
    asked = _fitted(leaf, column.type)
    if asked is None:
        return Unknown()
    able = [(each, certainty) for each in standings if (certainty := _certainty(each, asked, negated))]
    able.sort(key=lambda each: each[1] is not Certainty.EXACT)
    shares, taken = [], BitMap()
    for standing, certainty in able:
        if fragments := standing.covered - taken:
            shares.append(SegmentScope(standing, column, fragments, certainty))
            taken |= fragments
    return IndexProbe(asked, negated, tuple(shares)) if shares else Unknown()


def _certainty(standing: SegmentCoverage, leaf: Leaf, negated: bool) -> Certainty | None:
    assert standing.kind is not None
    certainty = standing.kind.answers(leaf, standing.metadata)
    if not negated or isinstance(leaf, IsNull):
        return certainty if not negated or certainty is Certainty.EXACT else None
    nulls = standing.kind.answers(IsNull(leaf.path), standing.metadata)
    return Certainty.EXACT if certainty is nulls is Certainty.EXACT else None


def _fitted(leaf: Leaf, column: pa.DataType) -> Leaf | None:
    """With literals of the column's type; None where they are of another."""
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
            fitted = tuple(_argument(each, column) for each in arguments)
            return None if None in fitted else replace(leaf, arguments=fitted)
    return leaf


def _argument(value: pa.Scalar, column: pa.DataType) -> pa.Scalar | None:
    """Of a list, an argument is one element or a list of them. Numbers may be wider than the elements, which is for the
    kind to tell; of what else came in another type, the column's has to say the same."""
    if not value.is_valid:
        return None
    if not (pa.types.is_list(column) or pa.types.is_large_list(column)):
        return value if value.type == column or (is_text(value.type) and is_text(column)) else None
    element, is_list = column.value_type, pa.types.is_nested(value.type)
    wanted, found = (pa.list_(element), value.type.value_type) if is_list else (element, value.type)
    if value.type == wanted or any(is_one(element) and is_one(found) for is_one in _NUMBERS):
        return value
    try:
        cast = value.cast(wanted)
        return cast if cast.cast(value.type).equals(value) else None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _asks(step: Step) -> Iterator[IndexProbe]:
    match step:
        case IndexProbe():
            yield step
        case AllOf(steps=parts) | AnyOf(steps=parts):
            for part in parts:
                yield from _asks(part)


def describe(ask: IndexProbe) -> str:
    """The condition, for people."""
    path = ".".join(ask.leaf.path)
    match ask.leaf:
        case Comparison(op=Op.EQ, value=value) if ask.negated:
            return f"{path} != {_literal(value)}"
        case RangeCondition(low=low, high=high):
            return f"{path} {low.op.value} {_literal(low.value)} AND {path} {high.op.value} {_literal(high.value)}"
        case Comparison(op=op, value=value):
            text = f"{path} {op.value} {_literal(value)}"
        case In(values=values):
            shown = ", ".join(map(_literal, values[:_SHOWN_VALUES]))
            more = f", … {len(values)} values" if len(values) > _SHOWN_VALUES else ""
            return f"{path} {'NOT IN' if ask.negated else 'IN'} ({shown}{more})"
        case IsNull():
            return f"{path} IS {'NOT ' if ask.negated else ''}NULL"
        case Like(pattern=pattern, ignore_case=ignore_case):
            word = "ILIKE" if ignore_case else "LIKE"
            return f"{path} {'NOT ' if ask.negated else ''}{word} {pattern!r}"
        case Call(function=function, arguments=arguments):
            text = f"{function}({', '.join([path, *map(_literal, arguments)])})"
    return f"NOT {text}" if ask.negated else text


_SHOWN_VALUES = 5
_SHOWN_CHARACTERS = 60


def _literal(value: pa.Scalar) -> str:
    text = repr(value.as_py())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
