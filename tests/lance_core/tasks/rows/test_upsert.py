"""Upsert by workers equals the upsert of one process and pylance's merge_insert.

`make test` runs combinations in which each pair of parameters occurs, `make clusters` runs all combinations.
"""

import os
import pickle
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_core import Committed, InvalidInput, Table
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.dml import upsert_join
from lance_core.dml.upsert import UpsertRules
from lance_core.errors import SchemaMismatch
from lance_core.format.fragment import DataFile
from lance_core.format.operations import Update, UpdateMode
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.partitioning import Task
from lance_core.tasks.rows import staged
from lance_core.tasks.rows import upsert as upsert_module
from lance_core.tasks.rows.upsert import upsert
from lance_core.tasks.rows.write import WriteTask
from tests.lance_core.dml.paired_tables import LINEAGE, PairedTables, create_paired_tables
from tests.lance_core.tasks.in_process_workers import InProcessWorkers
from tests.pairwise import pairwise

ROWS = pa.table({"id": range(40), "v": [10 * n for n in range(40)], "w": [f"w{n}" for n in range(39)] + [None]})
WHOLE = pa.table({"w": ["n", "a", "b", None, "q"], "id": [99, 2, 5, 1, 98], "v": [900, 200, 500, 100, None]})
PARTIAL = pa.table({"id": [2, 5, 1, 99], "v": [200, 500, 100, None]})
NULL_KEYS = pa.table({"id": [3, None, None], "v": [1, 2, 3], "w": ["a", "b", "c"]})
ALL = pa.table({"id": range(40), "v": [1] * 40})
NOTHING = WHOLE.slice(0, 0)
BOTH_ROW_ID_MODES = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
EVERYTHING = os.environ.get("CLUSTERS") == "all"
RANDOM_TABLES = 6 if EVERYTHING else 3
Options = Mapping[str, Any]
CHANGES: Mapping[str, tuple[pa.Table, Options]] = {
    "all": (WHOLE, {}),
    "no insert": (WHOLE, {"insert": False}),
    "ignore": (WHOLE, {"matched": "ignore"}),
    "delete, no insert": (WHOLE, {"matched": "delete", "insert": False}),
    "condition": (WHOLE, {"matched_if": "source.v > target.v * 10 or target.w = 'w2'"}),
    "delete unmatched": (WHOLE, {"delete_unmatched": True}),
    "delete unmatched below, ignore": (WHOLE, {"delete_unmatched": "v < 200", "matched": "ignore", "insert": False}),
    "some columns, no insert": (PARTIAL, {"insert": False}),
    "some columns": (PARTIAL, {}),
    "every row": (ALL, {"insert": False}),
    "null keys": (NULL_KEYS, {}),
    "no rows": (NOTHING, {}),
    "no rows, delete unmatched": (NOTHING, {"delete_unmatched": "id > 20"}),
}


