"""Tests of `lance_core/tasks/columns/computed_fill.py`: after a run, every row of a computed column has the value that
the newest code gives for its present inputs, whatever happened to the table, and no row is computed without reason."""

import json
import random
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_core import IncompatibleConflict, InvalidInput, Table
from lance_core.dml.computed_column import ComputedColumn, ErrorPolicy
from lance_core.dml.failed_rows import GRACE, find_removable, read_entries
from lance_core.progress import OperationProgress, reporting
from lance_core.scan.blobs import BlobFile
from lance_core.tasks.columns.computed_fill import Bounds, FillReport, compute_columns
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.partitioning import LocalRunner, Task

STEPS = 14
FAILING = 3
"""Input for which the third column fails."""
NO_BOUNDS = Bounds()


class Killed(BaseException):
    """End of a driver."""


@dataclass
class InterruptedRunner:
    """Runs tasks in this process; `interrupt` runs after the first job, before its results reach the driver."""

    interrupt: Callable[[], object] | None = None
    slots: int = 1

    def run(self, task: Task, partitions: int) -> pa.Table:
        results = LocalRunner().run(task, partitions)
        interrupt, self.interrupt = self.interrupt, None
        if interrupt is not None:
            interrupt()
        return results


def doubled_of(a: int | None, version: int) -> int | None:
    """Return the value of the second column, which tells all inputs and versions of the code apart."""
    return None if a is None else 2 * a + 1_000 * version


