"""Page cache: the memory limit that all open segments share."""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from lance_core.expressions.tree import Call, Comparison, Op
from lance_core.index.bloomfilter import BLOOMFILTER
from lance_core.index.index_type import IndexType, Leaf
from lance_core.index.ngram import NGRAM
from lance_core.index.page_cache import PAGE_CACHE, PageCache, SegmentPages
from tests.lance_core.index.segment_builder import build_segment


@pytest.fixture
def small_cache() -> Iterator[PageCache]:
    """The empty page cache of the process with a capacity of 3,000 bytes."""
    capacity = PAGE_CACHE.capacity
    PAGE_CACHE.resize(0)
    PAGE_CACHE.resize(3000)
    yield PAGE_CACHE
    PAGE_CACHE.resize(capacity)


def test_a_small_value_counts_with_its_overhead() -> None:
    rows: SegmentPages[int] = SegmentPages(PageCache(1 << 20))
    for number in range(10_000):
        rows.put(number, number, 20)
    assert rows.get(0) is None
    assert rows.get(9_999) == 9_999
    assert sum(rows.get(number) is not None for number in range(10_000)) <= 1024


@pytest.mark.parametrize(
    ("index_type", "values", "condition", "options"),
    [
        (BLOOMFILTER, pa.array(range(9)), Comparison(("v",), Op.EQ, pa.scalar(3)), {"number_of_items": 9}),
        (NGRAM, pa.array(["abcd", "bcde"]), Call("contains", ("v",), (pa.scalar("bcd"),)), {}),
    ],
)
def test_segments_share_the_cache_capacity(
    index_type: IndexType, values: pa.Array, condition: Leaf, options: Mapping[str, Any], small_cache: PageCache
) -> None:
    built = build_segment(index_type, values.type, {0: values}, **options)
    searchers = [index_type.open(built.segment, built.column) for _ in range(5)]
    for searcher in searchers:
        first, again = searcher.search(condition), searcher.search(condition)
        assert first is not None
        assert first == again
        assert 0 < small_cache.weight <= 3000
