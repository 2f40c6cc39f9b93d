"""The common case of a join by key, fast: one key, of whole numbers, each there once.

Few keys are looked for among many that ascend, as those of most tables do, and the many are hardly looked at. Else it
is the other way round: numbers that lie close together are looked up in an array by their distance from the smallest;
others are sorted once and searched for in order, which the processor's caches like. Ten million by ten million take
half a second, or one and a half; the general way (`key_join.py`), which also says what is wrong with keys, five.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]
_NOTHING = -1
_SPARE = 1 << 20
_SPAN_PER_KEY = 4
_SPAN_MAX = 1 << 25
"""Which many are worth it where as many keys are looked up, however few there are to be found."""
_SPAN_PER_SOUGHT = 8
_FEW = 4
"""Where there are so many times more among which they are looked for."""
_ROWS_MAX = (1 << 31) - 1


class IntegerKeys:
    """Which row has which key.

    >>> keys = IntegerKeys.of(pa.chunked_array([[7, 5, None]]))
    >>> keys.rows_for(pa.chunked_array([[5, None, 6, 7]])).tolist()
    [1, -1, -1, 0]
    """

    def __init__(self, keys: Numbers, rows: Numbers) -> None:
        """Of at least one key; `rows` are theirs."""
        self._keys, self._rows = keys, rows
        self._low, self._high = int(keys.min()), int(keys.max())
        self._by_distance: npt.NDArray[Any] | None = None
        self._is_sorted = False

    @classmethod
    def of(cls, keys: pa.ChunkedArray) -> "IntegerKeys | None":
        """None where they are no whole numbers, or one is there twice."""
        if len(keys) > _ROWS_MAX or not (pa.types.is_signed_integer(keys.type) or pa.types.is_timestamp(keys.type)):
            return None
        numbers, there = _numbers(keys)
        found = cls(numbers[there], np.flatnonzero(there)) if there.any() else None
        return found if found is not None and found._are_unique() else None

    def find_rows(self, wanted: pa.ChunkedArray) -> Numbers:
        """For each of these keys the row that has it, or -1; a null equals nothing."""
        sought, is_sought = _numbers(wanted)
        within = is_sought & (sought >= self._low) & (sought <= self._high)
        found = np.full(len(sought), _NOTHING, dtype=np.int64)
        if self._span <= min(_SPAN_MAX, _SPAN_PER_SOUGHT * len(sought)):
            self._lay_out()
        if self._by_distance is not None:
            found[within] = self._by_distance[sought[within] - self._low]
            return found
        self._sort()
        places = np.flatnonzero(within)
        its = sought[places]
        if (its[1:] < its[:-1]).any():
            order = np.argsort(its)
            places, its = places[order], its[order]
        at = np.searchsorted(self._keys, its)
        equal = self._keys[at] == its
        found[places[equal]] = self._rows[at[equal]]
        return found

    def find_matches(self, among: pa.ChunkedArray) -> tuple[Numbers, Numbers]:
        """Where among these a key is, ascending, and the row that has it.

        >>> keys = IntegerKeys.of(pa.chunked_array([[7, 5, None]]))
        >>> [found.tolist() for found in keys.matches(pa.chunked_array([[4, 5], [None, 7], [7, 6]]))]
        [[1, 3, 4], [1, 0, 0]]
        """
        found: list[tuple[Numbers, Numbers]] = []
        rest: list[pa.Array] = []
        places_of_rest: list[Numbers] = []
        start = 0
        for chunk in among.chunks:
            its = self._among_ascending(chunk)
            if its is None:
                rest.append(chunk)
                places_of_rest.append(np.arange(start, start + len(chunk)))
            else:
                found.append((its[0] + start, its[1]))
            start += len(chunk)
        if rest:
            rows = self.find_rows(pa.chunked_array(rest))
            there = np.flatnonzero(rows != _NOTHING)
            found.append((np.concatenate(places_of_rest)[there], rows[there]))
        if not found:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        places, rows = (np.concatenate(side) for side in zip(*found, strict=True))
        if rest and len(found) > 1:
            order = np.argsort(places)
            places, rows = places[order], rows[order]
        return places, rows

    def _among_ascending(self, chunk: pa.Array) -> tuple[Numbers, Numbers] | None:
        """The same, if each of these is larger than the one before, and few keys lie between first and last."""
        if chunk.null_count or not len(chunk):
            return None
        numbers = np.asarray(chunk.cast(pa.int64()))
        self._sort()
        first = int(np.searchsorted(self._keys, numbers[0]))
        last = int(np.searchsorted(self._keys, numbers[-1], side="right"))
        if _FEW * max(0, last - first) > len(numbers) or not (numbers[1:] > numbers[:-1]).all():
            return None
        keys = self._keys[first:last]
        places = np.searchsorted(numbers, keys)
        equal = numbers[places] == keys  # none is larger than the last
        return places[equal], self._rows[first:last][equal]

    @property
    def _span(self) -> int:
        return self._high - self._low + 1

    def _are_unique(self) -> bool:
        if self._span <= _SPAN_PER_KEY * len(self._keys) + _SPARE:
            return int(np.count_nonzero(self._lay_out() != _NOTHING)) == len(self._keys)
        self._sort()
        return not (self._keys[1:] == self._keys[:-1]).any()

    def _lay_out(self) -> npt.NDArray[Any]:
        """The row of each number from the lowest key to the highest."""
        if self._by_distance is None:
            self._by_distance = np.full(self._span, _NOTHING, dtype=np.int32)
            self._by_distance[self._keys - self._low] = self._rows
        return self._by_distance

    def _sort(self) -> None:
        if not self._is_sorted:
            order = np.argsort(self._keys)
            self._keys, self._rows, self._is_sorted = self._keys[order], self._rows[order], True


def _numbers(column: pa.ChunkedArray) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """The values, and which of them are there."""
    numbers = column.cast(pa.int64())
    there = np.asarray(numbers.is_valid()) if numbers.null_count else np.ones(len(numbers), dtype=np.bool_)
    return np.asarray(numbers.fill_null(0)), there
