"""Index build: workers that lose some of their tasks build the same indices as one process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_core import Committed, InvalidInput, Table
from lance_core.dml.index_definition import IndexRequest
from lance_core.format.index_metadata import IndexMetadata
from lance_core.index import registry
from lance_core.index.coverage import Coverage
from lance_core.index.segment_files import read_all_rows
from lance_core.tasks.driver import TableRef, WriteOptions, run_change
from lance_core.tasks.indices import index_build
from lance_core.tasks.indices.index_build import build_index, optimize_indices
from lance_core.tasks.partitioning import Task
from lance_core.versions.location import locate
from lance_core.versions.snapshot import load_latest
from tests.lance_core.index.index_differential import FILTER_BY_COLUMN, check_answers, covered_fragments, is_used, rows
from tests.lance_core.tasks.in_process_workers import InProcessWorkers

INDEX_TYPES: list[tuple[str, str, dict[str, Any]]] = [
    ("id", "BTREE", {"zone_size": 8}),
    ("word", "BTREE", {"zone_size": 8}),
    ("at.x", "BTREE", {}),
    ("word", "BITMAP", {}),
    ("tags", "LABEL_LIST", {}),
    ("id", "ZONEMAP", {"rows_per_zone": 16}),
    ("id", "BLOOMFILTER", {}),
    ("word", "NGRAM", {}),
]


@dataclass
class CountingWorkers(InProcessWorkers):
    """Workers that count the bytes returned to the driver and run actions of concurrent writers between jobs."""

    came_back: int = 0
    jobs: int = 0
    after_job: dict[int, Callable[[], object]] = field(default_factory=dict)
    """Action of a concurrent writer by the number of the job after which it runs."""

    def run(self, task: Task, parts: int) -> pa.Table:
        answers = super().run(task, parts)
        self.came_back += answers.nbytes
        self.jobs += 1
        self.after_job.get(self.jobs, lambda: None)()
        return answers


@pytest.fixture(autouse=True)
def distribute_all_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_build, "SINGLE_WORKER_ROWS_MAX", 10)
    monkeypatch.setattr(index_build, "RANGE_ROWS", 40)
    monkeypatch.setattr(index_build, "DRIVER_MERGE_BYTES_MAX", 0)


def create_table(directory: Path, *, stable: bool = False, count: int = 130) -> Table:
    shuffled = rows(0, count).take(np.random.default_rng(3).permutation(count))
    return Table.create(directory / "t", shuffled, max_rows_per_file=30, stable_row_ids=stable, durable=False)


def table_ref(table: Table) -> TableRef:
    return TableRef(table.uri, durable=False)


def build(
    table: Table,
    column: str,
    index_type: str,
    runner: InProcessWorkers,
    only: str = "all",
    params: Mapping[str, object] | None = None,
    **how: str,
) -> Committed:
    request = IndexRequest(column, index_type, params=params or {})
    return build_index(table_ref(table), request, only, options=WriteOptions(**how), runner=runner)  # type: ignore[arg-type]


def index_directories(table: Table) -> set[str]:
    return {each.name for each in Path(table.uri, "_indices").iterdir()}


def segment_uuids(table: Table) -> set[str]:
    return {str(index.uuid) for index in table.indices}


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
def test_an_index_equals_that_of_one_process(tmp_path: Path, stable: bool) -> None:
    table = create_table(tmp_path, stable=stable).delete("id % 10 = 4").table
    if stable:
        table = table.update({"word": "'w9'"}, "id in (3, 77)").table  # ids and addresses differ from here on
    for column, index_type, params in INDEX_TYPES:
        runner = CountingWorkers(slots=2, lost_partitions=frozenset({1}))
        committed = build(table, column, index_type, runner, params=params)
        table = committed.table
        index = table.indices[-1]
        assert (committed.operation, committed.rows_added, committed.rows_removed) == ("CreateIndex", 0, 0)
        assert committed.bytes == sum(file.size for file in index.files) > 0
        assert [sorted(index.covers or ())] == [sorted(each.id for each in table.fragments)]
        assert index.dataset_version == committed.version - 1
        assert runner.jobs == (3 if index_type == "BTREE" else 2)
        local_index = Table.open(table.uri, version=committed.version - 1, durable=False)
        _check_same(index, local_index.create_index(column, index_type, name="alone", **params).table)
        table = table.refresh().drop_index("alone").table
        assert is_used(table, FILTER_BY_COLUMN[column])
    check_answers(table)
    assert table.fsck().is_sound


def _check_same(ours: IndexMetadata, table: Table) -> None:
    coverage = Coverage(load_latest(locate(table.uri)))
    index_type, theirs = registry.by_type_url(ours), table.indices[-1]
    assert index_type is not None
    assert theirs.name == "alone"
    for name in ours.file_names:
        one, other = (read_all_rows(coverage.segment_of(each).files.open(name)) for each in (ours, theirs))
        assert one == other, name
    assert ours.message.index_details == theirs.message.index_details
    assert ours.message.index_version == theirs.message.index_version


def test_intermediate_files_are_removed(tmp_path: Path) -> None:
    table = create_table(tmp_path)
    for column, index_type, params in INDEX_TYPES:
        table = build(table, column, index_type, InProcessWorkers(), params=params).table
        assert index_directories(table) == segment_uuids(table)


def test_the_driver_receives_no_rows(tmp_path: Path) -> None:
    count = 200_000
    values = pa.table({"id": np.random.default_rng(1).permutation(count), "text": [f"{n:020}" for n in range(count)]})
    table = Table.create(tmp_path / "t", values, max_rows_per_file=20_000, durable=False)
    for column, at_most in (("id", 40_000), ("text", 120_000)):
        runner = CountingWorkers(slots=4)
        table = build(table, column, "BTREE", runner, params={"zone_size": 64}).table
        assert runner.jobs == 3
        assert len(runner.attempts) > 8
        assert runner.came_back < at_most
    assert table.to_table(filter="id = 77777")["id"].to_pylist() == [77_777]
    assert lance.dataset(table.uri).to_table(filter=f"text = '{77:020}'").num_rows == 1


def test_few_rows_are_one_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_build, "SINGLE_WORKER_ROWS_MAX", 1000)
    table = create_table(tmp_path)
    for column, index_type, params in INDEX_TYPES:
        runner = CountingWorkers(lost_partitions=frozenset({0}))
        table = build(table, column, index_type, runner, params=params).table
        assert runner.attempts == [0, 0]
    check_answers(table)
    table = table.append(rows(130, 40), max_rows_per_file=20).table
    runner = CountingWorkers()
    table = optimize_indices(table_ref(table), None, "small", options=WriteOptions(), runner=runner).table
    assert (runner.jobs, len(runner.attempts)) == (1, len(INDEX_TYPES))
    assert {tuple(map(tuple, covered_fragments(table, index.name))) for index in table.indices} == {
        ((0, 1, 2, 3, 4, 5, 6),)
    }
    check_answers(table)


@pytest.mark.parametrize("values", [[None] * 50, [7] * 50, [None, 7] * 25, [float("nan"), -0.0, 0.0, None, 1.5] * 10])
def test_values_without_range_splitters(tmp_path: Path, values: list[float | None]) -> None:
    column = pa.array(values, pa.float64())
    table = Table.create(tmp_path / "t", pa.table({"id": range(len(values)), "v": column}), max_rows_per_file=7)
    table = build(table, "v", "BTREE", InProcessWorkers(slots=3), params={"zone_size": 4}).table
    filters = ["v is null", "v = 7", "v > 1", "v = 0", "v < 0.5"]
    check_answers(table, filters)
    assert table.fsck().is_sound


def test_an_index_of_no_rows(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows(0, 1).schema, durable=False)
    for replace in (False, True):
        request = IndexRequest("id", "BTREE", replace=replace)
        table = build_index(table_ref(table), request, "all", options=WriteOptions(), runner=InProcessWorkers()).table
        assert [index.name for index in table.indices] == ["id_idx"]
    table = table.append(rows(0, 100)).table
    check_answers(table)


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
def test_uncovered_fragments_become_a_segment(tmp_path: Path, stable: bool) -> None:
    table = create_table(tmp_path, stable=stable)
    for column, index_type, params in INDEX_TYPES:
        table = build(table, column, index_type, InProcessWorkers(), "uncovered", params).table
    table = table.append(rows(130, 60), max_rows_per_file=20).table
    for column, index_type, params in INDEX_TYPES:
        before = segment_uuids(table)
        committed = build(
            table, column, index_type, InProcessWorkers(lost_partitions=frozenset({0})), "uncovered", params
        )
        table = committed.table
        assert before < segment_uuids(table)
        assert covered_fragments(table, table.indices[-1].name) == [[0, 1, 2, 3, 4], [5, 6, 7]]
        again = build(table, column, index_type, runner := InProcessWorkers(), "uncovered")
        assert (again.version, runner.attempts) == (committed.version, [])
    check_answers(table)
    table = optimize_indices(
        table_ref(table),
        ["id_idx"],
        "all",
        options=WriteOptions(),
        runner=InProcessWorkers(lost_partitions=frozenset({0})),
    ).table
    assert [len(covered_fragments(table, name)) for name in ("id_idx", "word_idx")] == [1, 2]
    check_answers(table)
    table = optimize_indices(table_ref(table), None, "small", options=WriteOptions(), runner=InProcessWorkers()).table
    assert {len(covered_fragments(table, index.name)) for index in table.indices} == {1}
    assert (
        optimize_indices(table_ref(table), None, "small", options=WriteOptions(), runner=InProcessWorkers()).version
        == table.version
    )
    check_answers(table)
    assert table.fsck().is_sound


@pytest.mark.parametrize("alone_rows", [10, 1000])
@pytest.mark.parametrize("damage", ["missing", "cut short"])
def test_an_unreadable_segment_is_rebuilt(
    tmp_path: Path, damage: str, alone_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_build, "SINGLE_WORKER_ROWS_MAX", alone_rows)
    table = create_table(tmp_path)
    for column, index_type in (("id", "BTREE"), ("word", "BITMAP")):
        table = table.create_index(column, index_type).table
    for index in table.indices:
        file = Path(table.uri, index.qualified_path, index.files[0].path)
        file.unlink() if damage == "missing" else file.write_bytes(file.read_bytes()[:-30])
    table = table.append(rows(130, 60), max_rows_per_file=20).table
    table = optimize_indices(table_ref(table), None, "small", options=WriteOptions(), runner=InProcessWorkers()).table
    assert [covered_fragments(table, name) for name in ("id_idx", "word_idx")] == [[[*range(8)]], [[*range(8)]]]
    check_answers(table)


def test_rows_moved_by_compactions_are_remapped(tmp_path: Path) -> None:
    table = create_table(tmp_path)
    for column, index_type, params in INDEX_TYPES:
        table = build(table, column, index_type, InProcessWorkers(), params=params).table
    table = table.delete("id % 5 = 1").table.compact(target_rows=60, remap="reuse").table
    assert any(index.is_system for index in load_latest(locate(table.uri)).manifest.indices)
    table = optimize_indices(
        table_ref(table),
        None,
        "small",
        options=WriteOptions(),
        runner=InProcessWorkers(lost_partitions=frozenset({0, 1})),
    ).table
    live = [each.id for each in table.fragments]
    assert all(sorted(index.covers or ()) == live for index in table.indices if not index.is_system)
    check_answers(table)
    assert table.fsck().is_sound


def test_concurrent_appends_and_deletes_are_rebased_over(tmp_path: Path) -> None:
    table = create_table(tmp_path)
    runner = CountingWorkers(
        after_job={
            1: lambda: Table.open(table.uri, durable=False).append(rows(130, 10)),
            2: lambda: Table.open(table.uri, durable=False).delete("id in (37, 5)"),
        }
    )
    committed = build(table, "id", "BTREE", runner)
    assert (runner.jobs, committed.attempts, len(committed.rebased_over)) == (3, 1, 2)
    assert covered_fragments(committed.table, "id_idx") == [[0, 1, 2, 3, 4]]
    check_answers(committed.table)


@pytest.mark.parametrize(("column", "index_type"), [("id", "BTREE"), ("word", "BITMAP")])
def test_rows_moved_by_a_concurrent_compaction_are_built_again(
    tmp_path: Path, column: str, index_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the fragments that a compaction moved are built again."""
    monkeypatch.setattr(index_build, "BOUNDARY_SAMPLES", 32)
    table = create_table(tmp_path, count=240)

    def compact_concurrently() -> None:
        now = Table.open(table.uri, durable=False)
        deleted_ids = now.to_table(columns=["id"])["id"].to_pylist()[:40]
        now.delete(f"id in ({', '.join(map(str, deleted_ids))})").table.compact(target_rows=30)

    jobs = 3 if index_type == "BTREE" else 2
    runner = CountingWorkers(slots=8, after_job={jobs: compact_concurrently})
    committed = build(table, column, index_type, runner)
    assert (committed.attempts, runner.jobs) == (2, 2 * jobs)
    assert covered_fragments(committed.table, f"{column}_idx") == [
        sorted(each.id for each in committed.table.fragments)
    ]
    assert [each.id for each in committed.table.fragments][:2] != [0, 1]
    first = runner.attempts[:8]
    then = runner.attempts[len(first) + (jobs == 3) * 8 + 1 :]
    assert (sorted(first), then[0]) == (list(range(8)), 0), "one partition of the moved rows"
    check_answers(committed.table)
    assert committed.table.fsck().is_sound