@dataclass
class History:
    """One table with three computed columns: the second reads the first, and the third fails for some rows."""

    uri: str
    choices: random.Random
    on_error: ErrorPolicy = "null"
    code_version: int = 1
    next_id: int = 0
    calls: list[tuple[int, int, int]] = field(default_factory=list)
    """Rows for which the function was called: id, input and version of the code."""

    def columns(self) -> list[ComputedColumn]:
        version = self.code_version

        def double(batch: pa.RecordBatch) -> pa.Array:
            ids, inputs = batch.column("id").to_pylist(), batch.column("a").to_pylist()
            self.calls += [(row, -1 if a is None else a, version) for row, a in zip(ids, inputs, strict=True)]
            return pa.array([doubled_of(a, version) for a in inputs], pa.int64())

        doubled = ComputedColumn("doubled", pa.int64(), double, inputs=["id", "a"], code_version=str(version))
        inverse = ComputedColumn(
            "inverse",
            pa.float64(),
            lambda row: 1 / (row["a"] - FAILING),
            inputs=["a"],
            per="row",
            on_error=self.on_error,
            error_keys=["id"],
        )
        return [ComputedColumn("squared", pa.int64(), sql="doubled * doubled"), doubled, inverse]

    def fill(self, bounds: Bounds = NO_BOUNDS, interrupt: Callable[[], object] | None = None) -> list[FillReport]:
        runner = InterruptedRunner(interrupt=interrupt)
        fresh, calls = self.fresh_ids(), len(self.calls)
        runner_options = WriteOptions(retries=20)
        table = TableRef(self.uri, durable=False)
        reports = compute_columns(
            table,
            self.columns(),
            recompute=False,
            bounds=bounds,
            options=runner_options,
            runner_for=lambda _column: runner,
        )
        if interrupt is None:
            assert not [call for call in self.calls[calls:] if call[0] in fresh], "rows are computed without reason"
        return list(reports)

    def fresh_ids(self) -> set[int]:
        """Return the rows that have the value of their inputs and the present code."""
        if "doubled" not in self.table().schema.names:
            return set()
        rows = self.table().to_table(["id", "a", "doubled"], filter="doubled is not null").to_pylist()
        return {row["id"] for row in rows if row["doubled"] == doubled_of(row["a"], self.code_version)}

    def table(self) -> Table:
        return Table.open(self.uri, durable=False)

    def new_rows(self) -> dict[str, object]:
        count = self.choices.randint(1, 6)
        ids = list(range(self.next_id, self.next_id + count))
        self.next_id += count
        inputs = pa.array([self.choices.choice([None, *range(6)]) for _ in ids], pa.int64())
        return {"id": ids, "a": inputs, "b": ["new"] * count}

    def condition(self) -> str:
        return f"id % {self.choices.randint(2, 4)} = {self.choices.randint(0, 1)}"

    def change(self) -> None:
        """Change the table by one operation of this library or of pylance."""
        rows: Mapping[str, object]
        match self.choices.randrange(12):
            case 0 | 1:
                self.table().append(self.new_rows())
            case 2:
                self.table().update({"a": "a + 1"}, where=self.condition())
            case 3:
                self.table().update({"b": "'changed'"}, where=self.condition())
            case 4:
                self.table().delete(f"id = {self.choices.randrange(self.next_id + 1)}")
            case 5:
                self.table().compact()
            case 6:
                ids = sorted({self.choices.randrange(self.next_id + 3) for _ in range(3)})
                self.next_id = max(self.next_id, ids[-1] + 1)
                self.table().upsert({"id": ids, "a": [9] * len(ids), "b": ["upsert"] * len(ids)}, "id")
            case 7:
                rows = self.new_rows()
                lance.write_dataset(pa.table({**rows, "id": pa.array(rows["id"])}), self.uri, mode="append")
            case 8:
                lance.dataset(self.uri).update({"a": "7"}, where=self.condition())
            case 9:
                lance.dataset(self.uri).optimize.compact_files()
            case 10:
                self.code_version += 1
            case _:
                table = self.table()
                earlier = self.choices.choice(table.version_numbers())
                if "doubled" in table.at(earlier).schema.names:
                    table.restore(earlier)

    def step(self) -> None:
        match self.choices.randrange(8):
            case 0:
                with pytest.raises(Killed):
                    self.append_and_fill(interrupt=self._kill)
            case 1:
                with suppress(IncompatibleConflict):  # a restore meanwhile
                    self.append_and_fill(interrupt=self.change_data)
            case 2:
                self.append_and_fill(interrupt=self.fill)
            case 3:
                self.fill(Bounds(rows_max=3))
            case 4:
                self.fill()
            case _:
                self.change()

    def append_and_fill(self, interrupt: Callable[[], object]) -> None:
        self.table().append(self.new_rows())
        self.fill(interrupt=interrupt)

    def change_data(self) -> None:
        version = self.code_version
        self.change()
        self.code_version = version

    def _kill(self) -> None:
        raise Killed

    def check(self) -> None:
        """Fill the columns and compare every row with the function of its inputs."""
        self.fill()
        for rows in (self.table().to_table().to_pylist(), lance.dataset(self.uri).to_table().to_pylist()):
            for row in rows:
                doubled = doubled_of(row["a"], self.code_version)
                assert row["doubled"] == doubled, row
                assert row["squared"] == (None if doubled is None else doubled**2), row
        calls = len(self.calls)
        reports = self.fill()
        assert [report.computed for report in reports] == [0, 0, 0]
        assert len(self.calls) == calls
        self.check_failed_rows()
        failed = self.table().failed_rows().num_rows
        skipped = failed if self.on_error == "skip" else 0
        for name, stale in (("doubled", 0), ("squared", 0), ("inverse", skipped)):
            freshness = self.table().freshness(name)
            assert freshness is not None
            assert (freshness.stale, freshness.rows) == (stale, self.table().count_rows())
        assert reports[-1].failed_total in (0, failed)

    def check_failed_rows(self) -> None:
        """Compare the side table with the rows for which the function raises."""
        rows = self.table().to_table(with_row_id=True).to_pylist()
        failing = {row["_rowid"]: json.dumps({"id": row["id"]}) for row in rows if row["a"] in (None, FAILING)}
        for row in rows:
            is_failing = row["_rowid"] in failing
            assert row["inverse"] == (None if is_failing else 1 / (row["a"] - FAILING)), row
        entries = self.table().failed_rows("inverse").to_pylist()
        named = {entry["row_id"]: entry["key"] for entry in entries}
        assert len(named) == len(entries)
        if self.table().manifest.has_stable_row_ids or self.on_error == "skip":
            assert named == failing
        else:  # a compaction gives rows another id
            assert named.items() <= failing.items()
        assert {entry["error_type"] for entry in entries} <= {"ZeroDivisionError", "TypeError"}
        if entries:  # a file of entries is appended once
            raw = Table.open(f"{self.uri}_errors").to_table(["row_id", "time"]).to_pylist()
            assert len({(entry["row_id"], entry["time"]) for entry in raw}) == len(raw)


