"""LRU cache: keeps the most recently used values of a process, up to a total weight, for any thread.

Scans cache the open readers of fragments (`scan/reader_cache.py`), index searches cache open indices
(`index/lookup.py`) and the pages that they read (`index/page_cache.py`). Values do not expire: the cache is meant for
values that are derived from immutable files. A caller that gets no value computes it again, and no caller changes a
cached value.

A forked process starts with empty caches: another thread of its parent may hold a lock, and readers need threads that
the child does not have.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakSet

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Size and use of one cache of the process."""

    capacity: int
    """Total weight up to which values are cached, in bytes or in values."""
    weight: int
    """Total weight of the cached values."""
    entries: int
    hits: int
    """Requests that were answered by a cached value."""
    misses: int


class LruCache(Generic[Key, Value]):
    """Mapping that evicts the least recently used values once their total weight exceeds `capacity`.

    The weight of a value is whatever unit the capacity has: 1 for a limit on the number of values, bytes for a limit on
    memory. `None` is not a value. Safe for concurrent use by threads; the lock is not held while a value is created.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._start_empty()
        _caches.add(self)

    def _start_empty(self) -> None:
        self._weight = self._hits = self._misses = 0
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    def _forget(self) -> None:
        """Start empty in a forked process. The values of the parent are not destroyed, since the destructor of a
        reader may wait for a thread of the parent."""
        _values_of_parent.append(self._entries)
        self._start_empty()

    @property
    def capacity(self) -> int:
        """Total weight up to which values are cached."""
        return self._capacity

    @property
    def weight(self) -> int:
        """Total weight of the cached values, at most the capacity."""
        return self._weight

    @property
    def statistics(self) -> CacheStatistics:
        """Size of the cache, and its use so far."""
        with self._lock:
            return CacheStatistics(self._capacity, self._weight, len(self._entries), self._hits, self._misses)

    def get(self, key: Key) -> Value | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._misses += 1
                return None
            self._hits += 1
            self._entries.move_to_end(key)
            return entry[0]

    def get_or_create(
        self, key: Key, create: Callable[[], Value], is_valid: Callable[[Value], bool] | None = None
    ) -> Value:
        """Return the cached value, or create and cache it with weight 1.

        `is_valid` rejects a cached value, for keys that can be reused (the `id()` of an object). If several threads
        create the value of one key at the same time, each returns its own, and the last one stays in the cache.
        """
        value = self.get(key)
        if value is None or (is_valid is not None and not is_valid(value)):
            value = create()
            self.put(key, value)
        return value

    def put(self, key: Key, value: Value, weight: int = 1) -> None:
        """Cache a value as the most recently used one, in place of the previous value of the key."""
        with self._lock:
            if (previous := self._entries.pop(key, None)) is not None:
                self._weight -= previous[1]
            self._entries[key] = value, weight
            self._weight += weight
            self._evict()

    def clear(self) -> None:
        """Evict all values."""
        with self._lock:
            self._entries.clear()
            self._weight = 0

    def resize(self, capacity: int) -> None:
        """Change the capacity, and evict the least recently used values that exceed it."""
        with self._lock:
            self._capacity = capacity
            self._evict()

    def _evict(self) -> None:
        while self._weight > self._capacity:
            _, (_, evicted) = self._entries.popitem(last=False)
            self._weight -= evicted


_caches: "WeakSet[LruCache[Any, Any]]" = WeakSet()
_values_of_parent: list[object] = []


def _forget_all() -> None:
    for cache in list(_caches):
        cache._forget()


os.register_at_fork(after_in_child=_forget_all)
