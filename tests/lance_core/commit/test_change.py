"""Concurrent changes: which changes are rebased, which are replanned, and which need a decision by a person.

Two handles have one version open: the other writer commits first, then ours. The result has to equal that of the two
changes one after the other, in either order, also if both affect the same rows.
"""

import json
import math
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import Committed, IncompatibleConflict, InvalidInput, RetryableConflict, Table
from lance_core.commit.write_protocol import Change, commit_with_retry
from lance_core.coordination.backoff import Backoff
from lance_core.coordination.idempotency import path_of
from lance_core.format.operations import Append, Delete, MapUpdate, Merge, Operation, Update, UpdateConfig, UpdateMode
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.versions.snapshot import Snapshot
from tests.lance_core.in_memory_table import InMemoryTable, clean_up, deterministic_runtime

Write = Callable[[Table], Committed]
ROWS = pa.table({
    "id": pa.array(range(12), pa.int64()),
    "v": pa.array([n * 10 for n in range(12)], pa.int64()),
    "w": [f"w{n}" for n in range(12)],
})  # fmt: skip


def row(key: int, value: int) -> pa.Table:
    return pa.table({"id": pa.array([key], pa.int64()), "v": pa.array([value], pa.int64()), "w": ["new"]})


WRITES: dict[str, Write] = {
    "append": lambda t: t.append(row(100, 1)),
    "append a key": lambda t: t.append(row(50, 2)),
    "delete a row": lambda t: t.delete("id = 1"),
    "delete its neighbour": lambda t: t.delete("id = 2"),
    "delete a fragment": lambda t: t.delete("id < 4"),
    "delete elsewhere": lambda t: t.delete("id = 9"),
    "move a row": lambda t: t.update({"id": "id", "v": "v + 1", "w": "w || 'a'"}, "id = 1"),
    "move its neighbour": lambda t: t.update({"id": "id", "v": "v * 2", "w": "w || 'b'"}, "id = 2"),
    "rewrite a column": lambda t: t.update({"v": "v * 3"}, "id < 4"),
    "rewrite another column": lambda t: t.update({"w": "w || 'c'"}, "id < 4"),
    "upsert a row": lambda t: t.upsert(row(1, 7), "id"),
    "upsert a new key": lambda t: t.upsert(row(50, 8), "id"),
    "upsert another new key": lambda t: t.upsert(row(51, 9), "id"),
    "upsert what matches only": lambda t: t.upsert(row(1, 11), "id", insert=False),
    "add a column": lambda t: t.add_columns({"x": "v + 1"}),
    "add another column": lambda t: t.add_columns({"y": "id * 2"}),
    "merge a column": lambda t: t.merge_columns(pa.table({"id": pa.array([1, 2], pa.int64()), "z": [5, 6]}), "id"),
    "drop a column": lambda t: t.drop_columns(["w"]),
    "rename a column": lambda t: t.alter_column("v", rename="u"),
    "compact": lambda t: t.compact(),
    "set config": lambda t: t.set_config({"a": "1"}),
    "set metadata of a field": lambda t: t.set_field_metadata({"id": {"k": "1"}}),
}
NEEDS_DECISION = {
    ("add a column", "drop a column"), ("add another column", "drop a column"), ("merge a column", "drop a column"),
    ("add a column", "rename a column"), ("add another column", "rename a column"),
    ("merge a column", "rename a column"),
}  # fmt: skip
"""A new column and a concurrent schema change: Lance leaves the decision to a person."""


def state(table: Table) -> tuple[list[str], dict[str, str], list[dict[bytes, bytes]]]:
    rows = sorted(json.dumps(each, sort_keys=True) for each in table.to_table().to_pylist())
    config = {key: value for key, value in table.config.items() if not key.startswith("lance_assets")}
    return rows, config, [dict(field.metadata or {}) for field in table.schema]


def create(path: Path, *, stable: bool) -> Table:
    return Table.create(str(path), ROWS, max_rows_per_file=4, stable_row_ids=stable, durable=False)


