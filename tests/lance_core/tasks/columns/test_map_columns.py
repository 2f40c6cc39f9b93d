"""Map columns: workers compute the columns of one process, and a resumed job does not repeat completed fragments."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lance_core import Committed, CommitUndecided, InvalidInput, RetryableConflict, SchemaMismatch, Table
from lance_core.coordination import progress as progress_module
from lance_core.tasks.columns.map_columns import Computation, Mode, ProgressCallback, map_columns
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.partitioning import Task
from lance_core.versions.location import locate
from tests.lance_core.tasks.in_process_workers import InProcessWorkers

ROWS = pa.table({"id": pa.array(range(100), pa.int64()), "x": [None if n % 7 == 0 else n / 3 for n in range(100)]})
DOUBLE = pa.schema([pa.field("twice", pa.int64())])
Change = Callable[[Table], object]
UNDECIDED = CommitUndecided("no answer", uuid="u", version=2)
VECTOR = pa.schema([pa.field("vector", pa.list_(pa.float32(), 4)), pa.field("text", pa.string(), nullable=False)])


def double_ids(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"twice": pc.multiply(batch["id"], 2)})


def double_ids_as_integers(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"twice": pc.cast(pc.multiply(batch["id"], 2), pa.int64())})


def text_and_vectors(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = np.repeat(batch["id"].to_numpy().astype(np.float32), 4)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values), 4)
    return pa.record_batch([pc.cast(batch["id"], pa.string()), vectors], names=["text", "vector"])


def return_too_few_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    return double_ids(batch.slice(1) if batch["id"][0].as_py() == 30 else batch)


def return_other_type(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch(
        {"twice": pc.divide(pc.cast(batch["id"], pa.float64()), 2.0) if "x" not in batch.schema.names else batch["x"]}
    )


def return_other_names(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"thrice": batch["id"]})


def raise_error(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise ArithmeticError("no more")


def minus_ones(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"twice": pa.array([-1] * batch.num_rows, pa.int64())})


@dataclass
class WorkersWithConcurrentChange(InProcessWorkers):
    """Workers during whose first job another writer changes the table."""

    uri: str = ""
    change: Change = field(default=lambda table: None)

    def run(self, task: Task, parts: int) -> pa.Table:
        first = not self.attempts
        answers = super().run(task, parts)
        if first:
            self.change(Table.open(self.uri, durable=False))
        return answers


@dataclass
class WorkersOfDyingDriver(InProcessWorkers):
    """Workers whose driver dies after some of the tasks are complete."""

    tasks_before: int = 0
    error: BaseException = field(default_factory=KeyboardInterrupt)

    def run(self, task: Task, parts: int) -> pa.Table:
        super().run(task, self.tasks_before)
        raise self.error


def create_table(directory: Path, *, stable: bool = False) -> str:
    uri = str(directory)
    Table.create(uri, ROWS, max_rows_per_file=10, stable_row_ids=stable, durable=False)
    return uri


def run_map_columns(
    uri: str,
    fn: object = double_ids,
    schema: pa.Schema = DOUBLE,
    *,
    read: list[str] | None = None,
    resume_key: str | None = None,
    progress: ProgressCallback | None = None,
    options: WriteOptions | None = None,
    runner: InProcessWorkers | None = None,
) -> Table:
    computation = Computation(fn, read, schema)  # type: ignore[arg-type]
    where, workers = TableRef(uri, durable=False), runner or InProcessWorkers()
    return map_columns(
        where, computation, resume_key=resume_key, progress=progress, options=options or WriteOptions(), runner=workers
    ).table


@pytest.mark.parametrize("stable", [False, True])
def test_columns_equal_those_of_one_process(tmp_path: Path, stable: bool) -> None:
    distributed, alone = (
        create_table(tmp_path / "spread", stable=stable),
        create_table(tmp_path / "alone", stable=stable),
    )
    for uri in (distributed, alone):
        Table.open(uri, durable=False).delete("id % 5 = 2 or id between 20 and 29")
    for fn, schema in ((double_ids, DOUBLE), (text_and_vectors, VECTOR)):
        theirs = Table.open(alone, durable=False).add_columns(fn, schema=schema, read_columns=["id"])
        ours = run_map_columns(
            distributed, fn, schema, read=["id"], runner=InProcessWorkers(lost_partitions=frozenset({1, 4}))
        )
        assert ours.schema == theirs.table.schema
        assert ours.to_table() == theirs.table.to_table()
        assert lance.dataset(distributed).to_table()[schema.names[0]] == ours.to_table()[schema.names[0]]
    assert Table.open(distributed).fsck().is_sound
    assert len(Table.open(distributed).fragments) == 9


def test_a_table_without_rows_gets_the_column(tmp_path: Path) -> None:
    uri, workers = str(tmp_path / "t"), InProcessWorkers()
    Table.create(uri, ROWS.schema, durable=False)
    assert run_map_columns(uri, runner=workers).schema.names == ["id", "x", "twice"]
    assert workers.attempts == []


@pytest.mark.parametrize(
    ("fn", "schema", "read", "message"),
    [
        (return_too_few_rows, DOUBLE, None, "fragment 3, rows 0 to 9: .* was given 10 rows and returned 9"),
        (
            return_other_type,
            DOUBLE,
            None,
            "fragment 0, rows 0 to 9: .*'twice' is stored as int64, but the data has double",
        ),
        (
            return_other_names,
            DOUBLE,
            None,
            "fragment 0, rows 0 to 9: .* returned the columns thrice; the expected columns are twice",
        ),
        (double_ids, pa.schema([pa.field("x", pa.int64())]), None, "has a column 'x' already"),
        (double_ids, DOUBLE, ["nope"], "nope"),
        (double_ids, pa.schema([]), None, "no new column"),
        ("twice", DOUBLE, None, "fn is a function"),
    ],
)
def test_errors_are_raised_before_a_commit(
    tmp_path: Path, fn: object, schema: pa.Schema, read: list[str] | None, message: str
) -> None:
    uri = create_table(tmp_path / "t")
    with pytest.raises(InvalidInput, match=message):
        run_map_columns(uri, fn, schema, read=read)
    assert Table.open(uri).version == 1


def test_nulls_in_a_mandatory_column_are_reported(tmp_path: Path) -> None:
    uri = create_table(tmp_path / "t")
    with pytest.raises(SchemaMismatch, match=r"fragment 0, .*not nullable, but the data has 2 nulls"):
        run_map_columns(uri, return_other_type, pa.schema([pa.field("twice", pa.float64(), nullable=False)]))


def test_an_exception_in_a_function_names_its_fragment(tmp_path: Path) -> None:
    uri = create_table(tmp_path / "t")
    with pytest.raises(ArithmeticError) as raised:
        run_map_columns(uri, raise_error)
    assert "fragment" in raised.value.__notes__[0]


def test_a_killed_job_resumes(tmp_path: Path) -> None:
    uri = create_table(tmp_path / "t")
    with pytest.raises(KeyboardInterrupt):
        run_map_columns(uri, resume_key="k", runner=WorkersOfDyingDriver(tasks_before=9))
    workers = InProcessWorkers()
    table = run_map_columns(uri, minus_ones, resume_key="k", runner=workers)
    assert len(workers.attempts) == 1
    expected = [-1 if number >= 90 else 2 * number for number in range(100)]
    assert table.to_table()["twice"].to_pylist() == expected
    assert not (Path(uri) / progress_module.directory_of("k")).exists()
    assert not list((Path(uri) / "_lance_assets" / "holds").glob("*"))
    assert lance.dataset(uri).to_table()["twice"].to_pylist() == expected


@pytest.mark.parametrize(("error", "leases"), [(KeyboardInterrupt(), 0), (UNDECIDED, 1)], ids=["failed", "undecided"])
def test_a_failed_resume_keeps_a_lease_only_if_its_commit_may_succeed(
    tmp_path: Path, error: BaseException, leases: int
) -> None:
    uri = create_table(tmp_path / "t")
    for tasks, each in ((9, KeyboardInterrupt()), (0, error)):
        with pytest.raises(type(each)):
            run_map_columns(uri, resume_key="k", runner=WorkersOfDyingDriver(tasks_before=tasks, error=each))
    assert len(list(Path(uri).glob("_lance_assets/holds/*"))) == leases
    assert run_map_columns(uri, resume_key="k").count_rows("twice = 2 * id") == 100


def test_a_resume_key_commits_once(tmp_path: Path) -> None:
    uri, workers = create_table(tmp_path / "t"), InProcessWorkers()
    assert run_map_columns(uri, resume_key="k").version == 2
    assert run_map_columns(uri, resume_key="k", runner=workers).version == 2
    assert workers.attempts == []


def test_a_resume_key_belongs_to_one_computation(tmp_path: Path) -> None:
    uri = create_table(tmp_path / "t")
    with pytest.raises(KeyboardInterrupt):
        run_map_columns(uri, resume_key="k", runner=WorkersOfDyingDriver(tasks_before=1))
    with pytest.raises(InvalidInput, match="differs in read_columns, schema"):
        run_map_columns(uri, text_and_vectors, VECTOR, read=["id"], resume_key="k")
    with pytest.raises(InvalidInput, match="resume_key"):
        run_map_columns(uri, resume_key="")


def test_invalid_progress_records_are_repeated(tmp_path: Path) -> None:
    uri = create_table(tmp_path / "t")
    with pytest.raises(KeyboardInterrupt):
        run_map_columns(uri, resume_key="k", runner=WorkersOfDyingDriver(tasks_before=8))
    directory = Path(uri) / progress_module.directory_of("k")
    (directory / "fragment-0.bin").write_bytes(b"\xff\xff")
    (directory / "fragment-1.bin").write_bytes((directory / "fragment-2.bin").read_bytes())
    missing_file = next(
        iter(progress_module.completed_fragments(locate(uri).store, progress_module.directory_of("k")))
    ).files[-1]
    (Path(uri) / missing_file.qualified_path).unlink()
    table = Table.open(uri, durable=False)
    table.update({"x": "0.5"}, where="id = 35")
    table.delete("id = 45")
    workers = InProcessWorkers()
    result = run_map_columns(uri, minus_ones, resume_key="k", runner=workers).to_table().sort_by("id")
    # Fragments 8 and 9, the three without a file or a readable record, and the rows that the update moved.
    assert len(workers.attempts) == 6
    assert result["twice"].to_pylist() == [
        -1 if (n < 30 and n // 10 in (0, 1, 2)) or n >= 80 or n == 35 else 2 * n for n in range(100) if n != 45
    ]
    assert Table.open(uri).fsck().is_sound


@pytest.mark.parametrize(("column", "tasks_repeated"), [("id", 10), ("x", 0)])
def test_rewritten_input_columns_are_computed_again(tmp_path: Path, column: str, tasks_repeated: int) -> None:
    uri = create_table(tmp_path / "t")
    with pytest.raises(KeyboardInterrupt):
        run_map_columns(uri, resume_key="k", read=["id"], runner=WorkersOfDyingDriver(tasks_before=10))
    Table.open(uri, durable=False).alter_column(column, type=pa.float32())
    workers = InProcessWorkers()
    run_map_columns(uri, double_ids_as_integers, read=["id"], resume_key="k", runner=workers)
    assert len(workers.attempts) == tasks_repeated


def test_restored_rows_are_computed(tmp_path: Path) -> None:
    uri = create_table(tmp_path / "t")
    before = Table.open(uri, durable=False)
    before.delete("id = 5")
    with pytest.raises(KeyboardInterrupt):
        run_map_columns(uri, resume_key="k", runner=WorkersOfDyingDriver(tasks_before=10))
    Table.open(uri, durable=False).restore(1)
    workers = InProcessWorkers()
    assert run_map_columns(uri, resume_key="k", runner=workers).to_table()["twice"].to_pylist() == [
        2 * number for number in range(100)
    ]
    assert len(workers.attempts) == 1


CONCURRENT_CHANGES: list[tuple[Change, int, int]] = [
    (lambda table: table.append(ROWS.slice(0, 3)), 1, 103),
    (lambda table: table.delete("id % 10 = 3"), 0, 90),
    (lambda table: table.update({"x": "1.5"}, where="id < 5"), 1, 100),
    (lambda table: table.compact(), 1, 100),
    (lambda table: table.add_columns({"other": "id + 1"}), 0, 100),
    (lambda table: table.delete("id < 10"), 0, 90),
]


@pytest.mark.parametrize("resume_key", [None, "k"])
@pytest.mark.parametrize(("meddle", "tasks_added", "rows"), CONCURRENT_CHANGES)
def test_concurrent_changes_keep_completed_work(
    tmp_path: Path, meddle: Change, tasks_added: int, rows: int, resume_key: str | None
) -> None:
    uri = create_table(tmp_path / "t")
    workers = WorkersWithConcurrentChange(uri=uri, change=meddle)
    table = run_map_columns(uri, resume_key=resume_key, runner=workers)
    assert len(workers.attempts) == 10 + tasks_added
    found = table.to_table(columns=["id", "twice"])
    assert found["twice"] == pc.multiply(found["id"], 2)
    assert table.count_rows() == rows
    theirs = lance.dataset(uri).to_table()
    assert theirs["twice"] == pc.multiply(theirs["id"], 2)
    assert Table.open(uri).fsck().is_sound


def test_no_version_has_a_partial_column(tmp_path: Path) -> None:
    uri = create_table(tmp_path / "t")
    run_map_columns(
        uri, runner=WorkersWithConcurrentChange(uri=uri, change=lambda table: table.append(ROWS.slice(0, 3)))
    )
    for version in Table.open(uri).versions():
        table = Table.open(uri, version=version.version)
        if "twice" in table.schema.names:
            assert table.count_rows("twice is null") == 0


def test_a_concurrent_column_of_the_same_name_is_reported(tmp_path: Path) -> None:
    uri = create_table(tmp_path / "t")
    workers = WorkersWithConcurrentChange(uri=uri, change=lambda table: table.add_columns({"twice": "id"}))
    with pytest.raises(InvalidInput, match="has a column 'twice' already"):
        run_map_columns(uri, runner=workers)


def test_a_conflict_without_retries_is_raised(tmp_path: Path) -> None:
    uri = create_table(tmp_path / "t")
    workers = WorkersWithConcurrentChange(uri=uri, change=lambda table: table.append(ROWS.slice(0, 3)))
    with pytest.raises(RetryableConflict):
        run_map_columns(uri, options=WriteOptions(retries=1), runner=workers)


def test_progress_is_reported(tmp_path: Path) -> None:
    uri = create_table(tmp_path / "t")
    reports: list[tuple[int, int]] = []
    run_map_columns(uri, progress=lambda done, of: reports.append((done, of)))
    assert (reports[0], reports[-1]) == ((0, 10), (10, 10))
    assert not list((Path(uri) / "_lance_assets").glob("work/*"))
    tasks_repeated = create_table(tmp_path / "again")
    with pytest.raises(KeyboardInterrupt):
        run_map_columns(tasks_repeated, resume_key="k", runner=WorkersOfDyingDriver(tasks_before=4))
    reports.clear()
    run_map_columns(tasks_repeated, resume_key="k", progress=lambda done, of: reports.append((done, of)))
    assert (reports[0], reports[-1]) == ((4, 10), (10, 10))


def test_columns_are_added_on_a_branch(tmp_path: Path) -> None:
    uri = create_table(tmp_path / "t")
    Table.open(uri, durable=False).branches.create("try")
    where = TableRef(uri, branch="try", durable=False)
    computation = Computation(double_ids, ["id"], DOUBLE)
    map_columns(where, computation, resume_key="k", progress=None, options=WriteOptions(), runner=InProcessWorkers())
    assert "twice" in Table.open(uri, branch="try").schema.names
    assert "twice" not in Table.open(uri).schema.names


def test_a_cleanup_keeps_resumable_work(tmp_path: Path) -> None:
    """The files are as old as those of an abandoned write, but the job has recorded progress since."""
    uri = create_table(tmp_path / "t")
    with pytest.raises(KeyboardInterrupt):
        run_map_columns(uri, resume_key="k", runner=WorkersOfDyingDriver(tasks_before=9))
    set_file_age(Path(uri) / "data", days=20)
    Table.open(uri, durable=False).cleanup(older_than=timedelta(0))
    workers = InProcessWorkers()
    run_map_columns(uri, resume_key="k", runner=workers)
    assert len(workers.attempts) == 1


def test_a_cleanup_removes_abandoned_work(tmp_path: Path) -> None:
    uri = create_table(tmp_path / "t")
    with pytest.raises(KeyboardInterrupt):
        run_map_columns(uri, resume_key="k", runner=WorkersOfDyingDriver(tasks_before=4))
    directory = Path(uri) / progress_module.directory_of("k")
    set_file_age(directory, days=40)
    set_file_age(Path(uri) / "data", days=40)
    report = Table.open(uri, durable=False).cleanup(older_than=timedelta(0))
    assert len(report.orphans) == 4
    assert not directory.exists()
    workers = InProcessWorkers()
    run_map_columns(uri, resume_key="another", runner=workers)
    assert len(workers.attempts) == 10


def set_file_age(directory: Path, *, days: int) -> None:
    then = time.time() - days * 86_400
    for path in directory.iterdir():
        os.utime(path, (then, then))


# Columns that exist


def recompute(
    uri: str,
    fn: object = minus_ones,
    *,
    mode: Mode = "recompute",
    where: str | None = None,
    code_version: str | None = None,
    resume_key: str | None = None,
    runner: InProcessWorkers | None = None,
) -> Committed:
    computation = Computation(fn, ["id"], DOUBLE, mode, where, code_version)  # type: ignore[arg-type]
    return map_columns(
        TableRef(uri, durable=False),
        computation,
        resume_key=resume_key,
        progress=None,
        options=WriteOptions(),
        runner=runner or InProcessWorkers(),
    )


def create_filled_table(directory: Path) -> str:
    """Create a table whose column is null in every third row of the first half, and in ten rows without a file."""
    uri = create_table(directory, stable=True)
    table = Table.open(uri, durable=False).add_columns(
        {"twice": "case when id < 50 and id % 3 = 0 then null else id end"}
    )
    table.table.append(pa.table({"id": pa.array(range(100, 110), pa.int64())}))
    return uri


@pytest.mark.parametrize("where", [None, "id between 15 and 24 or id > 105"])
@pytest.mark.parametrize("mode", ["recompute", "fill"])
def test_existing_columns_are_computed_again(tmp_path: Path, mode: Mode, where: str | None) -> None:
    uri = create_filled_table(tmp_path / "t")
    before = Table.open(uri).to_table(["id", "twice"]).to_pylist()
    workers = InProcessWorkers(lost_partitions=frozenset({0}))
    committed = recompute(uri, double_ids_as_integers, mode=mode, where=where, runner=workers)

    def is_computed(row: dict[str, int | None]) -> bool:
        number = row["id"] or 0
        return (where is None or 15 <= number <= 24 or number > 105) and (mode == "recompute" or row["twice"] is None)

    expected = [2 * row["id"] if is_computed(row) else row["twice"] for row in before]
    table = committed.table
    assert (committed.operation, table.to_table()["twice"].to_pylist()) == ("Update", expected)
    assert lance.dataset(uri).to_table()["twice"].to_pylist() == expected
    changed = [row["id"] for row, value in zip(before, expected, strict=True) if row["twice"] != value]
    assert sorted(table.changes(table.version - 1)["id"].to_pylist()) == changed
    fragments = {number // 10 for number in changed}
    assert committed.files == len(fragments), "a fragment without a changed row gets no file"
    again = recompute(uri, double_ids_as_integers, mode=mode, where=where)
    assert again.version == committed.version, "no value changes"
    assert table.fsck().is_sound


def wide_vectors(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = pa.array(np.repeat(batch["id"].to_numpy().astype(np.float32), 20))
    return pa.record_batch([pa.FixedSizeListArray.from_arrays(values, 20)], names=["vector"])


def test_wide_columns_are_computed_for_some_rows(tmp_path: Path) -> None:
    uri, schema = create_table(tmp_path / "t", stable=True), pa.schema([pa.field("vector", pa.list_(pa.float32(), 20))])
    for version, (where, rows) in enumerate(
        [("id < 35", range(35)), ("id between 25 and 44", range(45)), (None, range(100))], 2
    ):
        computation = Computation(wide_vectors, ["id"], schema, "recompute", where)
        table = map_columns(
            TableRef(uri, durable=False),
            computation,
            resume_key=None,
            progress=None,
            options=WriteOptions(),
            runner=InProcessWorkers(),
        ).table
        assert table.version == version
        found = table.to_table()["vector"].to_pylist()
        assert found == [[float(n)] * 20 if n in rows else None for n in range(100)]
        assert lance.dataset(uri).to_table()["vector"].to_pylist() == found


def test_columns_that_do_not_exist_are_added_in_every_mode(tmp_path: Path) -> None:
    modes: tuple[Mode, ...] = ("add", "fill", "recompute")
    for mode in modes:
        uri = create_table(tmp_path / mode)
        rows = recompute(uri, double_ids, mode=mode, where="id < 25").table.to_table()
        assert rows["twice"].to_pylist() == [2 * n if n < 25 else None for n in range(100)]
        assert lance.dataset(uri).to_table() == rows


def test_a_killed_recomputation_resumes(tmp_path: Path) -> None:
    uri = create_filled_table(tmp_path / "t")
    with pytest.raises(KeyboardInterrupt):
        recompute(uri, mode="fill", resume_key="k", runner=WorkersOfDyingDriver(tasks_before=11))
    table = Table.open(uri, durable=False)
    assert table.version == 3
    table.delete("id = 1")
    table.add_columns({"twice": "77"}, replace=True, where="id = 25")
    workers = InProcessWorkers()
    rows = recompute(uri, double_ids_as_integers, mode="fill", resume_key="k", runner=workers).table.to_table()
    assert len(workers.attempts) == 1, "the fragment whose values have changed"
    computed = {n: 2 * n if 20 <= n < 30 else -1 for n in [*range(0, 50, 3), *range(100, 110)]}
    assert dict(zip(rows["id"].to_pylist(), rows["twice"].to_pylist(), strict=True)) == {
        n: 77 if n == 25 else computed.get(n, n) for n in range(110) if n != 1
    }
    assert not (Path(uri) / progress_module.directory_of("k")).exists()


def test_a_resume_key_belongs_to_one_code_version(tmp_path: Path) -> None:
    uri = create_filled_table(tmp_path / "t")
    with pytest.raises(KeyboardInterrupt):
        recompute(uri, code_version="1", resume_key="k", runner=WorkersOfDyingDriver(tasks_before=1))
    with pytest.raises(InvalidInput, match="differs in code_version"):
        recompute(uri, code_version="2", resume_key="k")
    committed = recompute(uri, code_version="2", resume_key="another")
    assert committed.table.version_info().properties["lance_assets.code_version"] == "2"


@pytest.mark.parametrize(
    ("change", "tasks_added"),
    [
        (lambda table: table.append(pa.table({"id": [200]})), 0),
        (lambda table: table.delete("id % 10 = 3"), 0),
        (lambda table: table.create_index("twice", "BTREE"), 0),
        (lambda table: table.upsert(pa.table({"id": [5, 300], "x": [0.5, 0.5], "twice": [5, 6]}), on="id"), 1),
        (lambda table: table.add_columns({"x": "0.25"}, replace=True), 0),
        (lambda table: table.add_columns({"twice": "0"}, replace=True, where="id = 42"), 1),
        (lambda table: table.compact(), 1),
    ],
)
def test_a_recomputation_keeps_completed_work(tmp_path: Path, change: Change, tasks_added: int) -> None:
    uri = create_filled_table(tmp_path / "t")
    workers = WorkersWithConcurrentChange(uri=uri, change=change)
    table = recompute(uri, runner=workers).table
    assert len(workers.attempts) == 11 + tasks_added
    rows = table.to_table()
    appended = {200}  # an append comes after the recomputation, so its row keeps its value
    assert {n for n, v in zip(rows["id"].to_pylist(), rows["twice"].to_pylist(), strict=True) if v != -1} <= appended
    assert lance.dataset(uri).to_table() == rows
    assert table.fsck().is_sound


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "replace"}, "mode='replace': it must be one of 'add', 'fill', 'recompute'"),
        ({"mode": "add"}, r"has a column 'twice' already.*mode='recompute'"),
        ({"where": "nope = 1"}, "no column 'nope'"),
        ({"code_version": 5}, "code_version"),
        ({"fn": return_other_type}, "'twice' is stored as int64"),
    ],
)
def test_invalid_recomputations_are_rejected(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    uri = create_filled_table(tmp_path / "t")
    with pytest.raises(InvalidInput, match=message):
        recompute(uri, **options)
    assert Table.open(uri).version == 3
