"""Filtered searches: few rows are compared exactly, more are searched in more partitions, and the answer does not
depend on what earlier searches left in memory."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lance_core import Table
from lance_core.index.vector.filter_cost import EXACT_ROWS_MIN, IndexWork, is_exact_faster, probes_under_filter

ROWS, SIZE, K = 6_000, 32, 10
RNG = np.random.default_rng(2)
CENTERS = RNG.normal(size=(60, SIZE))
POINTS = (CENTERS[RNG.integers(0, 60, ROWS)] + RNG.normal(size=(ROWS, SIZE)) * 0.8).astype(np.float32)
QUERIES = (CENTERS[:40] + RNG.normal(size=(40, SIZE)) * 0.8).astype(np.float32)


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = str(tmp_path_factory.mktemp("filtered") / "t")
    ids = np.arange(ROWS)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(POINTS.ravel()), SIZE)
    table = Table.create(place, pa.table({"id": ids, "f": ids * 7919 % 1000, "v": vectors}), durable=False)
    table.create_index("v", "IVF_SQ", num_partitions=48)
    return place


@pytest.mark.parametrize("passing", [1, 10, 40, 60, 100, 300, 900])
def test_recall_is_that_of_a_search_without_filter(uri: str, passing: int) -> None:
    """A recall of two points less is allowed, since 400 rows decide about it."""
    table = Table.open(uri)
    recalls = []
    for filter in (None, f"f < {passing}"):
        exact = table.search("v", QUERIES, K, exact=True, filter=filter, columns=["id"])["id"].to_numpy()
        found = table.search("v", QUERIES, K, nprobes=6, refine=4, filter=filter, columns=["id"])["id"].to_numpy()
        assert len(found) == len(exact)
        pairs = zip(found.reshape(len(QUERIES), -1), exact.reshape(len(QUERIES), -1), strict=True)
        recalls.append(np.mean([len(set(ours) & set(best)) / len(best) for ours, best in pairs]))
    assert recalls[1] >= recalls[0] - 0.02


def test_masks_in_memory_follow_the_partitions_that_are_loaded(uri: str, tmp_path: Path) -> None:
    """The first searches know few partitions; the same filter is used again when more of them are."""
    table, filter = Table.open(uri), "f < 400"
    table.search("v", QUERIES[0], K, nprobes=1, filter=filter)
    for query in QUERIES:
        few = table.search("v", query, K, nprobes=2, filter=filter, columns=["id"])
        assert few.equals(table.search("v", [query], K, nprobes=2, filter=filter, columns=["id"]).drop("_query"))
        every = table.search("v", query, K, nprobes=48, refine=10, filter=filter, columns=["id"])
        assert every["id"].equals(table.search("v", query, K, exact=True, filter=filter, columns=["id"])["id"])


def test_costs() -> None:
    assert is_exact_faster(EXACT_ROWS_MIN, IndexWork(0, 0), 1)
    assert not is_exact_faster(5_000, IndexWork(100_000, 100), 1)
    assert is_exact_faster(5_000, IndexWork(10_000_000, 100), 1)
    assert not is_exact_faster(5_000_000, IndexWork(2**40, 100), 1)
    assert is_exact_faster(2_000, IndexWork(100_000, 100), 100)
    assert not is_exact_faster(2_000, IndexWork(100_000, 100), 1)
    shares = [0.0, 0.001, 0.02, 0.09, 0.1, 0.4, 1.0]
    probes = [probes_under_filter(16, share) for share in shares]
    assert probes == sorted(probes, reverse=True)
    assert probes[-1] == 16