class PairsOfWriters:
    """Copies of the same table, for pairs of concurrent changes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._copies = 0
        for stable in (False, True):
            create(directory / f"first-{stable}", stable=stable)
        self.serial = cache(self._serial)

    def copy_table(self, *, stable: bool) -> Table:
        self._copies += 1
        return Table.open(
            shutil.copytree(self._directory / f"first-{stable}", self._directory / str(self._copies)), durable=False
        )

    def _serial(self, first: str, second: str, stable: bool) -> object:
        """Return the state after one change and then the other, planned on the result of the first."""
        table = self.copy_table(stable=stable)
        for name in (first, second):
            with suppress(InvalidInput):  # the column does not exist any more
                table = WRITES[name](table).table
        return state(table)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> PairsOfWriters:
    return PairsOfWriters(tmp_path_factory.mktemp("pairs"))


@pytest.mark.parametrize("theirs", WRITES)
def test_two_concurrent_changes_equal_two_serial_ones(pairs: PairsOfWriters, theirs: str) -> None:
    """This test runs a third of the pairs. `test_operation_pairs.py` has more operations, whose pairs all run in `make
    torture`."""
    names = list(WRITES)
    for ours in names[names.index(theirs) % 3 :: 3]:
        stable = (names.index(ours) + names.index(theirs)) % 2 == 0
        table = pairs.copy_table(stable=stable)
        WRITES[theirs](table)
        if (ours, theirs) in NEEDS_DECISION:
            with pytest.raises(IncompatibleConflict):
                WRITES[ours](table)
            continue
        try:
            WRITES[ours](table)
        except (InvalidInput, IncompatibleConflict):
            assert ours == theirs or "column" in ours, f"{ours} after {theirs}"
        after = table.refresh()
        actual, serial = state(after), [pairs.serial(theirs, ours, stable), pairs.serial(ours, theirs, stable)]
        assert actual in serial, f"{ours} after {theirs}: {actual}, neither {serial[0]} nor {serial[1]}"
        assert after.fsck().is_sound
        lance.dataset(table.uri).validate()


def test_deletions_of_one_fragment_are_merged(tmp_path: Path) -> None:
    """The bitmap has a new name with the version it was merged on, and the deletion is planned once."""
    table = create(tmp_path / "t", stable=False)
    theirs = table.delete("id = 1").table
    committed = table.delete("id in (2, 9)")
    assert (committed.attempts, committed.rebased_over, committed.rows_removed) == (1, (2,), 2)
    transaction = committed.table.transaction()
    assert transaction is not None
    assert isinstance(transaction.operation, Delete)
    assert transaction.read_version == 2
    joined, alone = (each.deletion_file for each in transaction.operation.updated)
    assert joined is not None
    assert (joined.is_bitmap, joined.path.split("-")[1], joined.deleted_rows) == (True, "2", 2)
    assert joined != theirs.fragments[0].deletion_file
    assert alone is not None
    assert alone.is_bitmap is False
    assert lance.dataset(table.uri).to_table(["id"])["id"].to_pylist() == [0, 3, 4, 5, 6, 7, 8, 10, 11]


def test_deletions_of_all_rows_together_remove_the_fragment(tmp_path: Path) -> None:
    table = create(tmp_path / "t", stable=True)
    table.delete("id < 2")
    after = table.delete("id in (2, 3)").table
    assert [fragment.id for fragment in after.fragments] == [1, 2]
    lance.dataset(table.uri).validate()


def test_a_deletion_of_the_same_row_is_replanned(tmp_path: Path) -> None:
    """The second deletion finds no row any more, and still commits a version."""
    table = create(tmp_path / "t", stable=False)
    table.delete("id = 1")
    committed = table.delete("id = 1")
    assert (committed.rows_removed, committed.attempts, committed.rebased_over) == (0, 2, ())
    assert committed.table.count_rows() == 11


def test_a_column_rewritten_in_place_keeps_what_others_deleted(tmp_path: Path) -> None:
    table = create(tmp_path / "t", stable=True)
    table.delete("id = 3")
    committed = table.update({"v": "-v"}, "id in (0, 1, 2)")
    transaction = committed.table.transaction()
    assert transaction is not None
    assert isinstance(transaction.operation, Update)
    assert transaction.operation.mode is UpdateMode.REWRITE_COLUMNS
    assert committed.attempts == 1
    assert committed.table.to_table(["v"], "id < 6")["v"].to_pylist() == [0, -10, -20, 40, 50]


def test_raw_commits_to_the_same_fragment_are_left_to_the_caller(tmp_path: Path) -> None:
    """They do not record the affected rows, so they cannot be merged: trap 21."""
    table = create(tmp_path / "t", stable=False)
    table.delete("id = 1")
    transaction = table.refresh().transaction()
    assert transaction is not None
    table.commit(Append(()))
    with pytest.raises(RetryableConflict, match="rule same_rows") as caught:
        table.commit(transaction.operation)
    assert "the Delete of version 2 (committed by lance-assets" in str(caught.value)
    assert " UTC)" in str(caught.value)
    theirs = lance.dataset(table.uri).read_transaction(2)
    assert theirs is not None
    with pytest.raises(OSError, match="Retryable commit conflict"):
        lance.LanceDataset.commit(table.uri, theirs.operation, read_version=1)


def test_an_overwrite_never_replaces_a_version_its_writer_has_not_read(tmp_path: Path) -> None:
    table = create(tmp_path / "t", stable=False)
    table.overwrite(row(1, 1))
    with pytest.raises(RetryableConflict, match="rule both_replace"):
        table.overwrite(row(2, 2))
    with pytest.raises(IncompatibleConflict, match=r"the Overwrite of version 2 .*read it, then decide"):
        table.delete("id = 1")


def test_files_of_an_earlier_attempt_are_left_to_cleanup(tmp_path: Path) -> None:
    table = create(tmp_path / "t", stable=False)
    table.upsert(row(50, 1), "id")
    committed = table.upsert(row(50, 2), "id")
    assert committed.attempts == 2
    referenced = {file.path for fragment in committed.table.fragments for file in fragment.files}
    existing = {path.name for path in Path(table.uri, "data").iterdir()}
    assert referenced < existing


# Upserts of the same new key


KEYS = [
    (pa.int64(), 1, 2),
    (pa.string(), "one", "two"),
    (pa.large_binary(), b"one", b""),
    (pa.binary(3), b"one", b"two"),
    (pa.float64(), 0.0, -0.0),
    (pa.float32(), math.nan, 1.0),
    (pa.bool_(), True, False),
    (pa.date32(), date(2026, 1, 1), date(2026, 1, 2)),
    (pa.timestamp("us", "UTC"), datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
    (pa.decimal128(9, 2), Decimal("1.10"), Decimal("1.11")),
    (pa.dictionary(pa.int8(), pa.string()), "one", "two"),
]


@pytest.mark.parametrize(("arrow", "key", "other"), KEYS, ids=str)
def test_a_new_key_is_inserted_once(tmp_path: Path, arrow: pa.DataType, key: object, other: object) -> None:
    """This holds for any key type, declared as the table's key or not; an upsert of another key does not conflict."""
    table = Table.create(str(tmp_path / "t"), pa.schema([("k", arrow), ("v", pa.int64())]), durable=False)
    table.upsert(pa.table({"k": pa.array([key], arrow), "v": [1]}), "k")
    again = table.upsert(pa.table({"k": pa.array([key], arrow), "v": [2]}), "k")
    assert again.attempts == 2
    unrelated = table.at(2).upsert(pa.table({"k": pa.array([other], arrow), "v": [3]}), "k")
    assert (unrelated.attempts, unrelated.table.to_table(["v"])["v"].to_pylist()) == (1, [2, 3])