@pytest.mark.parametrize("seed", range(9))
def test_rows_have_the_values_of_their_inputs(tmp_path: Path, seed: int) -> None:
    choices = random.Random(seed)
    history = History(str(tmp_path / "t"), choices, "skip" if seed % 3 == 0 else "null")
    Table.create(history.uri, history.new_rows(), max_rows_per_file=3, stable_row_ids=seed % 2 == 0, durable=False)
    for _ in range(STEPS):
        history.step()
    history.check()


def test_a_row_is_computed_once_for_each_reason(tmp_path: Path) -> None:
    history = History(str(tmp_path / "t"), random.Random(0))
    Table.create(history.uri, {"id": range(10), "a": range(10), "b": ["x"] * 10}, max_rows_per_file=4, durable=False)

    def called() -> list[int]:
        history.calls.clear()
        history.fill()
        return sorted(row for row, _a, _version in history.calls)

    assert called() == list(range(10))
    history.table().append({"id": [10], "a": [1], "b": ["x"]})
    assert called() == [10]
    history.table().update({"b": "'y'"}, where="id < 5")
    assert called() == []
    history.table().update({"a": "100"}, where="id = 3")
    assert called() == [3]
    history.table().compact()
    assert called() == []
    history.code_version = 2
    assert called() == list(range(11))
    history.table().restore(3)  # the version after the first run
    assert called() == list(range(10))


def test_a_branch_is_filled_alone(tmp_path: Path) -> None:
    """Records of fresh fragments and entries of failed rows belong to one branch."""
    uri = str(tmp_path / "t")
    rows = {"id": [0, 1, 2], "a": pa.array([1, FAILING, None], pa.int64())}
    table = Table.create(uri, rows, stable_row_ids=True, durable=False)
    history = History(uri, random.Random(0), "null")

    def fill(branch: str | None) -> list[int]:
        reports = compute_columns(
            TableRef(uri, branch, durable=False),
            history.columns(),
            recompute=False,
            bounds=NO_BOUNDS,
            options=WriteOptions(),
            runner_for=lambda _column: LocalRunner(),
        )
        return [report.computed for report in reports]

    def failing(branch: str | None) -> list[str]:
        return sorted(Table.open(uri, branch=branch).failed_rows("inverse")["key"].to_pylist())

    table.branches.create("dev")
    assert fill("dev") == [3, 3, 3]
    assert Table.open(uri).version == table.version
    assert (failing("dev"), failing(None)) == (['{"id": 1}', '{"id": 2}'], [])
    Table.open(uri).update({"a": "5"}, where="id = 1")
    assert fill(None) == [3, 3, 3]
    assert (failing("dev"), failing(None)) == (['{"id": 1}', '{"id": 2}'], ['{"id": 2}'])
    Table.open(uri, branch="dev").append({"id": [3], "a": [FAILING]})
    assert (fill(None), fill("dev")) == ([0, 0, 0], [1, 1, 1])
    assert (len(failing("dev")), failing(None)) == (3, ['{"id": 2}'])
    errors = Table.open(f"{uri}_errors")._snapshot
    assert [len(read_entries(errors, branch, "inverse")) for branch in (None, "dev")] == [1, 3]
    tables = [Table.open(uri, branch=branch).to_table().sort_by("id") for branch in (None, "dev")]
    assert [table["doubled"].to_pylist() for table in tables] == [
        [doubled_of(a, 1) for a in inputs] for inputs in ([1, 5, None], [1, FAILING, None, FAILING])
    ]


def test_a_run_after_a_killed_driver_does_not_repeat_its_calls(tmp_path: Path) -> None:
    history = History(str(tmp_path / "t"), random.Random(0))
    Table.create(history.uri, {"id": range(10), "a": range(10), "b": ["x"] * 10}, max_rows_per_file=4, durable=False)
    with pytest.raises(Killed):
        history.fill(interrupt=history._kill)
    assert len(history.calls) == 10
    history.table().update({"a": "50"}, where="id = 9")
    history.calls.clear()
    history.fill()
    assert [(row, a) for row, a, _version in history.calls] == [(8, 8), (9, 50)]  # the other two fragments are resumed
    history.check()
    assert not list(Path(history.uri).glob("_lance_assets/work/*/*"))


