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
    raise InvalidInput(
        "rows must be a pyarrow Table, RecordBatch, RecordBatchReader or an iterable of batches, not "
        f"{type(data)}. For pandas: pyarrow.Table.from_pandas(frame)"
    )
