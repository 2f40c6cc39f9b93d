"""Rebase: adapting a single change to the commits before it. `tests/lance_core/commit/test_change.py` and the histories
check the resulting tables.
"""

import shutil
import uuid
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyroaring import BitMap

from lance_core import RetryableConflict, Table
from lance_core.commit.loop import fetch_deletions
from lance_core.format import mem_wal
from lance_core.format import operations as op
from lance_core.format.fragment import TOMBSTONE
from lance_core.format.ids import Version
from lance_core.format.index_metadata import MEM_WAL
from lance_core.format.operations import Operation
from lance_core.format.transaction import Transaction
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.transactions.rebase import FetchedDeletions, Rebased, rebase, required_deletions
from lance_core.versions.snapshot import Snapshot, load_at, load_latest, read_history
from tests.lance_core.transactions.example_operations import (
    PLANS,
    create_table,
    decode_indices,
    make_rows,
    write_new_fragments,
)

SHARD, OTHER = (uuid.UUID(int=number).bytes for number in (1, 2))


@pytest.fixture
def created(tmp_path: Path) -> Table:
    return create_table(tmp_path / "t", stable=False)


def snapshot_at(created: Table, version: int | None = None) -> Snapshot:
    return load_latest(created._location) if version is None else load_at(created._location, Version(version))


def rebase_onto_newest(created: Table, ours: Operation) -> Rebased:
    """Rebase an operation that was planned on the version of the handle onto the newest version."""
    base, head = snapshot_at(created, created.version), snapshot_at(created)
    transaction = Transaction(base.version, str(uuid.uuid4()), ours)
    history = read_history(head.location, base.version)
    assert history is not None
    fragments = required_deletions(transaction, base.manifest, head.manifest)
    deletions = fetch_deletions(head.location, fragments, SYSTEM_RUNTIME)
    return rebase(transaction, base.manifest, head.manifest, history.others, deletions)


@pytest.mark.parametrize("name", PLANS)
def test_a_rebase_over_no_commits_changes_nothing(created: Table, name: str) -> None:
    base = snapshot_at(created)
    ours = Transaction(base.version, "u", PLANS[name](base))
    assert rebase(ours, base.manifest, base.manifest, (), FetchedDeletions()) == Rebased(ours)


@pytest.mark.parametrize("name", PLANS)
def test_a_rebase_over_unrelated_commits_changes_nothing(created: Table, name: str) -> None:
    ours = PLANS[name](snapshot_at(created))
    created.set_metadata({"k": "v"})
    rebased = rebase_onto_newest(created, ours)
    assert (rebased.transaction.operation, rebased.files) == (ours, {})
    assert rebased.transaction.read_version == created.version


def test_only_fragments_changed_by_both_are_rewritten(created: Table) -> None:
    ours, more = PLANS["Delete all of 0"](snapshot_at(created)), PLANS["Delete row of 1"](snapshot_at(created))
    assert isinstance(ours, op.Delete)
    assert isinstance(more, op.Delete)
    both = replace(more, removed_ids=ours.removed_ids)
    created.delete("id = 6")
    rebased = rebase_onto_newest(created, both)
    assert len(rebased.files) == 1
    assert rebased.transaction.read_version == created.version + 1
    operation = rebased.transaction.operation
    assert isinstance(operation, op.Delete)
    assert [each.live_rows for each in operation.updated] == [2]
    assert operation.removed_ids == ours.removed_ids


def test_a_row_changed_by_both_is_reported(created: Table) -> None:
    ours = PLANS["Delete row of 1"](snapshot_at(created))
    created.delete("id in (5, 6)")
    with pytest.raises(RetryableConflict, match="row 1 of fragment 1, one of 1, was changed or removed"):
        rebase_onto_newest(created, ours)


def test_rows_of_replaced_files_are_replanned(created: Table, tmp_path: Path) -> None:
    """Deletion vectors of one fragment are merged only if its data files are those that the change was planned on."""
    other = create_table(tmp_path / "other", stable=False).delete("id = 6").table
    base, head = snapshot_at(created), snapshot_at(other)
    ours = Transaction(base.version, "u", PLANS["Delete row of 1"](base))
    with pytest.raises(RetryableConflict, match="the files of fragment 1 were replaced"):
        rebase(ours, base.manifest, head.manifest, (), FetchedDeletions())


def test_an_index_stops_covering_changed_fragments(created: Table) -> None:
    ours = PLANS["CreateIndex on v"](snapshot_at(created))
    created.update({"v": "v + 1"}, "id < 4")
    operation = rebase_onto_newest(created, ours).transaction.operation
    assert isinstance(operation, op.CreateIndex)
    assert operation.new[0].covers == BitMap([1, 2])
    assert created.commit(ours).table.count_rows("v >= 0") == 12
    assert lance.dataset(created.uri).to_table(filter="v = 1").num_rows == 1


def test_concurrently_dropped_columns_are_dead(created: Table) -> None:
    ours = PLANS["Append"](snapshot_at(created))
    moved = PLANS["Update row of 0"](snapshot_at(created))
    created.drop_columns(["v"])
    for operation in (ours, moved):
        fitted = rebase_onto_newest(created, operation).transaction.operation
        assert isinstance(fitted, op.Append | op.Update)
        (new,) = fitted.fragments if isinstance(fitted, op.Append) else fitted.new
        assert new.files[0].field_ids == (0, TOMBSTONE, 2)


