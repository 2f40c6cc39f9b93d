"""Columns of lists of vectors: the distance of a row is the sum, over the vectors of the query, of the distance of its
nearest vector, as in pylance, with and without an index of either library."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table
from lance_core.index.vector.segment_statistics import VectorStatistics

ROWS, SIZE = 400, 16
FLOAT = pa.float32()
KINDS = ("IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_RQ", "IVF_HNSW_FLAT", "IVF_HNSW_SQ", "IVF_HNSW_PQ")


def multivectors(rows: int = ROWS, seed: int = 0, number: pa.DataType = FLOAT) -> pa.Table:
    """Return rows of 0 to 4 vectors; some rows are null."""
    random = np.random.default_rng(seed)
    counts = random.integers(0, 5, rows)
    flat = random.normal(size=(int(counts.sum()), SIZE)).astype(number.to_pandas_dtype())
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel(), number), SIZE)
    offsets = [None if index % 50 == 7 else int(each) for index, each in enumerate(np.cumsum([0, *counts]))]
    return pa.table({"id": np.arange(rows) + seed * 10_000, "v": pa.ListArray.from_arrays(offsets, vectors)})


def query(seed: int, vectors: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(vectors, SIZE)).astype(np.float32)


def parameters(kind: str) -> dict[str, Any]:
    return {"metric": "cosine", "num_partitions": 4} | ({"num_sub_vectors": 4} if kind.endswith("PQ") else {})


def assert_same(ours: pa.Table, ids: Sequence[int], distances: Sequence[float]) -> None:
    assert ours["id"].to_pylist() == list(ids)
    np.testing.assert_allclose(ours["_distance"].to_numpy(), distances, rtol=1e-5, atol=1e-5)


def nearest_of_pylance(uri: str, vectors: np.ndarray, k: int, **options: Any) -> tuple[list[int], list[float]]:
    nearest = {"column": "v", "q": vectors, "k": k, **options}
    rows = lance.dataset(uri).to_table(columns=["id", "_distance"], nearest=nearest)
    return rows["id"].to_pylist(), rows["_distance"].to_pylist()


@pytest.mark.parametrize("number", [pa.float32(), pa.float64(), pa.float16()])
@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
def test_exact_distances_are_those_of_pylance(metric: Any, number: pa.DataType, tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", multivectors(number=number), max_rows_per_file=150, durable=False)
    for seed, vectors in ((1, 3), (2, 1), (3, 5)):
        asked = query(seed, vectors).astype(number.to_pandas_dtype())
        found = table.search("v", asked, 2 * ROWS, metric=metric, columns=["id"])
        ids, distances = nearest_of_pylance(table.uri, asked, 2 * ROWS, metric=metric)
        assert sorted(found["id"].to_pylist()) == sorted(ids)
        tolerance = 1e-2 if number == pa.float16() else 1e-5  # pylance compares in the type of the column
        np.testing.assert_allclose(found["_distance"].to_numpy(), distances, rtol=tolerance, atol=2 * tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("maker", ["ours", "pylance"])
def test_indices_find_the_rows_of_a_scan(maker: str, kind: str, tmp_path: Path) -> None:
    """All rows are candidates of a refined search for many rows, in both libraries."""
    table = Table.create(tmp_path / "t", multivectors(), max_rows_per_file=150, durable=False)
    if maker == "ours":
        table = table.create_index("v", kind, **parameters(kind)).table
    else:
        lance.dataset(table.uri).create_index("v", kind, **parameters(kind))
    table = Table.open(table.uri)
    assert not table.fsck("head").findings
    table = table.append(multivectors(60, seed=1)).table
    table = table.delete("id % 9 = 0").table
    asked = query(5)
    exact = table.search("v", asked, 20, metric="cosine", exact=True, columns=["id"])
    expected = exact["id"].to_pylist(), exact["_distance"].to_pylist()
    assert_same(table.search("v", asked, 20, nprobes=4, refine=20, columns=["id"]), *expected)
    ids, distances = nearest_of_pylance(table.uri, asked, 20, nprobes=4, refine_factor=20)
    assert ids == expected[0]
    np.testing.assert_allclose(distances, expected[1], rtol=1e-5, atol=1e-5)
    table = table.optimize_indices().table.compact(target_rows=10_000).table
    assert not table.fsck("head").findings
    assert_same(table.search("v", asked, 20, nprobes=4, refine=20, columns=["id"]), *expected)
    assert "none" not in table.explain_search("v")
    filtered = table.search("v", asked, 20, filter="id % 2 = 1", exact=True, columns=["id"])
    found = table.search("v", asked, 20, filter="id % 2 = 1", nprobes=4, refine=20, columns=["id"])
    assert_same(found, filtered["id"].to_pylist(), filtered["_distance"].to_pylist())


def test_rows_with_many_near_vectors_do_not_hide_others(tmp_path: Path) -> None:
    """`k` rows come back even if one row has all the vectors that are candidates at first."""
    near = np.ones((300, SIZE), dtype=np.float32)
    far = np.random.default_rng(0).normal(size=(40, SIZE)).astype(np.float32)
    flat = pa.array(np.concatenate([near, far]).ravel())
    offsets = [0, *range(300, 341)]
    lists = pa.ListArray.from_arrays(offsets, pa.FixedSizeListArray.from_arrays(flat, SIZE))
    table = Table.create(tmp_path / "t", pa.table({"id": range(41), "v": lists}), durable=False)
    table = table.create_index("v", "IVF_FLAT", metric="cosine", num_partitions=4).table
    found = table.search("v", near[:1], 5, nprobes=1, columns=["id"])
    exact = table.search("v", near[:1], 5, exact=True, columns=["id"])
    assert found["id"].to_pylist()[0] == 0
    assert len(found) == 5
    assert len(set(found["id"].to_pylist())) == 5
    everything = table.search("v", near[:1], 41, nprobes=1, columns=["id"])
    assert everything["id"].to_pylist()[:5] == exact["id"].to_pylist()


def test_batches_are_lists_of_queries(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", multivectors(), durable=False)
    table = table.create_index("v", "IVF_SQ", metric="cosine", num_partitions=2).table
    for batch in ([query(1), query(2, 1), query(3, 4)], np.stack([query(1), query(2)])):
        found = table.search("v", batch, 5, nprobes=2, columns=["id"])
        for number, asked in enumerate(batch):
            one = table.search("v", asked, 5, nprobes=2, columns=["id"])
            part = found.filter(pa.compute.equal(found["_query"], number))
            assert_same(part, one["id"].to_pylist(), one["_distance"].to_pylist())
    assert len(table.search("v", np.empty((0, 2, SIZE)), 5)) == 0


def test_arguments_are_checked(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", multivectors(), durable=False)
    with pytest.raises(InvalidInput, match="compares by cosine only"):
        table.create_index("v", "IVF_FLAT", metric="l2")
    with pytest.raises(InvalidInput, match="vector has 3 numbers, but those of column 'v' have 16"):
        table.search("v", np.ones((2, 3)))
    asked = query(1)
    asked[1, 2] = np.nan
    with pytest.raises(InvalidInput, match="position 2 of vector 1"):
        table.search("v", asked)
    refused: list[Any] = ["text", np.ones((1, 1, 1, 1)), [np.ones((2, SIZE)), "text"], [[]]]
    for bad in refused:
        with pytest.raises(InvalidInput, match=r"lists of vectors|vector has 0 numbers"):
            table.search("v", bad)


def test_models_are_retrained_by_the_number_of_vectors(tmp_path: Path) -> None:
    """A model is trained again once the table has four times the vectors, not the rows, of its training."""
    table = Table.create(tmp_path / "t", multivectors(), durable=False)
    table = table.create_index("v", "IVF_FLAT", metric="cosine", num_partitions=4).table
    before = statistics(table)
    assert before.trained_rows == before.rows
    kept = table.append(multivectors(ROWS, seed=1)).table.optimize_indices().table
    assert statistics(kept).partitions == 4
    grown = kept.append(multivectors(4 * ROWS, seed=2)).table.optimize_indices().table
    # Each partition has at least 256 vectors.
    assert statistics(grown).partitions == (statistics(grown).rows or 0) // 256


def statistics(table: Table) -> VectorStatistics:
    (index,) = table.index_statistics()
    (segment,) = index.segments
    assert segment.vectors is not None
    return segment.vectors
