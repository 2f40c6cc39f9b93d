"""Arrow evaluation: evaluates expressions of pyarrow on record batches, for scans.

`filter_batch` applies a condition that SQL cannot express; `ComputedColumns` computes columns that are given as SQL or
as expressions. The rows keep their order, which a scan promises.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInput
from lance_core.expressions.arrow_expressions import fields_of, read_tree
from lance_core.expressions.projection import Projection
from lance_core.format.field_paths import unknown_column_message


@dataclass(frozen=True, slots=True)
class ComputedColumns:
    """Columns of a result by name, each given as SQL or as an expression of pyarrow. Create them with `parse`.

    >>> columns = ComputedColumns.parse({"twice": "x * 2", "more": pc.field("x") + 1}, pa.schema([("x", pa.int64())]))
    >>> columns.columns
    ('x',)
    >>> columns.evaluate(pa.RecordBatch.from_pydict({"x": [1]})).to_pylist()
    [{'twice': 2, 'more': 2}]
    """

    sql: Projection | None
    expressions: tuple[tuple[str, pc.Expression], ...]
    columns: tuple[str, ...]
    """Top-level columns that must be read, sorted."""
    schema: pa.Schema
    """Names and types of the columns that `evaluate` returns."""

    @classmethod
    def parse(cls, columns: Mapping[str, str | pc.Expression], schema: pa.Schema) -> "ComputedColumns":
        """Check the columns. Raise an `InvalidInput` that names the column whose value is invalid, and why."""
        expressions = tuple((name, each) for name, each in columns.items() if isinstance(each, pc.Expression))
        texts = {name: each for name, each in columns.items() if not isinstance(each, pc.Expression)}
        sql = Projection.parse(texts, schema) if texts or not expressions else None
        read = set(() if sql is None else sql.columns)
        for name, expression in expressions:
            for path in fields_of(read_tree(expression)):
                if schema.get_field_index(path[0]) < 0:
                    raise InvalidInput(f"column {name!r}: {unknown_column_message(path[0], schema.names)}")
                read.add(path[0])
        fields = {} if sql is None else {field.name: field for field in sql.schema}
        if expressions:
            columns_read = pa.schema([schema.field(name) for name in sorted(read)])
            fields |= {field.name: field for field in _project(columns_read.empty_table(), expressions).schema}
        return cls(sql, expressions, tuple(sorted(read)), pa.schema([fields[name] for name in columns]))

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the computed columns, one row for each row of the batch."""
        parts = [] if self.sql is None else [self.sql.evaluate(batch)]
        if self.expressions:
            table = _project(pa.Table.from_batches([batch.select(self.columns)]), self.expressions).combine_chunks()
            parts += table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
        arrays = {name: part.column(name) for part in parts for name in part.schema.names}
        return pa.RecordBatch.from_arrays([arrays[name] for name in self.schema.names], schema=self.schema)


def filter_batch(batch: pa.RecordBatch, condition: pc.Expression) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch that match a condition."""
    from pyarrow import acero

    yield from _run(
        pa.Table.from_batches([batch]),
        acero.Declaration("filter", acero.FilterNodeOptions(condition)),
        f"filter={condition}",
    ).to_batches()


def _project(table: pa.Table, expressions: tuple[tuple[str, pc.Expression], ...]) -> pa.Table:
    from pyarrow import acero

    options = acero.ProjectNodeOptions([each for _, each in expressions], [name for name, _ in expressions])
    names = ", ".join(name for name, _ in expressions)
    return _run(table, acero.Declaration("project", options), f"the expression of {names}")


def _run(table: pa.Table, step: object, what: str) -> pa.Table:
    """Run one step on a table, in this thread, so that the rows stay in order."""
    from pyarrow import acero

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    try:
        return acero.Declaration.from_sequence([source, step]).to_table(use_threads=False)
    except (pa.ArrowException, TypeError) as error:
        raise InvalidInput(f"{what} cannot be evaluated by pyarrow: {error}") from error
