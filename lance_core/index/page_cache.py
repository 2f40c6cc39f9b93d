"""What was read of open segments, kept for the next question: the last used, of all segments so many bytes together.

Whoever keeps something here reads it again when it is gone, and never changes it.
"""

import itertools
import threading
from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")
BYTES_KEPT = 256 << 20
_ENTRY_BYTES = 1024
"""What the smallest value takes in memory with all that is around it: a set of one row has a few bytes in its file."""


class PageCache:
    """For all threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._kept: OrderedDict[tuple[int, int], tuple[object, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, owner: int, number: int) -> object | None:
        with self._lock:
            found = self._kept.get((owner, number))
            if found is None:
                return None
            self._kept.move_to_end((owner, number))
            return found[0]

    def put(self, owner: int, number: int, value: object, size: int) -> None:
        size += _ENTRY_BYTES
        with self._lock:
            _, before = self._kept.pop((owner, number), (None, 0))
            self._kept[owner, number] = value, size
            self._size += size - before
            while self._size > self._most:
                _, (_, gone) = self._kept.popitem(last=False)
                self._size -= gone


SHELF = PageCache(BYTES_KEPT)
_owners = itertools.count()


class SegmentPages(Generic[Value]):
    """Those of one segment, by a number."""

    def __init__(self, shelf: PageCache = SHELF) -> None:
        self._shelf = shelf
        self._owner = next(_owners)

    def get(self, number: int) -> Value | None:
        found: Value | None = self._shelf.get(self._owner, number)  # type: ignore[assignment]
        return found

    def put(self, number: int, value: Value, size: int) -> None:
        self._shelf.put(self._owner, number, value, size)
