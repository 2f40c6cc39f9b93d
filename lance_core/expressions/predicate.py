"""Predicate: a condition over rows in SQL, checked once, sent to workers as bytes and evaluated batch by batch.

A predicate is a frozen value with a small pickle. Planners, indices and conflict detection read its `tree`; scans and
writers call `mask` and `filter`. A row for which the condition is NULL does not match.
"""

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInput
from lance_core.expressions import engine
from lance_core.expressions.arrow_filters import Condition, to_sql
from lance_core.expressions.compiled import Compiled, compile_expr, compile_sql, evaluate_condition
from lance_core.expressions.engine import EngineError
from lance_core.expressions.engine_batches import engine_schema, is_time_independent, match_ignoring_case
from lance_core.expressions.error_messages import error_for, invalid_expression_error
from lance_core.expressions.literal_coercion import InvalidExpression
from lance_core.expressions.membership import Membership, as_membership
from lance_core.expressions.resolve import (
    check_supported,
    columns_in,
    display_text,
    flatten_operands,
    join_balanced,
    resolve,
)
from lance_core.expressions.tree import Node, expr_from_node, node_from_expr, rename_columns

if TYPE_CHECKING:
    from datafusion import Expr

_WHAT = "predicate"
_LONG_EXPRESSION_BYTES = 1 << 14  # about a thousand values of an IN list
_CONJUNCTS_CACHE_SIZE = 16
_PARSE_CACHE_SIZE = 64
_CACHED_CHARACTERS_MAX = 1 << 12
_GROUP_BATCHES_MAX, _GROUP_BYTES_MAX = 8, 1 << 25


