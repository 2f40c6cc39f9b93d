"""Plan lineage: the columns of tables that each column of a DataFrame is computed from, by Spark's analyzed plan.

Every attribute of a plan has an id. `column_sources` follows the ids from the result down to the DataFrames that read
tables: through the columns that each expression references, through aliases, aggregates, window functions, joins and
unions. Functions over whole batches, such as `mapInArrow`, do not say which columns they read, so the columns that they
return have no sources. Start with `column_sources`.
"""

from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SECONDS_MAX = 2.0
"""Limit for large plans: each attribute of a node is a call to the JVM."""
_PASSED_POSITIONS = ("Union",)
"""Nodes whose columns are those of their children by position."""
_GENERATORS = ("Generate",)
"""Nodes that compute each new column from all columns that they reference."""

_READ_FUNCTIONS = ("MapInArrow", "PythonMapInArrow")
"""Nodes of reads whose rows the workers read."""
_SUBQUERIES = ("ScalarSubquery", "ListQuery", "Exists")
"""Expressions with a plan of their own."""

TableColumn = tuple[str, str]
"""URI of a table, and the name of a column."""
_Sources = dict[int, frozenset[TableColumn]]
"""Sources by the id of an attribute; an attribute without known sources is left out."""


def column_sources(
    frame: "DataFrame", reads: Sequence[tuple["DataFrame", str]], *, seconds_max: float = SECONDS_MAX
) -> Mapping[str, frozenset[TableColumn]]:
    """Return the sources of each column of a DataFrame. `reads` are the DataFrames that read tables, with their URIs.

    It is empty for DataFrames of Spark Connect, whose plans are in another process, and for plans that take seconds to
    follow. Lineage is a statistic, so a plan that cannot be read raises nothing.
    """
    if not reads or not all(hasattr(each, "_jdf") for each in (frame, *(read for read, _ in reads))):
        return {}
    try:
        plan = _Plan([(_analyzed(read), uri) for read, uri in reads], monotonic() + seconds_max)
        root = _analyzed(frame)
        sources = plan.sources_of(root)
        found = {name: sources.get(number, frozenset()) for number, name in _attributes(root.output())}
    except (Py4JError, TimeoutError):
        return {}
    return {name: each for name, each in found.items() if each}


def _analyzed(frame: "DataFrame") -> Any:
    return frame._jdf.queryExecution().analyzed()


@dataclass(slots=True)
class _Plan:
    """Plan that is followed from its root to the reads."""

    reads: Sequence[tuple[Any, str]]
    deadline: float
    named_queries: dict[int, list[frozenset[TableColumn]]] = field(default_factory=dict)
    """Sources of the columns of each query of a `with` clause, by the id of the query."""

    def sources_of(self, node: Any) -> _Sources:
        """Return the sources of the output of a node."""
        if monotonic() > self.deadline:
            raise TimeoutError
        output = list(_attributes(node.output()))
        kind = node.getClass().getSimpleName()
        if (table := self._table_read_by(node, kind, [number for number, _ in output])) is not None:
            return {number: frozenset({(table, name)}) for number, name in output}
        if kind == "CTERelationRef":
            return dict(zip((number for number, _ in output), self.named_queries.get(node.cteId(), ()), strict=False))
        children = [(child, self.sources_of(child)) for child in _items(node.children())]
        if kind in _PASSED_POSITIONS:
            return self._by_position(output, children)
        available = dict(ChainMap(*(sources for _, sources in children)))
        if kind == "CTERelationDef":
            self.named_queries[node.id()] = [available.get(number, frozenset()) for number, _ in output]
        numbers = {number for number, _ in output}
        missing = numbers - available.keys()
        computed = self._computed(node, kind, available, missing) if missing else {}
        return {number: available[number] for number in numbers & available.keys()} | computed

    def _computed(self, node: Any, kind: str, available: _Sources, missing: Collection[int]) -> _Sources:
        """Return the sources of columns that a node computes itself."""
        has_subqueries = node.subqueries().size() > 0
        if kind in _GENERATORS:
            return dict.fromkeys(missing, self._sources_of_expression(node.generator(), available, has_subqueries))
        return {
            number: self._sources_of_expression(expression, available, has_subqueries)
            for expression in _items(node.expressions())
            if expression.getClass().getSimpleName() == "Alias" and (number := expression.exprId().id()) in missing
        }

    def _sources_of_expression(
        self, expression: Any, available: _Sources, has_subqueries: bool
    ) -> frozenset[TableColumn]:
        referenced = (number for number, _ in _attributes(expression.references().toSeq()))
        sources = frozenset[TableColumn]().union(*(available.get(number, frozenset()) for number in referenced))
        if not has_subqueries:
            return sources
        if expression.getClass().getSimpleName() in _SUBQUERIES:
            sources = sources.union(*self.sources_of(expression.plan()).values())
        return sources.union(
            *(self._sources_of_expression(child, available, True) for child in _items(expression.children()))
        )

    def _table_read_by(self, node: Any, kind: str, output: Sequence[int]) -> str | None:
        """Return the table that a node reads. To join a DataFrame with itself, Spark copies its read with new ids; the
        copy has the same function."""
        for read, uri in self.reads:
            if read.getClass().getSimpleName() != kind:
                continue
            if [number for number, _ in _attributes(read.output())] == output:
                return uri
            if kind in _READ_FUNCTIONS and node.sameResult(read):
                return uri
        return None

    def _by_position(self, output: Iterable[tuple[int, str]], children: Sequence[tuple[Any, _Sources]]) -> _Sources:
        columns = [[number for number, _ in _attributes(child.output())] for child, _ in children]
        return {
            number: frozenset[TableColumn]().union(
                *(sources.get(ids[position], frozenset()) for ids, (_, sources) in zip(columns, children, strict=True))
            )
            for position, (number, _) in enumerate(output)
        }


def _attributes(attributes: Any) -> Iterator[tuple[int, str]]:
    """Yield the id and the name of each attribute."""
    for attribute in _items(attributes):
        yield attribute.exprId().id(), attribute.name()


def _items(sequence: Any) -> Iterator[Any]:
    for position in range(sequence.size()):
        yield sequence.apply(position)
