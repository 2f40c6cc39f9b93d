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
from lance_core.tasks.ingest import ingest_log as ingest_log
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
from lance_core.versions.location import locate
from lance_core.versions.snapshot import load_latest
from tests.lance_core.tasks.in_process_workers import InProcessWorkers
from tests.lance_core.tasks.ingest_environment import IngestEnvironment


@pytest.fixture
def environment(tmp_path: Path) -> IngestEnvironment:
    return IngestEnvironment(tmp_path)


def ids(uri: str) -> list[int]:
    return sorted(Table.open(uri).to_table()["id"].to_pylist())


def ids_of(table: Table) -> list[int]:
    return sorted(table.to_table()["id"].to_pylist())


def write_csv_files(environment: IngestEnvironment, *numbers: int) -> None:
    for number in numbers:
        environment.write_file(f"{number}.csv", f"id\n{number}\n")


def test_a_repeated_ingest_adds_new_files_only(environment: IngestEnvironment) -> None:
    write_csv_files(environment, 1, 2)
    first = environment.ingest()
    assert (first.version, first.rows_added, first.files, first.operation) == (1, 2, 1, "Overwrite")
    write_csv_files(environment, 3)
    second = environment.ingest()
    assert (second.version, second.rows_added, second.operation) == (2, 1, "Append")
    nothing = environment.ingest()
    assert (nothing.version, nothing.rows_added, nothing.files, nothing.attempts) == (2, 0, 0, 0)
    assert ids(environment.uri) == [1, 2, 3]
    properties = Table.open(environment.uri).versions()[-1].properties
    assert (properties[FILES_PROPERTY], properties[BAD_RECORDS_PROPERTY]) == ("1", "0")
    assert second.table.fsck().is_sound


def test_pylance_reads_and_writes_concurrently(environment: IngestEnvironment) -> None:
    write_csv_files(environment, 1)
    environment.ingest()
    theirs = lance.dataset(environment.uri)
    theirs.insert(pa.table({"id": pa.array([10], pa.int64())}))
    write_csv_files(environment, 2)
    environment.ingest()
    assert lance.dataset(environment.uri).to_table()["id"].to_pylist() == [1, 10, 2]
    lance.dataset(environment.uri).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    assert environment.ingest().files == 0
    lance.write_dataset(pa.table({"id": pa.array([20], pa.int64())}), environment.uri, mode="overwrite")
    assert environment.ingest().files == 0, "rows that were replaced are not taken again"
    write_csv_files(environment, 3)
    environment.ingest()
    assert ids(environment.uri) == [3, 20]


def test_files_of_versions_after_a_restore_are_new_again(environment: IngestEnvironment) -> None:
    write_csv_files(environment, 1)
    environment.ingest()
    write_csv_files(environment, 2)
    environment.ingest()
    lance.dataset(environment.uri, version=1).restore()
    environment.ingest()
    assert ids(environment.uri) == [1, 2]
    Table.open(environment.uri).restore(1)
    environment.ingest()
    assert ids(environment.uri) == [1, 2]


def test_an_overwrite_keeps_the_ingest_log(environment: IngestEnvironment) -> None:
    write_csv_files(environment, 1)
    environment.ingest()
    Table.open(environment.uri).overwrite(pa.table({"id": pa.array([7], pa.int64())}))
    assert environment.ingest().files == 0
    Table.open(environment.uri).set_config({INGESTED: None})
    environment.ingest()
    assert ids(environment.uri) == [1, 7]


def test_a_cleanup_keeps_the_ingest_log(environment: IngestEnvironment) -> None:
    for number in range(6):
        write_csv_files(environment, number)
        environment.ingest()
    segments = environment.directory / "table" / DIRECTORY
    for path in segments.iterdir():
        os.utime(path, (0, 0))
    before = len(list(segments.iterdir()))
    report = Table.open(environment.uri).cleanup(older_than=timedelta(0), keep=1, force=True)
    assert len(report.versions) + len(report.kept) == 5
    assert len(list(segments.iterdir())) <= before
    assert environment.ingest().files == 0
    assert Table.open(environment.uri).fsck().is_sound


def test_a_branch_inherits_the_ingest_log_of_its_parent(environment: IngestEnvironment) -> None:
    write_csv_files(environment, 1)
    main = environment.ingest().table
    main.branches.create("trial")
    write_csv_files(environment, 2)
    trial = environment.ingest(branch="trial")
    assert (trial.rows_added, trial.table.count_rows()) == (1, 2)
    write_csv_files(environment, 3)
    assert environment.ingest().rows_added == 2
    assert environment.ingest(branch="trial").rows_added == 1
    assert Table.open(environment.uri, branch="trial").fsck().is_sound
    assert Table.open(environment.uri).fsck().is_sound


