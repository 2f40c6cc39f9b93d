"""Integer keys: a fast path of the key join for one key column of integers or timestamps without duplicates.

If few keys are looked up among many ascending ones, as in most tables, a binary search visits hardly any of the many.
If the many are in no order, a filter of a few megabytes, which fits into a processor cache, drops nearly all of them in
one and a half nanoseconds each. Otherwise the many are looked up among the few: keys that lie close together in an
array indexed by their distance from the smallest key, others in sorted order, which is friendly to processor caches.
Joining ten million keys with ten million takes half a second or one and a half; the general join (`key_join.py`), which
also reports what is wrong with keys, takes five.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]
_NO_ROW = -1
_SPARE_SPAN = 1 << 20
_SPAN_PER_KEY = 4
_SPAN_MAX = 1 << 25
"""Maximum size of the lookup array; such an array pays off if as many keys are looked up, however few are found."""
_SPAN_PER_LOOKUP = 8
_BINARY_SEARCH_FACTOR = 4
"""Minimum ratio of the values in a chunk to the keys in its range for a binary search of the keys."""
_ROWS_MAX = (1 << 31) - 1
_FILTER_FACTOR = 4
"""Minimum ratio of the values to the keys for a filter."""
_SLOTS_PER_KEY = 32
_BITS_MIN, _BITS_MAX = 16, 24
_BLOCK = 1 << 16
"""Values that are filtered at a time, so that intermediate results stay in a processor cache."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""The golden ratio as a fraction of 2**64: the upper bits of a product spread consecutive keys evenly."""


class IntegerKeys:
    """Map from keys to rows.

    >>> keys = IntegerKeys.of(pa.chunked_array([[7, 5, None]]))
    >>> keys.find_rows(pa.chunked_array([[5, None, 6, 7]])).tolist()
    [1, -1, -1, 0]
    """

    def __init__(self, keys: Numbers, rows: Numbers) -> None:
        """`rows` are the rows of the keys, of which there is at least one."""
        self._keys, self._rows = keys, rows
        self._low, self._high = int(keys.min()), int(keys.max())
        self._row_by_distance: npt.NDArray[Any] | None = None
        self._is_sorted = False
        self._slot_table: SlotTable | None = None

    @classmethod
    def of(cls, keys: pa.ChunkedArray) -> "IntegerKeys | None":
        """Return the map, or `None` if the keys are not integers or not unique."""
        if len(keys) > _ROWS_MAX or not (pa.types.is_signed_integer(keys.type) or pa.types.is_timestamp(keys.type)):
            return None
        numbers, is_valid = _numbers(keys)
        found = cls(numbers[is_valid], np.flatnonzero(is_valid)) if is_valid.any() else None
        return found if found is not None and found._are_unique() else None

    def find_rows(self, values: pa.ChunkedArray) -> Numbers:
        """Return the row with each of these keys, or -1. A null equals no key."""
        numbers, is_valid = _numbers(values)
        in_range = is_valid & (numbers >= self._low) & (numbers <= self._high)
        found = np.full(len(numbers), _NO_ROW, dtype=np.int64)
        if self._span <= min(_SPAN_MAX, _SPAN_PER_LOOKUP * len(numbers)):
            self._build_lookup()
        if self._row_by_distance is not None:
            found[in_range] = self._row_by_distance[numbers[in_range] - self._low]
            return found
        self._sort()
        positions = np.flatnonzero(in_range)
        candidates = numbers[positions]
        if (candidates[1:] < candidates[:-1]).any():
            order = np.argsort(candidates)
            positions, candidates = positions[order], candidates[order]
        indices = np.searchsorted(self._keys, candidates)
        is_equal = self._keys[indices] == candidates
        found[positions[is_equal]] = self._rows[indices[is_equal]]
        return found

    def find_matches(self, values: pa.ChunkedArray) -> tuple[Numbers, Numbers]:
        """Return the positions of the values that are keys, in ascending order, and the row of each.

        >>> keys = IntegerKeys.of(pa.chunked_array([[7, 5, None]]))
        >>> [found.tolist() for found in keys.find_matches(pa.chunked_array([[4, 5], [None, 7], [7, 6]]))]
        [[1, 3, 4], [1, 0, 0]]
        """
        found: list[tuple[Numbers, Numbers]] = []
        other_chunks: list[pa.Array] = []
        other_positions: list[Numbers] = []
        start = 0
        are_few = _FILTER_FACTOR * len(self._keys) <= len(values)
        for chunk in values.chunks:
            matches = self._match_ascending(chunk)
            if matches is None and are_few:
                matches = self._match_filtered(chunk)
            if matches is None:
                other_chunks.append(chunk)
                other_positions.append(np.arange(start, start + len(chunk)))
            else:
                found.append((matches[0] + start, matches[1]))
            start += len(chunk)
        if other_chunks:
            rows = self.find_rows(pa.chunked_array(other_chunks))
            matched = np.flatnonzero(rows != _NO_ROW)
            found.append((np.concatenate(other_positions)[matched], rows[matched]))
        if not found:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        positions, rows = (np.concatenate(side) for side in zip(*found, strict=True))
        if other_chunks and len(found) > 1:
            order = np.argsort(positions)
            positions, rows = positions[order], rows[order]
        return positions, rows

    def _match_ascending(self, chunk: pa.Array) -> tuple[Numbers, Numbers] | None:
        """Match a chunk by binary search; `None` if it is not strictly ascending or many keys lie in its range."""
        if chunk.null_count or not len(chunk):
            return None
        numbers = np.asarray(chunk.cast(pa.int64()))
        self._sort()
        first = int(np.searchsorted(self._keys, numbers[0]))
        last = int(np.searchsorted(self._keys, numbers[-1], side="right"))
        if _BINARY_SEARCH_FACTOR * max(0, last - first) > len(numbers) or not (numbers[1:] > numbers[:-1]).all():
            return None
        keys = self._keys[first:last]
        positions = np.searchsorted(numbers, keys)
        is_equal = numbers[positions] == keys  # no key is larger than the last number
        return positions[is_equal], self._rows[first:last][is_equal]

    def _match_filtered(self, chunk: pa.Array) -> tuple[Numbers, Numbers]:
        """Match a chunk by a search of those numbers alone that pass the filter."""
        numbers, is_valid = _numbers(chunk)
        table = self._slot_table = self._slot_table or SlotTable.of(self._keys, self._rows)
        positions, rows = table.match(numbers)
        if chunk.null_count:
            is_number = is_valid[positions]
            return positions[is_number], rows[is_number]
        return positions, rows

    @property
    def _span(self) -> int:
        return self._high - self._low + 1

    def _are_unique(self) -> bool:
        if self._span <= _SPAN_PER_KEY * len(self._keys) + _SPARE_SPAN:
            return int(np.count_nonzero(self._build_lookup() != _NO_ROW)) == len(self._keys)
        self._sort()
        return not (self._keys[1:] == self._keys[:-1]).any()

    def _build_lookup(self) -> npt.NDArray[Any]:
        """Build the array of the row of each number from the lowest key to the highest."""
        if self._row_by_distance is None:
            self._row_by_distance = np.full(self._span, _NO_ROW, dtype=np.int32)
            self._row_by_distance[self._keys - self._low] = self._rows
        return self._row_by_distance

    def _sort(self) -> None:
        if not self._is_sorted:
            order = np.argsort(self._keys)
            self._keys, self._rows, self._is_sorted = self._keys[order], self._rows[order], True


