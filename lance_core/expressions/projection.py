"""Projection: columns computed from columns, `{name: sql}`, with types known before the first batch.

`add_columns` and the SET clause of an update evaluate projections. The rules are those of predicates. If a type is
given for a name, its values are cast to that type (for an extension type, to its storage type). A value that cannot
be cast is an error, never a null.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.expressions.compiled import Compiled, can_be_null, compile_sql, evaluate_batch


@dataclass(frozen=True, slots=True)
class Projection:
    """Named expressions. Create one with `parse`.

    >>> prices = Projection.parse({"gross": "net * 1.5", "note": "'none'"}, pa.schema([("net", pa.float64())]))
    >>> prices.schema.types
    [DataType(double), DataType(string)]
    >>> prices.evaluate(pa.RecordBatch.from_pydict({"net": [2.0]})).to_pylist()
    [{'gross': 3.0, 'note': 'none'}]
    """

    compiled: tuple[tuple[str, Compiled], ...]

    @classmethod
    def parse(
        cls, expressions: Mapping[str, str], schema: pa.Schema, *, types: Mapping[str, pa.DataType] | None = None
    ) -> "Projection":
        """Compile the expressions. Raise an `InvalidInput` that names the column whose SQL is invalid, and why."""
        if not expressions:
            raise InvalidInput("no expression is given; name at least one column and its SQL")
        storage_types = {
            name: arrow.storage_type if isinstance(arrow, pa.BaseExtensionType) else arrow
            for name, arrow in (types or {}).items()
        }
        return cls(
            tuple(
                (name, compile_sql(f"the SQL of column {name!r},", sql, schema, cast_to=storage_types.get(name)))
                for name, sql in expressions.items()
            )
        )

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns that `evaluate` returns."""
        return pa.schema([(name, compiled.type) for name, compiled in self.compiled])

    def schema_over(self, schema: pa.Schema) -> pa.Schema:
        """Return the result schema for rows of `schema`: columns that cannot become null are marked not nullable."""
        return pa.schema(
            [pa.field(name, compiled.type, can_be_null(compiled, schema)) for name, compiled in self.compiled]
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """Top-level columns that must be read, sorted."""
        return tuple(sorted({column for _, compiled in self.compiled for column in compiled.columns}))

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the computed columns, one row for each row of the batch."""
        names = ", ".join(name for name, _ in self.compiled)
        arrays = evaluate_batch(f"the SQL of {names},", dict(self.compiled), batch)
        return pa.RecordBatch.from_arrays(list(arrays), schema=self.schema)
