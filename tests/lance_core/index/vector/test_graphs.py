"""Graphs of vector indices: searches follow those of pylance, and pylance follows ours, with equal results."""

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileReader

from lance_core import Table
from lance_core.index.vector.graph_lists import GRAPH_ROWS_MIN

ROWS, SIZE = GRAPH_ROWS_MIN + 400, 16
RNG = np.random.default_rng(8)
POINTS = RNG.normal(size=(ROWS, SIZE)).astype(np.float32)
QUERIES = RNG.normal(size=(12, SIZE)).astype(np.float32)
PARAMETERS: dict[str, Any] = {"num_partitions": 1, "m": 8, "ef_construction": 60}


def write_table(path: Path, kind: str, metric: str, maker: str) -> Table:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(POINTS.ravel()), SIZE)
    rows = pa.table({"id": pa.array(range(ROWS), pa.int64()), "v": vectors})
    table = Table.create(path, rows)
    parameters = PARAMETERS | ({"num_sub_vectors": 8} if kind.endswith("PQ") else {})
    if maker == "ours":
        return table.create_index("v", kind, metric=metric, **parameters).table
    lance.dataset(table.uri).create_index("v", kind, metric=metric, **parameters)
    return table.refresh()


@pytest.mark.parametrize("kind", ["IVF_HNSW_FLAT", "IVF_HNSW_SQ", "IVF_HNSW_PQ"])
def test_pylance_moves_the_rows_of_graphs(tmp_path: Path, kind: str) -> None:
    """A compaction without deleted rows writes the graphs again as they are."""
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(POINTS[:300].ravel()), SIZE)
    rows = pa.table({"id": pa.array(range(300), pa.int64()), "v": vectors})
    parameters = PARAMETERS | ({"num_sub_vectors": 8} if kind.endswith("PQ") else {})
    table = Table.create(tmp_path / "t", rows, max_rows_per_file=100).create_index("v", kind, **parameters).table
    before = table.search("v", QUERIES[0], 10, refine=30, columns=["id"])
    lance.dataset(table.uri).optimize.compact_files(target_rows_per_fragment=400)
    table = table.refresh()
    assert len(table.fragments) == 1
    assert "no fragment" in table.explain_search("v")
    assert table.search("v", QUERIES[0], 10, refine=30, columns=["id"]) == before


def recall_of(found: pa.Table, exact: pa.Table) -> float:
    return len(set(found["id"].to_pylist()) & set(exact["id"].to_pylist())) / len(exact)


@pytest.mark.parametrize("maker", ["ours", "pylance"])
@pytest.mark.parametrize(
    ("kind", "metric"),
    [("IVF_HNSW_SQ", "l2"), ("IVF_HNSW_SQ", "dot"), ("IVF_HNSW_FLAT", "cosine"), ("IVF_HNSW_PQ", "l2")],
)
def test_both_follow_the_graph(tmp_path: Path, kind: str, metric: Any, maker: str) -> None:
    table = write_table(tmp_path / "t", kind, metric, maker)
    dataset, is_product = lance.dataset(table.uri), kind.endswith("PQ")
    recalls = {"few": [0.0, 0.0], "many": [0.0, 0.0]}
    for query in QUERIES:
        exact = table.search("v", query, 10, metric=metric, exact=True, columns=["id"])
        for name, ef in (("few", 10), ("many", 150)):
            ours = table.search("v", query, 10, ef=ef, nprobes=1, columns=["id"])
            nearest = {"column": "v", "q": query, "k": 10, "ef": ef, "nprobes": 1}
            theirs = dataset.to_table(columns=["id", "_distance"], nearest=nearest)
            for place, found in enumerate((ours, theirs)):
                recalls[name][place] += recall_of(found, exact) / len(QUERIES)
            assert recall_of(ours, theirs) >= 0.5
    assert min(recalls["many"]) >= (0.6 if is_product else 0.9)
    assert abs(recalls["many"][0] - recalls["many"][1]) <= 0.05
    assert is_product or recalls["few"][0] < recalls["many"][0]  # the graph is followed, not scanned
    assert "follows graphs" in table.explain_search("v", metric=metric)
    assert not [finding for finding in table.fsck("head").findings if "index" in finding.rule]


@pytest.mark.parametrize("kind", ["IVF_HNSW_SQ", "IVF_HNSW_FLAT", "IVF_HNSW_PQ"])
def test_filters_return_every_row_that_passes(tmp_path: Path, kind: str) -> None:
    """Searches for all rows scan the partition."""
    table = write_table(tmp_path / "t", kind, "l2", "ours")
    table = table.delete("id % 5 = 1").table
    for predicate in ("id % 2 = 0", "id < 2300"):
        exact = table.search("v", QUERIES[0], 10, exact=True, filter=predicate, columns=["id"])
        found = table.search("v", QUERIES[0], 10, ef=200, refine=10, filter=predicate, columns=["id"])
        assert recall_of(found, exact) >= 0.8
    everything = table.search("v", QUERIES[0], ROWS, columns=["id"])["id"].to_pylist()
    assert sorted(everything) == [row for row in range(ROWS) if row % 5 != 1]


def test_merged_partitions_have_new_graphs(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t", "IVF_HNSW_SQ", "l2", "pylance")

    def read_graph(table: Table) -> Any:
        reader = LanceFileReader(f"{table.uri}/_indices/{table.indices[0].uuid}/index.idx")
        return reader.read_all().to_table(), reader.metadata().schema.metadata[b"lance:hnsw"]

    before = read_graph(table)
    merged = table.append(table.to_table(limit=3).slice(0, 0)).table.append(table.to_table(limit=3)).table
    merged = merged.optimize_indices(merge="none").table.optimize_indices(merge="all").table
    assert len(merged.index_statistics()[0].segments) == 1
    assert read_graph(merged)[0]["__vector_id"].to_pylist()[: ROWS + 3] == list(range(ROWS + 3))
    assert read_graph(table)[0].equals(before[0])
    shared = table.create_index("v", "IVF_SQ", name="other", num_partitions=1).table
    assert shared.search("v", QUERIES[0], 3)["id"].to_pylist() == table.search("v", QUERIES[0], 3)["id"].to_pylist()