@pytest.mark.parametrize("stable", [False, True])
def test_inputs_that_are_replaced_during_a_run_make_rows_stale(tmp_path: Path, stable: bool) -> None:
    """The replacement of inputs in a fragment without stale rows does not conflict with the commit of the run, which
    must not record the fragment as fresh."""
    uri = str(tmp_path / "t")
    Table.create(uri, {"id": range(10), "a": range(10)}, max_rows_per_file=4, stable_row_ids=stable, durable=False)
    column = ComputedColumn("w", pa.int64(), twice, inputs=["a"])

    def replace_input() -> None:
        Table.open(uri, durable=False).add_columns({"a": "a + 100"}, replace=True, where="id < 4")

    fill_one(uri, column)
    Table.open(uri, durable=False).append({"id": [10, 11], "a": [10, 11]})
    assert fill_one(uri, column, runner=InterruptedRunner(replace_input)).computed == 2
    assert fill_one(uri, column).computed == 4
    rows = Table.open(uri).to_table(["id", "a", "w"]).to_pylist()
    assert [row["a"] for row in rows] == [row["id"] + 100 * (row["id"] < 4) for row in rows]
    assert [row["w"] for row in rows] == [2 * row["a"] for row in rows]


def test_a_fragment_that_a_killed_run_left_incomplete_is_filled(tmp_path: Path) -> None:
    history = History(str(tmp_path / "t"), random.Random(0))
    Table.create(history.uri, {"id": range(10), "a": range(10), "b": ["x"] * 10}, max_rows_per_file=4, durable=False)
    with pytest.raises(Killed):
        history.fill(Bounds(rows_max=2), interrupt=history._kill)
    assert len(history.calls) == 2
    assert [report.remaining for report in history.fill()] == [0, 0, 0]


def test_a_restored_row_gets_a_value_from_the_resumed_run(tmp_path: Path) -> None:
    """The file of the killed run has no value for a row that was deleted then."""
    history = History(str(tmp_path / "t"), random.Random(0))
    Table.create(history.uri, {"id": range(10), "a": range(10), "b": ["x"] * 10}, max_rows_per_file=4, durable=False)
    history.fill()
    complete = history.table().version
    history.table().delete("id = 1")
    history.code_version = 2
    with pytest.raises(Killed):
        history.fill(interrupt=history._kill)
    history.table().restore(complete)
    assert [report.remaining for report in history.fill()] == [0, 0, 0]
    history.check()


def fill_one(uri: str, column: ComputedColumn, *, intent: str | None = None, **options: object) -> FillReport:
    """Fill one column, in this process."""
    recompute = bool(options.pop("recompute", False))
    runner: Any = options.pop("runner", LocalRunner())
    (report,) = compute_columns(
        TableRef(uri, durable=False),
        [column],
        recompute=recompute,
        bounds=Bounds(**options),  # type: ignore[arg-type]
        options=WriteOptions(intent=intent),
        runner_for=lambda _column: runner,
    )
    return report


def twice(batch: pa.RecordBatch) -> list[int | None]:
    return [None if number is None else 2 * number for number in batch.column(0).to_pylist()]


@pytest.mark.parametrize("stable", [False, True])
def test_an_input_is_a_field_and_not_a_name(tmp_path: Path, stable: bool) -> None:
    uri = str(tmp_path / "t")
    rows = {"a": range(4), "b": range(10, 14)}
    Table.create(uri, rows, max_rows_per_file=2, stable_row_ids=stable, durable=False)
    column = ComputedColumn("w", pa.int64(), twice, inputs=["a"])
    fill_one(uri, column)
    Table.open(uri).drop_columns(["a"])
    with pytest.raises(InvalidInput, match="needs 'a', which version"):
        Table.open(uri).freshness("w")
    Table.open(uri).alter_column("b", rename="a")
    assert fill_one(uri, column).computed == 4
    assert Table.open(uri).to_table(["w"])["w"].to_pylist() == [20, 22, 24, 26]
    lance.dataset(uri).drop_columns(["w"])
    with pytest.raises(InvalidInput, match="drop or rename the two together"):
        fill_one(uri, column)
    Table.open(uri).drop_columns([column.fingerprint])
    assert fill_one(uri, column).computed == 4


