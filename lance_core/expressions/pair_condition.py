"""Pair condition: a condition over pairs of rows, `left.x` of one side and `right.y` of the other.

It is evaluated over two structs, which have only the columns that the condition reads. Start with
`PairCondition.parse`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.expressions.cost_limits import QUOTED_OR_COMMENT
from lance_core.expressions.predicate import Predicate

LEFT, RIGHT = "left", "right"
_QUALIFIER = re.compile(
    rf"(?P<skipped>{QUOTED_OR_COMMENT.pattern})|(?<![\w.])(?P<side>{LEFT}|{RIGHT})\s*\.\s*", re.IGNORECASE | re.DOTALL
)
_QUOTED_SIDE = re.compile(rf"`(?:{LEFT}|{RIGHT})`", re.IGNORECASE)
_WORD = re.compile(r"\w+")
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PairCondition:
    """Condition over a row of the left side and one of the right side.

    >>> people, towns = pa.schema([("town", pa.string())]), pa.schema([("name", pa.string()), ("size", pa.int64())])
    >>> PairCondition.parse("left.town = right.name", people, towns).right.names
    ['name']
    """

    predicate: Predicate
    left: pa.Schema
    right: pa.Schema
    """Columns of each side that the condition reads."""

    @classmethod
    def parse(cls, sql: str, left: pa.Schema, right: pa.Schema) -> "PairCondition":
        """Parse Lance SQL over the columns of both sides."""
        if not isinstance(sql, str):
            raise InvalidInput(f"condition={sql!r} must be Lance SQL over left.x and right.y")
        words = set(_WORD.findall(sql))
        sides = [
            pa.schema([field for field in side if field.name in words or (" " in field.name and field.name in sql)])
            for side in (left, right)
        ]
        try:
            Predicate.parse(sql, _pair(*sides))
        except InvalidInput as error:
            if _is_predicate(sql, left, right):
                sides = [left, right]
            else:
                raise InvalidInput(
                    f"condition: {error}. Write the columns of the frame as left.x and those of the table as right.x"
                ) from error
        # The engine reports which struct it reads, not which fields: a field without which the SQL parses is not read.
        sides[0] = _read_fields(sides[0], lambda fields: _is_predicate(sql, fields, sides[1]))
        sides[1] = _read_fields(sides[1], lambda fields: _is_predicate(sql, sides[0], fields))
        predicate = Predicate.parse(sql, _pair(*sides))
        for name, side in zip((LEFT, RIGHT), sides, strict=True):
            if name in predicate.columns and not len(side):
                raise InvalidInput(f"condition {sql!r} reads {name} as a whole; name its columns, as {name}.x")
        return cls(predicate, sides[0], sides[1])

    @property
    def sql(self) -> str:
        return self.predicate.sql

    @property
    def reads_left(self) -> bool:
        """True if the condition can differ between rows of the left side."""
        return LEFT in self.predicate.columns

    def mask(self, left: pa.Table, right: pa.Table, count: int) -> Mask:
        """Return which of `count` pairs meet the condition. Both sides have a row for each, with the columns read."""
        structs = [_structs(side, count) for side in (left.select(self.left.names), right.select(self.right.names))]
        batch = pa.RecordBatch.from_arrays(structs, schema=_pair(self.left, self.right))
        return np.asarray(self.predicate.mask(batch).to_numpy(zero_copy_only=False), dtype=np.bool_)

    def right_filter(self, schema: pa.Schema) -> str | None:
        """Return the condition as a filter of the right side alone, which has this schema; `None` if it reads the left
        side or cannot be written so."""
        if self.reads_left or names_left(self.sql):
            return None
        sql = _QUALIFIER.sub(lambda match: match["skipped"] or "", self.sql)
        try:
            Predicate.parse(sql, schema)
        except InvalidInput:
            return None
        return sql


def names_left(sql: str) -> bool:
    """Return whether SQL may name columns of the left side.

    >>> names_left("left.a = right.b"), names_left("right.b = 'left.a'")
    (True, False)
    """
    return bool(_QUOTED_SIDE.search(sql)) or any(
        match["side"] is not None and match["side"].lower() == LEFT for match in _QUALIFIER.finditer(sql)
    )


def _read_fields(fields: pa.Schema, suffices: Callable[[pa.Schema], bool]) -> pa.Schema:
    for field in fields:
        rest = pa.schema([other for other in fields if other.name != field.name])
        if suffices(rest):
            fields = rest
    return fields


def _is_predicate(sql: str, left: pa.Schema, right: pa.Schema) -> bool:
    try:
        Predicate.parse(sql, _pair(left, right))
    except InvalidInput:
        return False
    return True


def _pair(left: pa.Schema, right: pa.Schema) -> pa.Schema:
    return pa.schema([(LEFT, pa.struct(list(left))), (RIGHT, pa.struct(list(right)))])


def _structs(table: pa.Table, count: int) -> pa.Array:
    fields = list(table.schema)
    if not fields:
        return pa.array([{}] * count, pa.struct([]))
    return pa.StructArray.from_arrays([column.combine_chunks() for column in table.columns], fields=fields)


__all__ = ["PairCondition", "names_left"]
