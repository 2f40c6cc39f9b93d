"""Vector indices of pylance: searches by this library find the same rows at the same distances, and every row that a
search without an index finds when all partitions are searched."""

import sys
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_core import IndexIgnored, Table

ROWS, SIZE = 1200, 16
RNG = np.random.default_rng(7)
CENTERS = RNG.normal(size=(12, SIZE)) * 2
POINTS = (CENTERS[RNG.integers(0, 12, ROWS)] + RNG.normal(size=(ROWS, SIZE))).astype(np.float32)
QUERIES = (CENTERS[[3, 5, 8]] + RNG.normal(size=(3, SIZE))).astype(np.float32)
PARAMETERS = {"PQ": {"num_sub_vectors": 4}}
KINDS = ["IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_HNSW_FLAT", "IVF_HNSW_PQ", "IVF_HNSW_SQ"]


def rows_of(points: np.ndarray, start: int = 0, value_type: pa.DataType | None = None) -> pa.Table:
    """Return rows with a vector each; some vectors are null."""
    values = pa.array(points.ravel(), value_type or pa.float32())
    mask = pa.array([(start + row) % 97 == 5 for row in range(len(points))])
    vectors = pa.FixedSizeListArray.from_arrays(values, points.shape[1], mask=mask)
    ids = np.arange(start, start + len(points))
    return pa.table({"id": pa.array(ids, pa.int64()), "c": pa.array((ids * 37) % 1000, pa.int64()), "v": vectors})


def write_indexed(path: Path, kind: str, *, data: pa.Table | None = None, ids: bool = False, **parameters: Any) -> str:
    """Write a table of three fragments with a vector index of pylance."""
    rows = rows_of(POINTS) if data is None else data
    dataset = lance.write_dataset(rows, str(path), max_rows_per_file=500, enable_stable_row_ids=ids)
    settings = {"num_partitions": 6, **PARAMETERS.get(kind.rpartition("_")[2], {}), **parameters}
    dataset.create_index("v", kind, **settings)
    return str(path)


def search_by_pylance(
    uri: str, query: np.ndarray, k: int, nprobes: int, refine: int | None, **options: Any
) -> pa.Table:
    nearest = {"column": "v", "q": query, "k": k, "nprobes": nprobes, "ef": 300}
    if refine is not None:
        nearest["refine_factor"] = refine
    return lance.dataset(uri).to_table(columns=["id"], nearest=nearest, prefilter=True, **options)


