"""Map columns: workers compute the columns of one process, and a resumed job does not repeat completed fragments."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lance_core import InvalidInput, RetryableConflict, SchemaMismatch, Table
from lance_core.coordination import progress as progress_module
from lance_core.tasks.columns.map_columns import Computation, ProgressCallback, map_columns
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.partitioning import Task
from tests.lance_core.tasks.in_process_workers import Loop

ROWS = pa.table({"id": pa.array(range(100), pa.int64()), "x": [None if n % 7 == 0 else n / 3 for n in range(100)]})
DOUBLE = pa.schema([pa.field("twice", pa.int64())])
Meddle = Callable[[Table], object]
VECTOR = pa.schema([pa.field("vector", pa.list_(pa.float32(), 4)), pa.field("text", pa.string(), nullable=False)])


def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"twice": pc.multiply(batch["id"], 2)})


def in_whole_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"twice": pc.cast(pc.multiply(batch["id"], 2), pa.int64())})


def wide(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = np.repeat(batch["id"].to_numpy().astype(np.float32), 4)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values), 4)
    return pa.record_batch([pc.cast(batch["id"], pa.string()), vectors], names=["text", "vector"])


def too_few(batch: pa.RecordBatch) -> pa.RecordBatch:
    return twice(batch.slice(1) if batch["id"][0].as_py() == 30 else batch)


def other_type(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"twice": batch["x"]})


def other_names(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"thrice": batch["id"]})


def broken(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise ArithmeticError("no more")


def changed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"twice": pa.array([-1] * batch.num_rows, pa.int64())})


@dataclass
class Meddled(Loop):
    """Workers during whose first job another writer changes the table."""

    uri: str = ""
    meddle: Meddle = field(default=lambda table: None)

    def run(self, task: Task, parts: int) -> pa.Table:
        first = not self.ran
        answers = super().run(task, parts)
        if first:
            self.meddle(Table.open(self.uri, durable=False))
        return answers


@dataclass
class Killed(Loop):
    """Workers whose driver dies after some of the tasks are complete."""

    after: int = 0

    def run(self, task: Task, parts: int) -> pa.Table:
        super().run(task, self.after)
        raise KeyboardInterrupt


def made(place: Path, *, stable: bool = False) -> str:
    uri = str(place)
    Table.create(uri, ROWS, max_rows_per_file=10, stable_row_ids=stable, durable=False)
    return uri


def run(
    uri: str,
    fn: object = twice,
    schema: pa.Schema = DOUBLE,
    *,
    read: list[str] | None = None,
    key: str | None = None,
    progress: ProgressCallback | None = None,
    how: WriteOptions | None = None,
    runner: Loop | None = None,
) -> Table:
    computation = Computation(fn, read, schema)  # type: ignore[arg-type]
    where, loop = TableRef(uri, durable=False), runner or Loop()
    return map_columns(
        where, computation, resume_key=key, progress=progress, options=how or WriteOptions(), runner=loop
    ).table


@pytest.mark.parametrize("stable", [False, True])
def test_it_makes_the_columns_that_one_process_would(tmp_path: Path, stable: bool) -> None:
    spread, alone = made(tmp_path / "spread", stable=stable), made(tmp_path / "alone", stable=stable)
    for uri in (spread, alone):
        Table.open(uri, durable=False).delete("id % 5 = 2 or id between 20 and 29")
    for fn, schema in ((twice, DOUBLE), (wide, VECTOR)):
        theirs = Table.open(alone, durable=False).add_columns(fn, schema=schema, read_columns=["id"])
        ours = run(spread, fn, schema, read=["id"], runner=Loop(lost=frozenset({1, 4})))
        assert ours.schema == theirs.table.schema
        assert ours.to_table() == theirs.table.to_table()
        assert lance.dataset(spread).to_table()[schema.names[0]] == ours.to_table()[schema.names[0]]
    assert Table.open(spread).fsck().is_sound
    assert len(Table.open(spread).fragments) == 9


def test_a_table_without_rows_gets_the_column(tmp_path: Path) -> None:
    uri, loop = str(tmp_path / "t"), Loop()
    Table.create(uri, ROWS.schema, durable=False)
    assert run(uri, runner=loop).schema.names == ["id", "x", "twice"]
    assert loop.ran == []


@pytest.mark.parametrize(
    ("fn", "schema", "read", "message"),
    [
        (too_few, DOUBLE, None, "fragment 3, rows 0 to 9: .* was given 10 rows and returned 9"),
        (other_type, DOUBLE, None, "fragment 0, rows 0 to 9: .*'twice' is stored as int64, but the data has double"),
        (
            other_names,
            DOUBLE,
            None,
            "fragment 0, rows 0 to 9: .* returned the columns thrice; the expected columns are twice",
        ),
        (twice, pa.schema([pa.field("x", pa.int64())]), None, "has a column 'x' already"),
        (twice, DOUBLE, ["nope"], "nope"),
        (twice, pa.schema([]), None, "no new column"),
        ("twice", DOUBLE, None, "fn is a function"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_committed(
    tmp_path: Path, fn: object, schema: pa.Schema, read: list[str] | None, message: str
) -> None:
    uri = made(tmp_path / "t")
    with pytest.raises(InvalidInput, match=message):
        run(uri, fn, schema, read=read)
    assert Table.open(uri).version == 1


def test_nulls_where_none_may_be_are_told(tmp_path: Path) -> None:
    uri = made(tmp_path / "t")
    with pytest.raises(SchemaMismatch, match=r"fragment 0, .*not nullable, but the data has 2 nulls"):
        run(uri, other_type, pa.schema([pa.field("twice", pa.float64(), nullable=False)]))


def test_what_the_function_raises_says_where(tmp_path: Path) -> None:
    uri = made(tmp_path / "t")
    with pytest.raises(ArithmeticError) as raised:
        run(uri, broken)
    assert "fragment" in raised.value.__notes__[0]


def test_work_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    uri = made(tmp_path / "t")
    with pytest.raises(KeyboardInterrupt):
        run(uri, key="k", runner=Killed(after=9))
    loop = Loop()
    table = run(uri, changed, key="k", runner=loop)
    assert len(loop.ran) == 1
    expected = [-1 if number >= 90 else 2 * number for number in range(100)]
    assert table.to_table()["twice"].to_pylist() == expected
    assert not (Path(uri) / progress_module.directory_of("k")).exists()
    assert not list((Path(uri) / "_lance_assets" / "holds").glob("*"))
    assert lance.dataset(uri).to_table()["twice"].to_pylist() == expected


def test_a_key_lands_once(tmp_path: Path) -> None:
    uri, loop = made(tmp_path / "t"), Loop()
    assert run(uri, key="k").version == 2
    assert run(uri, key="k", runner=loop).version == 2
    assert loop.ran == []


def test_a_key_stands_for_one_work(tmp_path: Path) -> None:
    uri = made(tmp_path / "t")
    with pytest.raises(KeyboardInterrupt):
        run(uri, key="k", runner=Killed(after=1))
    with pytest.raises(InvalidInput, match="differs in read_columns, schema"):
        run(uri, wide, VECTOR, read=["id"], key="k")
    with pytest.raises(InvalidInput, match="resume_key"):
        run(uri, key="")


def test_records_that_do_not_fit_are_done_again(tmp_path: Path) -> None:
    uri = made(tmp_path / "t")
    with pytest.raises(KeyboardInterrupt):
        run(uri, key="k", runner=Killed(after=8))
    directory = Path(uri) / progress_module.directory_of("k")
    (directory / "fragment-0.bin").write_bytes(b"\xff\xff")
    (directory / "fragment-1.bin").write_bytes((directory / "fragment-2.bin").read_bytes())
    gone = next(
        iter(progress_module.completed_fragments(Table.open(uri)._location.store, progress_module.directory_of("k")))
    ).files[-1]
    (Path(uri) / gone.qualified_path).unlink()
    table = Table.open(uri, durable=False)
    table.update({"x": "0.5"}, where="id = 35")
    table.delete("id = 45")
    loop = Loop()
    result = run(uri, changed, key="k", runner=loop).to_table().sort_by("id")
    # Fragments 8 and 9, the three without a file or a readable record, and the rows that the update moved.
    assert len(loop.ran) == 6
    assert result["twice"].to_pylist() == [
        -1 if (n < 30 and n // 10 in (0, 1, 2)) or n >= 80 or n == 35 else 2 * n for n in range(100) if n != 45
    ]
    assert Table.open(uri).fsck().is_sound


@pytest.mark.parametrize(("column", "again"), [("id", 10), ("x", 0)])
def test_columns_that_were_read_and_written_anew_are_read_again(tmp_path: Path, column: str, again: int) -> None:
    uri = made(tmp_path / "t")
    with pytest.raises(KeyboardInterrupt):
        run(uri, key="k", read=["id"], runner=Killed(after=10))
    Table.open(uri, durable=False).alter_column(column, type=pa.float32())
    loop = Loop()
    run(uri, in_whole_numbers, read=["id"], key="k", runner=loop)
    assert len(loop.ran) == again


def test_rows_that_came_back_are_computed(tmp_path: Path) -> None:
    uri = made(tmp_path / "t")
    before = Table.open(uri, durable=False)
    before.delete("id = 5")
    with pytest.raises(KeyboardInterrupt):
        run(uri, key="k", runner=Killed(after=10))
    Table.open(uri, durable=False).restore(1)
    loop = Loop()
    assert run(uri, key="k", runner=loop).to_table()["twice"].to_pylist() == [2 * number for number in range(100)]
    assert len(loop.ran) == 1


MEDDLING: list[tuple[Meddle, int, int]] = [
    (lambda table: table.append(ROWS.slice(0, 3)), 1, 103),
    (lambda table: table.delete("id % 10 = 3"), 0, 90),
    (lambda table: table.update({"x": "1.5"}, where="id < 5"), 1, 100),
    (lambda table: table.compact(), 1, 100),
    (lambda table: table.add_columns({"other": "id + 1"}), 0, 100),
    (lambda table: table.delete("id < 10"), 0, 90),
]


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize(("meddle", "more", "rows"), MEDDLING)
def test_others_at_work_do_not_throw_it_away(
    tmp_path: Path, meddle: Meddle, more: int, rows: int, key: str | None
) -> None:
    uri = made(tmp_path / "t")
    loop = Meddled(uri=uri, meddle=meddle)
    table = run(uri, key=key, runner=loop)
    assert len(loop.ran) == 10 + more
    found = table.to_table(columns=["id", "twice"])
    assert found["twice"] == pc.multiply(found["id"], 2)
    assert table.count_rows() == rows
    theirs = lance.dataset(uri).to_table()
    assert theirs["twice"] == pc.multiply(theirs["id"], 2)
    assert Table.open(uri).fsck().is_sound


def test_at_no_version_is_the_column_there_in_part(tmp_path: Path) -> None:
    uri = made(tmp_path / "t")
    run(uri, runner=Meddled(uri=uri, meddle=lambda table: table.append(ROWS.slice(0, 3))))
    for version in Table.open(uri).versions():
        table = Table.open(uri, version=version.version)
        if "twice" in table.schema.names:
            assert table.count_rows("twice is null") == 0


def test_a_column_of_that_name_that_came_meanwhile_is_told(tmp_path: Path) -> None:
    uri = made(tmp_path / "t")
    loop = Meddled(uri=uri, meddle=lambda table: table.add_columns({"twice": "id"}))
    with pytest.raises(InvalidInput, match="has a column 'twice' already"):
        run(uri, runner=loop)


def test_it_gives_up_where_it_may_not_repeat(tmp_path: Path) -> None:
    uri = made(tmp_path / "t")
    loop = Meddled(uri=uri, meddle=lambda table: table.append(ROWS.slice(0, 3)))
    with pytest.raises(RetryableConflict):
        run(uri, how=WriteOptions(retries=1), runner=loop)


def test_progress_is_told(tmp_path: Path) -> None:
    uri = made(tmp_path / "t")
    told: list[tuple[int, int]] = []
    run(uri, progress=lambda done, of: told.append((done, of)))
    assert (told[0], told[-1]) == ((0, 10), (10, 10))
    assert not list((Path(uri) / "_lance_assets").glob("work/*"))
    again = made(tmp_path / "again")
    with pytest.raises(KeyboardInterrupt):
        run(again, key="k", runner=Killed(after=4))
    told.clear()
    run(again, key="k", progress=lambda done, of: told.append((done, of)))
    assert (told[0], told[-1]) == ((4, 10), (10, 10))


def test_it_works_on_a_branch(tmp_path: Path) -> None:
    uri = made(tmp_path / "t")
    Table.open(uri, durable=False).branches.create("try")
    where = TableRef(uri, branch="try", durable=False)
    computation = Computation(twice, ["id"], DOUBLE)
    map_columns(where, computation, resume_key="k", progress=None, options=WriteOptions(), runner=Loop())
    assert "twice" in Table.open(uri, branch="try").schema.names
    assert "twice" not in Table.open(uri).schema.names


def test_a_cleanup_spares_work_that_may_be_gone_on_with(tmp_path: Path) -> None:
    """The files are as old as those of an abandoned write, but the job has recorded progress since."""
    uri = made(tmp_path / "t")
    with pytest.raises(KeyboardInterrupt):
        run(uri, key="k", runner=Killed(after=9))
    aged(Path(uri) / "data", days=20)
    Table.open(uri, durable=False).cleanup(older_than=timedelta(0))
    loop = Loop()
    run(uri, key="k", runner=loop)
    assert len(loop.ran) == 1


def test_a_cleanup_takes_work_that_nobody_went_on_with(tmp_path: Path) -> None:
    uri = made(tmp_path / "t")
    with pytest.raises(KeyboardInterrupt):
        run(uri, key="k", runner=Killed(after=4))
    directory = Path(uri) / progress_module.directory_of("k")
    aged(directory, days=40)
    aged(Path(uri) / "data", days=40)
    report = Table.open(uri, durable=False).cleanup(older_than=timedelta(0))
    assert len(report.orphans) == 4
    assert not directory.exists()
    loop = Loop()
    run(uri, key="another", runner=loop)
    assert len(loop.ran) == 10


def aged(directory: Path, *, days: int) -> None:
    then = time.time() - days * 86_400
    for path in directory.iterdir():
        os.utime(path, (then, then))
