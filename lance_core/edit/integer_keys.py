"""The common case of a join by key, fast: one key, of whole numbers, each there once.

Numbers that lie close together are looked up in an array by their distance from the smallest; others are sorted once
and searched for in order, which the processor's caches like. Ten million by ten million take half a second, or one and
a half; the general way (`joining.py`), which also says what is wrong with keys, five.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]
_NOTHING = -1
_SPARE = 1 << 20
_ROWS_MAX = (1 << 31) - 1
_SPAN_PER_KEY = 4


@dataclass(frozen=True, slots=True)
class IntegerKeys:
    """Which row has which key.

    >>> keys = IntegerKeys.of(pa.chunked_array([[7, 5, None]]))
    >>> keys.rows_for(pa.chunked_array([[5, None, 6, 7]])).tolist()
    [1, -1, -1, 0]
    """

    low: int
    high: int
    by_distance: npt.NDArray[Any] | None
    """The row of each key from `low` to `high`, where they lie close together."""
    sorted_keys: Numbers
    rows: Numbers
    """Of the sorted keys."""

    @classmethod
    def of(cls, keys: pa.ChunkedArray) -> "IntegerKeys | None":
        """None where they are no whole numbers, or one is there twice."""
        if not (pa.types.is_signed_integer(keys.type) or pa.types.is_timestamp(keys.type)):
            return None
        if len(keys) > _ROWS_MAX:
            return None
        numbers, there = _numbers(keys)
        rows = np.flatnonzero(there)
        numbers, none = numbers[there], np.empty(0, dtype=np.int64)
        if not len(numbers):
            return cls(0, -1, none, none, none)
        low, high = int(numbers.min()), int(numbers.max())
        if high - low < _SPAN_PER_KEY * len(numbers) + _SPARE:
            row_of = np.full(high - low + 1, _NOTHING, dtype=np.int32)
            row_of[numbers - low] = rows
            is_unique = np.count_nonzero(row_of != _NOTHING) == len(numbers)
            return cls(low, high, row_of, none, none) if is_unique else None
        order = np.argsort(numbers)
        numbers = numbers[order]
        is_unique = not (numbers[1:] == numbers[:-1]).any()
        return cls(low, high, None, numbers, rows[order]) if is_unique else None

    def rows_for(self, wanted: pa.ChunkedArray) -> Numbers:
        """For each of these keys the row that has it, or -1; a null equals nothing."""
        sought, is_sought = _numbers(wanted)
        within = is_sought & (sought >= self.low) & (sought <= self.high)
        found = np.full(len(sought), _NOTHING, dtype=np.int64)
        if self.by_distance is not None:
            found[within] = self.by_distance[sought[within] - self.low]
            return found
        places = np.flatnonzero(within)
        places = places[np.argsort(sought[places])]
        at = np.searchsorted(self.sorted_keys, sought[places])
        equal = self.sorted_keys[at] == sought[places]
        found[places[equal]] = self.rows[at[equal]]
        return found


def _numbers(column: pa.ChunkedArray) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """The values, and which of them are there."""
    numbers = column.cast(pa.int64())
    there = np.asarray(numbers.is_valid()) if numbers.null_count else np.ones(len(numbers), dtype=np.bool_)
    return np.asarray(numbers.fill_null(0)), there
