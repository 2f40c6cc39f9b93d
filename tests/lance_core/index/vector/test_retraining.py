"""Statistics of vector indices, and the training that `optimize_indices` repeats when the vectors have changed."""

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_core import Table
from lance_core.index.vector.options import VectorOptions
from lance_core.index.vector.segment_statistics import (
    LOSS_GROWTH_MAX,
    ROW_GROWTH_MAX,
    VectorStatistics,
    rebuild_options,
)

SIZE, PARTITIONS = 8, 5
RNG = np.random.default_rng(4)
CENTERS = RNG.normal(size=(20, SIZE))


def rows_of(count: int, *, start: int, offset: float = 0.0) -> pa.Table:
    points = CENTERS[RNG.integers(0, 20, count)] + RNG.normal(size=(count, SIZE)) * 0.3 + offset
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(points.astype(np.float32).ravel()), SIZE)
    return pa.table({"id": pa.array(range(start, start + count), pa.int64()), "v": vectors})


def statistics_of(table: Table) -> list[VectorStatistics]:
    found = [segment.vectors for segment in table.index_statistics()[0].segments]
    return [each for each in found if each is not None]


@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_RQ", "IVF_HNSW_SQ"])
@pytest.mark.parametrize("metric", ["l2", "dot"])
def test_statistics_record_partitions_and_losses(tmp_path: Path, kind: str, metric: str) -> None:
    table = Table.create(tmp_path / "t", rows_of(600, start=0))
    table = table.create_index("v", kind, metric=metric, num_partitions=PARTITIONS).table
    (first,) = statistics_of(table)
    assert (first.partitions, first.rows, first.trained_rows) == (PARTITIONS, 600, 600)
    assert first.loss is not None
    assert first.training_loss == pytest.approx(first.loss, rel=1e-4)
    assert 600 / PARTITIONS <= (first.largest_partition or 0) < 600
    table = table.append(rows_of(150, start=600, offset=0.2)).table.optimize_indices(merge="none").table
    _, second = statistics_of(table)
    assert (second.rows, second.training_loss, second.trained_rows) == (150, first.training_loss, 600)
    assert second.loss is not None
    assert metric == "dot" or second.loss > first.loss  # cosine distances hardly change
    table = table.optimize_indices(merge="all").table
    (merged,) = statistics_of(table)
    assert merged.rows == 750
    assert merged.loss == pytest.approx((600 * first.loss + 150 * second.loss) / 750, rel=1e-6)
    lance.dataset(table.uri).optimize.optimize_indices()
    assert table.refresh().search("v", CENTERS[0], 3, nprobes=PARTITIONS).num_rows == 3


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
def test_files_of_pylance_are_the_statistics_of_its_segments(tmp_path: Path, metric: str) -> None:
    """They equal those of a build of ours on its centroids."""
    table = Table.create(tmp_path / "t", rows_of(600, start=0))
    lance.dataset(table.uri).create_index("v", "IVF_SQ", metric=metric, num_partitions=PARTITIONS)
    (theirs,) = statistics_of(table.refresh())
    assert (theirs.partitions, theirs.rows, theirs.trained_rows) == (PARTITIONS, 600, 600)
    table = table.refresh().append(table.to_table()).table.optimize_indices(merge="none").table
    first, second = statistics_of(table)
    assert (first, second.training_loss) == (theirs, theirs.training_loss)
    if metric == "dot":
        assert theirs.loss is None
    else:
        assert second.loss == pytest.approx(theirs.loss, rel=1e-4)
        assert second.largest_partition == theirs.largest_partition


@pytest.mark.parametrize("reason", ["loss", "growth", "neither"])
def test_an_index_of_pylance_is_trained_again(tmp_path: Path, reason: str) -> None:
    table = Table.create(tmp_path / "t", rows_of(400, start=0))
    lance.dataset(table.uri).create_index("v", "IVF_SQ", num_partitions=PARTITIONS)
    added, offset = {"loss": (300, 3.0), "growth": (1300, 0.0), "neither": (300, 0.0)}[reason]
    table = table.refresh().append(rows_of(added, start=400, offset=offset)).table
    table = table.optimize_indices(merge="none").table.append(rows_of(1, start=9000)).table
    (after,) = statistics_of(table.optimize_indices().table)
    assert after.trained_rows == (400 if reason == "neither" else 401 + added)


@pytest.mark.parametrize("reason", ["loss", "growth", "neither"])
def test_a_model_that_no_longer_fits_is_trained_again(tmp_path: Path, reason: str) -> None:
    table = Table.create(tmp_path / "t", rows_of(400, start=0))
    table = table.create_index("v", "IVF_SQ", num_partitions=PARTITIONS).table
    added, offset = {"loss": (300, 3.0), "growth": (1300, 0.0), "neither": (300, 0.0)}[reason]
    table = table.append(rows_of(added, start=400, offset=offset)).table
    table = table.optimize_indices(merge="none").table.append(rows_of(1, start=9000)).table
    before = statistics_of(table)
    loss = sum((each.rows or 0) * (each.loss or 0) for each in before) / (400 + added)
    assert (loss > LOSS_GROWTH_MAX * (before[0].training_loss or 0)) is (reason == "loss")
    assert ((401 + added) / 400 > ROW_GROWTH_MAX) is (reason == "growth")
    table = table.optimize_indices().table
    (after,) = statistics_of(table)
    assert after.rows == 401 + added
    if reason == "neither":
        assert (after.trained_rows, after.partitions) == (400, PARTITIONS)
    else:
        assert after.trained_rows == 401 + added
        assert after.partitions == max(PARTITIONS, (401 + added) // 256)  # the mean size of 80 rows is too small
        assert (after.loss or 0) < loss
    found = table.search("v", CENTERS[0] + offset, 5, nprobes=50, columns=["id"])["id"].to_pylist()
    exact = table.search("v", CENTERS[0] + offset, 5, exact=True, columns=["id"])["id"].to_pylist()
    assert len(set(found) & set(exact)) >= 4


def test_partitions_keep_their_size_in_a_table_that_grows() -> None:
    options = VectorOptions(num_partitions=5)
    known = [VectorStatistics(partitions=5, rows=5_000, loss=1.0, training_loss=1.0, trained_rows=5_000)]
    rebuilt = rebuild_options(options, known, 20_000)
    assert rebuilt is not None
    assert rebuilt.num_partitions == 20
    assert rebuild_options(options, known, 19_000) is None