def check_distances(ours: pa.Table, theirs: pa.Table, *, scale: float = 1.0, norm: float = 1.0) -> None:
    """Check distances within 1e-5 of the larger of the distance and the squared norms."""
    expected = theirs["_distance"].to_numpy() * scale
    np.testing.assert_allclose(ours["_distance"].to_numpy(), expected, rtol=1e-5, atol=1e-5 * norm)


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
@pytest.mark.parametrize("kind", [*KINDS, "IVF_PQ of 4 bits"])
def test_rows_and_distances_equal_those_of_pylance(tmp_path: Path, kind: str, metric: Any) -> None:
    name, _, bits = kind.partition(" of ")
    uri = write_indexed(tmp_path / "t", name, metric=metric, **(dict[str, Any](num_bits=4) if bits else {}))
    table = Table.open(uri)
    is_estimate = not name.endswith("FLAT")
    norm = float((POINTS**2).sum(axis=1).max()) if metric != "cosine" else 1.0
    for query in QUERIES:
        for refine in (None, 4):
            ours = table.search("v", query, 15, nprobes=6, refine=refine, columns=["id"])
            theirs = search_by_pylance(uri, query, 15, 6, refine)
            # pylance returns the squared l2 distance of normalized codes, twice the cosine distance.
            scale = 0.5 if metric == "cosine" and is_estimate and refine is None else 1.0
            if not bits or refine is None:
                check_distances(ours, theirs, scale=scale, norm=norm)
            if bits or (is_estimate and refine is None):  # several rows have the same code
                common = set(ours["id"].to_pylist()) & set(theirs["id"].to_pylist())
                assert len(common) >= (8 if bits else 12)
            else:
                assert ours["id"].to_pylist() == theirs["id"].to_pylist()
        if "HNSW" not in name:
            few = table.search("v", query, 15, nprobes=2, columns=["id"])["id"].to_pylist()
            theirs_ids = search_by_pylance(uri, query, 15, 2, None)["id"].to_pylist()
            assert len(set(few) & set(theirs_ids)) >= (8 if bits else 12)
    assert table.explain_search("v", metric=metric).count(f"v_idx ({name})") == 1


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
@pytest.mark.parametrize("kind", ["IVF_SQ", "IVF_RQ"])
def test_dimensions_that_are_multiples_of_32(tmp_path: Path, kind: str, metric: Any) -> None:
    """faiss has kernels of its own for bytes of such dimensions. pylance rounds queries of RaBitQ codes."""
    points = RNG.normal(size=(ROWS, 32)).astype(np.float32)
    uri = write_indexed(tmp_path / "t", kind, data=rows_of(points), metric=metric)
    table = Table.open(uri)
    for query in points[:3] + np.float32(0.1):
        ours = table.search("v", query, 20, nprobes=6, columns=["id"])
        theirs = search_by_pylance(uri, query, 20, 6, None)
        assert len(set(ours["id"].to_pylist()) & set(theirs["id"].to_pylist())) >= 14
        if kind == "IVF_SQ":
            check_distances(ours, theirs, scale=0.5 if metric == "cosine" else 1.0, norm=64.0)
        exact = table.search("v", query, 20, metric=metric, exact=True, columns=["id"])["id"].to_pylist()
        assert len(set(ours["id"].to_pylist()) & set(exact)) >= 14


@pytest.mark.parametrize("value_type", [pa.float16(), pa.float64(), pa.uint8()], ids=str)
def test_other_number_types(tmp_path: Path, value_type: pa.DataType) -> None:
    is_bytes = value_type == pa.uint8()
    points = RNG.integers(0, 256, (ROWS, SIZE)).astype(np.uint8) if is_bytes else POINTS
    typed = points.astype(value_type.to_pandas_dtype())
    metric = "hamming" if is_bytes else "l2"
    data = rows_of(typed, value_type=value_type)
    uri = write_indexed(tmp_path / "t", "IVF_FLAT", metric=metric, data=data)
    query = typed[17] ^ 3 if is_bytes else typed[17]
    ours = Table.open(uri).search("v", query, 20, nprobes=6, columns=["id"])
    theirs = search_by_pylance(uri, query, 20, 6, None)
    norm = 1.0 if is_bytes else float((POINTS**2).sum(axis=1).max())
    check_distances(ours, theirs, norm=norm)
    assert ours["id"][0].as_py() == 17


def check_complete(table: Table, query: np.ndarray, k: int = 30, **options: Any) -> pa.Table:
    """Check that a search of all partitions of a FLAT index returns what an exact search returns."""
    exact = table.search("v", query, k, exact=True, columns=["id"], **options)
    found = table.search("v", query, k, nprobes=100, columns=["id"], **options)
    assert found["id"].to_pylist() == exact["id"].to_pylist()
    np.testing.assert_allclose(found["_distance"].to_numpy(), exact["_distance"].to_numpy(), rtol=1e-5, atol=1e-3)
    return found