def test_fingerprints_are_renamed_and_dropped_with_their_column(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = Table.create(uri, {"a": range(4), "x__fingerprint": range(4)}, durable=False)
    fill_one(uri, ComputedColumn("w", pa.int64(), twice, inputs=["a"]))
    with pytest.raises(InvalidInput, match="'x__fingerprint' exists"):
        Table.open(uri).alter_column("w", rename="x")
    table = Table.open(uri).alter_column("w", rename="v").table
    assert table.schema.names == ["a", "x__fingerprint", "v", "v__fingerprint"]
    assert fill_one(uri, ComputedColumn("v", pa.int64(), twice, inputs=["a"])).computed == 0
    table = table.alter_column("v", rename="u", type=pa.int32()).table
    assert table.schema.names == ["a", "x__fingerprint", "u", "u__fingerprint"]
    assert fill_one(uri, ComputedColumn("u", pa.int32(), twice, inputs=["a"])).computed == 0
    assert lance.dataset(uri).to_table(columns=["u"])["u"].to_pylist() == [0, 2, 4, 6]
    assert Table.open(uri).drop_columns(["u"]).table.schema.names == ["a", "x__fingerprint"]


def test_values_of_a_user_are_not_replaced(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, {"a": [1], "w": [100]}, durable=False)
    with pytest.raises(InvalidInput, match="has a column 'w' that is not computed"):
        fill_one(uri, ComputedColumn("w", pa.int64(), twice, inputs=["a"]))


def test_a_repeated_intent_changes_nothing(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, {"a": range(4)}, durable=False)
    column = ComputedColumn("w", pa.int64(), twice, inputs=["a"])
    first = fill_one(uri, column, intent="fill")
    (tmp_path / "t" / "README.md").write_text("a file of the user")
    files = sorted(path for path in Path(uri).rglob("*") if path.is_file())
    again = fill_one(uri, column, intent="fill")
    assert (again.committed.version, again.committed.already_committed) == (first.committed.version, True)
    assert (again.before.rows, again.remaining, again.computed) == (4, 0, 0)
    assert sorted(path for path in Path(uri).rglob("*") if path.is_file()) == files


@pytest.mark.parametrize("stable_row_ids", [True, False])
@pytest.mark.parametrize("file_rows", [20, 3])
def test_bounded_runs_count_failed_rows_and_try_them_last(tmp_path: Path, stable_row_ids: bool, file_rows: int) -> None:
    """Each run calls the function for as many rows as its bound says. Rows that failed wait until all others were
    tried; then those that failed longest ago are tried first, so that each gets its turn."""
    uri = str(tmp_path / "t")
    Table.create(uri, {"a": range(20)}, max_rows_per_file=file_rows, stable_row_ids=stable_row_ids, durable=False)
    called: list[int] = []

    def reciprocal(row: dict[str, int]) -> float:
        called.append(row["a"])
        return 1 / max(0, row["a"] - 9)

    column = ComputedColumn("r", pa.float64(), reciprocal, inputs=["a"], on_error="skip", per="row")
    numbers, tried = [], []
    for _ in range(6):
        called.clear()
        report = fill_one(uri, column, rows_max=5)
        numbers.append((report.computed, report.failed_count, report.remaining))
        tried.append(sorted(called))
    assert numbers == [(0, 5, 20), (0, 5, 20), (5, 0, 15), (5, 0, 10), (0, 5, 10), (0, 5, 10)]
    assert tried == [list(range(start, start + 5)) for start in (0, 5, 10, 15, 0, 5)]
    assert Table.open(uri).failed_rows("r").num_rows == 10
    called.clear()
    Table.open(uri).append({"a": [30, 31]})
    report = fill_one(uri, column, rows_max=5)
    assert (report.computed, report.failed_count, report.remaining) == (2, 3, 10)
    assert sorted(called) == [0, 1, 2, 30, 31]
    assert fill_one(uri, column).remaining == 10
    assert fill_one(uri, column, recompute=True).remaining == 10
    repaired = replace(column, fn=lambda row: 0.5, on_error="fail")
    assert (fill_one(uri, repaired).computed, fill_one(uri, repaired).remaining) == (10, 0)


def test_new_code_does_not_wait_with_rows_that_failed_before(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, {"a": range(6)}, durable=False)
    column = ComputedColumn("r", pa.float64(), lambda row: 1 / max(0, row["a"] - 2), ["a"], on_error="skip", per="row")
    assert fill_one(uri, column, rows_max=3).failed_count == 3
    repaired = replace(column, fn=lambda row: float(row["a"]), code_version="2")
    assert fill_one(uri, repaired, rows_max=3).computed == 3
    assert Table.open(uri).to_table(["r"])["r"].to_pylist() == [0.0, 1.0, 2.0, None, None, None]


def test_a_table_at_the_same_place_has_records_of_its_own(tmp_path: Path) -> None:
    uri, column = str(tmp_path / "t"), ComputedColumn("w", pa.int64(), twice, inputs=["a"])
    records: list[tuple[Path, bytes]] = []
    for _ in range(2):
        Table.create(uri, {"a": range(4)}, durable=False)
        for path, content in records:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        assert fill_one(uri, column).computed == 4
        assert Table.open(uri).to_table(["w"])["w"].to_pylist() == [0, 2, 4, 6]
        records = [(path, path.read_bytes()) for path in Path(uri).glob("_lance_assets/computed/*")]
        shutil.rmtree(uri)


def test_expressions_have_a_type_of_their_own(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, {"id": [1, 2], "name": ["a", "bc"]}, durable=False)

    def fill(code_version: str) -> list[int]:
        reports = compute_columns(
            TableRef(uri, durable=False),
            [
                ComputedColumn("label", sql="concat(name, '-', cast(half as string))", code_version=code_version),
                ComputedColumn("half", sql="id / 2.0", code_version=code_version),
            ],
            recompute=False,
            bounds=NO_BOUNDS,
            options=WriteOptions(),
            runner_for=lambda _column: LocalRunner(),
        )
        return [report.computed for report in reports]

    assert (fill("1"), fill("1"), fill("2")) == ([2, 2], [0, 0], [2, 2])
    rows = Table.open(uri).to_table(["half", "label"])
    assert rows.schema.types == [pa.float64(), pa.string()]
    assert rows.to_pylist() == [{"half": 0.5, "label": "a-0.5"}, {"half": 1.0, "label": "bc-1.0"}]


def test_a_declaration_that_cannot_work_is_refused(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, {"id": [1]}, durable=False)

    def fill(*columns: ComputedColumn, bounds: Bounds = NO_BOUNDS, recompute: bool = False) -> None:
        table = TableRef(uri, durable=False)
        compute_columns(
            table,
            columns,
            recompute=recompute,
            bounds=bounds,
            options=WriteOptions(),
            runner_for=lambda _column: LocalRunner(),
        )

    def column(name: str, **options: object) -> ComputedColumn:
        return ComputedColumn(name, pa.int64(), **options)  # type: ignore[arg-type]

    for columns, message in (
        ([column("x", sql="y"), column("y", sql="x")], "from each other: x from y from x"),
        ([column("x", sql="x + 1")], "cannot be computed from itself"),
        ([column("x", sql="id"), column("x", sql="id")], "declared twice"),
        ([column("x", fn=len, inputs=["nothing"])], "nothing"),
        ([column("x", fn=len)], "inputs= names the columns"),
        ([ComputedColumn("x", fn=len, inputs=["id"])], "type= is missing"),
        ([ComputedColumn("x", sql="y"), ComputedColumn("y", sql="x")], "there is no column 'y'"),
        ([column("x", fn=len, inputs=["id", "id"])], "names a column twice"),
        ([column("x", fn=len, inputs=["_rowid"])], "there is no column '_rowid'"),
        ([column("x", fn=len, sql="id")], "exactly one of fn=, setup= and sql="),
        ([column("x", sql="id", on_error="ignore")], "'fail', 'null' or 'skip'"),
        ([column("id", sql="1", code_version="")], "code_version= is a text"),
        ([ComputedColumn("id", pa.string(), sql="'text'")], "keeps its type"),
    ):
        with pytest.raises(InvalidInput, match=message):
            fill(*columns)
    with pytest.raises(InvalidInput, match="leave out rows_max="):
        fill(column("x", sql="id"), bounds=Bounds(rows_max=1), recompute=True)
    assert Table.open(uri).version == 1


@pytest.mark.parametrize("policy", ["fail", "null", "skip"])
def test_rows_that_fail_follow_the_policy(tmp_path: Path, policy: str) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, {"id": range(8)}, max_rows_per_file=5, durable=False)
    is_repaired = False

    def reciprocal(batch: pa.RecordBatch) -> list[float]:
        return [1 / (number - 6 if not is_repaired else 1) for number in batch.column(0).to_pylist()]

    def fill() -> FillReport:
        column = ComputedColumn("r", pa.float64(), reciprocal, inputs=["id"], on_error=policy)  # type: ignore[arg-type]
        (report,) = compute_columns(
            TableRef(uri, durable=False),
            [column],
            recompute=False,
            bounds=NO_BOUNDS,
            options=WriteOptions(),
            runner_for=lambda _column: LocalRunner(),
        )
        return report

    if policy == "fail":
        with pytest.raises(ZeroDivisionError) as raised:
            fill()
        assert "computed column 'r'" in "".join(raised.value.__notes__)
        return
    report = fill()
    assert [(row.row_id, row.error) for row in report.failed] == [(1 << 32 | 1, "ZeroDivisionError: division by zero")]
    assert Table.open(uri).to_table(filter="r is null").column("id").to_pylist() == [6]
    is_repaired = True
    assert (fill().computed, report.remaining) == ((1, 1) if policy == "skip" else (0, 0))
    left = 0 if policy == "skip" else 1  # a row that holds a null is not tried again
    assert Table.open(uri).failed_rows("r").num_rows == left
    assert Table.open(str(tmp_path / "t_errors")).count_rows() == left


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (pa.array(["x"] * 10), "returned values of type string for a column of type int64"),
        (pa.array([0.5] * 10), "returned values of type double for a column of type int64"),
        (7, "returned no array of values"),
        (pa.array([1]), "returned 1 values"),
    ],
)
def test_errors_of_a_wrong_result_name_the_fragment(tmp_path: Path, result: object, message: str) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, pa.table({"a": range(20)}), max_rows_per_file=10, durable=False)
    column = ComputedColumn("w", pa.int64(), fn=lambda batch: result, inputs=["a"], code_version="1")
    with pytest.raises(InvalidInput, match=rf"{uri}: fragment \d, rows 0 to 9: the function of .* 'w'.* {message}"):
        fill_one(uri, column)


