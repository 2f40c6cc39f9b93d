"""Exact nearest rows in tasks: those of an exact search in one process."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lance_core import Table
from lance_core.tasks.scan.exact_nearest import SearchRequest, find_exact_nearest
from tests.lance_core.index.vector.test_multivectors import multivectors, query
from tests.lance_core.tasks.in_process_workers import InProcessWorkers

ROWS, SIZE = 500, 8
POINTS = np.random.default_rng(1).integers(0, 3, (ROWS, SIZE)).astype(np.float32)  # many rows at the same distance


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
def test_tasks_find_the_rows_of_one_process(metric: str, tmp_path: Path) -> None:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(POINTS.ravel()), SIZE)
    table = Table.create(tmp_path / "t", pa.table({"v": vectors}), max_rows_per_file=70, durable=False)
    table = table.delete("_rowaddr % 11 = 3").table
    table = table.create_index("v", "IVF_FLAT", metric=metric, num_partitions=2).table
    workers = InProcessWorkers(slots=3, lost_partitions=frozenset({1}))
    queries = POINTS[:20].astype(np.float64)
    found = find_exact_nearest(table, SearchRequest("v", 30), queries, workers)
    expected = table.search("v", queries, 30, exact=True, columns=["_rowaddr"])
    assert len(workers.attempts) > 4
    assert [len(each.distances) for each in found] == [30] * 20
    assert np.concatenate([each.addresses for each in found]).tolist() == expected["_rowaddr"].to_pylist()
    distances = np.concatenate([each.distances for each in found])
    np.testing.assert_allclose(distances, expected["_distance"], rtol=1e-6, atol=1e-6)


def test_lists_of_vectors_are_compared(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", multivectors(), max_rows_per_file=90, durable=False)
    request = SearchRequest("v", 5, "cosine")
    found = find_exact_nearest(table, request, query(2).astype(np.float64), InProcessWorkers())
    expected = table.search("v", query(2), 5, metric="cosine", exact=True, columns=["_rowaddr"])
    assert found[0].addresses.tolist() == expected["_rowaddr"].to_pylist()