@pytest.mark.parametrize("ids", [False, True], ids=["addresses", "stable row ids"])
def test_changed_rows(tmp_path: Path, ids: bool) -> None:
    """Deleted and updated rows are left out of the answer of an index, and rows that it does not cover are scanned."""
    uri = write_indexed(tmp_path / "t", "IVF_FLAT", ids=ids)
    table = Table.open(uri)
    near = check_complete(table, QUERIES[0])["id"].to_pylist()
    table = table.delete(f"id in ({near[0]}, {near[2]}, {near[5]})").table
    found = check_complete(table, QUERIES[0])["id"].to_pylist()
    assert found[:3] == [near[1], near[3], near[4]]
    table = table.append(rows_of(QUERIES + np.float32(0.01), start=10_000)).table
    assert check_complete(table, QUERIES[0])["id"][0].as_py() == 10_000
    assert "1 of 4 fragments (3)" in table.explain_search("v")
    table = table.update({"c": "c + 1"}, where=f"id in ({near[1]}, {near[3]})").table
    assert check_complete(table, QUERIES[0])["id"].to_pylist()[1:3] == [near[1], near[3]]
    lance.dataset(uri).optimize.optimize_indices(num_indices_to_merge=0)
    table = Table.open(uri)
    assert check_complete(table, QUERIES[0])["id"][0].as_py() == 10_000
    assert table.explain_search("v").count("segment ") >= 2
    for query in QUERIES:
        check_complete(table, query)
        check_complete(table, query, filter="c < 500")
    assert not [finding for finding in table.fsck("head").findings if "index" in finding.rule]


@pytest.mark.parametrize("remap", ["reuse", "none"])
def test_compacted_rows(tmp_path: Path, remap: Any) -> None:
    uri = write_indexed(tmp_path / "t", "IVF_FLAT")
    table = Table.open(uri).delete("id % 3 = 0").table
    table = table.compact(target_rows=5000, remap=remap).table
    found = check_complete(table, QUERIES[1])
    assert all(row % 3 for row in found["id"].to_pylist())
    assert ("scanned   no fragment" in table.explain_search("v")) is (remap == "reuse")


@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_SQ", "IVF_RQ"])
def test_filters_return_as_many_rows_as_match(tmp_path: Path, kind: str) -> None:
    points = np.concatenate([POINTS] * 4)  # enough rows for both ways of filtering
    uri = write_indexed(tmp_path / "t", kind, data=rows_of(points), num_partitions=30)
    table = Table.open(uri)
    for condition in ("c < 0", "c < 1", "c < 10", "c < 700", "c >= 0", "id < 7", "v is not null and c < 800"):
        for nprobes in (1, 30):
            matching = table.count_rows(f"({condition}) and v is not null")
            found = table.search("v", QUERIES[2], 25, nprobes=nprobes, refine=3, filter=condition, columns=["id", "c"])
            assert len(found) == min(25, matching)
            kept = table.to_table(["id"], condition)["id"].to_pylist()
            assert set(found["id"].to_pylist()) <= set(kept)
        best = table.search("v", QUERIES[2], 25, filter=condition, exact=True)
        np.testing.assert_allclose(found["_distance"].to_numpy(), best["_distance"].to_numpy(), rtol=1e-5, atol=1e-4)
    assert len(table.search("v", QUERIES[0], 2000, nprobes=1)) == 2000


def test_a_batch_of_queries_equals_single_queries(tmp_path: Path) -> None:
    uri = write_indexed(tmp_path / "t", "IVF_PQ", metric="cosine")
    table = Table.open(uri)
    for options in ({}, {"refine": 5}, {"filter": "c < 300"}, {"exact": True}):
        batch = table.search("v", QUERIES, 6, columns=["id"], **options)
        assert batch.column_names == ["_query", "id", "_distance"]
        for number, query in enumerate(QUERIES):
            single = table.search("v", query, 6, columns=["id"], **options)
            of_query = batch.filter(pa.compute.equal(batch["_query"], number)).drop(["_query"])
            assert of_query["id"].to_pylist() == single["id"].to_pylist()
            np.testing.assert_allclose(of_query["_distance"], single["_distance"], rtol=1e-5, atol=1e-6)
    zero = np.stack([QUERIES[0], np.zeros(SIZE, dtype=np.float32)])
    assert set(table.search("v", zero, 6)["_query"].to_pylist()) == {0}


