"""Key join: matches rows of a table with source rows in memory, by one or more key columns.

Equality is Lance's: a null equals nothing, a NaN equals every other NaN, and the two zeros of floating point are
different keys. A single integer key takes a fast path (`integer_keys.py`). Otherwise each side is normalized to
comparable values once, and the rest is hash lookups in C. Start with `SourceKeys`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.datafiles.key_normalization import normalized_key, storage_type_of
from lance_core.dml.integer_keys import IntegerKeys
from lance_core.errors import InvalidInput
from lance_core.format.logical_types import is_json

Numbers = npt.NDArray[np.int64]
NO_ROW = -1
_KEYS_IN_MESSAGE_MAX = 3


class SourceKeys:
    """Keys of the source rows, which are unique.

    >>> keys = SourceKeys(pa.table({"id": [5, None, 7]}), ["id"], what="orders")
    >>> keys.find_rows([pa.chunked_array([[7, 6, None, 7]])]).tolist()
    [2, -1, -1, 2]
    """

    def __init__(self, rows: pa.Table, on: Sequence[str], *, what: str) -> None:
        self._rows = rows.select(list(on))
        self._distinct: list[pa.Array] = []
        self._pairs: list[Numbers] = []
        self._integers = IntegerKeys.of(self._rows.column(0)) if len(on) == 1 else None
        if self._integers is not None:
            return
        columns = list(map(normalized_key, self._rows.columns))
        for column in columns:
            self._distinct.append(pc.unique(column).drop_null())
        codes = self._codes(columns, building=True)
        with_key = np.flatnonzero(codes != NO_ROW)
        self._row_of_code = np.full(int(codes.max(initial=NO_ROW)) + 1, NO_ROW, dtype=np.int64)
        self._row_of_code[codes[with_key]] = with_key
        counts = np.bincount(codes[with_key], minlength=len(self._row_of_code))
        if (counts > 1).any():
            first = np.unique(codes[with_key], return_index=True)[1]
            duplicates = with_key[first][counts[codes[with_key[first]]] > 1]
            raise InvalidInput(
                f"{what}: the data has keys more than once ({len(duplicates):,} of them): "
                f"{self.describe_keys(duplicates)}. Keep one row of each key"
            )

    def find_rows(self, columns: Sequence[pa.ChunkedArray]) -> Numbers:
        """Return, for each row of the key columns, the source row with that key, or -1."""
        if self._integers is not None:
            return self._integers.find_rows(columns[0])
        codes = self._codes(list(map(normalized_key, columns)), building=False)
        if not len(self._row_of_code):
            return codes
        return np.where(codes == NO_ROW, NO_ROW, self._row_of_code[codes])

    def find_matches(self, columns: Sequence[pa.ChunkedArray]) -> tuple[Numbers, Numbers]:
        """Return the positions in the key columns whose key is in the source, in ascending order, and the source row of
        each."""
        if self._integers is not None:
            return self._integers.find_matches(columns[0])
        found = self.find_rows(columns)
        positions = np.flatnonzero(found != NO_ROW)
        return positions, found[positions]

    def describe_keys(self, rows: Numbers) -> str:
        """Format the keys of a few of these rows for a message."""
        few = self._rows.take(pa.array(rows[:_KEYS_IN_MESSAGE_MAX])).to_pylist()
        texts = [" and ".join(f"{name} = {value!r}" for name, value in row.items()) for row in few]
        return "; ".join(texts) + ("; …" if len(rows) > _KEYS_IN_MESSAGE_MAX else "")

    def _codes(self, columns: Sequence[pa.ChunkedArray], *, building: bool) -> Numbers:
        """Return a small number for each key that is in the source, and -1 for all others. `building` registers the
        combinations of several key columns."""
        combined = self._column_codes(0, columns[0])
        for number in range(1, len(columns)):
            codes = self._column_codes(number, columns[number])
            is_missing = (combined == NO_ROW) | (codes == NO_ROW)
            pairs = np.where(is_missing, NO_ROW, combined * max(1, len(self._distinct[number])) + codes)
            if building:
                self._pairs.append(np.unique(pairs[~is_missing]))
            combined = _indices_in(self._pairs[number - 1], pairs)
        return combined

    def _column_codes(self, number: int, column: pa.ChunkedArray) -> Numbers:
        indices = pc.index_in(column, value_set=self._distinct[number], skip_nulls=True)
        return np.asarray(indices.fill_null(NO_ROW).to_numpy(), dtype=np.int64)


def check_key_type(name: str, arrow: pa.DataType, *, what: str) -> None:
    storage = storage_type_of(arrow)
    if pa.types.is_nested(storage) or pa.types.is_null(storage) or is_json(arrow):
        raise InvalidInput(f"{what}: rows cannot be matched by column {name!r} of type {arrow}; choose a scalar column")


def _indices_in(sorted_values: Numbers, values: Numbers) -> Numbers:
    """Return the index of each value in an ascending array, or -1."""
    if not len(sorted_values):
        return np.full(len(values), NO_ROW, dtype=np.int64)
    indices = np.minimum(np.searchsorted(sorted_values, values), len(sorted_values) - 1)
    return np.where(sorted_values[indices] == values, indices, NO_ROW)