@dataclass(frozen=True, slots=True)
class SlotTable:
    """Unique keys by slot, which is the upper bits of a product, and a filter that says which slots have a key."""

    bits: int
    has_key: npt.NDArray[np.bool_]
    first: npt.NDArray[np.int32]
    """Position of the first key of each slot in `keys`, if it has any."""
    keys: Numbers
    """The keys in the order of their slots."""
    rows: Numbers

    @classmethod
    def of(cls, keys: Numbers, rows: Numbers) -> "SlotTable":
        bits = min(max((len(keys) * _SLOTS_PER_KEY).bit_length(), _BITS_MIN), _BITS_MAX)
        slots = _slots(keys, bits)
        order = np.argsort(slots)
        has_key, first = np.zeros(1 << bits, dtype=np.bool_), np.zeros(1 << bits, dtype=np.int32)
        has_key[slots] = True
        first[slots[order[::-1]]] = np.arange(len(keys) - 1, -1, -1, dtype=np.int32)
        return cls(bits, has_key, first, keys[order], rows[order])

    def match(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """Return the positions of the numbers that are keys, in ascending order, and the row of each."""
        positions = self._filter(numbers)
        candidates = numbers[positions]
        slots = _slots(candidates, self.bits)
        found = self.first[slots].astype(np.int64)
        remaining = np.flatnonzero(self.keys[found] != candidates)
        while len(remaining):  # a slot has several keys if it is one of many
            following = found[remaining] + 1
            is_in_slot = following < len(self.keys)
            following, remaining = following[is_in_slot], remaining[is_in_slot]
            is_in_slot = _slots(self.keys[following], self.bits) == slots[remaining]
            following, remaining = following[is_in_slot], remaining[is_in_slot]
            found[remaining] = following
            remaining = remaining[self.keys[following] != candidates[remaining]]
        is_equal = self.keys[found] == candidates
        return positions[is_equal], self.rows[found[is_equal]]

    def _filter(self, numbers: Numbers) -> Numbers:
        """Return the positions of all numbers that are keys, and of a few others, in ascending order."""
        blocks = range(0, len(numbers), _BLOCK)
        passed = [self.has_key.take(_slots(numbers[start : start + _BLOCK], self.bits)) for start in blocks]
        found = [np.flatnonzero(block) + start for start, block in zip(blocks, passed, strict=True)]
        return np.concatenate([np.empty(0, dtype=np.int64), *found])


def _slots(numbers: Numbers, bits: int) -> Numbers:
    """Return the slot of each number in a table of `2**bits` slots."""
    products = numbers.view(np.uint64) * _MULTIPLIER
    products >>= np.uint64(64 - bits)
    return products.view(np.int64)


def _numbers(column: pa.ChunkedArray | pa.Array) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Return the values as integers, and which of them are valid."""
    numbers = column.cast(pa.int64())
    if not numbers.null_count:
        return np.asarray(numbers), np.ones(len(numbers), dtype=np.bool_)
    return np.asarray(numbers.fill_null(0)), np.asarray(numbers.is_valid())
