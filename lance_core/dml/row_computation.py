"""Row computation: computes values by the function of a computed column, and applies its policy for rows that fail.

A batch for which the function raises is divided until the rows that fail are alone, so that the others keep the speed
of batches. Start with `compute_rows`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.conform import Conversion, conform
from lance_core.datafiles.inputs import as_input
from lance_core.dml.blob_inputs import FunctionInputs
from lance_core.dml.call_settings import BLOB_ROWS, class_name
from lance_core.dml.computed_column import ComputedColumn
from lance_core.dml.function_calls import FunctionCalls, FunctionFailed
from lance_core.dml.function_inputs import convert_inputs
from lance_core.dml.row_rewrite import concat_arrays
from lance_core.errors import InvalidInput, SchemaMismatch
from lance_core.storage.secret_detection import contains_secret

ERROR_CHARACTERS_MAX = 500


@dataclass(frozen=True, slots=True)
class RowError:
    """Error of the function for one row."""

    position: int
    type: str
    """Name of the class, with its module."""
    message: str
    """Message, cut to `ERROR_CHARACTERS_MAX` characters; without it if it contains a secret."""

    @classmethod
    def of(cls, position: int, error: BaseException) -> "RowError":
        message = str(error)
        if contains_secret(message):
            message = "(the message contains a secret)"
        return cls(position, class_name(type(error)), message[:ERROR_CHARACTERS_MAX])


@dataclass(frozen=True, slots=True)
class ComputedRows:
    """Values of those rows of a batch that have one."""

    positions: npt.NDArray[np.int64]
    """Positions in the batch, in ascending order."""
    values: pa.Array
    errors: tuple[RowError, ...] = ()
    """Rows that failed, in ascending order."""


def compute_rows(
    calls: FunctionCalls, inputs: FunctionInputs, what: str, is_ended: Callable[[], bool] = lambda: False
) -> ComputedRows:
    """Return the values of the rows, without rows that the policy skips. `what` names the rows in errors.
    No call starts when `is_ended` is true; rows that were not reached have neither a value nor an error."""
    is_by_row = calls.column.per == "row"
    work: _RowWork | _BatchWork = _RowWork(calls, inputs, what) if is_by_row else _BatchWork(calls, inputs, what)
    try:
        work.run(is_ended)
    except FunctionFailed as failed:
        raise failed.error from failed.error.__cause__
    parts = sorted(work.finished(), key=lambda part: part.start)
    errors = tuple(sorted(work.errors, key=lambda error: error.position))
    if not parts:
        return ComputedRows(np.arange(0), pa.nulls(0, calls.column.type), errors)
    positions = np.concatenate([np.arange(part.start, part.start + len(part.values)) for part in parts])
    values = concat_arrays([part.values for part in parts])
    if errors and calls.column.on_error == "skip":
        is_valid = ~np.isin(positions, [error.position for error in errors])
        positions, values = positions[is_valid], values.filter(pa.array(is_valid))
    return ComputedRows(positions, values, errors)


@dataclass(frozen=True, slots=True)
class _Part:
    """Values of neighbouring rows."""

    start: int
    values: pa.Array


@dataclass(slots=True)
class _BatchWork:
    """Calls that receive batches."""

    calls: FunctionCalls
    inputs: FunctionInputs
    what: str
    errors: list[RowError] = field(default_factory=list)
    _parts: list[_Part] = field(default_factory=list)

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yield the rows of each call, as the first one and their number."""
        rows = self.inputs.num_rows
        size = self.calls.column.batch_rows or (BLOB_ROWS if self.inputs.blobs else rows)
        for start in range(0, rows, max(1, size)):
            yield start, min(size, rows - start)

    def run(self, is_ended: Callable[[], bool]) -> None:
        self.calls.for_each(self.pieces(), self.compute, is_ended)

    async def compute(self, piece: tuple[int, int]) -> None:
        column, (start, count) = self.calls.column, piece
        label, part = _label(self.what, column), self.inputs.slice(start, count)
        try:
            result = await self.calls.call(lambda: convert_inputs(part, column.input_format), label)
        except FunctionFailed as failed:
            if column.on_error == "fail":
                raise
            if count == 1:
                self.errors.append(RowError.of(start, failed.error))
                self._parts.append(_Part(start, pa.nulls(1, column.type)))
                return
            half = count // 2
            await self.compute((start, half))
            await self.compute((start + half, count - half))
        else:
            self._parts.append(_Part(start, values_of(result, column, count, label)))

    def finished(self) -> Sequence[_Part]:
        return self._parts


@dataclass(slots=True)
class _RowWork:
    """Calls that receive one row."""

    calls: FunctionCalls
    inputs: FunctionInputs
    what: str
    errors: list[RowError] = field(default_factory=list)
    _results: dict[int, object] = field(default_factory=dict)

    def pieces(self) -> Iterator[tuple[int, Callable[[], dict[str, object]]]]:
        yield from enumerate(self.inputs.row_makers())

    def run(self, is_ended: Callable[[], bool]) -> None:
        self.calls.for_each(self.pieces(), self.compute, is_ended)

    async def compute(self, piece: tuple[int, Callable[[], dict[str, object]]]) -> None:
        position, make_row = piece
        try:
            self._results[position] = await self.calls.call(make_row, _label(self.what, self.calls.column))
        except FunctionFailed as failed:
            if self.calls.column.on_error == "fail":
                raise
            self.errors.append(RowError.of(position, failed.error))
            self._results[position] = None

    def finished(self) -> Iterator[_Part]:
        """Yield the values of neighbouring rows together, since each conversion takes time."""
        column, positions = self.calls.column, np.array(sorted(self._results), dtype=np.int64)
        for run in np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1):
            if len(run):
                results = [self._results[position] for position in run.tolist()]
                yield _Part(int(run[0]), values_of(results, column, len(run), _label(self.what, column)))


def _label(what: str, column: ComputedColumn) -> str:
    return f"{what}: the function of computed column {column.name!r}"


def _convert(result: object, declared: pa.Schema, label: str) -> list[pa.RecordBatch]:
    """Return the values of a function with the declared type. `label` names the function and the rows in errors."""
    try:
        rows = as_input({declared.names[0]: result}, declared)
    except SchemaMismatch as error:
        raise SchemaMismatch(
            f"{label} returned values of type {error.got} for a column of type {error.expected}; cast them, or declare "
            "the type that it returns",
            column=error.column,
            expected=error.expected,
            got=error.got,
        ) from error
    except InvalidInput as error:
        raise InvalidInput(f"{label} returned no array of values: {error}") from error
    return [conform(each, declared, conversion=Conversion.CAST, what=label) for each in rows.batches]


def values_of(result: object, column: ComputedColumn, rows: int, label: str) -> pa.Array:
    """Return what the function returned for these rows as an array of the type of the column."""
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
    converted = _convert(result, declared, label)
    values = concat_arrays([each.column(0) for each in converted]) if converted else pa.nulls(0, column.type)
    if len(values) != rows:
        raise InvalidInput(
            f"{label} was given {rows} rows and returned {len(values)} values; it has to return one for each row, in "
            "the same order"
        )
    return values
