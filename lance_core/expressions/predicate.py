"""A condition over rows, in Lance's SQL: checked when it is made, sent to workers as bytes, run batch by batch.

A frozen value that pickles small. Its `tree` is what planners, indices and conflict detection read; `mask` and
`filter` are what scans and writers run. A row where it is NULL does not match.
"""

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.expressions import engine
from lance_core.expressions.compiled import Compiled, compile_expr, compile_sql, run_condition
from lance_core.expressions.engine import EngineError
from lance_core.expressions.engine_batches import engine_schema, folded_names, reads_no_clock
from lance_core.expressions.error_messages import error_for, misfit
from lance_core.expressions.literal_coercion import Misfit
from lance_core.expressions.membership import Membership, membership
from lance_core.expressions.resolve import check, columns_in, joined, operands, resolve, shown_text
from lance_core.expressions.tree import Node, read, renamed, write

if TYPE_CHECKING:
    from datafusion import Expr

_WHAT = "predicate"
_LONG = 1 << 14  # bytes of an expression; about a thousand values
_PARTS_KEPT = 16
_PARSED_KEPT = 64
_KEPT_LENGTH = 1 << 12
_BATCHES_AT_ONCE, _BYTES_AT_ONCE = 8, 1 << 25


@dataclass(frozen=True, slots=True)
class Predicate:
    """Make one with `parse` or `of`.

    >>> people = pa.schema([("age", pa.int32()), ("name", pa.string())])
    >>> adults = Predicate.parse("age >= 18 AND name LIKE 'A%'", people)
    >>> adults.columns
    ('age', 'name')
    >>> batch = pa.RecordBatch.from_pylist([{"age": 20, "name": "Ada"}, {"age": None, "name": "Al"}], people)
    >>> adults.mask(batch).to_pylist()
    [True, False]
    """

    compiled: Compiled
    schema: pa.Schema  # of the columns it reads, under the names its expression has for them

    @classmethod
    def parse(cls, sql: str, schema: pa.Schema) -> "Predicate":
        """Raises `InvalidInput` that says what is wrong, where, and what is supported."""
        return _parsed(sql, schema) if _may_be_kept(sql, schema) else _parsed.__wrapped__(sql, schema)

    @classmethod
    def of(cls, node: Node, schema: pa.Schema) -> "Predicate":
        """From a tree made by other code: how predicates are built, instead of from pieces of text."""
        try:
            expr = write(node)
        except EngineError as error:
            raise error_for(_WHAT, str(node), str(error), schema) from error
        spelt = folded_names(columns_in(expr) - set(schema.names), schema)
        return cls._from(compile_expr(_WHAT, shown_text(expr), expr, schema, spelt=spelt), schema)

    @classmethod
    def _from(cls, compiled: Compiled, schema: pa.Schema) -> "Predicate":
        if not pa.types.is_boolean(compiled.type):
            raise error_for(_WHAT, compiled.sql, f"not boolean but {compiled.type}", schema)
        return cls(compiled, pa.schema([schema.field(column).with_name(name) for name, column in compiled.names]))

    @classmethod
    def of_query(cls, expr: "Expr", schema: pa.Schema, *, spelt: Mapping[str, str], relation: str) -> "Predicate":
        """The condition of a query, whose columns are of the table that it calls `relation`."""
        what, text = "the query's condition", shown_text(expr)
        try:
            check(expr)
            expr = resolve(expr, engine_schema(schema, spelt))
        except Misfit as error:
            raise misfit(what, text, str(error)) from error
        except EngineError as error:
            raise error_for(what, text, str(error), schema) from error
        return cls._from(compile_expr(what, text, expr, schema, spelt=spelt, relation=relation), schema)

    @property
    def sql(self) -> str:
        return self.compiled.sql

    @property
    def columns(self) -> tuple[str, ...]:
        """The top-level columns that must be read, sorted."""
        return self.compiled.columns

    @property
    def tree(self) -> Node:
        """In the table's names, whatever case the SQL was written in."""
        return _tree(self)

    def conjuncts(self) -> "tuple[Predicate, ...]":
        """The conditions that must all hold; each may be evaluated where its columns are at hand."""
        parts = operands(self.compiled.expr, "AND")
        return (self,) if len(parts) == 1 else tuple(map(self._part, parts))

    def keeping(self, numbers: Collection[int]) -> "Predicate":
        """Only these of the conditions that must all hold, by their numbers among `conjuncts`."""
        parts = operands(self.compiled.expr, "AND")
        return self if len(numbers) == len(parts) else self._part(joined([parts[each] for each in numbers], "AND"))

    def _part(self, expr: "Expr") -> "Predicate":
        read_by_it = columns_in(expr)
        names = tuple(pair for pair in self.compiled.names if pair[0] in read_by_it)
        fields = pa.schema([self.schema.field(name) for name, _ in names])
        return Predicate(
            Compiled(shown_text(expr), engine.encode(expr), names, pa.bool_(), self.compiled.relation), fields
        )

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Which rows match, without nulls. The batch may have more columns than are read."""
        (found,) = self.masks([batch])
        return found

    def masks(self, batches: Sequence[pa.RecordBatch]) -> list[pa.BooleanArray]:
        """The same for batches of one schema, which together cost little more than one of them."""
        if not batches:
            return []
        if len(self.compiled.encoded) < _LONG:
            return self._evaluated(batches)
        by_part = [
            [part.mask(batch) for batch in batches] if isinstance(part, Membership) else part._evaluated(batches)
            for part in _parts(self)
        ]
        return [functools.reduce(pc.and_, masks) for masks in zip(*by_part, strict=True)]

    def _evaluated(self, batches: Sequence[pa.RecordBatch]) -> list[pa.BooleanArray]:
        found = run_condition(_WHAT, self.compiled, batches)
        return [mask.fill_null(False) if mask.null_count else mask for mask in found]

    def filter(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that match; batches without any are left out. Some batches are taken at a time."""
        for some in _together(batches):
            for batch, mask in zip(some, self.masks(some), strict=True):
                matches = mask.true_count
                if matches == batch.num_rows:
                    yield batch
                elif matches:
                    yield batch.filter(mask)


def _together(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    some: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        some.append(batch)
        size += batch.nbytes
        if len(some) == _BATCHES_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield some
            some, size = [], 0
    if some:
        yield some


def _may_be_kept(sql: object, schema: pa.Schema) -> bool:
    return isinstance(sql, str) and len(sql) <= _KEPT_LENGTH and reads_no_clock(sql, schema)


@functools.lru_cache(maxsize=_PARSED_KEPT)
def _parsed(sql: str, schema: pa.Schema) -> Predicate:
    return Predicate._from(compile_sql(_WHAT, sql, schema), schema)


@functools.lru_cache(maxsize=_PARTS_KEPT)
def _tree(predicate: Predicate) -> Node:
    return renamed(read(predicate.compiled.expr, engine_schema(predicate.schema, {})), dict(predicate.compiled.names))


@functools.lru_cache(maxsize=_PARTS_KEPT)
def _parts(predicate: Predicate) -> "tuple[Membership | Predicate, ...]":
    """The conditions of a predicate whose text is long, its lists of values ready to be looked up."""
    table = pa.schema([predicate.schema.field(name).with_name(column) for name, column in predicate.compiled.names])
    return tuple(membership(part.tree, table) or part for part in predicate.conjuncts())
