"""Arguments of vector searches, and tables that have less than a search asks for."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_core import IndexIgnored, InvalidInput, Table

SIZE = 8
RNG = np.random.default_rng(2)


def rows_of(points: np.ndarray) -> pa.Table:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(points.astype(np.float32).ravel()), SIZE)
    return pa.table({"id": pa.array(range(len(points)), pa.int64()), "v": vectors})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    points = RNG.normal(size=(50, SIZE))
    points[3] = 0
    return Table.create(tmp_path / "t", rows_of(points)).create_index("v", "IVF_SQ", metric="cosine").table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k=0"),
        ({"k": -3}, "k=-3"),
        ({"k": 1.5}, "k must be an integer, not 1.5"),
        ({"nprobes": 0}, "nprobes=0"),
        ({"refine": 0}, "refine=0"),
        ({"ef": 0}, "ef=0"),
        ({"ef": True}, "ef must be an integer, not True"),
        ({"vector": [1.0] * 7}, "vector has 7 numbers, but those of column 'v' have 8"),
        ({"vector": [[1.0] * 7]}, "vector has 7 numbers"),
        ({"vector": [float("nan")] * 8}, "vector has nan at position 0"),
        ({"vector": [[1.0] * 8, [1.0] * 7 + [float("inf")]]}, "vector has inf at position 7 of query 1"),
        ({"vector": "near"}, "vector must be a list of 8 numbers"),
        ({"column": "id"}, "a search needs vectors"),
        ({"column": "w"}, "'w'"),
        ({"metric": "hamming"}, "are compared by l2 or cosine or dot"),
    ],
    ids=str,
)
def test_invalid_arguments_are_named(table: Table, arguments: dict[str, Any], message: str) -> None:
    valid: dict[str, Any] = {"column": "v", "vector": np.ones(SIZE), "k": 5}
    with pytest.raises(InvalidInput) as caught:
        table.search(**(valid | arguments))
    assert message in str(caught.value)


def test_integers_of_numpy_are_integers(table: Table) -> None:
    expected = table.search("v", np.ones(SIZE), 3, nprobes=2, refine=2, ef=9)
    numbers: dict[str, Any] = {"nprobes": np.int32(2), "refine": np.int64(2), "ef": np.uint8(9)}
    assert table.search("v", np.ones(SIZE), np.int64(3), **numbers) == expected  # type: ignore[arg-type]
    assert "3 rows" in table.explain_search("v", np.int64(3), **numbers)  # type: ignore[arg-type]


def test_metrics_have_the_names_of_pylance(table: Table) -> None:
    names: list[tuple[Any, Any]] = [("euclidean", "l2"), ("L2", "l2"), ("Cosine", "cosine"), ("DOT", "dot")]
    for name, metric in names:
        named = table.search("v", np.ones(SIZE), 5, metric=name)
        assert named == table.search("v", np.ones(SIZE), 5, metric=metric)
        built = table.create_index("v", "IVF_FLAT", name=f"named_{name}", metric=name).table
        assert f"by {metric} distance" in built.explain_search("v", metric=metric)
    with pytest.raises(InvalidInput, match="metric must be one of l2, cosine, dot, hamming, not 'angular'"):
        table.search("v", np.ones(SIZE), metric="angular")  # type: ignore[arg-type]


BFLOAT16 = """
import sys
import lance, numpy as np, pyarrow as pa
from lance.arrow import bfloat16_array
from lance_core import InvalidInput, Table
rows = pa.table({"v": pa.FixedSizeListArray.from_arrays(bfloat16_array([1.0] * 32), 8)})
lance.write_dataset(rows, sys.argv[1])
table = Table.open(sys.argv[1])
for call in (lambda: table.search("v", np.ones(8)), lambda: table.create_index("v", "IVF_FLAT")):
    try:
        call()
    except InvalidInput as error:
        print(error)
"""


def test_columns_of_bfloat16_are_refused(tmp_path: Path) -> None:
    """The type is registered in a process of its own, since columns of other tests would have it too."""
    done = subprocess.run(
        [sys.executable, "-c", BFLOAT16, tmp_path / "t"], capture_output=True, text=True, check=True, timeout=60
    )
    of_search, of_index = done.stdout.splitlines()
    assert re.search(r"column 'v' has the type .*bfloat16.*a search needs vectors", of_search)
    assert "IVF_FLAT" in of_index


def test_large_arguments_return_what_there_is(table: Table) -> None:
    found = table.search("v", np.ones(SIZE), 10_000, nprobes=10_000, refine=1000, ef=10_000)
    assert len(found) == 49  # the zero vector has no direction
    assert not len(table.search("v", np.zeros(SIZE), 5))
    assert table.search("v", [np.zeros(SIZE), np.ones(SIZE)], 5)["_query"].to_pylist() == [1] * 5


@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_SQ", "IVF_RQ", "IVF_HNSW_SQ"])
def test_few_rows_and_none(tmp_path: Path, kind: str) -> None:
    points = RNG.normal(size=(3, SIZE))
    table = Table.create(tmp_path / "few", rows_of(points)).create_index("v", kind, num_partitions=20).table
    assert sorted(table.search("v", points[0], 10)["id"].to_pylist()) == [0, 1, 2]
    assert not len(table.delete("true").table.search("v", points[0], 10))
    empty = Table.create(tmp_path / "empty", rows_of(points[:0]))
    with pytest.warns(IndexIgnored, match="too few vectors"):
        empty = empty.create_index("v", kind).table
    assert not len(empty.search("v", points[0], 10))
    nulls = pa.table({"id": [1, 2], "v": pa.array([None, None], pa.list_(pa.float32(), SIZE))})
    assert not len(Table.create(tmp_path / "nulls", nulls).search("v", points[0], 10))
