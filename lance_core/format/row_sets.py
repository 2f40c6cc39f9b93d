"""Row sets: sets of row addresses or row ids, and their encoding in index files.

Addresses and ids are 64-bit integers. Rows with the same upper half (in an address: the fragment id) form one Roaring
bitmap. Lance calls the encoded form a RowAddrTreeMap. Posting lists of the n-gram index (`treemap.py`) and the
compactions of a fragment reuse index have another encoding, that of `BitMap64`.
"""

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap, BitMap64

from lance_core.errors import Corrupt

HALF_BITS = 32
LOWER_HALF = (1 << HALF_BITS) - 1
_COUNT = struct.Struct("<I")
_ENTRY = struct.Struct("<II")

Ids = npt.NDArray[np.uint64]
RowsUnder = Callable[[int], int]
"""Returns the number of rows that may exist under an upper half; 0 if there are none. A few encoded bytes can stand
for four billion rows, so readers discard the excess."""


def bitmap_of(numbers: npt.NDArray[np.uint32]) -> BitMap:
    """Return the bitmap of these numbers. Building it from an `array` is twenty times as fast as from a numpy array."""
    return BitMap(array("I", numbers.tobytes()))


def bitmap64_of(numbers: Ids) -> BitMap64:
    """Return the bitmap of these 64-bit numbers."""
    return BitMap64(array("Q", numbers.tobytes()))


@dataclass(frozen=True, slots=True)
class RowSet:
    """A set of 64-bit row numbers.

    >>> some = RowSet.of(np.array([5, (7 << 32) | 1], dtype=np.uint64))
    >>> some.parts
    {0: BitMap([5]), 7: BitMap([1])}
    >>> len(some | RowSet({0: BitMap([6])}))
    3
    """

    parts: Mapping[int, BitMap] = field(default_factory=dict)
    """Bitmaps of the lower halves by upper half, in ascending order. No bitmap is empty."""

    @classmethod
    def of(cls, ids: Ids) -> "RowSet":
        """Return the set of these numbers, in any order. Sorting them first takes a tenth of the time that a bitmap
        needs to order them one by one."""
        if not len(ids):
            return cls()
        if (ids[1:] < ids[:-1]).any():
            ids = np.sort(ids)
        upper = (ids >> np.uint64(HALF_BITS)).astype(np.uint32)
        lower = ids.astype(np.uint32)
        if upper[0] == upper[-1]:
            return cls({int(upper[0]): bitmap_of(lower)})
        ends = [*(np.flatnonzero(upper[1:] != upper[:-1]) + 1).tolist(), len(ids)]
        return cls({int(upper[a]): bitmap_of(lower[a:b]) for a, b in zip([0, *ends], ends, strict=False)})

    @classmethod
    def full(cls, row_counts: Mapping[int, int]) -> "RowSet":
        """Return the set of all rows, given the number of rows under each upper half."""
        return cls({high: BitMap(range(rows)) for high, rows in sorted(row_counts.items()) if rows})

    @classmethod
    def union(cls, sets: "Iterable[RowSet]") -> "RowSet":
        """Return the union of many sets at once, which is faster than adding them one by one."""
        parts_by_half: dict[int, list[BitMap]] = {}
        for row_set in sets:
            for high, part in row_set.parts.items():
                parts_by_half.setdefault(high, []).append(part)
        return cls(
            {
                high: bitmaps[0] if len(bitmaps) == 1 else BitMap.union(*bitmaps)
                for high, bitmaps in sorted(parts_by_half.items())
            }
        )

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    def __iter__(self) -> Iterator[int]:
        for high, part in self.parts.items():
            yield from ((high << HALF_BITS) | low for low in part)

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and (number & LOWER_HALF) in self.bitmap_under(number >> HALF_BITS)

    def __or__(self, other: "RowSet") -> "RowSet":
        return RowSet.union((self, other))

    def __and__(self, other: "RowSet") -> "RowSet":
        return self._without_empty(
            (high, part & other.bitmap_under(high)) for high, part in self.parts.items() if high in other.parts
        )

    def __sub__(self, other: "RowSet") -> "RowSet":
        return self._without_empty((high, part - other.bitmap_under(high)) for high, part in self.parts.items())

    def bitmap_under(self, high: int) -> BitMap:
        return self.parts.get(high) or BitMap()

    def in_fragments(self, fragments: BitMap) -> "RowSet":
        """Return the rows whose upper half is one of these."""
        return RowSet({high: part for high, part in self.parts.items() if high in fragments})

    def drop_impossible_rows(self, rows_under: RowsUnder) -> "RowSet":
        """Return the rows that can exist."""
        if all(part.max() < rows_under(high) for high, part in self.parts.items()):
            return self
        return self._without_empty((high, part & BitMap(range(rows_under(high)))) for high, part in self.parts.items())

    def ids(self) -> Ids:
        """Return the numbers in ascending order."""
        parts = [
            np.frombuffer(part.to_array(), dtype=np.uint32).astype(np.uint64) | np.uint64(high << HALF_BITS)
            for high, part in self.parts.items()
        ]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint64)

    @staticmethod
    def _without_empty(parts: Iterable[tuple[int, BitMap]]) -> "RowSet":
        return RowSet({high: part for high, part in parts if part})

    def encode(self) -> bytes:
        out = [_COUNT.pack(len(self.parts))]
        for high, part in self.parts.items():
            part.run_optimize()
            data = bytes(part.serialize())
            out += [_ENTRY.pack(high, len(data)), data]
        return b"".join(out)

    @classmethod
    def decode(
        cls, data: bytes | memoryview, rows_under: RowsUnder, *, path: str, keep_impossible_rows: bool = False
    ) -> "RowSet":
        """Decode a set. Rows that cannot exist are dropped, because the index may have been built when there were
        more fragments. `keep_impossible_rows` keeps them, for consistency checks."""
        view = memoryview(data)
        parts: dict[int, BitMap] = {}
        try:
            (count,) = _COUNT.unpack_from(view)
            position = _COUNT.size
            for _ in range(count):
                high, length = _ENTRY.unpack_from(view, position)
                position += _ENTRY.size
                if position + length > len(view):
                    raise ValueError("truncated")
                rows = rows_under(high)
                # An empty entry stands for all rows.
                part = BitMap.deserialize(bytes(view[position : position + length])) if length else BitMap(range(rows))
                position += length
                if part and not keep_impossible_rows and part.max() >= rows:
                    part &= BitMap(range(rows))
                if part:
                    parts[high] = part
        except (struct.error, ValueError, IndexError) as error:
            raise Corrupt("is not a set of rows", path=path, field="row set") from error
        return cls(parts if list(parts) == sorted(parts) else dict(sorted(parts.items())))