def test_an_intent_runs_once(tmp_path: Path) -> None:
    table = create_table(tmp_path)
    first = build(table, "id", "BTREE", InProcessWorkers(), intent="nightly")
    again = build(table, "id", "BTREE", runner := InProcessWorkers(), intent="nightly")
    assert (again.version, again.already_committed, runner.attempts) == (first.version, True, [])


@pytest.mark.parametrize(
    ("create_request", "only", "message"),
    [
        (lambda: IndexRequest("idd", "BTREE"), "all", r"there is no column 'idd'"),
        (lambda: IndexRequest("id", "HASH"), "all", "kind='HASH'"),
        (lambda: IndexRequest("tags", "BTREE"), "all", "index types for this column are LABEL_LIST"),
        (lambda: IndexRequest("id", "BTREE"), "all", r"an index 'id_idx' exists already.*replace=True"),
        (lambda: IndexRequest("id", "BTREE"), "some", "only must be one of"),
        (lambda: IndexRequest("id", "BTREE", replace=True), "uncovered", "give one of them"),
        (
            lambda: IndexRequest("id", "BITMAP", name="id_idx"),
            "uncovered",
            "is a BTREE on column 'id'.*a BITMAP segment cannot be",
        ),
        (
            lambda: IndexRequest("id", "BTREE", params={"zone_size": 16}),
            "uncovered",
            "zone_size=8.*leave out zone_size",
        ),
        (lambda: IndexRequest("word", "BTREE", name="id_idx"), "uncovered", "not on 'word'"),
        (lambda: IndexRequest("id", "BTREE", name=""), "all", "the name of an index is not empty"),
    ],
)
def test_invalid_arguments_run_no_task(
    tmp_path: Path, create_request: Callable[[], IndexRequest], only: str, message: str
) -> None:
    table = create_table(tmp_path).create_index("id", "BTREE", zone_size=8).table
    runner = InProcessWorkers()
    with pytest.raises(InvalidInput, match=message):
        build_index(table_ref(table), create_request(), only, options=WriteOptions(), runner=runner)
    assert runner.attempts == []
    assert table.refresh().version == table.version


