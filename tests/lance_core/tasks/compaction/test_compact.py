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
BOTH = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({"id": numbers, "word": [None if n % 11 == 0 else f"w{n}" for n in numbers]})


def made(place: Path, *, stable: bool = False, indexed: tuple[str, ...] = ()) -> str:
    """Create a table of fourteen fragments, some with deleted rows, one with all rows deleted."""
    uri = str(place / "ours")
    dataset = lance.write_dataset(rows(0, 1000), uri, max_rows_per_file=100, enable_stable_row_ids=stable)
    if "id" in indexed:
        dataset.create_scalar_index("id", "BTREE")
    if "word" in indexed:
        dataset.create_scalar_index("word", "BITMAP")
    dataset.delete("id % 7 = 0")
    dataset.update({"word": "'new'"}, where="id >= 420 and id < 430")
    dataset.insert(rows(1000, 300), max_rows_per_file=100)
    return uri


def run(
    uri: str,
    loop: InProcessWorkers,
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
        runner=loop,
    )


def shapes(table: Table) -> list[tuple[int, int, int]]:
    return [(each.id, each.physical_rows, each.live_rows) for each in table.fragments]


@BOTH
@pytest.mark.parametrize("indexed", [(), ("id", "word")], ids=["plain", "indexed"])
@pytest.mark.parametrize(("target_rows", "remap"), [(50, None), (250, None), (1_048_576, None), (250, "none")])
def test_a_compaction_equals_that_of_one_process(
    tmp_path: Path, target_rows: int, indexed: tuple[str, ...], stable: bool, remap: str | None
) -> None:
    uri, alone = made(tmp_path, stable=stable, indexed=indexed), str(tmp_path / "alone")
    shutil.copytree(uri, alone)
    before = Table.open(uri).to_table()
    ours = run(uri, InProcessWorkers(lost_partitions=frozenset({0})), target_rows=target_rows, remap=remap)
    theirs = Table.open(alone, durable=False).compact(target_rows=target_rows, remap=remap)  # type: ignore[arg-type]
    assert (ours.version, ours.operation, ours.uncovered, ours.files) == (
        theirs.version,
        "Rewrite",
        theirs.uncovered,
        theirs.files,
    )
    assert shapes(ours.table) == shapes(theirs.table)
    columns = ["id", "word", *(ROW_COLUMNS if stable else ROW_COLUMNS[:1])]
    assert ours.table.to_table(columns) == theirs.table.to_table(columns)
    assert ours.table.to_table().sort_by("id") == before.sort_by("id")
    dataset = lance.dataset(uri)
    dataset.validate()
    for condition in ("id = 423", "id = 7", "word = 'new'", "word = 'w55'", "id > 1200"):
        by_scan = dataset.scanner(filter=condition, use_scalar_index=False).to_table()
        assert dataset.to_table(filter=condition).sort_by("id") == by_scan.sort_by("id")
    assert ours.table.fsck().is_sound
    if not indexed:
        assert run(uri, InProcessWorkers(), target_rows=target_rows).version == ours.version


@BOTH
def test_every_batch_is_a_commit_and_the_result_covers_all(tmp_path: Path, stable: bool) -> None:
    uri, alone = made(tmp_path, stable=stable, indexed=("word",)), str(tmp_path / "alone")
    shutil.copytree(uri, alone)
    before = Table.open(uri)
    ours = run(uri, InProcessWorkers(), batch=2)
    theirs = Table.open(alone, durable=False).compact(target_rows=250)
    assert ours.version - before.version == 2 * 2  # each batch also reserves fragment ids
    anew = 0 if stable else 1  # each batch rewrites the index
    assert (ours.files, ours.attempts) == (theirs.files + anew, 2)
    assert theirs.uncovered == ours.uncovered == ()
    assert ours.table.to_table() == theirs.table.to_table()
    dataset = lance.dataset(uri)
    assert dataset.count_rows(filter="word = 'new'") == ours.table.count_rows("word = 'new'")
    assert ours.table.fsck().is_sound


class Late(InProcessWorkers):
    """Workers during one of whose jobs another writer changes the table."""

    def __init__(self, uri: str, job: int = 1) -> None:
        super().__init__(slots=2)
        self.uri, self.job, self.jobs = uri, job, list[int]()

    def run(self, task: object, parts: int) -> pa.Table:
        answers = super().run(task, parts)  # type: ignore[arg-type]
        self.jobs.append(parts)
        if len(self.jobs) == self.job:
            self.theirs()
        return answers

    def theirs(self) -> None:
        Table.open(self.uri, durable=False).delete("id in (121, 122)")