def image(name: str, rows: int) -> pa.Table:
    """Return rows with blobs whose content is known from their ids."""
    field = pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    ids = [f"{name}{number}" for number in range(rows)]
    return pa.table(
        {"id": ids, "image": pa.array([each.encode() * 1000 for each in ids], pa.large_binary())},
        pa.schema(
            [
                pa.field("id", pa.string()),
                field,
            ]
        ),
    )


@pytest.mark.parametrize(
    ("form", "identity"),
    [("files", ()), ("files", ("id",)), ("bytes", ()), ("arrow", ("id",)), ("numpy", ()), ("pandas", ())],
)
def test_blobs_are_read_where_they_are_needed(
    tmp_path: Path, form: str, identity: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "t")
    called: list[str] = []
    opened: list[int] = []

    def of_row(row: dict[str, Any]) -> int:
        content = row["image"] if form == "bytes" else row["image"].read()
        called.append(row["id"])
        assert content == row["id"].encode() * 1000
        return len(content)

    def of_batch(batch: Any) -> list[int]:
        columns = batch.to_pydict() if form == "arrow" else {name: list(batch[name]) for name in ("id", "image")}
        contents = [each if isinstance(each, bytes) else each.read() for each in columns["image"]]
        called.extend(columns["id"])
        assert contents == [each.encode() * 1000 for each in columns["id"]]
        return [len(each) for each in contents]

    settings: dict[str, Any] = {"per": "row", "blobs": form} if form in ("files", "bytes") else {"input_format": form}
    column = ComputedColumn(
        "size",
        pa.int64(),
        of_row if "per" in settings else of_batch,
        inputs=["id", "image"],
        blob_identity=identity,
        **settings,
    )

    def fill(**bounds: Any) -> tuple[list[str], int]:
        """Return the rows for which the function was called, and the number of blobs that were opened."""
        called.clear()
        opened.clear()
        fill_one(uri, column, **bounds)
        return sorted(called), len(opened)

    read = BlobFile.read

    def counted(file: BlobFile, size: int = -1) -> bytes:
        if not file.tell():
            opened.append(1)
        return read(file, size)

    monkeypatch.setattr(BlobFile, "read", counted)
    reads = 1 if identity else 2  # by the function, and for the fingerprint
    Table.create(uri, image("a", 3), storage_version="2.1", stable_row_ids=True, durable=False)
    assert fill(rows_max=1) == (["a0"], reads)
    assert fill() == (["a1", "a2"], 2 * reads + (0 if identity else 1))  # the value of a0 is compared
    Table.open(uri).append(image("b", 2))
    assert fill() == (["b0", "b1"], 2 * reads)
    Table.open(uri).delete("id = 'a1'").table.compact()
    assert fill() == ([], 0 if identity else 4)  # the blobs have moved
    assert fill() == ([], 0)
    freshness = Table.open(uri).freshness("size")
    assert freshness is not None
    assert (freshness.rows, freshness.stale) == (4, 0)
    assert Table.open(uri).to_table(["size"])["size"].to_pylist() == [2000] * 4


