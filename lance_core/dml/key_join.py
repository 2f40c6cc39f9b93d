"""Rows of a table joined with rows in memory, by key.

What counts as equal is what Lance counts: a null equals nothing, a NaN every other NaN, and the two zeros of floating
point are two keys. A key of whole numbers has a shorter way (`integer_keys.py`); else each side is brought to
comparable values once, and the rest is hash lookups in C.
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
_NAMED_MAX = 3


class SourceKeys:
    """The keys of the rows in memory, each there once.

    >>> keys = SourceKeys(pa.table({"id": [5, None, 7]}), ["id"], what="orders")
    >>> keys.rows_for([pa.chunked_array([[7, 6, None, 7]])]).tolist()
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
        keyed = np.flatnonzero(codes != NO_ROW)
        self._row_of = np.full(int(codes.max(initial=NO_ROW)) + 1, NO_ROW, dtype=np.int64)
        self._row_of[codes[keyed]] = keyed
        counts = np.bincount(codes[keyed], minlength=len(self._row_of))
        if (counts > 1).any():
            first = np.unique(codes[keyed], return_index=True)[1]
            twice = keyed[first][counts[codes[keyed[first]]] > 1]
            raise InvalidInput(
                f"{what}: keys that the data has more than once ({len(twice):,} of them): {self.describe_keys(twice)}. Which "
                "of their rows is meant cannot be told; keep one of each"
            )

    def find_rows(self, columns: Sequence[pa.ChunkedArray]) -> Numbers:
        """For each row of the table, by its key columns: the row in memory with that key, or -1."""
        if self._integers is not None:
            return self._integers.find_rows(columns[0])
        codes = self._codes(list(map(normalized_key, columns)), building=False)
        if not len(self._row_of):
            return codes
        return np.where(codes == NO_ROW, NO_ROW, self._row_of[codes])

    def find_matches(self, columns: Sequence[pa.ChunkedArray]) -> tuple[Numbers, Numbers]:
        """The rows of the table whose key is in memory, ascending, and the row in memory for each."""
        if self._integers is not None:
            return self._integers.find_matches(columns[0])
        found = self.find_rows(columns)
        places = np.flatnonzero(found != NO_ROW)
        return places, found[places]

    def describe_keys(self, rows: Numbers) -> str:
        """The keys of these rows for people, a few of them."""
        few = self._rows.take(pa.array(rows[:_NAMED_MAX])).to_pylist()
        texts = [" and ".join(f"{name} = {value!r}" for name, value in each.items()) for each in few]
        return "; ".join(texts) + ("; …" if len(rows) > _NAMED_MAX else "")

    def _codes(self, columns: Sequence[pa.ChunkedArray], *, building: bool) -> Numbers:
        """A small number for each key that is in memory, -1 for all others."""
        combined = self._found(0, columns[0])
        for number in range(1, len(columns)):
            found = self._found(number, columns[number])
            either = (combined == NO_ROW) | (found == NO_ROW)
            pairs = np.where(either, NO_ROW, combined * max(1, len(self._distinct[number])) + found)
            if building:
                self._pairs.append(np.unique(pairs[~either]))
            combined = _places(self._pairs[number - 1], pairs)
        return combined

    def _found(self, number: int, column: pa.ChunkedArray) -> Numbers:
        places = pc.index_in(column, value_set=self._distinct[number], skip_nulls=True)
        return np.asarray(places.fill_null(NO_ROW).to_numpy(), dtype=np.int64)


def check_key_type(name: str, arrow: pa.DataType, *, what: str) -> None:
    storage = storage_type_of(arrow)
    if pa.types.is_nested(storage) or pa.types.is_null(storage) or is_json(arrow):
        raise InvalidInput(f"{what}: rows cannot be matched by column {name!r}, a {arrow}; keys hold plain values")


def _places(known: Numbers, wanted: Numbers) -> Numbers:
    if not len(known):
        return np.full(len(wanted), NO_ROW, dtype=np.int64)
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[at] == wanted, at, NO_ROW)
