"""RaBitQ codes: those of pylance are read, and encoding the same vectors under its model gives the same factors."""

import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_core import Table
from lance_core.index.coverage import Coverage
from lance_core.index.vector import rabit_lists
from lance_core.index.vector.encoding import encode_rows
from lance_core.index.vector.model import INDEX_FILE, STORAGE_FILE, read_model
from lance_core.index.vector.partitions import read_codes
from lance_core.index.vector.rabit import RabitCodes
from lance_core.scan.vector_search import Metric
from lance_core.versions.snapshot import load_latest

ROWS_OF_A_MEAN_MIN = 20
"""Partitions with fewer rows have no typical loss."""


@pytest.mark.parametrize("metric", [Metric.L2, Metric.COSINE, Metric.DOT])
@pytest.mark.parametrize("bits", range(1, 10))
def test_codes_of_pylance(tmp_path: Path, bits: int, metric: Metric) -> None:
    """Rows at a centroid are left out: their residual is zero but for rounding, and so are its signs. Rows between two
    centroids may be in either partition. pylance starts k-means at random rows, so that one run in a hundred has such a
    row."""
    size = (16, 72, 128)[bits % 3]
    points = np.random.default_rng(bits).normal(size=(300, size)).astype(np.float32) + 1
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(points.ravel()), size)
    dataset = lance.write_dataset(pa.table({"v": vectors}), str(tmp_path / "t"))
    dataset.create_index("v", "IVF_RQ", metric=metric.value, num_partitions=3, num_bits=bits)
    table = Table.open(dataset.uri)
    files = Coverage(load_latest(table._location)).segment_of(table.indices[0]).files
    stored = read_model(files.open(INDEX_FILE), files.open(STORAGE_FILE), path="")
    quantizer = stored.model.quantizer
    assert isinstance(quantizer, RabitCodes)
    np.testing.assert_allclose(quantizer.rotation.matrix @ quantizer.rotation.matrix.T, np.eye(size), atol=1e-5)
    rows, columns = read_codes(files.open(STORAGE_FILE), stored.code_columns, 0, 300, path="")
    source = pa.record_batch({"value": vectors, "row": pa.array(np.arange(300, dtype=np.uint64))})
    (ours,) = encode_rows([source], stored.model)
    for number in range(3):
        part = slice(*(stored.partitions.offsets[number] + np.array([0, stored.partitions.lengths[number]])))
        packed = tuple(column[part] for column in columns)
        unpacked: tuple[Any, ...] = quantizer.unpack(packed)
        np.testing.assert_array_equal(quantizer.pack(unpacked)[0], packed[0])
        members = rows[part].astype(np.int64)
        centroid, described = stored.model.float_centroids[number], directions(points[members], metric)
        is_same = ours.partitions[members] == number
        nearest = stored.model.float_centroids[ours.partitions[members]]
        np.testing.assert_allclose(rank(described, nearest, metric), rank(described, centroid, metric), rtol=1e-3)
        is_apart = is_same & (np.linalg.norm(described - centroid, axis=1) > 1e-3)
        members, theirs = members[is_apart], tuple(column[is_apart] for column in unpacked)
        mine: tuple[Any, ...] = tuple(column[members] for column in ours.codes)
        assert np.bitwise_count(mine[0] ^ theirs[0]).sum() <= 4  # numbers that are zero but for rounding
        for ours_column, theirs_column in zip(mine[1:4], theirs[1:4], strict=True):
            np.testing.assert_allclose(ours_column, theirs_column, rtol=1e-2, atol=1e-2)
        if bits > 1 and len(members) >= ROWS_OF_A_MEAN_MIN:
            losses = [loss_of(quantizer, metric, codes, points[members], centroid) for codes in (mine, theirs)]
            assert losses[0] <= (1.15 if bits <= 5 else 2) * losses[1]


def rank(vectors: np.ndarray, centroids: np.ndarray, metric: Metric) -> np.ndarray:
    """Return the value by which the partition of each vector is chosen. Rounding decides between equal ones."""
    if metric is Metric.DOT:
        return np.asarray((vectors * centroids).sum(axis=-1))
    return np.asarray(np.linalg.norm(vectors - centroids, axis=-1))


def directions(points: np.ndarray, metric: Metric) -> np.ndarray:
    """Return the vectors that the codes describe."""
    return points / np.linalg.norm(points, axis=1, keepdims=True) if metric is Metric.COSINE else points