def test_progress_and_bounds_count_fragments(tmp_path: Path) -> None:
    """A bounded run inspects no fragment after its end, and reports those before it."""
    uri, column = str(tmp_path / "t"), ComputedColumn("w", pa.int64(), twice, inputs=["a"])
    Table.create(uri, {"a": range(30)}, max_rows_per_file=1, durable=False)
    for rows_max, states, fragments in ((5, [0], 30), (None, [0, 8, 16, 24, 25], 25)):
        reports: list[OperationProgress] = []
        with reporting(reports.append, "fill"):
            report = fill_one(uri, column, rows_max=rows_max)
        assert [(each.done, each.total, each.unit) for each in reports] == [
            (done, fragments, "fragments") for done in states
        ]
        assert report.before.uninspected == (25 if rows_max else 0)
        assert report.rows_by_code == {"1": 30 - report.remaining}
    assert (report.computed, report.remaining) == (25, 0)


def test_entries_of_failed_rows_outlive_other_runs(tmp_path: Path) -> None:
    """An entry that names the fingerprint of an uncommitted run is kept for a while, and is not shown."""
    uri = str(tmp_path / "pages.lance")
    Table.create(uri, {"id": [1, 2]}, stable_row_ids=True, durable=False)
    column = ComputedColumn(
        "r", pa.float64(), lambda row: 1 / (row["id"] - 2), inputs=["id"], per="row", on_error="null"
    )
    assert fill_one(uri, column).failed_total == 1
    table, errors = Table.open(uri), Table.open(str(tmp_path / "pages_errors.lance"))
    assert table.failed_rows("r")["row_id"].to_pylist() == [1]
    before_the_fill = table.at(2)
    assert before_the_fill.failed_rows().num_rows == 0
    entries = read_entries(errors._snapshot, None, "r")
    now = entries["time"][0].as_py()
    for later, removable in ((GRACE / 2, False), (2 * GRACE, True)):
        assert find_removable(before_the_fill._snapshot, entries, now + later).tolist() == [removable]
        assert find_removable(table._snapshot, entries, now + later).tolist() == [False]
    assert fill_one(uri, replace(column, fn=lambda row: 0.5, code_version="2")).failed_total == 0
    assert Table.open(uri).failed_rows().num_rows == 0
    assert errors.refresh().count_rows() == 1  # for an hour