def test_concurrent_upserts_of_the_same_keys(tmp_path: Path) -> None:
    """pylance inserts a key once per writer."""
    table = Table.create(str(tmp_path / "t"), pa.schema([("k", pa.int64()), ("v", pa.int64())]), durable=False)
    data = [pa.table({"k": pa.array(range(20), pa.int64()), "v": pa.array([n] * 20, pa.int64())}) for n in range(6)]
    ready = threading.Barrier(len(data))

    def write(rows: pa.Table) -> Committed:
        ready.wait()
        return table.upsert(rows, "k")

    with ThreadPoolExecutor(len(data)) as pool:
        commits = list(pool.map(write, data))
    last = max(commits, key=lambda committed: committed.version)
    merged = table.refresh().to_table()
    assert sorted(merged["k"].to_pylist()) == list(range(20))
    assert set(merged["v"].to_pylist()) == {data[commits.index(last)]["v"][0].as_py()}
    assert sorted(committed.version for committed in commits) == list(range(2, 8))


# End of the retries


def always_conflicting(table: InMemoryTable, plans: list[int]) -> Callable[[Snapshot], Operation]:
    """Return a plan that another writer's change of the same metadata key always follows at once."""
    writers = iter(range(100, 200))

    def plan(base: Snapshot) -> Operation:
        plans.append(base.version)
        other = UpdateConfig(field_metadata={0: MapUpdate({"k": "theirs"})})
        table.write(other, base=table.at(), writer=next(writers))
        return Merge(tuple(base.manifest.fragments), base.manifest.schema, preserves_nullability=True)

    return plan


