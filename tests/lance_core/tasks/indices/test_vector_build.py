"""Distributed vector builds: workers build the segment of one process, whatever tasks and drivers are lost."""

import os
import uuid
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_core import Committed, InvalidInput, Table
from lance_core.coordination import progress
from lance_core.dml.index_definition import IndexRequest
from lance_core.format.index_metadata import IndexMetadata
from lance_core.index.coverage import Coverage
from lance_core.index.segment_files import read_all_rows
from lance_core.index.vector.model import INDEX_FILE, STORAGE_FILE, StoredModel, read_model
from lance_core.index.vector.vector_type import BUILT_TYPES
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.indices import vector_build
from lance_core.tasks.indices.index_build import build_index, optimize_indices
from lance_core.tasks.partitioning import Task
from lance_core.versions.snapshot import load_latest
from tests.lance_core.index.vector.test_extreme_vectors import check, extreme, rows_of
from tests.lance_core.index.vector.test_multivectors import multivectors, query
from tests.lance_core.index.vector.test_vector_build import CENTERS, POINTS, QUERIES, SIZE, check_both, write_table
from tests.lance_core.tasks.indices.test_index_build import CountingWorkers, index_directories, segment_uuids

PARTITIONS = 6
KINDS = [each.name for each in BUILT_TYPES]


@pytest.fixture(autouse=True)
def distribute_all_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_build, "ONE_WORKER_VALUES_MAX", 0)
    monkeypatch.setattr(vector_build, "DRIVER_MERGE_BYTES_MAX", 0)


def parameters_of(kind: str, **more: Any) -> dict[str, Any]:
    return {
        "num_partitions": PARTITIONS,
        "sample_rate": 512,
        **({"num_sub_vectors": 8} if kind.endswith("PQ") else {}),
        **more,
    }


def create_table(directory: Path, *, ids: bool = False) -> Table:
    """Create a table of four fragments with 1,899 vectors."""
    table = write_table(directory, pa.float32(), ids=ids)
    return table.append(more_rows(10_000, 200)).table.append(more_rows(20_000, 200)).table


def more_rows(first: int, count: int) -> pa.Table:
    draw = np.random.default_rng(first)
    vectors = (CENTERS[draw.integers(0, 12, count)] + draw.normal(size=(count, SIZE))).astype(np.float32)
    numbers = pa.array(range(first, first + count), pa.int64())
    return pa.table({"id": numbers, "v": pa.FixedSizeListArray.from_arrays(vectors.ravel(), SIZE)})


def build(
    table: Table, kind: str, runner: Any, only: str = "all", intent: str | None = None, **parameters: Any
) -> Committed:
    request = IndexRequest("v", kind, params=parameters)
    return build_index(TableRef(table.uri), request, only, options=WriteOptions(intent), runner=runner)


def files_of(table: Table, segment: IndexMetadata) -> tuple[StoredModel, pa.Table]:
    files = Coverage(load_latest(table._location)).segment_of(segment).files
    model = read_model(files.open(INDEX_FILE), files.open(STORAGE_FILE), path="")
    return model, read_all_rows(files.open(STORAGE_FILE))


@pytest.mark.parametrize(("kind", "ids"), [(kind, number % 2 == 0) for number, kind in enumerate(KINDS)])
def test_workers_build_the_segment_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, ids: bool
) -> None:
    table, parameters = create_table(tmp_path / "t", ids=ids), parameters_of(kind)
    monkeypatch.setattr(vector_build, "ONE_RANGE_BYTES_MAX", 0)
    runner = CountingWorkers(slots=2, lost_partitions=frozenset({1}))
    table = build(table, kind, runner, **parameters).table
    assert runner.came_back < 20_000
    assert len(index_directories(table) - segment_uuids(table)) == 3  # those of lost tasks: sample, piece and range
    alone = table.create_index("v", kind, name="alone", **parameters).table
    (ours, our_rows), (theirs, their_rows) = (files_of(alone, each) for each in alone.indices)
    assert ours.model.has_same_parameters(theirs.model)
    assert ours.model.kind == theirs.model.kind == kind
    np.testing.assert_array_equal(ours.partitions.lengths, theirs.partitions.lengths)
    assert our_rows == their_rows
    check_both(table, QUERIES[0], recall=0.8)
    assert table.fsck().is_sound