def loss_of(
    quantizer: RabitCodes, metric: Metric, codes: tuple[Any, ...], points: np.ndarray, centroid: np.ndarray
) -> float:
    """Return how far the numbers of all bits are from the direction of the residuals, and check their factors."""
    residuals, size = (directions(points, metric) - centroid) @ quantizer.rotation.matrix, points.shape[1]
    searched = tuple(codes[position] for position in quantizer.searched_columns)
    numbers = quantizer.numbers(searched).astype(np.float64)
    if quantizer.num_bits == 9:
        numbers = numbers[:, :size] + 256 * numbers[:, size:]
    numbers -= quantizer.offset
    product, square = (residuals * numbers).sum(axis=1), (residuals**2).sum(axis=1)
    factor = -1 if metric is Metric.DOT else -2
    np.testing.assert_allclose(quantizer.factors(searched)[1], factor * square / product, rtol=1e-3)
    return float(1 - (product / np.linalg.norm(numbers, axis=1) / np.sqrt(square)).mean())


def test_products_of_a_batch_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.random.default_rng(4).normal(size=(4000, 16)).astype(np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(points.ravel()), 16)
    table = Table.create(tmp_path / "t", pa.table({"id": range(4000), "v": vectors}), durable=False)
    table = table.create_index("v", "IVF_RQ", num_partitions=4).table
    expected = table.search("v", points[:64], 5, nprobes=4, columns=["id"])
    monkeypatch.setattr(rabit_lists, "PRODUCTS_MAX", 4000)
    tracemalloc.start()
    assert table.search("v", points[:64], 5, nprobes=4, columns=["id"]) == expected
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 4000 * 4


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
@pytest.mark.parametrize("bits", [1, 5, 9])
def test_bounds_miss_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: int, metric: str) -> None:
    """Bounded products find the rows that all products find. One cluster holds copies of a vector and others near it,
    whose scales differ too much for a bound."""
    random = np.random.default_rng(bits)
    points = (random.normal(size=(12, 24))[random.integers(0, 12, 3000)] * 5 + random.normal(size=(3000, 24))).astype(
        "f4"
    )
    points[:300] = points[0] + random.normal(size=(300, 24)) * 10.0 ** -random.integers(1, 8, 300)[:, None]
    points[40:60] = points[0]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(points.ravel()), 24)
    table = Table.create(tmp_path / "t", pa.table({"id": range(3000), "v": vectors}), durable=False)
    table = table.create_index("v", "IVF_RQ", num_partitions=20, num_bits=bits, metric=metric).table
    queries = np.concatenate([points[:10], points[-20:], random.normal(size=(5, 24)) * 50])

    def found() -> list[pa.Table]:
        return [
            table.search("v", queries, k, nprobes=20, columns=["id"], filter=filter)
            for k in (1, 30)
            for filter in (None, "id % 3 = 0")
        ]

    monkeypatch.setattr(rabit_lists, "UNBOUNDED_ROWS", 10**6)
    expected = found()
    monkeypatch.setattr(rabit_lists, "UNBOUNDED_ROWS", 1)
    monkeypatch.setattr(rabit_lists, "UNBOUNDED_ROWS_PER_RESULT", 1)
    for ours, theirs in zip(found(), expected, strict=True):
        distances = theirs["_distance"].to_numpy()
        np.testing.assert_allclose(ours["_distance"].to_numpy(), distances, rtol=1e-5, atol=1e-4 * abs(distances).max())
        assert (ours["id"].to_numpy() == theirs["id"].to_numpy()).mean() > 0.99


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
@pytest.mark.parametrize("bits", range(1, 10))
def test_first_visits_of_partitions_find_what_later_ones_find(tmp_path: Path, bits: int, metric: str) -> None:
    """A partition is compared as it is stored when a query visits it for the first time, and as a list of faiss later.
    Here some partitions are new to the second query, too."""
    points = np.random.default_rng(bits).normal(size=(3000, (24, 128)[bits % 2])).astype(np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(points.ravel()), points.shape[1])
    table = Table.create(tmp_path / "t", pa.table({"id": range(3000), "v": vectors}), durable=False)
    table = table.create_index("v", "IVF_RQ", num_partitions=5, num_bits=bits, metric=metric).table
    copies = [Table.open(shutil.copytree(tmp_path / "t", tmp_path / f"copy{number}")) for number in range(2)]
    for copy, filter in zip(copies, (None, "id % 2 = 0"), strict=True):

        def search(nprobes: int, table: Table = copy, filter: str | None = filter) -> dict[int, float]:
            found = table.search("v", points[7], 40, nprobes=nprobes, filter=filter, columns=["id"])
            return dict(zip(found["id"].to_pylist(), found["_distance"].to_pylist(), strict=True))

        first = [search(2), search(4)]
        search(5)
        for before, after in zip(first, [search(2), search(4)], strict=True):
            scale = max(map(abs, after.values()))
            assert len(before.keys() ^ after.keys()) <= 2  # rounding decides between equal rows
            common = before.keys() & after.keys()
            np.testing.assert_allclose(
                [before[each] for each in common], [after[each] for each in common], atol=1e-5 * scale
            )
