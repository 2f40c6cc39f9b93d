"""Compact many tables in one job: each is compacted as it would be alone, whatever happens to the others."""

import shutil
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import Corrupt, NotFound, Table
from lance_core.tasks.compaction.compact_many import CompactionOutcome, TableCompaction, compact_many, pack_into_bins
from lance_core.tasks.driver import TableRef, WriteOptions
from tests.lance_core.tasks.in_process_workers import InProcessWorkers


class CountingWorkers(InProcessWorkers):
    def __init__(self, after: Callable[[], object] = lambda: None) -> None:
        super().__init__(lost_partitions=frozenset({0}))
        self.jobs: list[int] = []
        self.after = after

    def run(self, task: object, parts: int) -> pa.Table:
        self.jobs.append(parts)
        answers = super().run(task, parts)  # type: ignore[arg-type]
        self.after()
        return answers


def create_table(directory: Path, count: int = 300, *, stable: bool = False) -> str:
    uri = str(directory)
    data = pa.table({"id": range(count), "word": [f"w{n}" for n in range(count)]})
    lance.write_dataset(data, uri, max_rows_per_file=50, enable_stable_row_ids=stable)
    lance.dataset(uri).delete("id % 5 = 0")
    return uri


def requests_for(*uris: str, intent: str = "tonight", target_rows: int = 200) -> list[TableCompaction]:
    options = WriteOptions(intent=intent, properties={"who": "upkeep"})
    return [TableCompaction(TableRef(uri, durable=False), options, target_rows) for uri in uris]


def committed_table(outcome: CompactionOutcome) -> Table:
    assert outcome.error is None
    assert outcome.committed is not None
    return outcome.committed.table


def test_one_job_compacts_each_table_as_alone(tmp_path: Path) -> None:
    uris = [create_table(tmp_path / f"t{n}", 100 * n, stable=n % 2 == 0) for n in range(1, 6)]
    alone = [shutil.copytree(uri, f"{uri}.alone") for uri in uris]
    jobs = CountingWorkers()
    outcomes = compact_many(requests_for(*uris), jobs)
    assert jobs.jobs == [6]  # one group of each, and two of the largest
    for uri, outcome, other in zip(uris, outcomes, alone, strict=True):
        ours, theirs = committed_table(outcome), Table.open(other, durable=False).compact(target_rows=200).table
        assert ours.to_table() == theirs.to_table()
        assert [each.physical_rows for each in ours.fragments] == [each.physical_rows for each in theirs.fragments]
        reserved, rewritten = ours.versions(since=2)
        assert (reserved.operation, rewritten.operation) == ("ReserveFragments", "Rewrite")
        assert reserved.properties["who"] == rewritten.properties["who"] == "upkeep"
        assert ours.fsck().is_sound
        lance.dataset(uri).validate()


def test_a_failed_table_does_not_affect_the_others(tmp_path: Path) -> None:
    uris = [create_table(tmp_path / name, 500) for name in ("good", "no data", "cut", "no head")]
    good, no_data, cut, no_head = map(Path, uris)
    shutil.rmtree(no_data / "data")
    manifest = max((no_head / "_versions").glob("*1[0-9].manifest"))
    for path in (no_head / "_versions").glob("*.manifest"):
        path.write_bytes(b"nothing")
    first = Table.open(cut).fragments[0].files[0]
    (cut / "data" / first.path).write_bytes(b"not a data file")
    assert manifest.exists()
    outcomes = compact_many(requests_for(*uris, str(tmp_path / "never there")), CountingWorkers())
    assert committed_table(outcomes[0]).fsck().is_sound
    assert outcomes[1].committed is None
    assert str(no_data) in str(outcomes[1].error)
    assert ".lance" in str(outcomes[1].error)  # names the file
    assert first.path in str(outcomes[2].error)
    assert isinstance(outcomes[3].error, Corrupt)
    assert isinstance(outcomes[4].error, NotFound)
    # If one group of a table cannot be read, the other groups are compacted.
    assert outcomes[2].error is not None
    assert outcomes[2].committed is not None
    assert len(outcomes[2].committed.table.fragments) < len(Table.open(cut, version=2).fragments)
    assert Table.open(good).count_rows() == Table.open(cut).count_rows() == 400


def test_an_interrupted_compaction_resumes_with_its_intent(tmp_path: Path) -> None:
    uris = [create_table(tmp_path / f"t{n}") for n in range(3)]

    def fail() -> None:
        raise ConnectionError("the cluster is gone")

    with pytest.raises(ConnectionError):
        compact_many(requests_for(*uris), CountingWorkers(fail))
    assert {Table.open(uri).version for uri in uris} == {2}
    first = compact_many(requests_for(uris[0]), CountingWorkers())
    jobs = CountingWorkers()
    again = compact_many(requests_for(*uris), jobs)
    assert jobs.jobs == [2]  # one group of each of the two that are left
    assert again[0].committed is not None
    assert again[0].committed.already_committed
    assert again[0].committed.version == committed_table(first[0]).version
    assert {committed_table(each).version for each in again} == {4}
    assert {committed_table(each).count_rows() for each in again} == {240}
    jobs = CountingWorkers()
    assert {committed_table(each).version for each in compact_many(requests_for(*uris, intent="tomorrow"), jobs)} == {4}
    assert jobs.jobs == []


def test_concurrently_changed_groups_are_left_for_the_next_compaction(tmp_path: Path) -> None:
    conflicting, appended, renamed = (create_table(tmp_path / name, 1000) for name in ("hit", "spared", "recast"))

    def change_tables() -> None:
        Table.open(conflicting, durable=False).delete("id = 11")
        Table.open(appended, durable=False).append(pa.table({"id": [5000], "word": ["new"]}))
        Table.open(renamed, durable=False).alter_column("word", rename="text")

    jobs = CountingWorkers(change_tables)
    outcomes = compact_many(requests_for(conflicting, appended, renamed), jobs)
    assert len(jobs.jobs) == 1
    first = committed_table(outcomes[0])
    assert first.count_rows() == 799
    assert first.count_rows("id = 11") == 0
    assert len(first.fragments) == 4 + 4  # one group is unchanged: five fragments, one of which has been removed
    assert committed_table(outcomes[1]).count_rows() == 801
    assert committed_table(outcomes[1]).version == 5
    assert sorted(committed_table(outcomes[2]).schema.names) == ["id", "text"]
    for uri in (conflicting, appended, renamed):
        assert Table.open(uri).fsck().is_sound
        assert Table.open(uri).count_rows() == lance.dataset(uri).count_rows()


def test_bins_are_about_equal() -> None:
    weights = [100, 1, 1, 1, 50, 49, 7]
    bins = pack_into_bins(range(7), weights, 3)
    assert sorted(each for one in bins for each in one) == list(range(7))
    assert max(sum(weights[each] for each in one) for one in bins) == 100
    assert pack_into_bins("ab", [1, 1], 8) == (("a",), ("b",))
    assert pack_into_bins("", [], 8) == ()
