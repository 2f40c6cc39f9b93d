"""Vector indices that this library builds: pylance searches them with equal results, and they follow changes."""

import uuid
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileReader

from lance_core import InvalidInput, Table
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.vector_index import IvfPartitions
from lance_core.operations import CreateIndex

ROWS, SIZE = 1500, 16
RNG = np.random.default_rng(3)
CENTERS = RNG.normal(size=(12, SIZE)) * 2
POINTS = (CENTERS[RNG.integers(0, 12, ROWS)] + RNG.normal(size=(ROWS, SIZE))).astype(np.float32)
QUERIES = (CENTERS[[3, 5, 8]] + RNG.normal(size=(3, SIZE))).astype(np.float32)
WITHOUT_DISTANCE = {5, 6, 7}


def write_table(path: Path, value_type: pa.DataType, *, ids: bool = False) -> Table:
    """Write three fragments; one vector is null, one NaN and one zero."""
    points = RNG.integers(0, 256, (ROWS, SIZE)) if value_type == pa.uint8() else POINTS.copy()
    points = points.astype(value_type.to_pandas_dtype())
    if value_type != pa.uint8():
        points[6] = np.nan
        points[7] = 0
    mask = pa.array([row == 5 for row in range(ROWS)])
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(points.ravel(), value_type), SIZE, mask=mask)
    rows = pa.table({"id": pa.array(range(ROWS), pa.int64()), "v": vectors})
    return Table.create(path, rows, stable_row_ids=ids).delete("id = 11").table.append(rows.slice(0, 0)).table


def check_both(table: Table, query: np.ndarray, *, recall: float, k: int = 20, metric: str = "l2") -> None:
    """Check that both libraries find the same rows by the index, and enough of the nearest ones."""
    theirs = lance.dataset(table.uri).to_table(
        columns=["id"], nearest={"column": "v", "q": query, "k": k, "nprobes": 6, "refine_factor": 5}
    )
    ours = table.search("v", query, k, nprobes=6, refine=5, columns=["id"])
    exact = table.search("v", query, k, exact=True, columns=["id"])["id"].to_pylist()
    for found in (ours, theirs):
        assert len(set(found["id"].to_pylist()) & set(exact)) >= recall * k
    norm = float((POINTS**2).sum(axis=1).max()) if metric in ("l2", "dot") else 1.0
    common = [row for row in ours["id"].to_pylist() if row in theirs["id"].to_pylist()]
    assert len(common) >= recall * k
    if ours["id"].to_pylist() == theirs["id"].to_pylist():
        np.testing.assert_allclose(ours["_distance"], theirs["_distance"], rtol=1e-4, atol=1e-5 * norm)


@pytest.mark.parametrize(
    ("kind", "value_type", "metric", "parameters"),
    [
        *[
            (kind, pa.float32(), metric, {"num_sub_vectors": 8} if kind == "IVF_PQ" else {})
            for kind in ("IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_RQ")
            for metric in ("l2", "cosine", "dot")
        ],
        *[
            (kind, pa.float32(), metric, {"num_sub_vectors": 8} if kind.endswith("PQ") else {})
            for kind, metric in (("IVF_HNSW_FLAT", "dot"), ("IVF_HNSW_SQ", "cosine"), ("IVF_HNSW_PQ", "l2"))
        ],
        *[
            (kind, value_type, "l2", {})
            for kind in ("IVF_FLAT", "IVF_SQ", "IVF_RQ", "IVF_HNSW_SQ")
            for value_type in (pa.float16(), pa.float64())
        ],
        ("IVF_PQ", pa.float16(), "cosine", {"num_sub_vectors": 8}),
        ("IVF_PQ", pa.float64(), "l2", {"num_sub_vectors": 8}),
        ("IVF_PQ", pa.float32(), "l2", {"num_sub_vectors": 16, "num_bits": 4}),
        ("IVF_FLAT", pa.uint8(), "hamming", {}),
        ("IVF_HNSW_FLAT", pa.uint8(), "hamming", {}),
    ],
    ids=str,
)
def test_pylance_searches_what_we_build(
    tmp_path: Path, kind: str, value_type: pa.DataType, metric: str, parameters: dict[str, Any]
) -> None:
    table = write_table(tmp_path / "t", value_type)
    table = table.create_index("v", kind, metric=metric, num_partitions=6, **parameters).table
    dtype = value_type.to_pandas_dtype()
    queries = [(np.abs(each) * 50 if value_type == pa.uint8() else each).astype(dtype) for each in QUERIES]
    nearest = {"column": "v", "q": queries[0], "k": 3}
    assert "ANNSubIndex" in lance.dataset(table.uri).scanner(nearest=nearest).explain_plan()
    for query in queries:
        check_both(table, query, recall=0.8, metric=metric)
    everything = table.search("v", np.ones(SIZE), ROWS, nprobes=6, columns=["id"])["id"].to_pylist()
    missing = set(range(ROWS)) - set(everything)
    assert missing == ({5, 11} if metric == "hamming" else {5, 6, 11} | ({7} if metric == "cosine" else set()))
    assert not [finding for finding in table.fsck("head").findings if "index" in finding.rule]
    details = lance.dataset(table.uri).stats.index_stats("v_idx")
    assert details["index_type"] == kind