def test_a_cleanup_of_main_keeps_the_ingest_log_of_a_branch(environment: IngestEnvironment) -> None:
    write_csv_files(environment, 1)
    environment.ingest().table.branches.create("trial")
    write_csv_files(environment, 2)
    environment.ingest(branch="trial")
    for path in (environment.directory / "table" / DIRECTORY).iterdir():
        os.utime(path, (0, 0))
    Table.open(environment.uri).cleanup(older_than=timedelta(0), keep=1, force=True)
    assert environment.ingest(branch="trial").files == 0


@pytest.mark.parametrize("shallow", [True, False])
def test_a_clone_inherits_the_ingest_log(environment: IngestEnvironment, shallow: bool) -> None:
    write_csv_files(environment, 1)
    clone = environment.ingest().table.clone(str(environment.directory / "clone"), shallow=shallow)
    write_csv_files(environment, 2)
    assert environment.ingest(uri=clone.uri).rows_added == 1
    assert environment.ingest().rows_added == 1


def test_a_changed_file_is_reported_and_the_caller_decides(environment: IngestEnvironment) -> None:
    write_csv_files(environment, 1)
    environment.ingest()
    environment.write_file("1.csv", "id\n100\n")
    with pytest.raises(InvalidInput, match=r"1 of the files were ingested before and have changed.*1\.csv"):
        environment.ingest()
    assert environment.ingest(changed="skip").files == 0
    assert environment.ingest(changed="again").rows_added == 1
    assert environment.ingest().files == 0
    assert ids(environment.uri) == [1, 100]


@dataclass
class WorkersWithConcurrentAction(InProcessWorkers):
    """Workers during whose first job a concurrent change takes place."""

    does: Callable[[], object] | None = None

    def run(self, task: Task, parts: int) -> pa.Table:
        done = super().run(task, parts)
        does, self.does = self.does, None
        if does is not None:
            does()
        return done


def test_two_concurrent_ingests_add_each_file_once(environment: IngestEnvironment) -> None:
    write_csv_files(environment, 0)
    environment.ingest()
    write_csv_files(environment, *range(1, 9))
    other = IngestEnvironment(environment.directory)
    some_files = [f"{environment.source_uri}/{number}.csv" for number in (2, 3)]
    runner = WorkersWithConcurrentAction(does=lambda: other.ingest(some_files))
    committed = IngestEnvironment(environment.directory, runner).ingest()
    assert ids(environment.uri) == list(range(9))
    assert (committed.rows_added, committed.version) == (6, 3)
    assert committed.table.versions()[-1].properties[FILES_PROPERTY] == "6"


def test_files_are_read_once_despite_concurrent_ingests(environment: IngestEnvironment) -> None:
    write_csv_files(environment, 0)
    environment.ingest()
    write_csv_files(environment, *range(1, 5))
    own_files = [f"{environment.source_uri}/{number}.csv" for number in (1, 2)]
    other_files = [f"{environment.source_uri}/{number}.csv" for number in (3, 4)]
    runner = WorkersWithConcurrentAction(does=lambda: IngestEnvironment(environment.directory).ingest(other_files))
    IngestEnvironment(environment.directory, runner).ingest(own_files)
    assert len(runner.attempts) == 1
    assert ids(environment.uri) == [0, 1, 2, 3, 4]


def test_two_concurrent_ingests_create_the_table_once(environment: IngestEnvironment) -> None:
    write_csv_files(environment, 1, 2)
    runner = WorkersWithConcurrentAction(
        does=lambda: IngestEnvironment(environment.directory).ingest([f"{environment.source_uri}/1.csv"])
    )
    IngestEnvironment(environment.directory, runner).ingest()
    assert ids(environment.uri) == [1, 2]


def test_a_conflict_without_retries_is_raised(environment: IngestEnvironment) -> None:
    write_csv_files(environment, 0)
    environment.ingest()
    write_csv_files(environment, 1)
    runner = WorkersWithConcurrentAction(does=lambda: IngestEnvironment(environment.directory).ingest())
    with pytest.raises(RetryableConflict, match="were ingested up to version 2") as raised:
        IngestEnvironment(environment.directory, runner).ingest(how=WriteOptions(retries=1))
    assert raised.value.rule == "ingested_meanwhile"
    assert ids(environment.uri) == [0, 1]