def test_a_change_is_retried_as_often_as_requested(tmp_path: Path) -> None:
    table = InMemoryTable()
    table.create("first")
    plans: list[int] = []
    change = Change("add_columns", always_conflicting(table, plans), "Merge", True)
    with pytest.raises(RetryableConflict, match="rule metadata_of_columns"):
        commit_with_retry(
            change,
            table.location(),
            table.at(),
            intent=None,
            properties={},
            retries=3,
            runtime=deterministic_runtime(1),
        )
    assert plans == [1, 2, 3]


@pytest.mark.parametrize(("seconds", "times"), [(3600, 5), (61, 5), (15, 5), (10, 7)])
def test_a_change_is_retried_until_the_deadline(seconds: int, times: int) -> None:
    """The deadline is a minute or four times the duration of the work: a job of an hour does not fail on its first
    conflict.
    """
    table = InMemoryTable()
    table.create("first")
    plans: list[int] = []
    clock = [0]
    plan = always_conflicting(table, plans)

    def plan_slowly(base: Snapshot) -> Operation:
        clock[0] += seconds * 10**9
        return plan(base)

    runtime = replace(deterministic_runtime(1), elapsed_ns=lambda: clock[0])
    with pytest.raises(RetryableConflict):
        commit_with_retry(
            Change("add_columns", plan_slowly, "Merge", True),
            table.location(),
            table.at(),
            intent=None,
            properties={},
            retries=1000,
            runtime=runtime,
        )
    assert plans == list(range(1, times + 1))


def test_a_change_that_cannot_be_replanned_is_not_retried() -> None:
    table = InMemoryTable()
    table.create("first")
    plans: list[int] = []
    change = Change("append", always_conflicting(table, plans), "Merge", False)
    with pytest.raises(RetryableConflict):
        commit_with_retry(
            change,
            table.location(),
            table.at(),
            intent=None,
            properties={},
            retries=20,
            runtime=deterministic_runtime(1),
        )
    assert plans == [1]