@dataclass
class CapturingRunner:
    """Runs tasks in this process, and keeps them."""

    tasks: list[Any] = field(default_factory=list)
    slots: int = 2

    def run(self, task: Task, partitions: int) -> pa.Table:
        self.tasks.append(task)
        return LocalRunner().run(task, partitions)


def test_tasks_divide_the_rate_and_end_in_time(tmp_path: Path) -> None:
    """Each of two tasks gets half of the rate, and no fragment is read after the end of a bounded run."""
    uri, runner = str(tmp_path / "t"), CapturingRunner()
    Table.create(uri, {"a": range(12)}, max_rows_per_file=6, durable=False)
    column = ComputedColumn("w", pa.int64(), lambda row: row["a"], inputs=["a"], per="row", rate_limit=1000)
    assert fill_one(uri, column, runner=runner).computed == 12
    assert [task.function.seconds_between for task in runner.tasks] == [2 / 1000]
    slow = replace(column, fn=lambda row: time.sleep(0.02), code_version="2", rate_limit=None)
    report = fill_one(uri, slow, seconds_max=0.05)
    assert report.computed < 6
    assert report.before.uninspected >= 6
    assert report.remaining == 12 - report.computed


def test_a_bound_is_reached_although_tasks_are_uneven(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = Table.create(uri, {"a": range(4)}, durable=False)
    for rows in (1, 4, 1):
        table = table.append({"a": range(rows)}).table
    column = ComputedColumn("w", pa.int64(), twice, inputs=["a"])
    assert fill_one(uri, column, rows_max=8, runner=CapturingRunner()).computed == 8
    for rows_max in (1, 5, 7):  # no multiple of the number of tasks
        again = ComputedColumn(f"w{rows_max}", pa.int64(), twice, inputs=["a"])
        assert fill_one(uri, again, rows_max=rows_max, runner=CapturingRunner()).computed == rows_max