def combinations_of(*dimensions: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the combinations of parameters of this run."""
    return list(product(*dimensions)) if EVERYTHING else pairwise(*dimensions)


@dataclass
class StagedSource:
    """Source whose rows are staged in portions by a task each; each task runs twice, as after a lost attempt."""

    table: pa.Table
    portion_rows: int = 3
    stage_count: int = 0

    def stage(self, task: WriteTask) -> pa.Table:
        self.stage_count += 1
        shipped = pickle.dumps(task)
        answers = []
        for start in range(0, self.table.num_rows, self.portion_rows):
            some = self.table.slice(start, self.portion_rows).to_batches()
            list(pickle.loads(shipped)(some))
            answers += list(pickle.loads(shipped)(some))
        return pa.Table.from_batches(
            answers, pa.schema([pa.field("fragment", pa.binary()), pa.field("refusal", pa.string())])
        )


def rules(on: str | list[str] = "id", **options: Any) -> UpsertRules:
    rule_arguments = {"matched": "update", "matched_if": None, "insert": True, "delete_unmatched": False, **options}
    return UpsertRules.of(on, **rule_arguments)


def run_upsert(
    uri: str,
    rows: StagedSource,
    options: Options,
    *,
    on: str | list[str] = "id",
    workers: InProcessWorkers | None = None,
    how: WriteOptions | None = None,
) -> Committed:
    return upsert(
        TableRef(uri, durable=False),
        rows.table.schema,
        rows.stage,
        rules(on, **options),
        limits=FileLimits(),
        options=how or WriteOptions(),
        runner=workers or InProcessWorkers(slots=2, lost_partitions=frozenset({1})),
    )


def ids_of(table: Table) -> list[tuple[int, int]]:
    rows = table.to_table(["id", "_rowid"]).drop_null()
    return list(zip(rows["id"].to_pylist(), rows["_rowid"].to_pylist(), strict=True))


def operation_of(table: Table) -> Update:
    transaction = table.transaction()
    assert transaction is not None
    assert isinstance(transaction.operation, Update)
    return transaction.operation


def merge_by_pylance(dataset: lance.LanceDataset, data: pa.Table, on: str | list[str], options: Options) -> None:
    builder = dataset.merge_insert(on)
    match options.get("matched", "update"):
        case "update":
            builder = builder.when_matched_update_all(options.get("matched_if"))
        case "delete":
            builder = builder.when_matched_delete()
        case "fail":
            builder = builder.when_matched_fail()
    if options.get("insert", True):
        builder = builder.when_not_matched_insert_all()
    if delete_unmatched := options.get("delete_unmatched"):
        builder = builder.when_not_matched_by_source_delete(
            delete_unmatched if isinstance(delete_unmatched, str) else None
        )
    builder.execute(data)


def check(
    directory: Path, pair: PairedTables, data: pa.Table, options: Options, *, portion: int = 3, stable: bool
) -> Update:
    """Check an upsert by workers against the same upsert by one process."""
    alone = str(directory / "alone")
    shutil.rmtree(alone, ignore_errors=True)
    shutil.copytree(pair.ours, alone)
    files, before = set(Path(pair.ours, "data").iterdir()), ids_of(pair.table)
    ours = run_upsert(pair.ours, StagedSource(data, portion), options)
    theirs = Table.open(alone, durable=False).upsert(data, "id", **options)
    assert (ours.version, ours.operation, ours.rows_added, ours.rows_removed) == (
        theirs.version,
        theirs.operation,
        theirs.rows_added,
        theirs.rows_removed,
    )
    distributed_operation, local_operation = operation_of(ours.table), operation_of(theirs.table)
    assert (
        distributed_operation.mode,
        distributed_operation.fields_modified,
        distributed_operation.fields_assigned,
        distributed_operation.inserted_keys,
        distributed_operation.updated_offsets,
    ) == (
        local_operation.mode,
        local_operation.fields_modified,
        local_operation.fields_assigned,
        local_operation.inserted_keys,
        local_operation.updated_offsets,
    )
    assert distributed_operation.removed_ids == local_operation.removed_ids
    columns = ["id", "v", "w", *(LINEAGE if stable else [])]
    assert pair.sorted_rows(ours.table.to_table(columns)) == pair.sorted_rows(theirs.table.to_table(columns))
    if stable:
        after = dict(ids_of(ours.table))
        assert len(set(after.values())) == len(after)
        assert all(after[key] == row_id for key, row_id in before if key in after)
    referenced_files = {Path(pair.ours, "data", file.path) for part in ours.table.fragments for file in part.files}
    orphan_files = set(Path(pair.ours, "data").iterdir()) - files - referenced_files
    assert ours.table.fsck().is_sound
    assert all(path.suffix == ".lance" for path in orphan_files)
    return distributed_operation


@pytest.mark.parametrize(
    ("change", "is_indexed", "stable"), combinations_of(list(CHANGES), (False, True), (False, True))
)
def test_results_equal_those_of_one_process_and_pylance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, is_indexed: bool, stable: bool
) -> None:
    """A table with indices is joined in portions of two keys."""
    data, options = CHANGES[change]
    indexed, key_chunk_rows = (("v", "id"), 2) if is_indexed else ((), 1 << 22)
    monkeypatch.setattr(staged, "KEY_CHUNK_ROWS", key_chunk_rows)
    pair = create_paired_tables(tmp_path, ROWS, stable=stable, indexed=indexed, deleted="id in (5, 30, 31, 32, 33)")
    check(tmp_path, pair, data, options, stable=stable)
    if is_indexed and data is NULL_KEYS:
        return  # with an index on the key, pylance loses source rows whose key is null
    merge_by_pylance(pair.dataset, data, "id", options)
    expected = pair.sorted_rows(lance.dataset(pair.theirs).to_table())
    assert pair.sorted_rows(lance.dataset(pair.ours).to_table()) == expected
    pair.check_indices(lance.dataset(pair.ours))


@pytest.mark.parametrize(
    ("seed", "kind", "stable"),
    combinations_of(range(RANDOM_TABLES), (None, "BTREE", "BITMAP", "BLOOMFILTER"), (False, True)),
)
def test_random_tables(
    tmp_path: Path, seed: int, stable: bool, kind: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upsert_join, "LOOKUP_ROWS_PER_KEY_MIN", 1)
    random = np.random.default_rng(seed)
    monkeypatch.setattr(staged, "KEY_CHUNK_ROWS", int(random.integers(1, 40)))
    if seed % 2:
        monkeypatch.setattr(staged, "CACHED_ROWS_MAX", 0)  # the workers also write the new rows
    pair = create_paired_tables(tmp_path, ROWS, stable=stable)
    if kind:
        Table.open(pair.ours, durable=False).create_index("id", kind)
    for step in range(4):
        keys = random.permutation(60)[: random.integers(0, 60)]
        columns = {"id": keys, "v": random.integers(0, 9, len(keys))}
        if random.random() < 0.6:
            columns["w"] = np.array([f"{step}.{key}" for key in keys], dtype=object)
        data = pa.table(columns, pa.schema([ROWS.schema.field(name) for name in columns]))
        options: dict[str, Any] = {"insert": bool(random.random() < 0.7)}
        if random.random() < 0.3:
            options["delete_unmatched"] = f"id % 7 = {random.integers(7)}"
        if random.random() < 0.3:
            options["matched_if"] = "source.v >= target.v"
        check(tmp_path, pair, data, options, portion=int(random.integers(1, 20)), stable=False)


def test_a_few_new_rows_need_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = create_paired_tables(tmp_path, ROWS, stable=False)
    jobs = []
    for cached_rows_max in (staged.CACHED_ROWS_MAX, 0):
        monkeypatch.setattr(staged, "CACHED_ROWS_MAX", cached_rows_max)
        workers = InProcessWorkers(slots=1)
        assert (
            run_upsert(
                pair.ours, StagedSource(pa.table({"id": [900 + cached_rows_max], "v": [1]})), {}, workers=workers
            ).rows_added
            == 1
        )
        jobs.append(len(workers.attempts))
    assert jobs[1] == jobs[0] + 1


def test_the_rewrite_strategy_is_chosen_once_for_all_partitions(tmp_path: Path) -> None:
    pair = create_paired_tables(tmp_path, ROWS, stable=True)
    data = pa.table({"id": [0, 1, 2, 3, 37], "v": [0] * 5})
    transaction = operation_of(
        run_upsert(pair.ours, StagedSource(data), {"insert": False}, workers=InProcessWorkers(slots=4)).table
    )
    assert transaction.mode is UpdateMode.REWRITE_COLUMNS
    assert len(transaction.updated) == 2


def test_composite_keys_and_their_equality(tmp_path: Path) -> None:
    uri, alone = str(tmp_path / "ours"), str(tmp_path / "alone")
    rows = pa.table({"a": [1.5, float("nan"), None, 0.0, -0.0], "b": ["x", "x", "x", "y", "y"], "v": range(5)})
    Table.create(uri, rows, max_rows_per_file=2, durable=False)
    shutil.copytree(uri, alone)
    data = pa.table({"a": [float("nan"), None, -0.0, 1.5], "b": ["x", "x", "y", "z"], "v": [50, 51, 52, 53]})
    ours = run_upsert(uri, StagedSource(data, 1), {}, on=["a", "b"])
    theirs = Table.open(alone, durable=False).upsert(data, ["a", "b"])
    assert sorted(map(repr, ours.table.to_table().to_pylist())) == sorted(
        map(repr, theirs.table.to_table().to_pylist())
    )
    assert operation_of(ours.table).inserted_keys == operation_of(theirs.table).inserted_keys


@pytest.mark.parametrize("count", [1000, 1100, 5000])
def test_many_new_keys_are_recorded_as_by_one_process(tmp_path: Path, count: int) -> None:
    pair = create_paired_tables(tmp_path, ROWS, stable=False)
    check(tmp_path, pair, pa.table({"id": range(count), "v": range(count)}), {}, portion=700, stable=False)


@pytest.mark.parametrize("key_chunk_rows", [1 << 22, 2], ids=["at once", "in portions"])
@pytest.mark.parametrize("is_empty", [False, True], ids=["rows", "no rows"])
def test_a_duplicate_key_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key_chunk_rows: int, is_empty: bool
) -> None:
    monkeypatch.setattr(staged, "KEY_CHUNK_ROWS", key_chunk_rows)
    pair = create_paired_tables(tmp_path, ROWS, stable=False, deleted="true" if is_empty else "")
    data = pa.table({"id": [700, 3, 701, 4, 5, 700], "v": [1] * 6})
    version = pair.table.version
    with pytest.raises(InvalidInput, match=r"more than once.*id = 700"):
        run_upsert(pair.ours, StagedSource(data, 2), {})
    assert pair.table.version == version


def test_existing_keys_are_reported(tmp_path: Path) -> None:
    pair = create_paired_tables(tmp_path, ROWS, stable=False)
    with pytest.raises(InvalidInput, match=r"\(5 of them\).*id = .*; …"):
        run_upsert(pair.ours, StagedSource(pa.table({"id": [77, 1, 2, 3, 4, 5], "v": [1] * 6})), {"matched": "fail"})
    assert pair.table.version == 1
    done = run_upsert(pair.ours, StagedSource(pa.table({"id": [77, 78], "v": [1, 2]})), {"matched": "fail"})
    assert done.table.count_rows() == 42


@pytest.mark.parametrize(
    ("data", "options", "on", "message"),
    [
        (WHOLE, {}, "nope", "no such column"),
        (WHOLE, {}, "v.x", "no such column|field inside"),
        (WHOLE.drop_columns(["id"]), {}, "id", "which the data does not have"),
        (WHOLE.append_column("z", [[1] * 5]), {}, "id", "no such column"),
        (WHOLE, {"matched_if": "source.nope = 1"}, "id", "matched_if"),
        (WHOLE, {"delete_unmatched": "nope = 1"}, "id", "there is no column"),
    ],
)
def test_invalid_arguments_run_no_task(tmp_path: Path, data: pa.Table, options: Options, on: str, message: str) -> None:
    pair, workers, rows = create_paired_tables(tmp_path, ROWS, stable=False), InProcessWorkers(), StagedSource(data)
    with pytest.raises(InvalidInput, match=message):
        run_upsert(pair.ours, rows, options, on=on, workers=workers)
    assert (workers.attempts, rows.stage_count) == ([], 0)


def test_a_failed_cast_is_a_schema_mismatch(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, pa.table({"id": pa.array([1], pa.int64()), "v": pa.array([1], pa.int8())}), durable=False)
    with pytest.raises(SchemaMismatch, match="'v'"):
        run_upsert(uri, StagedSource(pa.table({"id": [1], "v": [1000]})), {})
    done = run_upsert(uri, StagedSource(pa.table({"id": [1], "v": pa.array([100], pa.int64())})), {})
    assert done.table.to_table().to_pylist() == [{"id": 1, "v": 100}]


def test_staged_files_are_removed(tmp_path: Path) -> None:
    pair = create_paired_tables(tmp_path, ROWS, stable=False)

    class SourceStagedOnce(StagedSource):
        def stage(self, task: WriteTask) -> pa.Table:
            answers = list(task(self.table.to_batches()))
            return pa.Table.from_batches(answers)

    done = run_upsert(pair.ours, SourceStagedOnce(WHOLE), {}, workers=InProcessWorkers())
    referenced_files = {file.path for part in done.table.fragments for file in part.files}
    assert {path.name for path in Path(pair.ours, "data").iterdir()} == referenced_files


class WorkersWithConcurrentChange(InProcessWorkers):
    """Workers during one of whose jobs another writer changes the table."""

    def __init__(self, theirs: Callable[[], object], job: int = 1) -> None:
        super().__init__(slots=5)
        self.theirs, self.job, self.jobs = theirs, job, list[int]()

    def run(self, task: object, parts: int) -> pa.Table:
        answers = super().run(task, parts)  # type: ignore[arg-type]
        self.jobs.append(parts)
        if len(self.jobs) == self.job:
            self.theirs()
        return answers


@BOTH_ROW_ID_MODES
def test_concurrent_inserts_of_a_key_insert_it_once(tmp_path: Path, stable: bool) -> None:
    pair = create_paired_tables(tmp_path, ROWS, stable=stable)
    rows = StagedSource(WHOLE)
    other = pa.table({"id": [99], "v": [1], "w": ["theirs"]})
    workers = WorkersWithConcurrentChange(lambda: run_upsert(pair.ours, StagedSource(other), {}))
    done = run_upsert(pair.ours, rows, {}, workers=workers)
    found = done.table.to_table(["id", "v", "w"]).to_pylist()
    assert [row for row in found if row["id"] == 99] == [{"id": 99, "v": 900, "w": "n"}]
    assert len(found) == 42
    assert rows.stage_count == 1
    assert done.version == 3


def test_only_concurrently_changed_fragments_are_joined_again(tmp_path: Path) -> None:
    pair = create_paired_tables(tmp_path, ROWS, stable=True)
    workers = WorkersWithConcurrentChange(lambda: pair.table.delete("id = 2"))
    done = run_upsert(pair.ours, StagedSource(WHOLE), {}, workers=workers)
    assert workers.jobs[0] == 5
    assert workers.jobs[2:] == [2, 2] or sum(workers.jobs[2:]) <= 4
    assert done.table.count_rows() == 42
    assert done.table.fsck().is_sound


def test_a_concurrent_type_change_is_an_error(tmp_path: Path) -> None:
    pair = create_paired_tables(tmp_path, ROWS, stable=False)

    def theirs() -> None:
        pair.table.delete("id = 2")
        pair.table.alter_column("v", type=pa.float64())

    with pytest.raises(InvalidInput, match="v"):
        run_upsert(pair.ours, StagedSource(WHOLE), {}, workers=WorkersWithConcurrentChange(theirs))


def test_an_intent_runs_once(tmp_path: Path) -> None:
    pair, rows = create_paired_tables(tmp_path, ROWS, stable=False), StagedSource(WHOLE)
    first = run_upsert(pair.ours, rows, {}, how=WriteOptions(intent="x"))
    again = run_upsert(pair.ours, rows, {}, how=WriteOptions(intent="x"))
    assert (again.version, again.already_committed, rows.stage_count) == (first.version, True, 1)


def test_large_source_rows_are_read_by_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "CACHED_ROWS_MAX", 2)
    for stable in (False, True):
        directory = tmp_path / str(stable)
        directory.mkdir()
        check(
            directory,
            create_paired_tables(directory, ROWS, stable=stable),
            WHOLE,
            {"matched_if": "source.id != 5"},
            stable=stable,
        )
        shutil.rmtree(directory)
        directory.mkdir()
        check(directory, create_paired_tables(directory, ROWS, stable=stable), ALL, {}, stable=stable)


def create_indexed_table(directory: Path, stable: bool, *, uncovered: int = 0) -> str:
    """Create a table with an index on its key, a deleted row, and optionally rows that the index does not cover."""
    uri = str(directory / "indexed")
    numbers = pa.table({"id": range(2000), "v": range(2000), "w": [f"w{n}" for n in range(2000)]})
    table = Table.create(uri, numbers, max_rows_per_file=500, stable_row_ids=stable, durable=False)
    table = table.create_index("id", "BTREE").table.delete("id = 7").table
    if uncovered:
        table.append(pa.table({"id": range(2000, 2000 + uncovered), "v": range(uncovered), "w": ["u"] * uncovered}))
    return uri


LOOKUP_SOURCE = pa.table({"id": [5, 7, 1999, 9999], "v": [50, 70, 5, 99], "w": ["a", "b", None, "c"]})


@BOTH_ROW_ID_MODES
@pytest.mark.parametrize("data", [LOOKUP_SOURCE, LOOKUP_SOURCE.select(["id", "v"])], ids=["whole rows", "a column"])
@pytest.mark.parametrize(
    "options",
    [{}, {"insert": False}, {"matched": "delete"}, {"matched": "ignore"}, {"matched_if": "source.v > target.v"}],
    ids=str,
)
def test_few_keys_are_looked_up_in_an_index(tmp_path: Path, stable: bool, options: Options, data: pa.Table) -> None:
    """The driver looks the keys up, and the data files of the other fragments are absent."""
    uri = create_indexed_table(tmp_path, stable)
    shutil.copytree(uri, tmp_path / "alone")
    absent_files = [Path(uri, fragment.files[0].qualified_path) for fragment in Table.open(uri).fragments[1:3]]
    for file in absent_files:
        file.rename(tmp_path / file.name)
    workers = InProcessWorkers(slots=2)
    ours = run_upsert(uri, StagedSource(data), options, workers=workers)
    assert workers.attempts == []
    for file in absent_files:
        (tmp_path / file.name).rename(file)
    theirs = Table.open(str(tmp_path / "alone"), durable=False).upsert(data, "id", **options)
    assert (ours.rows_added, ours.rows_removed) == (theirs.rows_added, theirs.rows_removed)
    distributed_operation, local_operation = operation_of(ours.table), operation_of(theirs.table)
    assert (distributed_operation.mode, distributed_operation.inserted_keys) == (
        local_operation.mode,
        local_operation.inserted_keys,
    )
    columns = ["id", "v", "w", *(LINEAGE if stable else [])]
    found = ours.table.to_table(columns).sort_by("id")
    assert found.equals(theirs.table.to_table(columns).sort_by("id"))


def test_uncovered_rows_are_read_by_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upsert_module, "DRIVER_ROWS_MAX", 50)
    uri = create_indexed_table(tmp_path, stable=False, uncovered=100)
    workers = InProcessWorkers(slots=2)
    data = pa.table({"id": [5, 2003], "v": [-1, -1], "w": ["x", "y"]})
    table = run_upsert(uri, StagedSource(data), {}, workers=workers).table
    assert table.to_table(["w"], filter="id in (5, 2003)")["w"].to_pylist() == ["x", "y"]
    assert workers.attempts, "workers read the rows of the last fragment"
    workers = InProcessWorkers(slots=2)
    assert run_upsert(uri, StagedSource(data), {"delete_unmatched": "id < 100"}, workers=workers).rows_removed == 98
    assert workers.attempts, "no index finds the rows without a source row"


def test_a_duplicate_new_key_is_reported_by_an_index_lookup(tmp_path: Path) -> None:
    uri = create_indexed_table(tmp_path, stable=False)
    with pytest.raises(InvalidInput, match=r"more than once.*id = 9999"):
        run_upsert(uri, StagedSource(pa.table({"id": [9999, 9999], "v": [1, 2]})), {})
    with pytest.raises(InvalidInput, match=r"id = 5\b"):
        run_upsert(uri, StagedSource(LOOKUP_SOURCE), {"matched": "fail"})


def test_a_row_moved_concurrently_is_looked_up_again(tmp_path: Path) -> None:
    """A row that another writer moved meanwhile is found at its new address."""
    uri = create_indexed_table(tmp_path, stable=True)
    others = iter([lambda: Table.open(uri).update({"v": "-5"}, where="id = 5")])

    class SourceWithConcurrentUpdate(StagedSource):
        def stage(self, task: WriteTask) -> pa.Table:
            staged_now = super().stage(task)
            for other in others:
                other()
            return staged_now

    committed = run_upsert(uri, SourceWithConcurrentUpdate(LOOKUP_SOURCE), {})
    assert (committed.attempts, committed.version) == (2, 5), "planned twice"
    assert committed.table.to_table(["v"], filter="id = 5")["v"].to_pylist() == [50]
    assert committed.table.count_rows() == 2001


def test_many_small_upserts_run_on_the_driver(tmp_path: Path) -> None:
    """Each upsert moves its row into a fragment that no index covers."""
    uri = create_indexed_table(tmp_path, stable=False)
    for turn in range(3):
        workers = InProcessWorkers(slots=2)
        run_upsert(uri, StagedSource(LOOKUP_SOURCE.slice(turn, 1)), {}, workers=workers)
        assert workers.attempts == []


@pytest.mark.parametrize("reason", ["unknown", "large"])
def test_possibly_large_files_are_read_by_workers(tmp_path: Path, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason == "large":
        monkeypatch.setattr(upsert_module, "DRIVER_BYTES_MAX", 10)
    else:
        monkeypatch.setattr(DataFile, "size", None)
    workers = InProcessWorkers(slots=2)
    assert (
        run_upsert(
            create_indexed_table(tmp_path, stable=False), StagedSource(LOOKUP_SOURCE), {}, workers=workers
        ).rows_added
        == 2
    )
    assert workers.attempts


def test_a_key_of_many_rows_is_left_to_workers(tmp_path: Path) -> None:
    uri, count = str(tmp_path / "t"), upsert_module.DRIVER_ROWS_MAX + 1
    table = Table.create(uri, pa.table({"day": [0] * count + [1] * count, "v": [0] * 2 * count}), durable=False)
    table.create_index("day", "BITMAP")
    workers = InProcessWorkers(slots=2)
    run_upsert(uri, StagedSource(pa.table({"day": [1], "v": [5]})), {"insert": False}, on="day", workers=workers)
    assert workers.attempts
    assert Table.open(uri).count_rows("v = 5") == count


def test_unchanged_partitions_are_reused_although_the_index_finds_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A concurrent delete removes a fragment that contains a key, so the index finds fewer keys for the second plan."""
    monkeypatch.setattr(upsert_module, "DRIVER_ROWS_MAX", 50)
    uri = create_indexed_table(tmp_path, stable=False, uncovered=400)
    for _ in range(3):
        Table.open(uri).append(pa.table({"id": range(5000, 5400), "v": range(400), "w": ["u"] * 400}))

    class WorkersWithConcurrentDelete(InProcessWorkers):
        def run(self, task: Task, parts: int) -> pa.Table:
            answer = super().run(task, parts)
            if len(jobs) == 0:
                Table.open(uri).delete("id < 500")
            jobs.append(parts)
            return answer

    jobs: list[int] = []
    committed = run_upsert(
        uri,
        StagedSource(pa.table({"id": [5, 700, 1999], "v": [1, 2, 3], "w": ["", "", ""]})),
        {},
        workers=WorkersWithConcurrentDelete(4),
    )
    assert committed.attempts == 2
    assert jobs[0] > 2
    assert jobs[1:] == [1], "the second plan repeats only the partition of that fragment"
    assert committed.table.to_table(["v"], filter="id in (5, 700, 1999)").sort_by("v")["v"].to_pylist() == [1, 2, 3]
