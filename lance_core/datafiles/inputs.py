"""Input rows: converts the forms in which a caller may pass rows to a schema and a stream of batches."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from lance_core.errors import InvalidInput

Rows: TypeAlias = pa.Table | pa.RecordBatch | pa.RecordBatchReader | Iterable[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class InputRows:
    """Rows to be written."""

    schema: pa.Schema | None
    """`None` if there is not even one batch."""
    batches: Iterable[pa.RecordBatch]
    bytes: int | None = None
    """Size of rows that are in memory."""

    def materialized(self) -> "InputRows":
        """Return the rows with their batches in memory, so that they can be read more than once."""
        return InputRows(self.schema, tuple(self.batches))

    @property
    def required_schema(self) -> pa.Schema:
        """Schema, for a caller that needs it before the first row. Raises `InvalidInput` if it is unknown."""
        if self.schema is None:
            raise InvalidInput("the columns of zero batches are unknown; pass a pyarrow Table instead")
        return self.schema


def as_input(data: Rows | pa.Schema) -> InputRows:
    """Convert rows to one form. A schema alone means no rows of that schema."""
    if isinstance(data, pa.Schema):
        return InputRows(data, iter(()))
    if isinstance(data, pa.RecordBatch):
        return InputRows(data.schema, iter((data,)), data.nbytes)
    if isinstance(data, pa.Table):
        return InputRows(data.schema, iter(data.to_batches()), data.nbytes)
    if isinstance(data, pa.RecordBatchReader):
        return InputRows(data.schema, iter(data))
    if isinstance(data, Iterable) and not isinstance(data, str | bytes | dict):
        batches = iter(data)
        first = next(batches, None)
        if isinstance(first, pa.RecordBatch):
            return InputRows(first.schema, itertools.chain((first,), batches))
        if first is None:
            return InputRows(None, iter(()))
    raise InvalidInput(_message_for(data))


def _message_for(data: object) -> str:
    library = type(data).__module__.partition(".")[0]
    if library == "pyspark":
        return (
            "rows must be in this process, not a DataFrame of Spark: write it with append(df, uri), overwrite, upsert "
            "or merge_columns of lance_assets.spark, or pass df.toArrow()"
        )
    conversions = {"pandas": "pyarrow.Table.from_pandas(frame)", "polars": "frame.to_arrow()"}
    remedy = conversions.get(library, "pyarrow.table(...), or pyarrow.Table.from_pandas(frame) for pandas")
    name = type(data).__name__ if library == "builtins" else f"{library} {type(data).__name__}"
    return (
        "rows must be a pyarrow Table, RecordBatch, RecordBatchReader or an iterable of batches, not a "
        f"{name}: pass {remedy}"
    )
