"""Nearest join: the rows of every partition get the nearest rows of the pinned version, as a search finds them."""

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table
from lance_core.scan import pair_filter, vector_products
from lance_core.tasks.partitioning import VersionHeader
from lance_core.tasks.scan import nearest, search_cost
from lance_core.tasks.scan.nearest import (
    NearestJoin,
    SearchRequest,
    add_condition,
    explain_nearest_join,
    plan_nearest_join,
)
from lance_core.versions.snapshot import load_latest
from tests.lance_core.index.vector.test_multivectors import multivectors, query
from tests.lance_core.index.vector.test_vector_build import CENTERS, SIZE, write_table

DRAW = np.random.default_rng(2)


def left_rows(count: int) -> pa.Table:
    vectors: list[Any] = (CENTERS[DRAW.integers(0, 12, count)] + DRAW.normal(size=(count, SIZE))).tolist()
    vectors[3] = None
    return pa.table({"key": range(count), "q": pa.array(vectors, pa.list_(pa.float32()))})


def join(table: Table, left: pa.Table, how: str = "inner", k: int = 2, **request: Any) -> pa.Table:
    base = load_latest(table._location)
    keeps_all = how == "left"
    checked, right = plan_nearest_join(
        base, SearchRequest("v", k, **request), left.column_names, "q", keeps_all=keeps_all
    )
    task = NearestJoin(VersionHeader.of(base), checked, "q", keeps_all, right)
    copy: NearestJoin = pickle.loads(pickle.dumps(task))
    schema = pa.schema([*left.schema, *right])
    return pa.Table.from_batches([each.cast(schema) for each in copy(left.to_batches(max_chunksize=7))], schema)


@pytest.mark.parametrize("exact_is_cheaper", [True, False])
def test_each_row_gets_what_a_search_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exact_is_cheaper: bool
) -> None:
    monkeypatch.setattr(nearest, "GROUP_QUERIES_MAX", 20)
    monkeypatch.setattr(search_cost, "PRODUCT_OPERATIONS_PER_SECOND", 1e18 if exact_is_cheaper else 1.0)
    monkeypatch.setattr(search_cost, "ESTIMATE_SECONDS", 0.0)
    monkeypatch.setattr(search_cost, "READ_BYTES_PER_SECOND", 1e18)
    table = write_table(tmp_path / "t", pa.float32()).create_index("v", "IVF_SQ", num_partitions=6).table
    left = left_rows(50)
    for filter in (None, "id % 5 = 0"):
        joined = join(table, left, k=6, nprobes=2, refine=3, filter=filter, columns=["id"])
        assert joined.column_names == ["key", "q", "id", "_distance"]
        assert joined["key"].to_pylist() == [key for key in range(50) if key != 3 for _ in range(6)]
        for key in (0, 9, 33):
            rows = joined.filter(pa.compute.equal(joined["key"], key)).select(["id", "_distance"])
            expected = table.search(
                "v", left["q"][key].as_py(), 6, nprobes=2, refine=3, filter=filter, columns=["id"],
                exact=exact_is_cheaper,
            )  # fmt: skip
            assert rows["id"].to_pylist() == expected["id"].to_pylist()
            np.testing.assert_allclose(rows["_distance"], expected["_distance"], rtol=1e-5)
    plan = explain_nearest_join(load_latest(table._location), SearchRequest("v", 6), 100)
    assert ("chosen    matrix products" if exact_is_cheaper else "chosen    the index") in plan
    outer = join(table, left, "left", k=2, columns=["id"], filter="id < 1")
    assert outer["key"].to_pylist() == list(range(50))
    assert outer["id"].to_pylist() == [None if key == 3 else 0 for key in range(50)]
    nothing = join(table, left, "left", k=2, columns=["id", "v"], filter="id < 0")
    assert (nothing.num_rows, nothing["id"].null_count, nothing["v"].null_count) == (50, 50, 50)
    assert not join(table, left, k=2, columns=["id"], filter="id < 0").num_rows


