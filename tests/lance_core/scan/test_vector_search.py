"""Vector search compared with the exact search of pylance: nearest rows, rows without a distance, and errors."""

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table
from lance_core.scan import vector_search as vector_search

ROWS, SIZE = 400, 7
RNG = np.random.default_rng(11)
FLOATS = {pa.float16(): np.float16, pa.float32(): np.float32, pa.float64(): np.float64}


def vectors(value_type: pa.DataType) -> pa.Array:
    """Return vectors some of which are equal, null, NaN, infinite, zero or contain a null."""
    found: list[Any] = RNG.normal(size=(ROWS, SIZE)).round(2).astype(FLOATS[value_type]).tolist()
    for row in range(20, ROWS, 20):
        found[row] = found[20]
    found[3], found[30], found[110] = None, None, None
    found[31] = [float("nan"), *found[31][1:]]
    found[32] = [0.0] * SIZE
    found[33] = [*found[33][:-1], None]
    found[34] = [float("inf"), *found[34][1:]]
    return pa.array(found, pa.list_(pa.float32(), SIZE)).cast(pa.list_(value_type, SIZE))


def write_table(directory: Path, data: pa.Table) -> str:
    """Write the rows in several fragments and delete some rows of two of them."""
    lance.write_dataset(data, str(directory), max_rows_per_file=150).delete("id in (40, 60, 33, 200)")
    return str(directory)


@pytest.fixture(scope="module", params=FLOATS, ids=str)
def floats(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, pa.DataType]:
    ids = pa.array(range(ROWS), pa.int64())
    points = vectors(request.param)
    data = pa.table({"id": ids, "v": points, "s": pa.StructArray.from_arrays([points], ["v"])})
    return write_table(tmp_path_factory.mktemp("search") / "t", data), request.param


def check(uri: str, vector: Any, k: int, *, column: str = "v", **options: Any) -> pa.Table:
    """Check that both libraries find the same rows with the same distances, within the precision of float32."""
    nearest = {"column": column, "q": np.asarray(vector), "k": k, "use_index": False}
    if options.get("metric"):
        nearest["metric"] = options["metric"]
    scan_options = {name: options.get(name) for name in ("columns", "filter")}
    theirs = lance.dataset(uri).to_table(nearest=nearest, prefilter=True, **scan_options)
    ours = Table.open(uri).search(column, vector, k, **options)
    assert ours.schema.equals(theirs.schema)
    np.testing.assert_allclose(ours["_distance"].to_numpy(), theirs["_distance"].to_numpy(), rtol=2e-3, atol=2e-3)
    if "id" in ours.column_names:
        # Rows whose distances differ in the last digit may change places.
        distances = ours["id"].to_numpy() != theirs["id"].to_numpy()
        found_ids = ours["_distance"].to_numpy()[distances]
        assert set(ours["id"].to_pylist()) == set(theirs["id"].to_pylist()) or len(ours) == k
        np.testing.assert_allclose(found_ids, theirs["_distance"].to_numpy()[distances], rtol=2e-3, atol=2e-3)
        assert distances.sum() <= 0.2 * len(distances)
    return ours


@pytest.mark.parametrize("metric", [None, "l2", "cosine", "dot"])
@pytest.mark.parametrize("k", [1, 9, 10_000])
def test_nearest_rows_equal_those_of_pylance(floats: tuple[str, pa.DataType], metric: str | None, k: int) -> None:
    uri, value_type = floats
    vector = RNG.normal(size=SIZE).astype(FLOATS[value_type])
    check(uri, vector, k, metric=metric)
    check(uri, vector, k, metric=metric, columns=["_distance", "id"], filter="id % 3 = 0 and id < 300")
    check(uri, vector, k, metric=metric, column="s.v", columns=["id"])
    check(uri, vector, k, metric=metric, columns=[])
    check(uri, vector, k, metric=metric, columns=["id"], filter="id < 0")


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
def test_equal_rows_come_in_their_order(floats: tuple[str, pa.DataType], metric: str) -> None:
    uri, _ = floats
    table = Table.open(uri)
    equal_ids = [row for row in range(20, ROWS, 20) if row not in (40, 60, 200)]
    vector = table.to_table(["v"], "id = 20")["v"][0].as_py()
    for k in (3, len(equal_ids)):
        found = check(uri, vector, k, metric=metric, filter="id % 20 = 0 and id > 0")
        assert found["id"].to_pylist() == equal_ids[:k]


def test_rows_without_a_distance_are_excluded(floats: tuple[str, pa.DataType]) -> None:
    uri, _ = floats
    table = Table.open(uri)
    deleted_ids = {40, 60, 33, 200}
    found_ids = set(table.search("v", [1.0] * SIZE, ROWS)["id"].to_pylist())
    assert set(range(ROWS)) - found_ids == deleted_ids | {3, 30, 110, 31}
    found_ids = set(table.search("v", [1.0] * SIZE, ROWS, metric="cosine")["id"].to_pylist())
    assert set(range(ROWS)) - found_ids == deleted_ids | {3, 30, 110, 31, 32, 34}
    assert not len(table.search("v", [0.0] * SIZE, ROWS, metric="cosine"))