def read_centroids(table: Table, segment: uuid.UUID) -> np.ndarray:
    reader = LanceFileReader(f"{table.uri}/_indices/{segment}/index.idx")
    centroids = IvfPartitions.decode(bytes(reader.read_global_buffer(1)), path="index.idx").centroids
    assert centroids is not None
    return centroids


@pytest.mark.parametrize("ids", [False, True], ids=["addresses", "stable row ids"])
@pytest.mark.parametrize("maker", ["ours", "pylance"])
def test_an_index_follows_changes(tmp_path: Path, ids: bool, maker: str) -> None:
    table = write_table(tmp_path / "t", pa.float32(), ids=ids)
    if maker == "ours":
        table = table.create_index("v", "IVF_SQ", num_partitions=6).table
    else:
        lance.dataset(table.uri).create_index("v", "IVF_SQ", num_partitions=6)
        table = table.refresh()
    extra = pa.FixedSizeListArray.from_arrays(pa.array((QUERIES + 0.01).astype(np.float32).ravel()), SIZE)
    table = table.append(pa.table({"id": pa.array([9000, 9001, 9002], pa.int64()), "v": extra})).table
    table = table.delete("id % 7 = 3").table
    table = table.optimize_indices(merge="none").table
    statistics = table.index_statistics()[0]
    assert (statistics.uncovered_fragments, len(statistics.segments)) == (0, 2)
    first, second = (read_centroids(table, segment.uuid) for segment in statistics.segments)
    np.testing.assert_array_equal(first, second)
    check_both(table, QUERIES[0], recall=0.8)
    table = table.compact(target_rows=10_000).table
    check_both(table, QUERIES[1], recall=0.8)
    assert table.index_statistics()[0].uncovered_fragments == 0
    table = table.optimize_indices(merge="all").table
    statistics = table.index_statistics()[0]
    assert (statistics.uncovered_fragments, len(statistics.segments)) == (0, 1)
    for number, query in enumerate(QUERIES):
        check_both(table, query, recall=0.8)
        assert table.search("v", query, 1, nprobes=6, refine=5)["id"].to_pylist() == [9000 + number]
    assert not [finding for finding in table.fsck("head").findings if "index" in finding.rule]
    assert not table.drop_index("v_idx").table.indices


def test_segments_that_were_trained_apart_are_built_again(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t", pa.float32())
    moved = pa.FixedSizeListArray.from_arrays(pa.array((POINTS[:700] + 0.3).ravel()), SIZE)
    table = table.append(pa.table({"id": pa.array(range(5000, 5700), pa.int64()), "v": moved})).table
    first = table.create_index("v", "IVF_FLAT", num_partitions=5, fragments=[0])
    second = first.table.create_index("v", "IVF_FLAT", num_partitions=4, fragments=[1], name="other").table
    (other,) = (index for index in second.indices if index.name == "other")
    renamed = IndexMetadata.decode(other.encode())
    renamed.message.name = "v_idx"
    table = second.commit(CreateIndex((renamed,), (other,))).table
    assert len(table.index_statistics()[0].segments) == 2
    check_both(table, QUERIES[0], recall=1.0)
    table = table.optimize_indices(merge="all").table
    assert len(table.index_statistics()[0].segments) == 1
    check_both(table, QUERIES[0], recall=1.0)


@pytest.mark.parametrize(
    ("kind", "parameters", "message"),
    [
        ("IVF_PQ", {"num_sub_vectors": 5}, "num_sub_vectors=5 must divide the dimension 16"),
        ("IVF_FLAT", {"metric": "hamming"}, "are compared by l2 or cosine or dot"),
        ("IVF_FLAT", {"num_partitions": 0}, "num_partitions=0 must be a whole number from 1"),
        ("IVF_SQ", {"num_sub_vectors": 4}, "IVF_SQ has no option 'num_sub_vectors'"),
        ("IVF_PQ", {"num_bits": 5}, "num_bits=5 must be one of 4, 8"),
        ("IVF_RQ", {"num_bits": 10}, "num_bits=10 must be one of 1, 2, 3, 4, 5, 6, 7, 8, 9"),
        ("IVF_SQ", {"m": 10}, "IVF_SQ has no option 'm'"),
        ("IVF_HNSW", {}, "is not an index type; use one of"),
    ],
)
def test_invalid_options_are_rejected(tmp_path: Path, kind: str, parameters: dict[str, Any], message: str) -> None:
    table = write_table(tmp_path / "t", pa.float32())
    with pytest.raises(InvalidInput, match=message):
        table.create_index("v", kind, **parameters)
    with pytest.raises(InvalidInput, match="cannot be built on column 'id'"):
        table.create_index("id", "IVF_FLAT")
