"""Indices of tables that have too few vectors to train a model: they are defined, as pylance defines them, searches
compare every vector, and an optimisation builds them later with the parameters of the definition."""

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_core import IndexIgnored, Table
from lance_core.dml.index_definition import IndexRequest
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.indices import vector_build
from lance_core.tasks.indices.index_build import build_index, optimize_indices
from lance_core.tasks.partitioning import LocalRunner

SIZE, ROWS = 16, 600
POINTS = np.random.default_rng(3).normal(size=(ROWS, SIZE)).astype(np.float32)
DEFINITIONS: list[tuple[str, int, dict[str, Any]]] = [
    ("IVF_FLAT", 0, {}),
    ("IVF_PQ", 255, {"num_sub_vectors": 4}),
    ("IVF_PQ", 15, {"num_sub_vectors": 8, "num_bits": 4}),
    ("IVF_SQ", 0, {}),
    ("IVF_RQ", 0, {"num_bits": 3}),
    ("IVF_HNSW_PQ", 7, {"num_sub_vectors": 4, "m": 8, "ef_construction": 33}),
]


def rows_of(first: int, stop: int, *, null: range = range(0)) -> pa.Table:
    mask = pa.array([row in null for row in range(first, stop)], pa.bool_())
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(POINTS[first:stop].ravel()), SIZE, mask=mask)
    return pa.table({"id": pa.array(range(first, stop), pa.int64()), "v": vectors})


def define(table: Table, kind: str, maker: str, parameters: dict[str, Any]) -> Table:
    if maker == "pylance":
        lance.dataset(table.uri).create_index("v", kind, **parameters)
        return table.refresh()
    with pytest.warns(IndexIgnored, match="'v_idx' is defined, but not built"):
        _create(table, kind, maker, parameters)
    return table.refresh()


def _create(table: Table, kind: str, maker: str, parameters: dict[str, Any]) -> None:
    if maker == "ours":
        table.create_index("v", kind, **parameters)
    else:
        request = IndexRequest("v", kind, params=parameters)
        build_index(TableRef(table.uri), request, "all", options=WriteOptions(), runner=LocalRunner(slots=2))


def check_nearest(table: Table, row: int) -> None:
    found = table.search("v", POINTS[row], 3, nprobes=10, refine=ROWS, columns=["id"])
    expected = np.argsort(1 - POINTS[: table.count_rows()] @ POINTS[row] / np.linalg.norm(POINTS[: len(table)], axis=1))
    assert found["id"].to_pylist() == expected[:3].tolist()


@pytest.mark.parametrize("maker", ["ours", "workers", "pylance"])
@pytest.mark.parametrize(("kind", "rows", "options"), DEFINITIONS)
def test_an_index_is_defined_and_built_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, rows: int, options: dict[str, Any], maker: str
) -> None:
    monkeypatch.setattr(vector_build, "ONE_WORKER_VALUES_MAX", 0)
    parameters = {"metric": "cosine", "num_partitions": 3, **options}
    table = Table.create(tmp_path / "t", rows_of(0, rows), durable=False)
    table = define(table, kind, maker, parameters)
    (statistics,) = table.index_statistics()
    assert (statistics.kind, statistics.covered_rows, statistics.is_used) == (kind, 0, False)
    assert str(statistics.why_unused).startswith("is not built yet")
    assert not [finding for finding in table.fsck("head").findings if finding.rule != "index_behind"]
    assert "by cosine distance" in table.explain_search("v")
    if rows:
        check_nearest(table, 1)
    unchanged = table.optimize_indices().table
    assert unchanged.version == table.version
    table = table.append(rows_of(rows, rows + 5)).table.delete("id < 0").table.compact().table
    still_too_few = table.optimize_indices().table
    table = still_too_few.append(rows_of(rows + 5, ROWS)).table
    assert still_too_few.index_statistics()[0].is_used == (not kind.endswith("PQ") or rows == 15 or rows + 5 > 255)
    if maker == "workers":
        optimize_indices(TableRef(table.uri), None, "all", options=WriteOptions(), runner=LocalRunner(slots=2))
        table = table.refresh()
    else:
        table = table.optimize_indices(merge="all").table
    (statistics,) = table.index_statistics()
    assert (statistics.covered_rows, statistics.uncovered_rows) == (ROWS, 0)
    vectors = statistics.segments[0].vectors
    assert vectors is not None
    assert vectors.partitions is not None
    assert vectors.partitions <= 3 if maker == "pylance" else vectors.partitions == 3  # pylance records no number
    assert table.fsck("head").is_sound
    check_nearest(table, 40)


@pytest.mark.parametrize("kind", ["IVF_PQ", "IVF_HNSW_SQ", "IVF_RQ"])
def test_pylance_builds_what_we_define(tmp_path: Path, kind: str) -> None:
    options: dict[str, Any] = {"num_sub_vectors": 4} if kind == "IVF_PQ" else {}
    table = Table.create(tmp_path / "t", rows_of(0, 0), durable=False)
    table = define(table, kind, "ours", {"metric": "cosine", **options}).append(rows_of(0, ROWS)).table
    lance.dataset(table.uri).optimize.optimize_indices()
    (statistics,) = table.refresh().index_statistics()
    assert (statistics.kind, statistics.covered_rows) == (kind, ROWS)
    check_nearest(table.refresh(), 5)


@pytest.mark.parametrize("slots", [None, 2])
def test_all_vectors_are_the_sample_if_nearly_all_are_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: int | None
) -> None:
    monkeypatch.setattr(vector_build, "ONE_WORKER_VALUES_MAX", 0)
    parameters: dict[str, Any] = {"num_partitions": 1, "num_sub_vectors": 4, "num_bits": 4, "sample_rate": 1}
    # A sample of 4,096 of 40,000 rows has some four of the 40 vectors.
    table = Table.create(tmp_path / "t", rows_of(0, 40), durable=False)
    nothing = pa.table({"id": np.arange(39_960), "v": pa.nulls(39_960, pa.list_(pa.float32(), SIZE))})
    table = table.append(nothing).table
    if slots is None:
        table = table.create_index("v", "IVF_PQ", **parameters).table
    else:
        request = IndexRequest("v", "IVF_PQ", params=parameters)
        build_index(TableRef(table.uri), request, "all", options=WriteOptions(), runner=LocalRunner(slots=slots))
        table = table.refresh()
    assert table.index_statistics()[0].is_used
    assert table.search("v", POINTS[7], 1, refine=10, columns=["id"])["id"].to_pylist() == [7]
