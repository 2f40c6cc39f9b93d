"""Compact: workers compact a table as one process does, and committed groups survive a failure."""

import shutil
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyroaring import BitMap

from lance_core import Committed, InvalidInput, Table, Unsupported
from lance_core.maintenance.compaction_plan import mixes_coverage
from lance_core.tasks.compaction.compact import compact
from lance_core.tasks.driver import TableRef, WriteOptions
from tests.lance_core.tasks.in_process_workers import InProcessWorkers

ROW_COLUMNS = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
BOTH_ROW_ID_MODES = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({"id": numbers, "word": [None if n % 11 == 0 else f"w{n}" for n in numbers]})


def create_table(directory: Path, *, stable: bool = False, indexed: tuple[str, ...] = ()) -> str:
    """Create a table of fourteen fragments, some with deleted rows, one with all rows deleted."""
    uri = str(directory / "ours")
    dataset = lance.write_dataset(rows(0, 1000), uri, max_rows_per_file=100, enable_stable_row_ids=stable)
    if "id" in indexed:
        dataset.create_scalar_index("id", "BTREE")
    if "word" in indexed:
        dataset.create_scalar_index("word", "BITMAP")
    dataset.delete("id % 7 = 0")
    dataset.update({"word": "'new'"}, where="id >= 420 and id < 430")
    dataset.insert(rows(1000, 300), max_rows_per_file=100)
    return uri


def run_compaction(
    uri: str,
    workers: InProcessWorkers,
    *,
    target_rows: int = 250,
    batch: int = 64,
    remap: str | None = None,
    intent: str | None = None,
) -> Committed:
    where = TableRef(uri, durable=False)
    return compact(
        where,
        target_rows=target_rows,
        materialize_deletions=True,
        remap=remap,
        batch=batch,
        options=WriteOptions(intent=intent),
        runner=workers,
    )


def fragment_shapes(table: Table) -> list[tuple[int, int, int]]:
    return [(each.id, each.physical_rows, each.live_rows) for each in table.fragments]


@BOTH_ROW_ID_MODES
@pytest.mark.parametrize("indexed", [(), ("id", "word")], ids=["plain", "indexed"])
@pytest.mark.parametrize(("target_rows", "remap"), [(50, None), (250, None), (1_048_576, None), (250, "none")])
def test_a_compaction_equals_that_of_one_process(
    tmp_path: Path, target_rows: int, indexed: tuple[str, ...], stable: bool, remap: str | None
) -> None:
    uri, alone = create_table(tmp_path, stable=stable, indexed=indexed), str(tmp_path / "alone")
    shutil.copytree(uri, alone)
    before = Table.open(uri).to_table()
    ours = run_compaction(uri, InProcessWorkers(lost_partitions=frozenset({0})), target_rows=target_rows, remap=remap)
    local = Table.open(alone, durable=False).compact(target_rows=target_rows, remap=remap)  # type: ignore[arg-type]
    assert (ours.version, ours.operation, ours.uncovered, ours.files) == (
        local.version,
        "Rewrite",
        local.uncovered,
        local.files,
    )
    assert fragment_shapes(ours.table) == fragment_shapes(local.table)
    columns = ["id", "word", *(ROW_COLUMNS if stable else ROW_COLUMNS[:1])]
    assert ours.table.to_table(columns) == local.table.to_table(columns)
    assert ours.table.to_table().sort_by("id") == before.sort_by("id")
    dataset = lance.dataset(uri)
    dataset.validate()
    for condition in ("id = 423", "id = 7", "word = 'new'", "word = 'w55'", "id > 1200"):
        by_scan = dataset.scanner(filter=condition, use_scalar_index=False).to_table()
        assert dataset.to_table(filter=condition).sort_by("id") == by_scan.sort_by("id")
    assert ours.table.fsck().is_sound
    if not indexed:
        assert run_compaction(uri, InProcessWorkers(), target_rows=target_rows).version == ours.version


@BOTH_ROW_ID_MODES
def test_every_batch_is_a_commit_and_the_result_covers_all(tmp_path: Path, stable: bool) -> None:
    uri, alone = create_table(tmp_path, stable=stable, indexed=("word",)), str(tmp_path / "alone")
    shutil.copytree(uri, alone)
    before = Table.open(uri)
    ours = run_compaction(uri, InProcessWorkers(), batch=2)
    local = Table.open(alone, durable=False).compact(target_rows=250)
    assert ours.version - before.version == 2 * 2  # each batch also reserves fragment ids
    rewritten_files = 0 if stable else 1  # each batch rewrites the index
    assert (ours.files, ours.attempts) == (local.files + rewritten_files, 2)
    assert local.uncovered == ours.uncovered == ()
    assert ours.table.to_table() == local.table.to_table()
    dataset = lance.dataset(uri)
    assert dataset.count_rows(filter="word = 'new'") == ours.table.count_rows("word = 'new'")
    assert ours.table.fsck().is_sound


