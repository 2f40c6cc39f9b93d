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
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from lance_core.errors import InvalidInput

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

    def __init__(self, capacity: int, name: str | None = None) -> None:
        """Create an empty cache. A cache with a name of `CACHE_NAMES` is one of the process, whose capacity its user
        may set before or after."""
        self._capacity = capacity if name is None else _capacities.get(name, capacity)
        self._start_empty()
        _caches.add(self)
        if name is not None:
            _named[name] = self

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


CACHE_NAMES = ("file metadata", "open files", "page starts", "resident rows", "index pages", "searched texts")
"""Caches that all tables of the process share."""
_caches: "WeakSet[LruCache[Any, Any]]" = WeakSet()
_named: "dict[str, LruCache[Any, Any]]" = {}
_capacities: dict[str, int] = {}
"""Capacities that a user has set."""
_values_of_parent: list[object] = []


def cache_statistics() -> Mapping[str, CacheStatistics]:
    """Return the size and the use of each cache that all tables of this process share. A cache that no query has needed
    yet is missing."""
    return {name: _named[name].statistics for name in CACHE_NAMES if name in _named}


def resize_cache(name: str, capacity: int) -> None:
    """Set the capacity of a cache of this process, in bytes ("open files": in files). 0 keeps nothing."""
    if name not in CACHE_NAMES:
        raise InvalidInput(f"there is no cache {name!r}; the caches are {', '.join(map(repr, CACHE_NAMES))}")
    if not isinstance(capacity, Integral) or isinstance(capacity, bool) or capacity < 0:
        raise InvalidInput(f"capacity={capacity!r} must be an integer from 0 on")
    _capacities[name] = capacity
    if name in _named:
        _named[name].resize(capacity)


def _forget_all() -> None:
    for cache in list(_caches):
        cache._forget()


os.register_at_fork(after_in_child=_forget_all)
