"""Ingest: each file is ingested exactly once, despite concurrent writers, failures and later versions."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import AuditFailed, InvalidInput, NotFound, RetryableConflict, StorageError, Table
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.format.fragment import StorageVersion
from lance_core.format.ingest_records import DIRECTORY, INGESTED
from lance_core.format.schema import TableSchema
from lance_core.tasks.driver import WriteOptions
from lance_core.tasks.ingest import bad_records
from lance_core.tasks.ingest import ingest_log as records
from lance_core.tasks.ingest.coordinator import BAD_RECORDS_PROPERTY, FILES_PROPERTY
from lance_core.tasks.ingest.file_readers import FileSplit
from lance_core.tasks.ingest.formats import CsvFormat, ReadOptions
from lance_core.tasks.ingest.sources import SourceFile, list_files
from lance_core.tasks.ingest.worker import (
    IngestPlan,
    IngestTarget,
    _BadRecordWriter,
    _read_rows,
    decode_partition,
    encode_partition,
    partition_files,
)
from lance_core.tasks.partitioning import Task
from lance_core.tasks.version_stamp import VersionStamp
from tests.lance_core.tasks.in_process_workers import InProcessWorkers
from tests.lance_core.tasks.ingest_environment import IngestEnvironment


@pytest.fixture
def landing(tmp_path: Path) -> IngestEnvironment:
    return IngestEnvironment(tmp_path)


def ids(uri: str) -> list[int]:
    return sorted(Table.open(uri).to_table()["id"].to_pylist())


def ids_of(table: Table) -> list[int]:
    return sorted(table.to_table()["id"].to_pylist())


def put(landing: IngestEnvironment, *numbers: int) -> None:
    for number in numbers:
        landing.write_file(f"{number}.csv", f"id\n{number}\n")


def test_a_repeated_ingest_adds_new_files_only(landing: IngestEnvironment) -> None:
    put(landing, 1, 2)
    first = landing.ingest()
    assert (first.version, first.rows_added, first.files, first.operation) == (1, 2, 1, "Overwrite")
    put(landing, 3)
    second = landing.ingest()
    assert (second.version, second.rows_added, second.operation) == (2, 1, "Append")
    nothing = landing.ingest()
    assert (nothing.version, nothing.rows_added, nothing.files, nothing.attempts) == (2, 0, 0, 0)
    assert ids(landing.uri) == [1, 2, 3]
    made = Table.open(landing.uri).versions()[-1].properties
    assert (made[FILES_PROPERTY], made[BAD_RECORDS_PROPERTY]) == ("1", "0")
    assert second.table.fsck().is_sound


def test_pylance_reads_and_writes_concurrently(landing: IngestEnvironment) -> None:
    put(landing, 1)
    landing.ingest()
    theirs = lance.dataset(landing.uri)
    theirs.insert(pa.table({"id": pa.array([10], pa.int64())}))
    put(landing, 2)
    landing.ingest()
    assert lance.dataset(landing.uri).to_table()["id"].to_pylist() == [1, 10, 2]
    lance.dataset(landing.uri).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    assert landing.ingest().files == 0
    lance.write_dataset(pa.table({"id": pa.array([20], pa.int64())}), landing.uri, mode="overwrite")
    assert landing.ingest().files == 0, "rows that were replaced are not taken again"
    put(landing, 3)
    landing.ingest()
    assert ids(landing.uri) == [3, 20]


def test_files_of_versions_after_a_restore_are_new_again(landing: IngestEnvironment) -> None:
    put(landing, 1)
    landing.ingest()
    put(landing, 2)
    landing.ingest()
    lance.dataset(landing.uri, version=1).restore()
    landing.ingest()
    assert ids(landing.uri) == [1, 2]
    Table.open(landing.uri).restore(1)
    landing.ingest()
    assert ids(landing.uri) == [1, 2]


def test_an_overwrite_keeps_the_ingest_log(landing: IngestEnvironment) -> None:
    put(landing, 1)
    landing.ingest()
    Table.open(landing.uri).overwrite(pa.table({"id": pa.array([7], pa.int64())}))
    assert landing.ingest().files == 0
    Table.open(landing.uri).set_config({INGESTED: None})
    landing.ingest()
    assert ids(landing.uri) == [1, 7]


def test_a_cleanup_keeps_the_ingest_log(landing: IngestEnvironment) -> None:
    for number in range(6):
        put(landing, number)
        landing.ingest()
    segments = landing.directory / "table" / DIRECTORY
    for path in segments.iterdir():
        os.utime(path, (0, 0))
    before = len(list(segments.iterdir()))
    report = Table.open(landing.uri).cleanup(older_than=timedelta(0), keep=1, force=True)
    assert len(report.versions) + len(report.kept) == 5
    assert len(list(segments.iterdir())) <= before
    assert landing.ingest().files == 0
    assert Table.open(landing.uri).fsck().is_sound


def test_a_branch_inherits_the_ingest_log_of_its_parent(landing: IngestEnvironment) -> None:
    put(landing, 1)
    main = landing.ingest().table
    main.branches.create("trial")
    put(landing, 2)
    trial = landing.ingest(branch="trial")
    assert (trial.rows_added, trial.table.count_rows()) == (1, 2)
    put(landing, 3)
    assert landing.ingest().rows_added == 2
    assert landing.ingest(branch="trial").rows_added == 1
    assert Table.open(landing.uri, branch="trial").fsck().is_sound
    assert Table.open(landing.uri).fsck().is_sound


def test_a_cleanup_of_main_keeps_the_ingest_log_of_a_branch(landing: IngestEnvironment) -> None:
    put(landing, 1)
    landing.ingest().table.branches.create("trial")
    put(landing, 2)
    landing.ingest(branch="trial")
    for path in (landing.directory / "table" / DIRECTORY).iterdir():
        os.utime(path, (0, 0))
    Table.open(landing.uri).cleanup(older_than=timedelta(0), keep=1, force=True)
    assert landing.ingest(branch="trial").files == 0


@pytest.mark.parametrize("shallow", [True, False])
def test_a_clone_inherits_the_ingest_log(landing: IngestEnvironment, shallow: bool) -> None:
    put(landing, 1)
    clone = landing.ingest().table.clone(str(landing.directory / "clone"), shallow=shallow)
    put(landing, 2)
    assert landing.ingest(uri=clone.uri).rows_added == 1
    assert landing.ingest().rows_added == 1


def test_a_changed_file_is_reported_and_the_caller_decides(landing: IngestEnvironment) -> None:
    put(landing, 1)
    landing.ingest()
    landing.write_file("1.csv", "id\n100\n")
    with pytest.raises(InvalidInput, match=r"1 of the files were ingested before and have changed.*1\.csv"):
        landing.ingest()
    assert landing.ingest(changed="skip").files == 0
    assert landing.ingest(changed="again").rows_added == 1
    assert landing.ingest().files == 0
    assert ids(landing.uri) == [1, 100]


@dataclass
class Meanwhile(InProcessWorkers):
    """Workers during whose first job a concurrent change takes place."""

    does: Callable[[], object] | None = None

    def run(self, task: Task, parts: int) -> pa.Table:
        done = super().run(task, parts)
        does, self.does = self.does, None
        if does is not None:
            does()
        return done


def test_two_concurrent_ingests_add_each_file_once(landing: IngestEnvironment) -> None:
    put(landing, 0)
    landing.ingest()
    put(landing, *range(1, 9))
    other = IngestEnvironment(landing.directory)
    some = [f"{landing.source_uri}/{number}.csv" for number in (2, 3)]
    runner = Meanwhile(does=lambda: other.ingest(some))
    committed = IngestEnvironment(landing.directory, runner).ingest()
    assert ids(landing.uri) == list(range(9))
    assert (committed.rows_added, committed.version) == (6, 3)
    assert committed.table.versions()[-1].properties[FILES_PROPERTY] == "6"


def test_files_are_read_once_despite_concurrent_ingests(landing: IngestEnvironment) -> None:
    put(landing, 0)
    landing.ingest()
    put(landing, *range(1, 5))
    mine = [f"{landing.source_uri}/{number}.csv" for number in (1, 2)]
    others = [f"{landing.source_uri}/{number}.csv" for number in (3, 4)]
    runner = Meanwhile(does=lambda: IngestEnvironment(landing.directory).ingest(others))
    IngestEnvironment(landing.directory, runner).ingest(mine)
    assert len(runner.attempts) == 1
    assert ids(landing.uri) == [0, 1, 2, 3, 4]


def test_two_concurrent_ingests_create_the_table_once(landing: IngestEnvironment) -> None:
    put(landing, 1, 2)
    runner = Meanwhile(does=lambda: IngestEnvironment(landing.directory).ingest([f"{landing.source_uri}/1.csv"]))
    IngestEnvironment(landing.directory, runner).ingest()
    assert ids(landing.uri) == [1, 2]


def test_a_conflict_without_retries_is_raised(landing: IngestEnvironment) -> None:
    put(landing, 0)
    landing.ingest()
    put(landing, 1)
    runner = Meanwhile(does=lambda: IngestEnvironment(landing.directory).ingest())
    with pytest.raises(RetryableConflict, match="were ingested up to version 2") as raised:
        IngestEnvironment(landing.directory, runner).ingest(how=WriteOptions(retries=1))
    assert raised.value.rule == "ingested_meanwhile"
    assert ids(landing.uri) == [0, 1]


def test_a_concurrent_append_is_rebased_over(landing: IngestEnvironment) -> None:
    put(landing, 0)
    table = landing.ingest().table
    put(landing, 1)
    runner = Meanwhile(does=lambda: table.append(pa.table({"id": pa.array([5], pa.int64())})))
    assert IngestEnvironment(landing.directory, runner).ingest().rebased_over == (2,)
    assert ids(landing.uri) == [0, 1, 5]


def test_an_intent_lands_once(landing: IngestEnvironment) -> None:
    put(landing, 1)
    first = landing.ingest(how=WriteOptions("monday"))
    put(landing, 2)
    again = landing.ingest(how=WriteOptions("monday"))
    assert (again.version, again.already_committed, again.rows_added) == (first.version, True, 1)
    assert ids(landing.uri) == [1]
    landing.ingest(how=WriteOptions("tuesday"))
    assert ids(landing.uri) == [1, 2]


def test_a_file_that_changes_while_it_is_read_is_refused(landing: IngestEnvironment) -> None:
    put(landing, 1)
    path = Path(landing.source_uri) / "1.csv"

    @dataclass
    class Written(InProcessWorkers):
        def run(self, task: Task, parts: int) -> pa.Table:
            path.write_text("id\n1\n2\n")
            return super().run(task, parts)

    with pytest.raises(InvalidInput, match="changed while it was ingested"):
        IngestEnvironment(landing.directory, Written()).ingest(schema=pa.schema([("id", pa.int64())]))
    assert not Table.exists(landing.uri)


def test_a_file_that_changes_after_its_first_rows_is_refused(landing: IngestEnvironment) -> None:
    path = Path(landing.write_file("1.csv", "id\n" + "1\n" * 5000))
    (file,) = list_files(str(path), {})
    schema = TableSchema.from_arrow(pa.schema([("id", pa.int64())]))
    target = IngestTarget(landing.uri, schema, StorageVersion(2, 2), FileLimits(), False)
    plan = IngestPlan(ReadOptions(csv=CsvFormat(block_size=1024)), target, None, "k", VersionStamp.of_this_process())
    rows = _read_rows(plan, (FileSplit(file),), _BadRecordWriter(plan))
    next(rows)
    with path.open("a") as more:
        more.write("2\n")
    with pytest.raises(InvalidInput, match="changed while it was ingested"):
        list(rows)


def test_the_next_ingest_commits_bad_records_after_a_crash(
    landing: IngestEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing.write_file("1.csv", "id\n1\nx\n")
    schema = pa.schema([("id", pa.int64())])

    def dies(*_given: object) -> None:
        raise StorageError("the power went")

    with monkeypatch.context() as broken:
        broken.setattr(bad_records, "commit_pending", dies)
        with pytest.raises(StorageError, match=r"committed as version 1.*the next ingest"):
            landing.ingest(schema=schema, on_bad_record=landing.bad_records_uri, how=WriteOptions("k"))
    assert not Table.exists(landing.bad_records_uri)
    assert landing.ingest(how=WriteOptions("k")).already_committed
    for how in (WriteOptions("k"), WriteOptions()):
        landing.ingest(how=how)
    rows = Table.open(landing.bad_records_uri).to_table().to_pylist()
    assert [(row["row"], row["line"], row["column"], row["ingest"]) for row in rows] == [(2, 3, "id", "k")]
    assert not list((landing.directory / "table" / DIRECTORY / "pending").glob("*"))


def test_bad_records_of_an_uncommitted_attempt_are_discarded(landing: IngestEnvironment) -> None:
    put(landing, 0)
    landing.ingest()
    landing.write_file("1.csv", "id\n1\nx\n")
    runner = Meanwhile(does=lambda: IngestEnvironment(landing.directory).ingest(on_bad_record=landing.bad_records_uri))
    IngestEnvironment(landing.directory, runner).ingest(on_bad_record=landing.bad_records_uri)
    assert Table.open(landing.bad_records_uri).count_rows() == 1
    assert not list((landing.directory / "table" / DIRECTORY / "pending").glob("*"))
    assert ids(landing.uri) == [0, 1]


def test_bad_records_of_a_rejected_audit_wait_for_the_publication(landing: IngestEnvironment) -> None:
    put(landing, 0)
    landing.ingest()
    landing.write_file("1.csv", "id\n1\nx\n")

    def refuses(table: Table, base: Table | None) -> None:
        assert (ids_of(table), base and ids_of(base)) == ([0, 1], [0])
        raise ValueError("no")

    with pytest.raises(AuditFailed) as refused:
        landing.ingest(on_bad_record=landing.bad_records_uri, how=WriteOptions("k", audit=refuses))
    landing.ingest(files=landing.write_file("0.csv", "id\n0\n"), changed="skip")
    assert not Table.exists(landing.bad_records_uri)
    assert ids(landing.uri) == [0]
    Table.open(landing.uri).publish(refused.value.detached_version)
    assert landing.ingest(on_bad_record=landing.bad_records_uri, how=WriteOptions("k", audit=refuses)).already_committed
    assert ids(landing.uri) == [0, 1]
    assert Table.open(landing.bad_records_uri).count_rows() == 1


def test_files_without_valid_rows_are_recorded_too(landing: IngestEnvironment) -> None:
    put(landing, 1)
    landing.ingest()
    landing.write_file("2.parquet", "no parquet")
    landing.write_file("3.csv", "")
    committed = landing.ingest(on_bad_record=landing.bad_records_uri)
    assert (committed.version, committed.rows_added, committed.files) == (2, 0, 0)
    assert Table.open(landing.bad_records_uri).to_table()["row"].to_pylist() == [None]
    assert landing.ingest().version == 2
    assert lance.dataset(landing.uri).count_rows() == 1


def test_an_ingest_log_has_few_segments(landing: IngestEnvironment) -> None:
    schema = pa.schema([("id", pa.int64())])
    Table.create(landing.uri, schema)
    for number in range(20):
        put(landing, number)
        committed = landing.ingest()
    assert len(committed.table.config[INGESTED].split()) <= 5
    assert committed.table.fsck().is_sound
    assert landing.ingest().files == 0


def test_a_missing_ingest_log_is_reported(landing: IngestEnvironment) -> None:
    put(landing, 1)
    landing.ingest()
    for path in (landing.directory / "table" / DIRECTORY).glob("*.arrow"):
        path.unlink()
    with pytest.raises(NotFound, match=r"is not there.*set_config"):
        landing.ingest()


def test_reserved_properties_are_rejected(landing: IngestEnvironment) -> None:
    put(landing, 1)
    table = landing.ingest().table
    with pytest.raises(InvalidInput, match="only an ingest sets it"):
        table.append(pa.table({"id": pa.array([5], pa.int64())}), properties={INGESTED: ""})


def test_a_hundred_thousand_files_need_little_memory(landing: IngestEnvironment) -> None:
    put(landing, 1)
    base = landing.ingest().table
    files = [
        SourceFile(f"s3://bucket/day={n // 1000:03}/part-{n:06}.parquet", 1000, f"{n:032x}") for n in range(100_000)
    ]
    snapshot = base._snapshot
    record = records.load_log(snapshot.location, snapshot)
    before = pa.total_allocated_bytes()
    segments = record.append_segment(files, records.new_segment_name())
    entries = pa.concat_tables([records._read_segment(record.location, each) for each in segments])
    full = records.IngestLog(record.location, segments, entries)
    assert len(records.select_new_files(files, full, "fail")) == 0
    assert pa.total_allocated_bytes() - before < 64 * 1024 * 1024
    assert [segment.files for segment in segments] == [100_001]
    shares = list(map(encode_partition, partition_files(files, ReadOptions(), 8)))
    assert sum(map(len, shares)) < 3 * 1024 * 1024
    assert sum(len(decode_partition(share)) for share in shares) == len(files)


@pytest.mark.parametrize(
    ("files", "told"),
    [("nowhere", "there is no file or directory"), ("*.csv", "no file matches"), ([], "no file matches an empty list")],
)
def test_no_files_and_no_table(landing: IngestEnvironment, files: str | list[str], told: str) -> None:
    with pytest.raises(NotFound, match=told):
        landing.ingest(f"{landing.directory}/{files}" if isinstance(files, str) else files)


def test_files_are_strings_and_paths(landing: IngestEnvironment) -> None:
    put(landing, 1, 2)
    assert landing.ingest([Path(landing.source_uri) / "1.csv", f"{landing.source_uri}/2.csv"]).rows_added == 2
    for odd in (7, [7], b"x", [""]):
        with pytest.raises(InvalidInput, match="files"):
            landing.ingest(odd)  # type: ignore[arg-type]


def test_no_files_and_an_existing_table(landing: IngestEnvironment) -> None:
    Table.create(landing.uri, pa.schema([("id", pa.int64())]))
    assert landing.ingest(f"{landing.directory}/landing/*.csv").version == 1
