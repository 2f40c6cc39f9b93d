"""Bad input: each operation raises a typed error on the driver, commits nothing and leaves only orphan files."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lance_core import InvalidInput, LanceError, SchemaMismatch, Table
from lance_core.tasks import remote_errors
from lance_core.tasks.columns.broadcast_join import BroadcastJoinTask
from lance_core.tasks.columns.fill_by_address import FillTask
from lance_core.tasks.compaction.compact import compact
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.partitioning import PartitionTask, Task
from lance_core.tasks.rows.delete import delete
from lance_core.tasks.rows.update import update
from lance_core.tasks.rows.upsert import UpsertRules, upsert
from lance_core.tasks.rows.write import FileLimits, PlannedWrite, WriteTask, begin_append
from lance_core.tasks.scan.aggregate import aggregate
from lance_core.tasks.scan.read import ReadTask, VersionRef, plan_read
from lance_core.tasks.version_stamp import VersionStamp
from tests.lance_core.tasks.columns.test_map_columns import (
    raise_error,
    return_other_names,
    return_other_type,
    return_too_few_rows,
)
from tests.lance_core.tasks.columns.test_map_columns import run_map_columns as map_columns
from tests.lance_core.tasks.columns.test_merge_columns import (
    InMemorySource,
    merge,
    values_by_address,
    with_extra_address,
)
from tests.lance_core.tasks.in_process_workers import InProcessWorkers
from tests.lance_core.tasks.rows.test_upsert import StagedSource

ROWS = pa.table({"id": pa.array(range(100), pa.int64()), "x": [None if n % 7 == 0 else n / 3 for n in range(100)]})
LIMITS = FileLimits()
Operation = Callable[[str], object]


def create_table(directory: Path) -> str:
    uri = str(directory / "t")
    Table.create(uri, ROWS, max_rows_per_file=10, durable=False).delete("id = 13")
    return uri


def where(uri: str) -> TableRef:
    return TableRef(uri, durable=False)


def delete_rows(predicate: str) -> Operation:
    return lambda uri: delete(where(uri), predicate, options=WriteOptions(), runner=InProcessWorkers())


def update_rows(values: dict[str, str], condition: str | None = None) -> Operation:
    return lambda uri: update(
        where(uri), values, condition, limits=LIMITS, options=WriteOptions(), runner=InProcessWorkers()
    )


def upsert_rows(rows: pa.Table, on: str = "id", **options: object) -> Operation:
    def operation(uri: str) -> object:
        rule_arguments = {"matched": "update", "matched_if": None, "insert": True, "delete_unmatched": False, **options}
        rules = UpsertRules.of(on, **rule_arguments)  # type: ignore[arg-type]
        return upsert(
            where(uri),
            rows.schema,
            StagedSource(rows).stage,
            rules,
            limits=LIMITS,
            options=WriteOptions(),
            runner=InProcessWorkers(),
        )

    return operation


def merge_values(
    change: Callable[[pa.Table], pa.Table], on: object = "_rowaddr", version: int | None = None
) -> Operation:
    return lambda uri: merge(uri, change(values_by_address(uri)), on, version=version)


def map_function(fn: object) -> Operation:
    return lambda uri: map_columns(uri, fn)


def append_rows(rows: pa.Table, change: Callable[[WriteTask], WriteTask] = lambda task: task) -> Operation:
    def operation(uri: str) -> object:
        planned = begin_append(uri, rows.schema, create=True, intent=None, limits=LIMITS, durable=False)
        assert isinstance(planned, PlannedWrite)
        task: WriteTask = pickle.loads(pickle.dumps(change(WriteTask(planned.plan))))
        return planned.finish(pa.Table.from_batches(list(task(rows.to_batches()))))

    return operation


def with_other_addresses(rows: pa.Table) -> pa.Table:
    """Return the rows with the addresses of other fragments, as from before a compaction."""
    return rows.set_column(0, "_rowaddr", pc.add(rows["_rowaddr"], pa.scalar(100 << 32, pa.uint64())))


def rows_by_key(*keys: int | None) -> pa.Table:
    return pa.table({"id": pa.array(keys, pa.int64()), "score": pa.array(range(len(keys)), pa.int64())})


BAD_INPUT: dict[str, tuple[Operation, type[LanceError], str]] = {
    "an address is missing": (
        merge_values(lambda rows: rows.filter(pc.not_equal(rows["score"], 310))),
        InvalidInput,
        r"no value for row 1 of fragment 3 \(_rowaddr \d+\)",
    ),
    "an address is null": (
        merge_values(lambda rows: rows.set_column(0, "_rowaddr", pa.nulls(rows.num_rows, pa.uint64()))),
        InvalidInput,
        "a row whose _rowaddr is null",
    ),
    "an address is there twice": (
        merge_values(lambda rows: with_extra_address(rows, 4 << 32 | 3)),
        InvalidInput,
        "row 3 of fragment 4",
    ),
    "an address of a deleted row": (
        merge_values(lambda rows: with_extra_address(rows, 1 << 32 | 3)),
        InvalidInput,
        "the row is deleted",
    ),
    "addresses of another version": (
        merge_values(with_other_addresses),
        InvalidInput,
        "fragment 1.., which does not exist.*of another version",
    ),
    "addresses of a version that is not": (merge_values(lambda rows: rows, version=77), LanceError, "77"),
    "a column that is there": (
        merge_values(lambda rows: rows.rename_columns(["_rowaddr", "x"])),
        InvalidInput,
        "has a column 'x' already",
    ),
    "a key to merge on twice": (
        merge_values(lambda _: rows_by_key(5, 6, 5), "id"),
        InvalidInput,
        "more than once .*: id = 5",
    ),
    "a key to merge on that is none": (
        merge_values(lambda _: rows_by_key(5), "nope"),
        InvalidInput,
        "cannot join on 'nope'",
    ),
    "a key to bring twice": (
        upsert_rows(pa.table({"id": [5, 200, 200], "x": [1.0, 2.0, 3.0]})),
        InvalidInput,
        r"more than once \(1 of them\): id = 200",
    ),
    "a key to bring that is there": (
        upsert_rows(pa.table({"id": [5, 200], "x": [1.0, 2.0]}), matched="fail"),
        InvalidInput,
        "id = 5",
    ),
    "a way to match that is none": (
        upsert_rows(pa.table({"id": [5], "x": [1.0]}), matched="replace"),
        InvalidInput,
        "'replace'",
    ),
    "a condition of another table": (
        upsert_rows(pa.table({"id": [5], "x": [1.0]}), matched_if="sorce.x > 1"),
        InvalidInput,
        "sorce",
    ),
    "too few rows of a function": (map_function(return_too_few_rows), InvalidInput, r"fragment 3, rows 0 to 9"),
    "another type of a function": (
        map_function(return_other_type),
        SchemaMismatch,
        r"fragment \d, rows .*'twice' is stored as int64",
    ),
    "other names of a function": (map_function(return_other_names), InvalidInput, "fragment .*thrice"),
    "no predicate": (delete_rows("id = = 3"), InvalidInput, "does not parse: .* Line: 1, Column: 6"),
    "a predicate of no column": (delete_rows("idd = 3"), InvalidInput, "did you mean|has no column 'idd'|idd"),
    "a predicate that is none": (delete_rows("id + 1"), InvalidInput, "id"),
    "no value": (update_rows({"x": "id +* 1"}), InvalidInput, "character"),
    "a value for no column": (update_rows({"xx": "1"}), InvalidInput, "'xx'"),
    "a value that does not fit": (update_rows({"id": "'abc'"}), InvalidInput, "id"),
    "a condition that does not parse": (update_rows({"x": "1"}, "id >>> 3"), InvalidInput, "character"),
    "no groups": (
        lambda uri: compact(
            where(uri),
            target_rows=0,
            materialize_deletions=True,
            remap=None,
            batch=1,
            options=WriteOptions(),
            runner=InProcessWorkers(),
        ),
        InvalidInput,
        "target_rows=0",
    ),
    "a query that is none": (
        lambda uri: aggregate(VersionRef(uri).snapshot(), "select cuont(id) from dataset", runner=InProcessWorkers),
        InvalidInput,
        "cuont",
    ),
    "retries that are none": (
        lambda uri: delete(where(uri), "id = 1", options=WriteOptions(retries=-1), runner=InProcessWorkers()),
        InvalidInput,
        "retries=-1",
    ),
    "rows of no column": (append_rows(ROWS.rename_columns(["id", "y"])), SchemaMismatch, "no column 'y'"),
    "rows that do not fit": (
        append_rows(pa.table({"id": pa.array([1, 2**63], pa.uint64())})),
        SchemaMismatch,
        "column 'id' of type uint64 does not convert to int64",
    ),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_errors_are_raised_before_a_commit(tmp_path: Path, name: str) -> None:
    operation, kind, message = BAD_INPUT[name]
    uri = create_table(tmp_path)
    before = Table.open(uri)
    with pytest.raises(kind, match=message):
        operation(uri)
    after = Table.open(uri)
    assert (after.version, after.schema) == (before.version, before.schema)
    assert after.to_table() == before.to_table()
    assert after.fsck().is_sound


def test_an_exception_of_a_function_is_raised(tmp_path: Path) -> None:
    uri = create_table(tmp_path)
    with pytest.raises(ArithmeticError):
        map_columns(uri, raise_error)
    assert Table.open(uri).version == 2


# Workers with other package versions


OTHER_VERSIONS = [
    *(("packages", name, "99.0.0") for name in ("pyarrow", "pylance", "datafusion", "numpy", "pandas", "pyspark")),
    ("python", "Python", (3, 2)),
    ("lance_assets", "lance-assets", "9.9.9"),
]


def stamp_with_other_version(component: str, name: str, other_version: object) -> VersionStamp:
    """Return the stamp of a driver with another version of one component."""
    own_stamp = VersionStamp.of_this_process()
    if component == "packages":
        other_version = tuple(
            (each, str(other_version) if each == name else own_version)
            for each, own_version in {**dict(own_stamp.packages), name: ""}.items()
        )
    return replace(own_stamp, **{component: other_version})  # type: ignore[arg-type]


@dataclass
class WorkersOfOtherDriver(InProcessWorkers):
    """Workers whose tasks carry the stamp of another driver."""

    stamp: VersionStamp = field(default_factory=VersionStamp.of_this_process)

    def run(self, task: Task, parts: int) -> pa.Table:
        assert isinstance(task, PartitionTask)
        return super().run(replace(task, header=replace(task.header, stamp=self.stamp)), parts)


@pytest.mark.parametrize(("component", "name", "other_version"), OTHER_VERSIONS)
def test_workers_with_other_packages_refuse(tmp_path: Path, component: str, name: str, other_version: object) -> None:
    uri, stamp = create_table(tmp_path), stamp_with_other_version(component, name, other_version)
    version = ".".join(map(str, other_version)) if isinstance(other_version, tuple) else str(other_version)
    message = f"this worker runs {name} .*; the driver planned with {name} {version}. Give the executors"
    with pytest.raises(InvalidInput, match=message):
        delete(where(uri), "id = 3", options=WriteOptions(), runner=WorkersOfOtherDriver(stamp=stamp))
    with pytest.raises(InvalidInput, match=message):
        append_rows(ROWS, lambda task: replace(task, plan=replace(task.plan, stamp=stamp)))(uri)
    with pytest.raises(InvalidInput, match=message):
        merge(uri, SourceOfOtherDriver(values_by_address(uri), stamp=stamp))
    with pytest.raises(InvalidInput, match=message):
        merge(uri, SourceOfOtherDriver(rows_by_key(5, 6), stamp=stamp, size_estimate=None), "id")
    plan = plan_read(VersionRef(uri).snapshot(), transport=lambda schema: schema, slots=1)
    work = replace(plan.work, header=replace(plan.work.header, stamp=stamp))
    with pytest.raises(InvalidInput, match=message):
        list(ReadTask(replace(plan, work=work))([pa.record_batch({"id": [0]})]))
    assert Table.open(uri).version == 2


@dataclass
class SourceOfOtherDriver(InMemorySource):
    stamp: VersionStamp = field(default_factory=VersionStamp.of_this_process)

    def run(self, task: Task, parts: int) -> pa.Table:
        assert isinstance(task, BroadcastJoinTask)
        return super().run(replace(task, fill=self._elsewhere(task.fill)), parts)

    def _run(self, rows: pa.Table, task: FillTask) -> pa.Table:
        return super()._run(rows, self._elsewhere(task))

    def _elsewhere(self, task: FillTask) -> FillTask:
        return replace(task, header=replace(task.header, stamp=self.stamp))


@pytest.mark.parametrize(
    "packages",
    [
        lambda own_versions: {**own_versions, "pyarrow": f"{own_versions['pyarrow'].split('.')[0]}.999.0"},
        lambda own_versions: {**own_versions, "pyspark": f"{own_versions['pyspark'].rpartition('.')[0]}.999"},
        lambda own_versions: {name: each for name, each in own_versions.items() if name != "pandas"},
    ],
    ids=["a later pyarrow", "a later pyspark", "no pandas"],
)
def test_compatible_package_versions(packages: Callable[[dict[str, str]], dict[str, str]]) -> None:
    own_stamp = VersionStamp.of_this_process()
    replace(own_stamp, packages=tuple(packages(dict(own_stamp.packages)).items())).check()


@pytest.mark.parametrize("error", [InvalidInput("a\nb"), SchemaMismatch("m", column="c", expected="e", got="g")])
def test_an_error_keeps_its_type_in_transport(error: InvalidInput) -> None:
    decoded = remote_errors.decode_error(remote_errors.encode_error(error))
    assert type(decoded) is type(error)
    assert (str(decoded), vars(decoded)) == (str(error), vars(error))


def test_an_error_in_a_traceback_is_found() -> None:
    text = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File ..., in __call__\n"
        "lance_core.errors.InvalidInput: this worker runs pyarrow 1; the driver planned with pyarrow 2\n\n\tat org"
    )
    found = remote_errors.error_in_traceback(text)
    assert isinstance(found, InvalidInput)
    assert str(found) == "this worker runs pyarrow 1; the driver planned with pyarrow 2"
    assert remote_errors.error_in_traceback("ValueError: no") is None