@pytest.mark.parametrize("trains_in_tasks", [False, True])
def test_workers_build_an_index_of_lists_of_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trains_in_tasks: bool
) -> None:
    if trains_in_tasks:
        monkeypatch.setattr(vector_build, "DRIVER_TRAINING_OPERATIONS", 0)
    table = Table.create(tmp_path / "t", multivectors(), max_rows_per_file=120, durable=False)
    built = build(table, "IVF_SQ", CountingWorkers(slots=2), num_partitions=6, metric="cosine").table
    asked = query(3)
    exact = built.search("v", asked, 10, exact=True, columns=["id"])
    assert built.search("v", asked, 10, nprobes=6, columns=["id"]) == exact
    (segment,) = built.index_statistics()[0].segments
    assert segment.vectors is not None
    assert segment.vectors.rows == sum(len(each) for each in table.to_table()["v"].to_pylist() if each)
    assert built.fsck().is_sound


def test_workers_list_vectors_without_codes(tmp_path: Path) -> None:
    points = extreme("float64")
    table = Table.create(tmp_path / "t", rows_of(points), max_rows_per_file=200, durable=False)
    built = build(table, "IVF_SQ", CountingWorkers(slots=2), num_partitions=8).table
    check(built, "l2")
    extended = built.append(rows_of(points[:6], 1_000)).table
    workers = CountingWorkers(slots=2)
    merged = optimize_indices(TableRef(extended.uri), None, "all", options=WriteOptions(), runner=workers).table
    check(merged, "l2")


def test_centroids_are_trained_by_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create_table(tmp_path / "t")
    monkeypatch.setattr(vector_build, "DRIVER_TRAINING_OPERATIONS", 0)
    built = build(table, "IVF_FLAT", CountingWorkers(slots=2), num_partitions=24, sample_rate=20).table
    model, rows = files_of(built, built.indices[0])
    assert len(model.model.centroids) == 24
    assert rows.num_rows == table.count_rows() - 2  # null and NaN
    assert index_directories(built) == segment_uuids(built)
    alone = table.create_index("v", "IVF_FLAT", name="alone", num_partitions=24, sample_rate=20).table
    distributed, single = (mean_distance(files_of(alone, each)[0].model.centroids) for each in alone.indices)
    assert distributed < 1.1 * single
    check_both(built, QUERIES[1], recall=0.8)


def mean_distance(centroids: np.ndarray) -> float:
    vectors = np.delete(POINTS, [5, 6, 7, 11], axis=0)
    return float(((vectors[:, None] - centroids[None]) ** 2).sum(axis=2).min(axis=1).mean())


def test_small_samples_are_read_by_address(tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(draw.random(40_000 * 4), pa.float32()), 4)
    table = (
        Table.create(tmp_path / "t", pa.table({"v": vectors}), max_rows_per_file=10_000).delete("_rowid < 9000").table
    )
    runner = CountingWorkers(slots=3)
    table = build(table, "IVF_SQ", runner, num_partitions=4, sample_rate=64).table
    assert runner.jobs == 3
    assert runner.came_back < 10_000
    stored, rows = files_of(table, table.indices[0])
    assert stored.model.loss is not None
    assert rows.num_rows == 31_000
    found = table.search("v", [0.5] * 4, 50, refine=4, nprobes=4, columns=["_rowid"])["_rowid"].to_pylist()
    exact = table.search("v", [0.5] * 4, 50, exact=True, columns=["_rowid"])["_rowid"].to_pylist()
    assert len(set(found) & set(exact)) >= 48