def test_a_declared_index_is_built_only_as_needed(tmp_path: Path) -> None:
    """`needed` reads uncovered fragments, merges small segments, and rebuilds for another type or other parameters."""
    table = create_table(tmp_path, count=60)

    def declare_index(index_type: str = "BTREE", **params: object) -> Committed:
        request = IndexRequest("id", index_type, name="by_id", params=params)
        return build_index(table_ref(table), request, "needed", options=WriteOptions(), runner=InProcessWorkers())

    assert covered_fragments(declare_index().table, "by_id") == [[0, 1]]
    assert not declare_index().attempts
    table = table.refresh().append(rows(60, 20)).table
    assert covered_fragments(declare_index().table, "by_id") == [[0, 1, 2]]
    assert not declare_index().attempts
    table = table.refresh().append(rows(80, 20)).table
    committed = declare_index("BTREE", zone_size=8)
    assert covered_fragments(committed.table, "by_id") == [[0, 1, 2, 3]]
    assert not declare_index("BTREE", zone_size=8).attempts
    assert not declare_index().attempts  # a parameter that is not given keeps its value
    assert declare_index("BTREE", zone_size=16).attempts
    committed = declare_index("BITMAP")
    assert [(each.kind, each.coverage) for each in committed.table.index_statistics()] == [("BITMAP", 1.0)]
    check_answers(committed.table)
    with pytest.raises(InvalidInput, match="not on 'word'"):
        build_index(
            table_ref(table),
            IndexRequest("word", "BITMAP", name="by_id"),
            "needed",
            options=WriteOptions(),
            runner=InProcessWorkers(),
        )