def test_a_concurrent_append_is_rebased_over(environment: IngestEnvironment) -> None:
    write_csv_files(environment, 0)
    table = environment.ingest().table
    write_csv_files(environment, 1)
    runner = WorkersWithConcurrentAction(does=lambda: table.append(pa.table({"id": pa.array([5], pa.int64())})))
    assert IngestEnvironment(environment.directory, runner).ingest().rebased_over == (2,)
    assert ids(environment.uri) == [0, 1, 5]


def test_an_intent_lands_once(environment: IngestEnvironment) -> None:
    write_csv_files(environment, 1)
    first = environment.ingest(how=WriteOptions("monday"))
    write_csv_files(environment, 2)
    again = environment.ingest(how=WriteOptions("monday"))
    assert (again.version, again.already_committed, again.rows_added) == (first.version, True, 1)
    assert ids(environment.uri) == [1]
    environment.ingest(how=WriteOptions("tuesday"))
    assert ids(environment.uri) == [1, 2]


def test_a_file_that_changes_while_it_is_read_is_refused(environment: IngestEnvironment) -> None:
    write_csv_files(environment, 1)
    path = Path(environment.source_uri) / "1.csv"

    @dataclass
    class WorkersThatChangeFile(InProcessWorkers):
        def run(self, task: Task, parts: int) -> pa.Table:
            path.write_text("id\n1\n2\n")
            return super().run(task, parts)

    with pytest.raises(InvalidInput, match="changed while it was ingested"):
        IngestEnvironment(environment.directory, WorkersThatChangeFile()).ingest(schema=pa.schema([("id", pa.int64())]))
    assert not Table.exists(environment.uri)


def test_a_file_that_changes_after_its_first_rows_is_refused(environment: IngestEnvironment) -> None:
    path = Path(environment.write_file("1.csv", "id\n" + "1\n" * 5000))
    (file,) = list_files(str(path), {})
    schema = TableSchema.from_arrow(pa.schema([("id", pa.int64())]))
    target = IngestTarget(environment.uri, schema, StorageVersion(2, 2), FileLimits(), False)
    plan = IngestPlan(ReadOptions(csv=CsvFormat(block_size=1024)), target, None, "k", VersionStamp.of_this_process())
    rows = _read_rows(plan, (FileSplit(file),), _BadRecordWriter(plan))
    next(rows)
    with path.open("a") as stream:
        stream.write("2\n")
    with pytest.raises(InvalidInput, match="changed while it was ingested"):
        list(rows)