def test_an_append_of_dropped_columns_alone_is_replanned(created: Table) -> None:
    base = snapshot_at(created)
    append = PLANS["Append"](base)
    assert isinstance(append, op.Append)
    (fragment,) = append.fragments
    ours = op.Append((fragment.with_files([fragment.files[0].without_fields({0, 2})]),))
    created.drop_columns(["v"])
    with pytest.raises(RetryableConflict, match="all of its columns were dropped"):
        rebase_onto_newest(created, ours)


def test_values_for_a_recreated_column_are_replanned(created: Table) -> None:
    """pylance commits them and loses the values: the column has a new field id, and the values are stored under the old
    one. An append without values for the column is rebased.
    """
    base = snapshot_at(created)
    ours = PLANS["Append"](base)
    without = op.Append(write_new_fragments(base, make_rows(100, 2).drop_columns("v")))
    created.alter_column("v", type=pa.int32())
    with pytest.raises(RetryableConflict, match="the column v was replaced by another one of that name"):
        rebase_onto_newest(created, ours)
    assert rebase_onto_newest(created, without).transaction.operation == without
    nested = created.refresh().add_columns(pa.field("s", pa.struct([("a", pa.int64()), ("b", pa.int64())]))).table
    incoming = make_rows(200, 1).set_column(1, "v", pa.array([1], pa.int32())).append_column(
        "s", pa.array([{"a": 1, "b": 2}], nested.schema.field("s").type)
    )  # fmt: skip
    deep = op.Append(write_new_fragments(snapshot_at(nested), incoming))
    nested.alter_column("s.b", type=pa.int32())
    with pytest.raises(RetryableConflict, match=r"the column s\.b was replaced by another one of that name"):
        rebase_onto_newest(nested, deep)


def test_pylance_loses_values_for_a_recreated_column(tmp_path: Path) -> None:
    created = lance.write_dataset(pa.table({"id": [1], "v": [10]}), str(tmp_path / "t"))
    incoming = lance.fragment.write_fragments(pa.table({"id": [2], "v": [20]}), created.uri)
    created.alter_columns({"path": "v", "data_type": pa.int32()})  # type: ignore[dict-item]
    after = lance.LanceDataset.commit(created.uri, lance.LanceOperation.Append(incoming), read_version=1)
    assert after.to_table()["v"].to_pylist() == [10, None]


# Memory write-ahead logs of a table


@pytest.fixture
def table_with_log(tmp_path: Path) -> Table:
    created = lance.write_dataset(pa.table({"id": pa.array([1, 2], pa.int64())}), str(tmp_path / "w"))
    created.initialize_mem_wal(unsharded=True)
    return Table.open(created.uri, durable=False)


def progress_by_shard(created: Table) -> dict[bytes, int]:
    (entry,) = [index for index in decode_indices(snapshot_at(created)) if index.name == MEM_WAL]
    return {each.shard: each.generation for each in mem_wal.progress_of(entry)}


def test_progress_of_a_log_is_recorded(table_with_log: Table) -> None:
    """Progress never decreases; the settings of pylance and all rows stay."""
    before = decode_indices(snapshot_at(table_with_log))[0]
    for progress, expected in (
        ([(SHARD, 3)], {SHARD: 3}),
        ([(SHARD, 2), (OTHER, 1)], {SHARD: 3, OTHER: 1}),
        ([], {SHARD: 3, OTHER: 1}),
        ([(SHARD, 9)], {SHARD: 9, OTHER: 1}),
    ):
        records = tuple(op.Progress(shard, generation) for shard, generation in progress)
        table_with_log.refresh().commit(op.UpdateMemWalState(records))
        assert progress_by_shard(table_with_log) == expected
    theirs = lance.dataset(table_with_log.uri)
    assert (theirs.mem_wal_index_details() or {})["num_shards"] == 1
    assert theirs.to_table()["id"].to_pylist() == [1, 2]
    assert decode_indices(snapshot_at(table_with_log))[0].uuid != before.uuid


def test_an_update_records_progress(table_with_log: Table) -> None:
    table_with_log.commit(op.Update(progress=(op.Progress(SHARD, 4),)))
    assert progress_by_shard(table_with_log) == {SHARD: 4}
    table_with_log.refresh().commit(op.UpdateMemWalState((op.Progress(SHARD, 5),)))
    assert progress_by_shard(table_with_log) == {SHARD: 5}
    with pytest.raises(RetryableConflict, match="rule same_shard"):
        table_with_log.commit(op.UpdateMemWalState((op.Progress(SHARD, 6),)))


def test_progress_without_a_log_creates_the_entry(created: Table) -> None:
    created.commit(op.UpdateMemWalState((op.Progress(SHARD, 4),)))
    assert progress_by_shard(created) == {SHARD: 4}
    assert len(decode_indices(snapshot_at(created))) == 2


def test_a_system_index_has_one_segment(table_with_log: Table) -> None:
    """A concurrent commit of another segment replaces the current one."""
    (entry,) = decode_indices(snapshot_at(table_with_log))
    message = type(entry.message)()
    message.CopyFrom(entry.message)
    message.uuid.uuid = uuid.uuid4().bytes
    ours = op.CreateIndex(new=(type(entry)(message),), removed=(entry,))
    table_with_log.set_metadata({"k": "v"})
    shutil.rmtree(Path(table_with_log.uri, "_indices"), ignore_errors=True)
    after = table_with_log.commit(replace(ours, removed=())).table
    assert [index.uuid for index in decode_indices(snapshot_at(after))] == [uuid.UUID(bytes=message.uuid.uuid)]
