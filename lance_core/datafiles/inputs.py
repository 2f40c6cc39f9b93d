"""The forms in which a caller may hand in rows, as one: a schema and a stream of batches."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from lance_core.errors import InvalidInput

Rows: TypeAlias = pa.Table | pa.RecordBatch | pa.RecordBatchReader | Iterable[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class InputRows:
    schema: pa.Schema | None
    """None where there was not even one batch to tell."""
    batches: Iterable[pa.RecordBatch]
    bytes: int | None = None
    """How much they are, where they are in memory."""

    def materialized(self) -> "InputRows":
        """In memory, to be read more than once."""
        return InputRows(self.schema, tuple(self.batches))

    @property
    def columns(self) -> pa.Schema:
        """For who has to know them before the first row."""
        if self.schema is None:
            raise InvalidInput("no batches do not say which columns they have; give a pyarrow Table instead")
        return self.schema


def as_input(data: Rows | pa.Schema) -> InputRows:
    """A schema alone stands for no rows of it."""
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
        "rows come as a pyarrow Table, RecordBatch, RecordBatchReader or an iterable of batches, not as "
        f"{type(data)}. For pandas: pyarrow.Table.from_pandas(frame)"
    )