def test_the_next_ingest_commits_bad_records_after_a_crash(
    environment: IngestEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.write_file("1.csv", "id\n1\nx\n")
    schema = pa.schema([("id", pa.int64())])

    def fail_commit(*_given: object) -> None:
        raise StorageError("the power went")

    with monkeypatch.context() as patch:
        patch.setattr(bad_records, "commit_pending", fail_commit)
        with pytest.raises(StorageError, match=r"committed as version 1.*the next ingest"):
            environment.ingest(schema=schema, on_bad_record=environment.bad_records_uri, how=WriteOptions("k"))
    assert not Table.exists(environment.bad_records_uri)
    assert environment.ingest(how=WriteOptions("k")).already_committed
    for how in (WriteOptions("k"), WriteOptions()):
        environment.ingest(how=how)
    rows = Table.open(environment.bad_records_uri).to_table().to_pylist()
    assert [(row["row"], row["line"], row["column"], row["ingest"]) for row in rows] == [(2, 3, "id", "k")]
    assert not list((environment.directory / "table" / DIRECTORY / "pending").glob("*"))


def test_bad_records_of_an_uncommitted_attempt_are_discarded(environment: IngestEnvironment) -> None:
    write_csv_files(environment, 0)
    environment.ingest()
    environment.write_file("1.csv", "id\n1\nx\n")
    runner = WorkersWithConcurrentAction(
        does=lambda: IngestEnvironment(environment.directory).ingest(on_bad_record=environment.bad_records_uri)
    )
    IngestEnvironment(environment.directory, runner).ingest(on_bad_record=environment.bad_records_uri)
    assert Table.open(environment.bad_records_uri).count_rows() == 1
    assert not list((environment.directory / "table" / DIRECTORY / "pending").glob("*"))
    assert ids(environment.uri) == [0, 1]


def test_bad_records_of_a_rejected_audit_wait_for_the_publication(environment: IngestEnvironment) -> None:
    write_csv_files(environment, 0)
    environment.ingest()
    environment.write_file("1.csv", "id\n1\nx\n")

    def reject(table: Table, base: Table | None) -> None:
        assert (ids_of(table), base and ids_of(base)) == ([0, 1], [0])
        raise ValueError("no")

    with pytest.raises(AuditFailed) as refused:
        environment.ingest(on_bad_record=environment.bad_records_uri, how=WriteOptions("k", audit=reject))
    environment.ingest(files=environment.write_file("0.csv", "id\n0\n"), changed="skip")
    assert not Table.exists(environment.bad_records_uri)
    assert ids(environment.uri) == [0]
    Table.open(environment.uri).publish(refused.value.detached_version)
    assert environment.ingest(
        on_bad_record=environment.bad_records_uri, how=WriteOptions("k", audit=reject)
    ).already_committed
    assert ids(environment.uri) == [0, 1]
    assert Table.open(environment.bad_records_uri).count_rows() == 1


def test_files_without_valid_rows_are_recorded_too(environment: IngestEnvironment) -> None:
    write_csv_files(environment, 1)
    environment.ingest()
    environment.write_file("2.parquet", "no parquet")
    environment.write_file("3.csv", "")
    committed = environment.ingest(on_bad_record=environment.bad_records_uri)
    assert (committed.version, committed.rows_added, committed.files) == (2, 0, 0)
    assert Table.open(environment.bad_records_uri).to_table()["row"].to_pylist() == [None]
    assert environment.ingest().version == 2
    assert lance.dataset(environment.uri).count_rows() == 1


def test_an_ingest_log_has_few_segments(environment: IngestEnvironment) -> None:
    schema = pa.schema([("id", pa.int64())])
    Table.create(environment.uri, schema)
    for number in range(20):
        write_csv_files(environment, number)
        committed = environment.ingest()
    assert len(committed.table.config[INGESTED].split()) <= 5
    assert committed.table.fsck().is_sound
    assert environment.ingest().files == 0


def test_a_missing_ingest_log_is_reported(environment: IngestEnvironment) -> None:
    write_csv_files(environment, 1)
    environment.ingest()
    for path in (environment.directory / "table" / DIRECTORY).glob("*.arrow"):
        path.unlink()
    with pytest.raises(NotFound, match=r"does not exist.*set_config"):
        environment.ingest()


def test_reserved_properties_are_rejected(environment: IngestEnvironment) -> None:
    write_csv_files(environment, 1)
    table = environment.ingest().table
    with pytest.raises(InvalidInput, match="only an ingest sets it"):
        table.append(pa.table({"id": pa.array([5], pa.int64())}), properties={INGESTED: ""})


def test_a_hundred_thousand_files_need_little_memory(environment: IngestEnvironment) -> None:
    write_csv_files(environment, 1)
    base = environment.ingest().table
    files = [
        SourceFile(f"s3://bucket/day={n // 1000:03}/part-{n:06}.parquet", 1000, f"{n:032x}") for n in range(100_000)
    ]
    snapshot = load_latest(locate(base.uri))
    record = ingest_log.load_log(snapshot.location, snapshot)
    before = pa.total_allocated_bytes()
    segments = record.append_segment(files, ingest_log.new_segment_name())
    entries = pa.concat_tables([ingest_log._read_segment(record.location, each) for each in segments])
    log_with_all_files = ingest_log.IngestLog(record.location, segments, entries)
    assert len(ingest_log.select_new_files(files, log_with_all_files, "fail")) == 0
    assert pa.total_allocated_bytes() - before < 64 * 1024 * 1024
    assert [segment.files for segment in segments] == [100_001]
    shares = list(map(encode_partition, partition_files(files, ReadOptions(), 8)))
    assert sum(map(len, shares)) < 3 * 1024 * 1024
    assert sum(len(decode_partition(share)) for share in shares) == len(files)


@pytest.mark.parametrize(
    ("files", "message"),
    [("nowhere", "there is no file or directory"), ("*.csv", "no file matches"), ([], "no file matches an empty list")],
)
def test_no_files_and_no_table(environment: IngestEnvironment, files: str | list[str], message: str) -> None:
    with pytest.raises(NotFound, match=message):
        environment.ingest(f"{environment.directory}/{files}" if isinstance(files, str) else files)


def test_files_are_strings_and_paths(environment: IngestEnvironment) -> None:
    write_csv_files(environment, 1, 2)
    assert (
        environment.ingest([Path(environment.source_uri) / "1.csv", f"{environment.source_uri}/2.csv"]).rows_added == 2
    )
    for invalid in (7, [7], b"x", [""]):
        with pytest.raises(InvalidInput, match="files"):
            environment.ingest(invalid)  # type: ignore[arg-type]


def test_no_files_and_an_existing_table(environment: IngestEnvironment) -> None:
    Table.create(environment.uri, pa.schema([("id", pa.int64())]))
    assert environment.ingest(f"{environment.directory}/landing/*.csv").version == 1
