"""Columns computed from columns: `{name: sql}`, their types known before the first batch.

What add_columns and the SET of an update evaluate. The same rules as for predicates hold; a type given for a name
is what its values are cast to (of an extension type, its storage). A value that does not fit is an error, never
a null.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.expressions.compiled import Compiled, can_be_null, compile_sql, run


@dataclass(frozen=True, slots=True)
class Projection:
    """Make one with `parse`.

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
        """Raises `InvalidInput` that names the column whose SQL is wrong, and how."""
        if not expressions:
            raise InvalidInput("no expression is given; name at least one column and its SQL")
        wanted = {
            name: each.storage_type if isinstance(each, pa.BaseExtensionType) else each
            for name, each in (types or {}).items()
        }
        return cls(
            tuple(
                (name, compile_sql(f"the SQL of column {name!r},", sql, schema, cast_to=wanted.get(name)))
                for name, sql in expressions.items()
            )
        )

    @property
    def schema(self) -> pa.Schema:
        """The names and types of what `evaluate` returns."""
        return pa.schema([(name, each.type) for name, each in self.compiled])

    def schema_over(self, schema: pa.Schema) -> pa.Schema:
        """The same, with columns that no row of such a table can leave null marked as not nullable."""
        return pa.schema([pa.field(name, each.type, can_be_null(each, schema)) for name, each in self.compiled])

    @property
    def columns(self) -> tuple[str, ...]:
        """The top-level columns that must be read, sorted."""
        return tuple(sorted({column for _, each in self.compiled for column in each.columns}))

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """As many rows as the batch has, in its order."""
        found = run(f"the SQL of {', '.join(name for name, _ in self.compiled)},", dict(self.compiled), batch)
        return pa.RecordBatch.from_arrays(list(found), schema=self.schema)
