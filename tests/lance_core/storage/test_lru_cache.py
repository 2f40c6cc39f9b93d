"""LRU cache: its capacity, the order of eviction, and values that replace others."""

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table, cache_statistics, resize_cache
from lance_core.storage.lru_cache import LruCache


def test_the_least_recently_used_value_is_evicted() -> None:
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]


def test_the_total_weight_stays_within_the_capacity() -> None:
    cache: LruCache[int, str] = LruCache(100)
    for key in range(10):
        cache.put(key, "x", 30)
        assert cache.weight <= 100
    assert [key for key in range(10) if cache.get(key)] == [7, 8, 9]


def test_a_value_that_replaces_another_counts_once() -> None:
    cache: LruCache[str, int] = LruCache(10)
    cache.put("a", 1, 6)
    cache.put("a", 2, 7)
    assert (cache.get("a"), cache.weight) == (2, 7)


def test_a_value_heavier_than_the_capacity_is_not_cached() -> None:
    cache: LruCache[str, int] = LruCache(10)
    cache.put("a", 1, 11)
    assert (cache.get("a"), cache.weight) == (None, 0)


def test_a_smaller_capacity_evicts_the_values_that_exceed_it() -> None:
    cache: LruCache[str, int] = LruCache(3)
    for key in "abc":
        cache.put(key, 1)
    cache.resize(2)
    assert ([cache.get(key) for key in "abc"], cache.capacity, cache.weight) == ([None, 1, 1], 2, 2)
    cache.resize(0)
    assert (cache.get("c"), cache.weight) == (None, 0)


def test_a_value_is_created_once_while_it_is_valid() -> None:
    cache: LruCache[str, list[int]] = LruCache(2)
    first = cache.get_or_create("a", lambda: [1])
    assert cache.get_or_create("a", lambda: [2]) is first
    assert cache.get_or_create("a", lambda: [3], lambda value: value != [1]) == [3]
    assert cache.get("a") == [3]


def test_a_value_may_be_created_from_another_one_of_the_cache() -> None:
    cache: LruCache[str, int] = LruCache(2)
    assert cache.get_or_create("a", lambda: cache.get_or_create("b", lambda: 1) + 1) == 2


def test_threads_keep_the_weight_consistent() -> None:
    cache: LruCache[int, int] = LruCache(50)

    def use_cache(seed: int) -> None:
        for step in range(2000):
            key = (seed * 31 + step * 7) % 40
            if cache.get(key) is None:
                cache.put(key, key, 1 + key % 5)

    threads = [threading.Thread(target=use_cache, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    weights = [1 + key % 5 for key in range(40) if cache.get(key) is not None]
    assert cache.weight == sum(weights) <= 50


def test_caches_of_the_process_are_counted_and_resized(tmp_path: Path) -> None:
    """A new handle of a table finds the metadata of its files; without capacity, nothing is kept."""
    Table.create(tmp_path / "t", pa.table({"a": range(10)}))
    Table.open(tmp_path / "t").to_table()
    before = cache_statistics()["file metadata"]
    Table.open(tmp_path / "t").to_table()
    after = cache_statistics()["file metadata"]
    assert (after.hits, after.misses, after.entries) == (before.hits + 1, before.misses, before.entries)
    assert 0 < after.weight <= after.capacity
    try:
        resize_cache("file metadata", 0)
        Table.open(tmp_path / "t").to_table()
        assert cache_statistics()["file metadata"].entries == 0
    finally:
        resize_cache("file metadata", after.capacity)
    for name, capacity in (("files", 1), ("open files", -1), ("open files", True)):
        with pytest.raises(InvalidInput):
            resize_cache(name, capacity)
