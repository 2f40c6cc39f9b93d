"""Row computation: calls the function of a computed column for rows, and applies its policy for rows that fail.

A batch for which the function raises is divided until the rows that fail are alone, so that the others keep the speed
of batches. The function of `setup=` is made once for a job in each process. Start with `compute_rows`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.conform import Conversion, conform
from lance_core.datafiles.inputs import as_input
from lance_core.dml.computed_column import ComputedColumn, Function
from lance_core.dml.row_rewrite import concat_arrays
from lance_core.errors import InvalidInput
from lance_core.expressions import Projection

ERROR_CHARACTERS_MAX = 500
_functions: dict[str, Function] = {}
"""Functions that `setup=` made in this process, by the job."""


@dataclass(frozen=True, slots=True)
class ComputedRows:
    """Values of those rows of a batch that have one."""

    positions: npt.NDArray[np.int64]
    """Positions in the batch, in ascending order."""
    values: pa.Array
    errors: tuple[tuple[int, str], ...] = ()
    """Rows that failed: their position in the batch, and the error."""


class _FunctionFailed(Exception):
    """Error that the function of the user raised, as opposed to a result of a wrong form."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def function_of(column: ComputedColumn, job: str) -> Function:
    """Return the function of the column. One that `setup=` makes is cached for the job."""
    if column.sql is not None:
        return _SqlFunction(column)
    if column.fn is not None:
        return column.fn
    assert column.setup is not None
    if job not in _functions:
        _functions.clear()  # an earlier job has ended, and its model may be large
        _functions[job] = column.setup()
    return _functions[job]


@dataclass(frozen=True, slots=True)
class _SqlFunction:
    column: ComputedColumn

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        column = self.column
        projection = Projection.parse({column.name: str(column.sql)}, batch.schema, types={column.name: column.type})
        return projection.evaluate(batch).column(0)


def compute_rows(column: ComputedColumn, function: Function, batch: pa.RecordBatch, what: str) -> ComputedRows:
    """Return the values of the rows of the batch, without rows that the policy skips. `what` names the rows in
    errors."""
    if column.on_error == "fail":
        try:
            values = _call(column, function, batch, what)
        except _FunctionFailed as failed:
            raise failed.error from failed.error.__cause__
        return ComputedRows(np.arange(batch.num_rows), values)
    parts = list(_compute_divided(column, function, batch, 0, what))
    positions = np.concatenate([np.arange(start, start + len(values)) for start, values, _error in parts])
    errors = tuple((start, error) for start, _values, error in parts if error is not None)
    values = concat_arrays([values for _start, values, _error in parts])
    if column.on_error == "skip":
        is_valid = ~np.isin(positions, [start for start, _error in errors])
        return ComputedRows(positions[is_valid], values.filter(pa.array(is_valid)), errors)
    return ComputedRows(positions, values, errors)


def _compute_divided(
    column: ComputedColumn, function: Function, batch: pa.RecordBatch, start: int, what: str
) -> Iterator[tuple[int, pa.Array, str | None]]:
    """Yield values by the position of the first; a row that fails is alone, and null with its error."""
    try:
        yield start, _call(column, function, batch, what), None
    except _FunctionFailed as failed:
        if batch.num_rows == 1:
            message = f"{type(failed.error).__name__}: {failed.error}"
            yield start, pa.nulls(1, column.type), message[:ERROR_CHARACTERS_MAX]
            return
        half = batch.num_rows // 2
        yield from _compute_divided(column, function, batch.slice(0, half), start, what)
        yield from _compute_divided(column, function, batch.slice(half), start + half, what)


def _call(column: ComputedColumn, function: Function, batch: pa.RecordBatch, what: str) -> pa.Array:
    label = f"{what}: the function of computed column {column.name!r}"
    try:
        result = function(batch)
    except Exception as error:
        error.add_note(f"{label} raised this")
        raise _FunctionFailed(error) from error
    declared = pa.schema([pa.field(column.name, column.type)])
    if isinstance(result, pa.RecordBatch | pa.Table):
        if result.num_columns != 1:
            raise InvalidInput(f"{label} returned {result.num_columns} columns; it has to return one")
        result = result.column(0)
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    if hasattr(result, "detach"):  # a tensor of PyTorch
        result = result.detach().cpu().numpy()
    if isinstance(result, np.ndarray) and result.ndim == 2:
        result = pa.FixedSizeListArray.from_arrays(pa.array(result.reshape(-1)), result.shape[1])
    rows = as_input({column.name: result}, declared)
    converted = [conform(each, declared, conversion=Conversion.CAST, what=label) for each in rows.batches]
    values = concat_arrays([each.column(0) for each in converted]) if converted else pa.nulls(0, column.type)
    if len(values) != batch.num_rows:
        raise InvalidInput(
            f"{label} was given {batch.num_rows} rows and returned {len(values)} values; it has to return one for each "
            "row, in the same order"
        )
    return values
