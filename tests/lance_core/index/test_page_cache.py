"""What open segments keep in memory, all of them together."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from lance_core.expressions.tree import Call, Comparison, Op
from lance_core.index import page_cache
from lance_core.index.bloomfilter import BLOOMFILTER
from lance_core.index.index_type import IndexType, Leaf
from lance_core.index.ngram import NGRAM
from lance_core.index.page_cache import PageCache, SegmentPages
from tests.lance_core.index.segment_builder import built


def test_a_set_of_a_few_bytes_takes_more_than_those() -> None:
    rows: SegmentPages[int] = SegmentPages(PageCache(1 << 20))
    for number in range(10_000):
        rows.put(number, number, 20)
    assert rows.get(0) is None
    assert rows.get(9_999) == 9_999
    assert sum(rows.get(number) is not None for number in range(10_000)) <= 1024


@pytest.mark.parametrize(
    ("kind", "values", "leaf", "options"),
    [
        (BLOOMFILTER, pa.array(range(9)), Comparison(("v",), Op.EQ, pa.scalar(3)), {"number_of_items": 9}),
        (NGRAM, pa.array(["abcd", "bcde"]), Call("contains", ("v",), (pa.scalar("bcd"),)), {}),
    ],
)
def test_segments_share_what_they_may_keep(
    kind: IndexType, values: pa.Array, leaf: Leaf, options: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = built(kind, values.type, {0: values}, **options)
    searchers = [kind.open(it.segment, it.column) for _ in range(5)]
    monkeypatch.setattr(page_cache.PAGE_CACHE, "_entries", type(page_cache.PAGE_CACHE._entries)())
    monkeypatch.setattr(page_cache.PAGE_CACHE, "_weight", 0)
    monkeypatch.setattr(page_cache.PAGE_CACHE, "_capacity", 3000)
    for searcher in searchers:
        first, again = searcher.search(leaf), searcher.search(leaf)
        assert first is not None
        assert first == again
        assert 0 < page_cache.PAGE_CACHE.weight <= 3000