def test_a_version_without_an_index(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t", pa.float32())
    left = left_rows(20)
    joined = join(table, left, k=3)
    expected = table.search("v", left["q"][5].as_py(), 3)
    assert joined.slice(5 * 3 - 3, 3).select(expected.column_names) == expected
    assert "products" in explain_nearest_join(load_latest(table._location), SearchRequest("v", 3), 100)


def test_wrong_arguments(tmp_path: Path) -> None:
    table, left = write_table(tmp_path / "t", pa.float32()), left_rows(5)
    with pytest.raises(InvalidInput, match="both sides have a column 'id'"):
        join(table, left.rename_columns(["id", "q"]))
    with pytest.raises(InvalidInput, match="vector='q' is not a column of the frame"):
        join(table, left.rename_columns(["key", "r"]))
    base = load_latest(table._location)
    with pytest.raises(InvalidInput, match="column 'id' has the type int64"):
        plan_nearest_join(base, SearchRequest("id", 1), ["q"], "q", keeps_all=False)
    with pytest.raises(InvalidInput, match="have 16"):
        join(table, pa.table({"key": [1], "q": [[1.0, 2.0]]}), columns=["id"])
    with pytest.raises(InvalidInput, match="different lengths, such as 2 and 1"):
        join(table, pa.table({"key": [1, 2], "q": [[1.0, 2.0], [1.0]]}), columns=["id"])
    with pytest.raises(InvalidInput, match="null element"):
        join(table, pa.table({"key": [1], "q": [[1.0, None]]}), columns=["id"])


def test_a_table_created_again_at_the_location(tmp_path: Path) -> None:
    queries = pa.table({"key": [0], "q": pa.array([[0.0, 0.0]], pa.list_(pa.float32()))})
    for number in range(2):
        rows = pa.table({"id": [number], "v": pa.array([[0.0, 1.0]], pa.list_(pa.float32(), 2))})
        table = Table.create(tmp_path / "t", rows, durable=False)
        assert join(table, queries, k=1)["id"].to_pylist() == [number]
        shutil.rmtree(tmp_path / "t")


def test_wide_rows_of_the_frame_are_repeated_in_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest, "GROUP_BYTES_MAX", 1 << 20)
    table = write_table(tmp_path / "t", pa.float32())
    left = left_rows(20).append_column("text", pa.array(["x" * 10_000] * 20))
    base = load_latest(table._location)
    request, right = plan_nearest_join(
        base, SearchRequest("v", 50, columns=["id"]), left.column_names, "q", keeps_all=False
    )
    batches = list(NearestJoin(VersionHeader.of(base), request, "q", False, right)(left.to_batches()))
    assert sum(batch.num_rows for batch in batches) == 19 * 50
    assert max(batch.nbytes for batch in batches) < 2 << 20


@pytest.mark.parametrize("exact_is_cheaper", [True, False])
def test_lists_of_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exact_is_cheaper: bool) -> None:
    monkeypatch.setattr(nearest, "GROUP_QUERIES_MAX", 10)
    monkeypatch.setattr(search_cost, "MULTIVECTOR_NUMBER_SECONDS", 0.0 if exact_is_cheaper else 1.0)
    table = Table.create(tmp_path / "t", multivectors(), max_rows_per_file=150, durable=False)
    table = table.create_index("v", "IVF_SQ", metric="cosine", num_partitions=8).table
    queries: list[Any] = [query(seed, seed % 4 + 1).tolist() for seed in range(12)]
    queries[3], queries[5] = None, []
    left = pa.table({"key": range(12), "q": pa.array(queries, pa.list_(pa.list_(pa.float32())))})
    joined = join(table, left, k=4, nprobes=1, columns=["id"], filter="id % 3 > 0")
    assert joined["key"].to_pylist() == [key for key in range(12) if key not in (3, 5) for _ in range(4)]
    for key in (0, 7, 11):
        rows = joined.filter(pa.compute.equal(joined["key"], key)).select(["id", "_distance"])
        expected = table.search(
            "v", queries[key], 4, nprobes=1, columns=["id"], filter="id % 3 > 0", exact=exact_is_cheaper
        )
        assert rows == expected.cast(rows.schema)
    outer = join(table, left, "left", k=1, columns=["id"])
    assert [each is None for each in outer["id"].to_pylist()] == [key in (3, 5) for key in range(12)]
    plan = explain_nearest_join(load_latest(table._location), SearchRequest("v", 4), 10)
    assert ("chosen    every vector" if exact_is_cheaper else "chosen    the index") in plan
    first = left.slice(0, 1).set_column(1, "q", pa.array([queries[0][0]], pa.list_(pa.float32())))
    assert join(table, first, k=4, columns=["id"]).drop("q") == join(table, left.slice(0, 1), k=4, columns=["id"]).drop(
        "q"
    )
    with pytest.raises(InvalidInput, match="null instead of a vector"):
        join(table, left.slice(0, 1).set_column(1, "q", pa.array([[None]], left["q"].type)), columns=["id"])
    vectors = write_table(tmp_path / "vectors", pa.float32())
    with pytest.raises(InvalidInput, match="'q' has lists of vectors, but a value"):
        join(vectors, left, columns=["id"])


def join_pairs(table: Table, left: pa.Table, condition: str, k: int, how: str = "inner", **request: Any) -> pa.Table:
    base, schema = load_latest(table._location), left.drop("q").schema
    checked, pairs = add_condition(base, SearchRequest("v", k, columns=["id"], **request), condition, schema)
    assert pairs is not None
    checked, right = plan_nearest_join(base, checked, left.column_names, "q", keeps_all=how == "left")
    task: NearestJoin = pickle.loads(
        pickle.dumps(NearestJoin(VersionHeader.of(base), checked, "q", how == "left", right, pairs))
    )
    return pa.Table.from_batches(list(task(left.to_batches())), pa.schema([*left.schema, *right]))