@BOTH
def test_a_conflict_repeats_only_its_groups(tmp_path: Path, stable: bool) -> None:
    uri = made(tmp_path, stable=stable)
    loop = Late(uri)
    done = run(uri, loop)
    assert loop.jobs == [4, 1]
    assert done.table.count_rows("id in (121, 122)") == 0
    assert done.table.count_rows() == 1300 - 143 - 2
    assert not any(each.live_rows < each.physical_rows for each in done.table.fragments)
    assert done.table.fsck().is_sound


def test_committed_batches_survive_a_later_failure(tmp_path: Path) -> None:
    uri = made(tmp_path)

    class Lost(Late):
        def theirs(self) -> None:
            raise ConnectionError("the cluster is gone")

    with pytest.raises(ConnectionError):
        run(uri, Lost(uri, job=2), batch=2, intent="nightly")
    halfway = Table.open(uri)
    assert len(halfway.fragments) < 14
    loop = Late(uri, job=9)
    done = run(uri, loop, batch=2, intent="nightly")
    assert sum(loop.jobs) == 2
    assert done.table.count_rows() == 1300 - 143
    again = run(uri, loop, batch=2, intent="nightly")
    assert (again.version, again.already_committed) == (done.version, True)


def test_a_committed_intent_commits_nothing_more(tmp_path: Path) -> None:
    uri = made(tmp_path)
    first = run(uri, InProcessWorkers(), intent="nightly")
    lance.dataset(uri).insert(rows(5000, 900), max_rows_per_file=30)
    loop = InProcessWorkers()
    assert run(uri, loop, batch=1, intent="nightly").version == first.version
    assert loop.attempts == []
    assert Table.open(uri).version == first.version + 1


def test_a_concurrently_built_index_stays_correct(tmp_path: Path) -> None:
    uri = made(tmp_path)

    class Indexing(Late):
        def theirs(self) -> None:
            lance.dataset(uri).create_scalar_index("word", "BITMAP")

    done = run(uri, Indexing(uri))
    dataset = lance.dataset(uri)
    for word in ("w2", "w150", "w1001", "new"):
        assert dataset.count_rows(filter=f"word = '{word}'") == done.table.count_rows(f"word = '{word}'")
    assert done.table.fsck().is_sound


def test_a_partly_covered_group_is_detected(tmp_path: Path) -> None:
    group = tuple(Table.open(made(tmp_path)).fragments[:3])
    whole, some, none = BitMap([0, 1, 2, 9]), BitMap([1, 9]), BitMap([9])
    assert not mixes_coverage(group, [whole, none])
    assert mixes_coverage(group, [whole, some])


def test_concurrent_appends_are_left_for_the_next_compaction(tmp_path: Path) -> None:
    uri = made(tmp_path)

    class Appending(Late):
        def theirs(self) -> None:
            Table.open(uri, durable=False).append(rows(9000, 5))

    done = run(uri, Appending(uri), batch=1)
    assert shapes(done.table)[-1][1] != 5 or len(done.table.fragments) > 1
    assert done.table.count_rows() == 1300 - 143 + 5
    assert any(each.physical_rows == 5 for each in done.table.fragments)


def test_a_compact_table_gets_no_version(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, rows(0, 10), durable=False)
    loop = InProcessWorkers()
    assert run(uri, loop, target_rows=10).version == 1
    assert loop.attempts == []


@pytest.mark.parametrize(
    ("asked", "told"),
    [({"target_rows": 0}, "at least one row"), ({"batch": 0}, "one group"), ({"remap": "x"}, "remap")],
)
def test_invalid_arguments_run_no_task(tmp_path: Path, asked: dict[str, int], told: str) -> None:
    uri, loop = made(tmp_path), InProcessWorkers()
    with pytest.raises(InvalidInput, match=told):
        run(uri, loop, **asked)  # type: ignore[arg-type]
    assert loop.attempts == []


def test_an_index_without_remap_support_is_reported_before_writing(tmp_path: Path) -> None:
    uri, loop = made(tmp_path), InProcessWorkers()
    lance.dataset(uri).create_scalar_index("word", "INVERTED")
    with pytest.raises(Unsupported, match="remap"):
        run(uri, loop, batch=1, remap="now")
    assert loop.attempts == []