@dataclass(frozen=True, slots=True)
class Predicate:
    """Condition over rows. Create one with `parse` or `from_node`.

    >>> people = pa.schema([("age", pa.int32()), ("name", pa.string())])
    >>> adults = Predicate.parse("age >= 18 AND name LIKE 'A%'", people)
    >>> adults.columns
    ('age', 'name')
    >>> batch = pa.RecordBatch.from_pylist([{"age": 20, "name": "Ada"}, {"age": None, "name": "Al"}], people)
    >>> adults.mask(batch).to_pylist()
    [True, False]
    """

    compiled: Compiled
    schema: pa.Schema
    """Columns that it reads, under the names that its expression uses."""

    @classmethod
    def parse(cls, condition: Condition, schema: pa.Schema) -> "Predicate":
        """Parse SQL, or translate an expression of pyarrow. Raise an `InvalidInput` that says what is wrong, where, and
        what is supported."""
        sql = to_sql(condition, schema)
        if not isinstance(sql, str):
            raise InvalidInput(
                f'{_WHAT} is {sql!r}; write it as a SQL string, such as "price > 5", or as an expression of '
                "pyarrow.compute"
            )
        return _parse_cached(sql, schema) if _is_cacheable(sql, schema) else _parse_cached.__wrapped__(sql, schema)

    @classmethod
    def from_node(cls, node: Node, schema: pa.Schema) -> "Predicate":
        """Build a predicate from a tree. Code that constructs conditions uses this instead of building SQL text."""
        try:
            expr = expr_from_node(node)
        except EngineError as error:
            raise error_for(_WHAT, str(node), str(error), schema) from error
        aliases = match_ignoring_case(columns_in(expr) - set(schema.names), schema)
        return cls._from_compiled(compile_expr(_WHAT, display_text(expr), expr, schema, aliases=aliases), schema)

    @classmethod
    def _from_compiled(cls, compiled: Compiled, schema: pa.Schema) -> "Predicate":
        if not pa.types.is_boolean(compiled.type):
            raise error_for(_WHAT, compiled.sql, f"not boolean but {compiled.type}", schema)
        return cls(compiled, pa.schema([schema.field(column).with_name(name) for name, column in compiled.names]))

    @classmethod
    def from_query(cls, expr: "Expr", schema: pa.Schema, *, aliases: Mapping[str, str], relation: str) -> "Predicate":
        """Build a predicate from the condition of a query, which calls the table `relation`."""
        what, text = "the query's condition", display_text(expr)
        try:
            check_supported(expr)
            expr = resolve(expr, engine_schema(schema, aliases))
        except InvalidExpression as error:
            raise invalid_expression_error(what, text, str(error)) from error
        except EngineError as error:
            raise error_for(what, text, str(error), schema) from error
        return cls._from_compiled(compile_expr(what, text, expr, schema, aliases=aliases, relation=relation), schema)

    @property
    def sql(self) -> str:
        return self.compiled.sql

    @property
    def columns(self) -> tuple[str, ...]:
        """Top-level columns that must be read, sorted."""
        return self.compiled.columns

    @property
    def tree(self) -> Node:
        """Condition as nodes, with the column names of the table, in whichever case the SQL writes them."""
        return _tree_cached(self)

    def conjuncts(self) -> "tuple[Predicate, ...]":
        """Return the operands of the top-level AND. Each can be evaluated as soon as its columns are read."""
        parts = flatten_operands(self.compiled.expr, "AND")
        return (self,) if len(parts) == 1 else tuple(map(self._conjunct, parts))

    def select_conjuncts(self, numbers: Collection[int]) -> "Predicate":
        """Return the conjunction of some of the `conjuncts`, given by their positions."""
        parts = flatten_operands(self.compiled.expr, "AND")
        if len(numbers) == len(parts):
            return self
        return self._conjunct(join_balanced([parts[number] for number in numbers], "AND"))

    def _conjunct(self, expr: "Expr") -> "Predicate":
        columns = columns_in(expr)
        names = tuple(pair for pair in self.compiled.names if pair[0] in columns)
        fields = pa.schema([self.schema.field(name) for name, _ in names])
        return Predicate(
            Compiled(
                display_text(expr),
                engine.encode(expr),
                names,
                pa.bool_(),
                self.compiled.relation,
                self.compiled.function_output,
            ),
            fields,
        )

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return which rows match, without nulls. The batch may have more columns than the condition reads."""
        (mask,) = self.masks([batch])
        return mask

    def masks(self, batches: Sequence[pa.RecordBatch]) -> list[pa.BooleanArray]:
        """Return the masks of several batches of one schema, which costs little more than a single one."""
        if not batches:
            return []
        if len(self.compiled.encoded) < _LONG_EXPRESSION_BYTES:
            return self._evaluate(batches)
        masks_by_conjunct = [
            [part.mask(batch) for batch in batches] if isinstance(part, Membership) else part._evaluate(batches)
            for part in _conjuncts_cached(self)
        ]
        return [functools.reduce(pc.and_, masks) for masks in zip(*masks_by_conjunct, strict=True)]

    def _evaluate(self, batches: Sequence[pa.RecordBatch]) -> list[pa.BooleanArray]:
        masks = evaluate_condition(_WHAT, self.compiled, batches)
        return [mask.fill_null(False) if mask.null_count else mask for mask in masks]

    def filter(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the matching rows, without batches that have none. Batches are evaluated in small groups."""
        for group in _group_batches(batches):
            for batch, mask in zip(group, self.masks(group), strict=True):
                matches = mask.true_count
                if matches == batch.num_rows:
                    yield batch
                elif matches:
                    yield batch.filter(mask)


def _group_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += batch.nbytes
        if len(group) == _GROUP_BATCHES_MAX or size >= _GROUP_BYTES_MAX:
            yield group
            group, size = [], 0
    if group:
        yield group


def _is_cacheable(sql: object, schema: pa.Schema) -> bool:
    return isinstance(sql, str) and len(sql) <= _CACHED_CHARACTERS_MAX and is_time_independent(sql, schema)


@functools.lru_cache(maxsize=_PARSE_CACHE_SIZE)
def _parse_cached(sql: str, schema: pa.Schema) -> Predicate:
    return Predicate._from_compiled(compile_sql(_WHAT, sql, schema), schema)


@functools.lru_cache(maxsize=_CONJUNCTS_CACHE_SIZE)
def _tree_cached(predicate: Predicate) -> Node:
    return rename_columns(
        node_from_expr(predicate.compiled.expr, engine_schema(predicate.schema, {})), dict(predicate.compiled.names)
    )


@functools.lru_cache(maxsize=_CONJUNCTS_CACHE_SIZE)
def _conjuncts_cached(predicate: Predicate) -> "tuple[Membership | Predicate, ...]":
    """Return the conjuncts of a long predicate, its IN lists with their hash tables."""
    table = pa.schema([predicate.schema.field(name).with_name(column) for name, column in predicate.compiled.names])
    return tuple(as_membership(part.tree, table) or part for part in predicate.conjuncts())