def test_a_declared_index_without_files_is_rebuilt(tmp_path: Path) -> None:
    table = create_table(tmp_path, count=60)
    request = IndexRequest("id", "BTREE", params={"zone_size": 16})
    table = build_index(table_ref(table), request, "all", options=WriteOptions(), runner=InProcessWorkers()).table
    for each in Path(table.uri, "_indices").rglob("*.lance"):
        each.unlink()
    committed = build_index(table_ref(table), request, "needed", options=WriteOptions(), runner=InProcessWorkers())
    assert committed.attempts
    check_answers(committed.table, [FILTER_BY_COLUMN["id"]])


def test_index_maintenance_returns_its_own_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The maintenance consists of two changes; an append in between leaves the second without work."""
    table = build(create_table(tmp_path, count=60), "id", "BTREE", InProcessWorkers()).table
    table = table.append(rows(60, 20)).table
    monkeypatch.setattr(
        index_build, "run_change", lambda *args, **named: after_append(table, run_change(*args, **named))
    )
    committed = optimize_indices(table_ref(table), None, "small", options=WriteOptions(), runner=InProcessWorkers())
    assert (committed.operation, committed.table.transaction().operation.name) == ("CreateIndex", "CreateIndex")  # type: ignore[union-attr]


def after_append(table: Table, committed: Committed) -> Committed:
    table.refresh().append(rows(0, 1))
    return committed


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
def test_one_worker_trains_a_vector_index(tmp_path: Path, stable: bool) -> None:
    points = np.random.default_rng(5).normal(size=(400, 8)).astype(np.float32)

    def vectors(start: int, stop: int) -> pa.Table:
        values = pa.FixedSizeListArray.from_arrays(pa.array(points[start:stop].ravel()), 8)
        return pa.table({"id": pa.array(range(start, stop)), "v": values})

    table = Table.create(tmp_path / "t", vectors(0, 300), max_rows_per_file=100, stable_row_ids=stable, durable=False)
    runner = CountingWorkers(slots=2)
    params = {"num_partitions": 4, "num_sub_vectors": 4, "metric": "cosine"}
    table = build(table, "v", "IVF_PQ", runner, params=params).table
    table = build(table.append(vectors(300, 400)).table, "v", "IVF_PQ", runner, only="uncovered").table
    statistics = table.index_statistics()[0]
    assert (statistics.uncovered_fragments, len(statistics.segments)) == (0, 2)
    for row in (7, 350):
        found = table.search("v", points[row], 10, nprobes=4, refine=40, columns=["id"])
        exact = table.search("v", points[row], 10, exact=True, columns=["id"])
        assert found["id"].to_pylist() == exact["id"].to_pylist()
        nearest = {"column": "v", "q": points[row], "k": 10, "nprobes": 4, "refine_factor": 40}
        assert lance.dataset(table.uri).to_table(["id"], nearest=nearest)["id"].to_pylist() == exact["id"].to_pylist()