def test_a_null_element_of_a_vector_counts_as_zero(tmp_path: Path) -> None:
    data = pa.table({"id": [0, 1], "v": pa.array([[1.0, None], [1.0, 1.0]], pa.list_(pa.float32(), 2))})
    directory = str(tmp_path / "t")
    lance.write_dataset(data, directory)
    assert check(directory, [1.0, 0.0], 2)["_distance"].to_pylist() == [0.0, 1.0]


def test_the_result_does_not_depend_on_the_block_size(
    floats: tuple[str, pa.DataType], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, _ = floats
    vector = RNG.normal(size=SIZE)
    whole = Table.open(uri).search("v", vector, 25, columns=["id"])
    monkeypatch.setattr(vector_search, "BLOCK_VALUES", 2 * SIZE)
    assert Table.open(uri).search("v", vector, 25, columns=["id"]).equals(whole)


def test_bytes_are_compared_bit_by_bit(tmp_path: Path) -> None:
    bits = RNG.integers(0, 256, size=(ROWS, SIZE)).astype(np.uint8)
    data = pa.table({"id": pa.array(range(ROWS), pa.int64()), "v": pa.array(bits.tolist(), pa.list_(pa.uint8(), SIZE))})
    uri = write_table(tmp_path / "t", data)
    query_vector = bits[7] ^ np.uint8(1)
    for metric in (None, "hamming"):
        ours = check(uri, query_vector, ROWS, metric=metric, columns=["id"])
        assert ours["id"].to_pylist()[0] == 7
        live = np.array([row for row in range(ROWS) if row not in (40, 60, 33, 200)])
        distances = np.unpackbits(bits[live] ^ query_vector, axis=1).sum(axis=1)
        assert ours["id"].to_pylist() == live[np.argsort(distances, kind="stable")].tolist()


def test_an_older_version_and_system_columns(floats: tuple[str, pa.DataType]) -> None:
    uri, _ = floats
    before = Table.open(uri, version=1)
    vector = before.to_table(["v"], "id = 200")["v"][0].as_py()
    assert 200 in before.search("v", vector, 30, nprobes=4, refine=2)["id"].to_pylist()
    found = before.search("v", vector, 2, columns=["_rowid", "id"])
    assert found.column_names == ["_rowid", "id", "_distance"]
    assert found["id"].to_pylist() == [20, 40]
    assert before.take(found["_rowid"], ["id"], by="row_id")["id"].to_pylist() == [20, 40]


@pytest.mark.parametrize(
    ("column", "vector", "k", "options", "message"),
    [
        ("v", [1.0] * 3, 1, {}, "vector has 3 numbers, but those of column 'v' have 7"),
        ("v", [[[1.0] * SIZE]], 1, {}, "vector must be a list of 7 numbers, like the values of column .v., or a two"),
        ("v", "abc", 1, {}, "vector must be a list of 7 numbers"),
        ("v", [float("nan"), *[1.0] * 6], 1, {}, "vector has nan at position 0"),
        ("v", [1.0] * SIZE, 0, {}, "k=0: a search returns at least one row"),
        ("v", [1.0] * SIZE, 1.5, {}, "k must be an integer, not 1.5"),
        ("v", [1.0] * SIZE, 1, {"metric": "near"}, "metric must be one of l2, cosine, dot, hamming"),
        ("v", [1.0] * SIZE, 1, {"metric": "hamming"}, "are compared by l2 or cosine or dot"),
        ("v", [1.0] * SIZE, 1, {"nprobes": 0}, "nprobes=0: it counts from 1"),
        ("v", [1.0] * SIZE, 1, {"columns": ["no"]}, "no"),
        ("v", [1.0] * SIZE, 1, {"filter": "no = 1"}, "no"),
        ("id", [1.0], 1, {}, "column 'id' has the type int64, but a search needs vectors"),
        ("w", [1.0], 1, {}, "w"),
    ],
    ids=str,
)
def test_invalid_searches_are_rejected(
    floats: tuple[str, pa.DataType], column: str, vector: Any, k: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message.replace("(", r"\(")):
        Table.open(floats[0]).search(column, vector, k, **options)


def test_ambiguous_columns_and_byte_vectors_are_rejected(tmp_path: Path) -> None:
    rows = pa.table({"_distance": [1], "v": pa.array([[1]], pa.list_(pa.uint8(), 1))})
    table = Table.create(tmp_path / "t", rows)
    with pytest.raises(InvalidInput, match="the table has a column '_distance'"):
        table.search("v", [1], 1)
    renamed = table.alter_column("_distance", rename="d").table
    for wrong in ([256], [-1], [0.5]):
        with pytest.raises(InvalidInput, match="integers from 0 to 255"):
            renamed.search("v", wrong, 1)
    with pytest.raises(InvalidInput, match="are compared by hamming"):
        renamed.search("v", [1], 1, metric="l2")