def labelled_rows(count: int, seed: int) -> pa.Table:
    """Return rows with a label, some of which are null, a number and a vector, some of which are null."""
    draw = np.random.default_rng(seed)
    labels = [None if number % 11 == 4 else "abcde"[number] for number in draw.integers(0, 5, count).tolist()]
    vectors: list[Any] = draw.normal(size=(count, SIZE)).astype(np.float32).tolist()
    vectors[5] = None
    return pa.table(
        {
            "id": range(count),
            "label": pa.array(labels, pa.string()),
            "v": pa.array(vectors, pa.list_(pa.float32(), SIZE)),
        }
    )


CONDITIONS: dict[str, Callable[[dict[str, Any], dict[str, Any]], bool]] = {
    "left.label = right.label": lambda row, other: row["label"] is not None and row["label"] == other["label"],
    "right.id <> left.id AND right.id % 2 = 0": lambda row, other: row["id"] != other["id"] and other["id"] % 2 == 0,
    "right.id > left.id * 20 - 3": lambda row, other: other["id"] > row["id"] * 20 - 3,  # few or no rows for some
    "left.id > 4": lambda row, other: row["id"] > 4,
    "abs(left.id * 40 - cast(`right`.`_rowaddr` as bigint)) < 7": lambda row, other: (
        abs(row["id"] * 40 - other["id"]) < 7
    ),
}


@pytest.mark.parametrize(("count", "metric"), [(6, "l2"), (60, "l2"), (60, "cosine"), (60, "dot")])
def test_conditions_over_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, metric: Literal["l2", "cosine", "dot"]
) -> None:
    """Each row has the nearest `k` of the rows with which it meets the condition, as a comparison of all pairs. Few
    rows are compared one after the other, and more by products."""
    monkeypatch.setattr(pair_filter, "PAIRS_AT_A_TIME", 1000)
    monkeypatch.setattr(vector_products, "BLOCK_ESTIMATES", 8000)
    table = Table.create(tmp_path / "t", labelled_rows(600, 1), max_rows_per_file=2000, durable=False)
    table = table.create_index("v", "IVF_FLAT", metric=metric, num_partitions=4).table
    left = labelled_rows(count, 2).rename_columns(["id", "label", "q"])
    left = left.append_column("key", left["id"])
    k = 7
    pairs = [
        (row, table.search("v", row["q"], 600, exact=True, columns=["id", "label"]).to_pylist())
        for row in left.to_pylist()
        if row["q"] is not None
    ]
    frame = left.rename_columns(["left_id", "label", "q", "key"])
    for condition, holds in CONDITIONS.items():
        expected = [
            (row["key"], other["id"])
            for row, others in pairs
            for other in [each for each in others if holds(row, each)][:k]
        ]
        joined = join_pairs(table, frame, condition.replace("left.id", "left.left_id"), k, metric=metric)
        assert list(zip(joined["key"].to_pylist(), joined["id"].to_pylist(), strict=True)) == expected, condition
    everything = join_pairs(table, frame, "left.left_id < 2", 1, how="left", metric=metric, filter="id < 0")
    assert (everything.num_rows, everything["id"].null_count) == (count, count)


def test_conditions_on_the_table_alone_are_filters(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t", pa.float32()).create_index("v", "IVF_FLAT", num_partitions=4).table
    base, left = load_latest(table._location), pa.schema([("key", pa.int64())])
    request, pairs = add_condition(base, SearchRequest("v", 3, filter="id > 5 -- all"), "right.id < 9;", left)
    assert (pairs, request.filter) == (None, "(id > 5 -- all\n) AND (id < 9\n)")
    plan = explain_nearest_join(base, request, 10, "right.id < 9")
    assert "chosen" in plan
    assert "id < 9" in plan
    plan = explain_nearest_join(base, SearchRequest("v", 3), 10, "left.key <> right.id")
    assert "index     none, since condition= reads both sides" in plan
    assert "condition left.key <> right.id" in plan
    for sql, message in (
        ("id < 9", "as left.x and those of the table as right.x"),
        ("left.id = right.id", "no field 'id'"),
        ("left IS NOT NULL", "reads left as a whole"),
        ("right.id + left.key", "true or false for each row"),
    ):
        with pytest.raises(InvalidInput, match=message):
            add_condition(base, SearchRequest("v", 3), sql, left)


def test_conditions_with_lists_of_vectors(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", multivectors(), durable=False)
    queries: list[Any] = [query(seed, seed % 4 + 1).tolist() for seed in range(5)]
    left = pa.table({"key": range(5), "q": pa.array(queries, pa.list_(pa.list_(pa.float32())))})
    joined = join_pairs(table, left, "right.id % 5 = left.key", 4)
    expected = [
        number
        for key, each in enumerate(queries)
        for number in table.search("v", each, 4, filter=f"id % 5 = {key}", columns=["id"])["id"].to_pylist()
    ]
    assert joined["id"].to_pylist() == expected