def test_the_metric_of_the_index_is_the_default(tmp_path: Path) -> None:
    uri = write_indexed(tmp_path / "t", "IVF_FLAT", metric="dot")
    table = Table.open(uri)
    by_dot = table.search("v", QUERIES[0], 5, metric="dot", exact=True)["id"].to_pylist()
    assert table.search("v", QUERIES[0], 5, nprobes=6)["id"].to_pylist() == by_dot
    assert table.search("v", QUERIES[0], 5, exact=True)["id"].to_pylist() == by_dot
    explained = table.explain_search("v", metric="l2")
    assert "index     none, since v_idx has the metric dot" in explained
    assert "answer    exact" in explained
    approximate = table.explain_search("v", k=7, nprobes=3, refine=4, filter="c < 5")
    for text in ("3 partitions of each segment", "28 candidates", "answer    approximate", "c < 5, before the search"):
        assert text in approximate


@pytest.mark.parametrize("file", ["index.idx", "auxiliary.idx"])
@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_damaged_segment_is_passed_over_with_a_warning(tmp_path: Path, file: str, damage: str) -> None:
    uri = write_indexed(tmp_path / "t", "IVF_SQ", metric="cosine")
    (path,) = Path(uri, "_indices").glob(f"*/{file}")
    path.unlink() if damage == "missing" else path.write_bytes(path.read_bytes()[:100])
    table = Table.open(uri)
    with pytest.warns(IndexIgnored, match="v_idx.*cannot be read"):
        found = table.search("v", QUERIES[0], 9)
    assert found.equals(table.search("v", QUERIES[0], 9, metric="cosine", exact=True))


def test_without_the_library_vectors_are_compared_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = write_indexed(tmp_path / "t", "IVF_PQ", metric="cosine")
    monkeypatch.setitem(sys.modules, "faiss", None)
    table = Table.open(uri)
    with pytest.warns(IndexIgnored, match=r"lance-assets\[search\]"):
        found = table.search("v", QUERIES[0], 9)
    assert found.equals(table.search("v", QUERIES[0], 9, metric="cosine", exact=True))


def test_refined_searches_do_not_depend_on_how_vectors_are_read(tmp_path: Path) -> None:
    """Files of 2.2 store vectors of this size so that they are read directly, files of 2.0 do not."""
    points = RNG.normal(size=(ROWS, 64)).astype(np.float32)
    ids = np.arange(ROWS)
    rows = pa.table({"id": ids, "v": pa.FixedSizeListArray.from_arrays(pa.array(points.ravel()), 64)})
    answers = []
    for version in ("2.0", "2.2"):
        table = Table.create(str(tmp_path / version), rows.slice(0, 700), storage_version=version, durable=False)
        table = table.append(rows.slice(700)).table
        table = table.create_index("v", "IVF_SQ", num_partitions=4).table
        table = table.delete("id % 5 = 1").table
        table = table.update({"v": "[" + ", ".join(["0.25"] * 64) + "]"}, "id % 9 = 0").table
        answers += [
            [
                table.search("v", query, 20, nprobes=4, refine=60, columns=["id"], filter=filter)
                for query in (points[3], points[:5])
                for filter in (None, "id < 900", "id < 100")
            ]
        ]
    for codec, direct in zip(*answers, strict=True):
        assert codec.equals(direct)


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
def test_rabit_searches_with_a_filter_that_all_rows_pass_find_the_same(tmp_path: Path, metric: Any) -> None:
    """Without a filter the factors of rows are read in ranges, with one row by row."""
    points = RNG.normal(size=(ROWS, 32)).astype(np.float32)
    uri = write_indexed(tmp_path / "t", "IVF_RQ", data=rows_of(points), metric=metric)
    table = Table.open(uri)
    table.search("v", points[:2], 1, nprobes=6)
    for queries in (points[3], points[:70]):
        for nprobes in (1, 3, 6):
            plain = table.search("v", queries, 12, nprobes=nprobes, columns=["id"])
            filtered = table.search("v", queries, 12, nprobes=nprobes, columns=["id"], filter="id >= 0")
            assert plain.equals(filtered)