def test_backoff_scales_with_the_attempt_and_shrinks_over_time() -> None:
    clock = [0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += int(seconds * 1e9)

    backoff = Backoff(replace(SYSTEM_RUNTIME, elapsed_ns=lambda: clock[0], random=lambda: 0.5, sleep=sleep))
    for _ in range(6):
        clock[0] += 10**7  # an attempt of 10 ms
        backoff.wait()
    assert slept == sorted(slept, reverse=True)
    assert slept[0] <= 0.04
    assert slept[-1] <= 0.005
    clock[0] += 10**12
    backoff.wait()
    assert slept[-1] <= 2.0


# Intents of all writes


WRITES_WITH_INTENT: dict[str, Write] = {
    "append": lambda t: t.append(row(100, 1), intent="i"),
    "overwrite": lambda t: t.overwrite(row(100, 1), intent="i"),
    "delete": lambda t: t.delete("id = 1", intent="i"),
    "update": lambda t: t.update({"v": "v + 1"}, "id = 1", intent="i"),
    "upsert": lambda t: t.upsert(row(1, 5), "id", intent="i"),
    "add_columns": lambda t: t.add_columns({"x": "id"}, intent="i"),
    "merge_columns": lambda t: t.merge_columns(pa.table({"id": [1], "x": [2]}), "id", intent="i"),
    "drop_columns": lambda t: t.drop_columns(["w"], intent="i"),
    "reorder_columns": lambda t: t.reorder_columns(["w", "v", "id"], intent="i"),
    "alter_column": lambda t: t.alter_column("v", rename="u", intent="i"),
    "set_config": lambda t: t.set_config({"a": "1"}, intent="i"),
    "set_metadata": lambda t: t.set_metadata({"a": "1"}, intent="i"),
    "set_schema_metadata": lambda t: t.set_schema_metadata({"a": "1"}, intent="i"),
    "set_field_metadata": lambda t: t.set_field_metadata({"v": {"a": "1"}}, intent="i"),
    "compact": lambda t: t.compact(intent="i"),
    "restore": lambda t: t.restore(1, intent="i"),
    "commit": lambda t: t.commit(UpdateConfig(config=MapUpdate({"a": "1"})), intent="i"),
}


@pytest.mark.parametrize("write", WRITES_WITH_INTENT)
def test_an_intent_is_committed_once(tmp_path: Path, write: str) -> None:
    """The write is repeated on an old handle after a concurrent change, then on a new handle, then after a cleanup."""
    table = create(tmp_path / "t", stable=False)
    if write not in ("restore", "overwrite"):
        table.update({"w": "'theirs'"}, "id < 4")
    first = WRITES_WITH_INTENT[write](table)
    assert first.already_committed is False
    for again in (table, table.refresh()):
        repeated = WRITES_WITH_INTENT[write](again)
        assert (repeated.version, repeated.already_committed, repeated.attempts) == (first.version, True, 0)
    head = table.refresh()
    uuids = [made.uuid for made in head.versions()]
    record = json.loads(Path(table.uri, path_of("i")).read_text())
    assert uuids.count(record["transaction_uuid"]) == 1
    head.set_metadata({"later": "1"})
    clean_up(table.refresh())
    repeated = WRITES_WITH_INTENT[write](Table.open(table.uri, durable=False))
    assert (repeated.version, repeated.already_committed) == (first.version, True)
    assert repeated.rows_added == first.rows_added


@pytest.mark.parametrize("write", WRITES_WITH_INTENT)
def test_concurrent_writes_of_one_intent_commit_once(tmp_path: Path, write: str) -> None:
    table = create(tmp_path / "t", stable=True)
    ready = threading.Barrier(3)

    def write_concurrently(_number: int) -> Committed:
        ready.wait()
        return WRITES_WITH_INTENT[write](table)

    with ThreadPoolExecutor(3) as pool:
        commits = list(pool.map(write_concurrently, range(3)))
    assert len({committed.version for committed in commits}) == 1
    record = json.loads(Path(table.uri, path_of("i")).read_text())
    uuids = [made.uuid for made in table.refresh().versions()]
    assert uuids.count(record["transaction_uuid"]) == 1
    assert state(table.refresh()) == state(table.refresh().at(commits[0].version))
