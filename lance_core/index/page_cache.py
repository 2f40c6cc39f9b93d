"""Page cache: keeps what searches read from open index segments, for all segments of the process together.

The least recently used pages are evicted once all of them take more than `CACHE_BYTES_MAX`. A searcher reads an
evicted page again, and never changes a cached one.
"""

import itertools
from typing import Generic, TypeVar

from lance_core.storage.lru_cache import LruCache

Value = TypeVar("Value")
CACHE_BYTES_MAX = 256 << 20
_ENTRY_BYTES = 1024
"""Memory that the smallest value takes, with all Python objects around it: a set of one row has a few bytes in its
file."""

PageCache = LruCache[tuple[int, int], object]
"""Pages by the number of their segment's `SegmentPages` and their own number."""

PAGE_CACHE = PageCache(CACHE_BYTES_MAX, "index pages")
_owners = itertools.count()


class SegmentPages(Generic[Value]):
    """The cached pages of one segment, by number."""

    def __init__(self, cache: PageCache = PAGE_CACHE) -> None:
        self._shelf = cache
        self._owner = next(_owners)

    def get(self, number: int) -> Value | None:
        page: Value | None = self._shelf.get((self._owner, number))  # type: ignore[assignment]
        return page

    def put(self, number: int, value: Value, size: int) -> None:
        self._shelf.put((self._owner, number), value, size + _ENTRY_BYTES)