class WorkersWithConcurrentChange(InProcessWorkers):
    """Workers during one of whose jobs another writer changes the table."""

    def __init__(self, uri: str, job: int = 1) -> None:
        super().__init__(slots=2)
        self.uri, self.job, self.jobs = uri, job, list[int]()

    def run(self, task: object, parts: int) -> pa.Table:
        answers = super().run(task, parts)  # type: ignore[arg-type]
        self.jobs.append(parts)
        if len(self.jobs) == self.job:
            self.change_table()
        return answers

    def change_table(self) -> None:
        Table.open(self.uri, durable=False).delete("id in (121, 122)")


@BOTH_ROW_ID_MODES
def test_a_conflict_repeats_only_its_groups(tmp_path: Path, stable: bool) -> None:
    uri = create_table(tmp_path, stable=stable)
    workers = WorkersWithConcurrentChange(uri)
    committed = run_compaction(uri, workers)
    assert workers.jobs == [4, 1]
    assert committed.table.count_rows("id in (121, 122)") == 0
    assert committed.table.count_rows() == 1300 - 143 - 2
    assert not any(each.live_rows < each.physical_rows for each in committed.table.fragments)
    assert committed.table.fsck().is_sound


def test_committed_batches_survive_a_later_failure(tmp_path: Path) -> None:
    uri = create_table(tmp_path)

    class LosingWorkers(WorkersWithConcurrentChange):
        def change_table(self) -> None:
            raise ConnectionError("the cluster is gone")

    with pytest.raises(ConnectionError):
        run_compaction(uri, LosingWorkers(uri, job=2), batch=2, intent="nightly")
    halfway = Table.open(uri)
    assert len(halfway.fragments) < 14
    workers = WorkersWithConcurrentChange(uri, job=9)
    committed = run_compaction(uri, workers, batch=2, intent="nightly")
    assert sum(workers.jobs) == 2
    assert committed.table.count_rows() == 1300 - 143
    again = run_compaction(uri, workers, batch=2, intent="nightly")
    assert (again.version, again.already_committed) == (committed.version, True)


def test_a_committed_intent_commits_nothing_more(tmp_path: Path) -> None:
    uri = create_table(tmp_path)
    first = run_compaction(uri, InProcessWorkers(), intent="nightly")
    lance.dataset(uri).insert(rows(5000, 900), max_rows_per_file=30)
    workers = InProcessWorkers()
    assert run_compaction(uri, workers, batch=1, intent="nightly").version == first.version
    assert workers.attempts == []
    assert Table.open(uri).version == first.version + 1


def test_a_concurrently_built_index_stays_correct(tmp_path: Path) -> None:
    uri = create_table(tmp_path)

    class IndexingWorkers(WorkersWithConcurrentChange):
        def change_table(self) -> None:
            lance.dataset(uri).create_scalar_index("word", "BITMAP")

    committed = run_compaction(uri, IndexingWorkers(uri))
    dataset = lance.dataset(uri)
    for word in ("w2", "w150", "w1001", "new"):
        assert dataset.count_rows(filter=f"word = '{word}'") == committed.table.count_rows(f"word = '{word}'")
    assert committed.table.fsck().is_sound


def test_a_partly_covered_group_is_detected(tmp_path: Path) -> None:
    group = tuple(Table.open(create_table(tmp_path)).fragments[:3])
    whole, partial, uncovered = BitMap([0, 1, 2, 9]), BitMap([1, 9]), BitMap([9])
    assert not mixes_coverage(group, [whole, uncovered])
    assert mixes_coverage(group, [whole, partial])


def test_concurrent_appends_are_left_for_the_next_compaction(tmp_path: Path) -> None:
    uri = create_table(tmp_path)

    class AppendingWorkers(WorkersWithConcurrentChange):
        def change_table(self) -> None:
            Table.open(uri, durable=False).append(rows(9000, 5))

    committed = run_compaction(uri, AppendingWorkers(uri), batch=1)
    assert fragment_shapes(committed.table)[-1][1] != 5 or len(committed.table.fragments) > 1
    assert committed.table.count_rows() == 1300 - 143 + 5
    assert any(each.physical_rows == 5 for each in committed.table.fragments)


def test_a_compact_table_gets_no_version(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, rows(0, 10), durable=False)
    workers = InProcessWorkers()
    assert run_compaction(uri, workers, target_rows=10).version == 1
    assert workers.attempts == []


@pytest.mark.parametrize(
    ("options", "message"),
    [({"target_rows": 0}, "at least one row"), ({"batch": 0}, "one group"), ({"remap": "x"}, "remap")],
)
def test_invalid_arguments_run_no_task(tmp_path: Path, options: dict[str, int], message: str) -> None:
    uri, workers = create_table(tmp_path), InProcessWorkers()
    with pytest.raises(InvalidInput, match=message):
        run_compaction(uri, workers, **options)  # type: ignore[arg-type]
    assert workers.attempts == []


def test_an_index_without_remap_support_is_reported_before_writing(tmp_path: Path) -> None:
    uri, workers = create_table(tmp_path), InProcessWorkers()
    lance.dataset(uri).create_scalar_index("word", lance.indices.IndexConfig("fm", {}))
    with pytest.raises(Unsupported, match="remap"):
        run_compaction(uri, workers, batch=1, remap="now")
    assert workers.attempts == []