def test_new_rows_become_a_segment_on_the_old_centroids(tmp_path: Path) -> None:
    table = build(create_table(tmp_path / "t"), "IVF_PQ", CountingWorkers(), **parameters_of("IVF_PQ")).table
    first = table.indices[0]
    table = table.append(more_rows(30_000, 200)).table.append(more_rows(40_000, 200)).table
    runner = CountingWorkers()
    delta = build(table, "IVF_PQ", runner, only="uncovered").table
    assert runner.jobs == 2  # encode, merge
    assert [each.uuid for each in delta.indices if each.uuid == first.uuid] == [first.uuid]
    models = [files_of(delta, each)[0].model for each in delta.indices]
    assert models[0].has_same_parameters(models[1])
    merged = optimize_indices(TableRef(table.uri), None, "all", options=WriteOptions(), runner=CountingWorkers()).table
    assert len(merged.indices) == 1
    assert files_of(merged, merged.indices[0])[0].model.has_same_parameters(models[0])
    assert files_of(merged, merged.indices[0])[1].num_rows == sum(files_of(delta, x)[1].num_rows for x in delta.indices)
    check_both(merged, QUERIES[2], recall=0.8)
    assert not build(merged, "IVF_PQ", CountingWorkers(), only="needed").attempts


class KilledWorkers(CountingWorkers):
    """Workers whose driver is killed at a job, in which one partition is complete."""

    def __init__(self, job: int) -> None:
        super().__init__(slots=2)
        self._job = job

    def run(self, task: Task, parts: int) -> pa.Table:
        if self.jobs + 1 == self._job:
            super().run(task, 1)
            raise KeyboardInterrupt
        return super().run(task, parts)


def test_a_killed_build_is_continued(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t")
    with pytest.raises(KeyboardInterrupt):
        build(table, "IVF_PQ", KilledWorkers(job=2), intent="daily", **parameters_of("IVF_PQ"))
    left = index_directories(table)
    assert len(left) == 2  # the model, and the piece of one partition
    table.append(more_rows(30_000, 20))
    orphan = Path(table.uri, "_indices", str(uuid.uuid4()), STORAGE_FILE)
    orphan.parent.mkdir()
    orphan.write_bytes(b"left by another build")
    for file in Path(table.uri, "_indices").glob("*/*"):
        os.utime(file, (0, 0))
    table.refresh().cleanup(force=True)
    assert index_directories(table) == left
    runner = CountingWorkers(slots=2)
    built = build(table, "IVF_PQ", runner, intent="daily", **parameters_of("IVF_PQ"))
    assert runner.jobs == 2  # neither sampled nor trained again
    assert len(runner.attempts) < 4
    assert index_directories(built.table) == segment_uuids(built.table)
    store = built.table._location.own_store
    assert not progress.last_activity(store)
    check_both(built.table, QUERIES[0], recall=0.8)
    assert build(table, "IVF_PQ", runner, intent="daily", **parameters_of("IVF_PQ")).already_committed
    with pytest.raises(KeyboardInterrupt):
        build(table, "IVF_SQ", KilledWorkers(job=3), intent="other", **parameters_of("IVF_SQ"))
    with pytest.raises(InvalidInput, match="another job already, which differs in kind"):
        build(table, "IVF_FLAT", runner, intent="other", **parameters_of("IVF_FLAT"))


def test_other_writers_during_a_build(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t")
    runner = CountingWorkers(slots=2)
    runner.after_job = {
        1: lambda: table.append(more_rows(30_000, 40)),
        2: lambda: table.refresh().compact(target_rows=100_000),
    }
    built = build(table, "IVF_SQ", runner, **parameters_of("IVF_SQ")).table
    assert len(index_directories(built) - segment_uuids(built)) == 1  # that of the plan before the compaction
    check_both(built, QUERIES[0], recall=0.8)
    ours = built.search("v", QUERIES[0], 30, nprobes=PARTITIONS, refine=5, columns=["id", "_rowaddr"])
    exact = built.search("v", QUERIES[0], 30, exact=True, columns=["id", "_rowaddr"])
    assert sorted(ours["_rowaddr"].to_pylist()) == sorted(exact["_rowaddr"].to_pylist())
    assert built.fsck().is_sound
    assert lance.dataset(built.uri).count_rows() == built.count_rows()
