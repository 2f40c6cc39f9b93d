"""How changes are made to fit what came before them, each looked at alone. That the tables are right in the end is
`tests/lance_core/commit/test_change.py`'s and the histories' to show.
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
from lance_core.commit.loop import fetch_inputs
from lance_core.format import mem_wal
from lance_core.format import operations as op
from lance_core.format.fragment import TOMBSTONE
from lance_core.format.ids import Version
from lance_core.format.index_metadata import MEM_WAL
from lance_core.format.operations import Operation
from lance_core.format.transaction import Transaction
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.transactions.rebase import FetchedInputs, Rebased, rebase, required_inputs
from lance_core.versions.snapshot import Snapshot, load_at, load_latest, read_history
from tests.lance_core.transactions.moves import MOVES, entries, fragments, rows, table

SHARD, OTHER = (uuid.UUID(int=number).bytes for number in (1, 2))


@pytest.fixture
def made(tmp_path: Path) -> Table:
    return table(tmp_path / "t", stable=False)


def at(made: Table, version: int | None = None) -> Snapshot:
    return load_latest(made._location) if version is None else load_at(made._location, Version(version))


def following(made: Table, ours: Operation) -> Rebased:
    """Ours was planned on the version that the handle shows."""
    base, head = at(made, made.version), at(made)
    transaction = Transaction(base.version, str(uuid.uuid4()), ours)
    history = read_history(head.location, base.version)
    assert history is not None
    wanted = required_inputs(transaction, base.manifest, head.manifest)
    fetched = fetch_inputs(head.location, wanted, SYSTEM_RUNTIME)
    return rebase(transaction, base.manifest, head.manifest, history.others, fetched)


@pytest.mark.parametrize("name", MOVES)
def test_nothing_in_between_changes_nothing(made: Table, name: str) -> None:
    base = at(made)
    ours = Transaction(base.version, "u", MOVES[name](base))
    assert rebase(ours, base.manifest, base.manifest, (), FetchedInputs()) == Rebased(ours)


@pytest.mark.parametrize("name", MOVES)
def test_what_touches_nothing_of_it_changes_nothing(made: Table, name: str) -> None:
    ours = MOVES[name](at(made))
    made.set_metadata({"k": "v"})
    rebased = following(made, ours)
    assert (rebased.transaction.operation, rebased.files) == (ours, {})
    assert rebased.transaction.read_version == made.version


def test_only_the_fragments_that_met_are_written_anew(made: Table) -> None:
    ours, more = MOVES["Delete all of 0"](at(made)), MOVES["Delete row of 1"](at(made))
    assert isinstance(ours, op.Delete)
    assert isinstance(more, op.Delete)
    both = replace(more, removed_ids=ours.removed_ids)
    made.delete("id = 6")
    rebased = following(made, both)
    assert len(rebased.files) == 1
    assert rebased.transaction.read_version == made.version + 1
    operation = rebased.transaction.operation
    assert isinstance(operation, op.Delete)
    assert [each.live_rows for each in operation.updated] == [2]
    assert operation.removed_ids == ours.removed_ids


def test_a_row_in_both_is_named(made: Table) -> None:
    ours = MOVES["Delete row of 1"](at(made))
    made.delete("id in (5, 6)")
    with pytest.raises(RetryableConflict, match="row 1 of fragment 1, one of 1, was changed or removed"):
        following(made, ours)


def test_rows_of_files_that_were_replaced_are_planned_again(made: Table, tmp_path: Path) -> None:
    """Deletion vectors of one fragment are merged only if its data files are those that the change was planned on."""
    other = table(tmp_path / "other", stable=False).delete("id = 6").table
    base, head = at(made), at(other)
    ours = Transaction(base.version, "u", MOVES["Delete row of 1"](base))
    with pytest.raises(RetryableConflict, match="the files of fragment 1 were replaced"):
        rebase(ours, base.manifest, head.manifest, (), FetchedInputs())


def test_an_index_stops_covering_what_changed_under_it(made: Table) -> None:
    ours = MOVES["CreateIndex on v"](at(made))
    made.update({"v": "v + 1"}, "id < 4")
    operation = following(made, ours).transaction.operation
    assert isinstance(operation, op.CreateIndex)
    assert operation.new[0].covers == BitMap([1, 2])
    assert made.commit(ours).table.count_rows("v >= 0") == 12
    assert lance.dataset(made.uri).to_table(filter="v = 1").num_rows == 1


def test_columns_that_others_dropped_are_dead(made: Table) -> None:
    ours = MOVES["Append"](at(made))
    moved = MOVES["Update row of 0"](at(made))
    made.drop_columns(["v"])
    for operation in (ours, moved):
        fitted = following(made, operation).transaction.operation
        assert isinstance(fitted, op.Append | op.Update)
        (new,) = fitted.fragments if isinstance(fitted, op.Append) else fitted.new
        assert new.files[0].field_ids == (0, TOMBSTONE, 2)


def test_nothing_but_dropped_columns_is_planned_again(made: Table) -> None:
    base = at(made)
    whole = MOVES["Append"](base)
    assert isinstance(whole, op.Append)
    (fragment,) = whole.fragments
    ours = op.Append((fragment.with_files([fragment.files[0].without_fields({0, 2})]),))
    made.drop_columns(["v"])
    with pytest.raises(RetryableConflict, match="all of its columns were dropped"):
        following(made, ours)


def test_values_for_a_column_that_was_written_anew_are_planned_again(made: Table) -> None:
    """pylance commits them and loses the values: the column has another number now, and they are stored for the old
    one. What brings none for it may follow."""
    base = at(made)
    ours = MOVES["Append"](base)
    without = op.Append(fragments(base, rows(100, 2).drop_columns("v")))
    made.alter_column("v", type=pa.int32())
    with pytest.raises(RetryableConflict, match="the column v was replaced by another one of that name"):
        following(made, ours)
    assert following(made, without).transaction.operation == without
    nested = made.refresh().add_columns(pa.field("s", pa.struct([("a", pa.int64()), ("b", pa.int64())]))).table
    brought = rows(200, 1).set_column(1, "v", pa.array([1], pa.int32())).append_column(
        "s", pa.array([{"a": 1, "b": 2}], nested.schema.field("s").type)
    )  # fmt: skip
    deep = op.Append(fragments(at(nested), brought))
    nested.alter_column("s.b", type=pa.int32())
    with pytest.raises(RetryableConflict, match=r"the column s\.b was replaced by another one of that name"):
        following(nested, deep)


def test_what_pylance_makes_of_values_for_a_column_written_anew(tmp_path: Path) -> None:
    made = lance.write_dataset(pa.table({"id": [1], "v": [10]}), str(tmp_path / "t"))
    brought = lance.fragment.write_fragments(pa.table({"id": [2], "v": [20]}), made.uri)
    made.alter_columns({"path": "v", "data_type": pa.int32()})  # type: ignore[dict-item]
    after = lance.LanceDataset.commit(made.uri, lance.LanceOperation.Append(brought), read_version=1)
    assert after.to_table()["v"].to_pylist() == [10, None]


# Logs in front of a table


@pytest.fixture
def logged(tmp_path: Path) -> Table:
    made = lance.write_dataset(pa.table({"id": pa.array([1, 2], pa.int64())}), str(tmp_path / "w"))
    made.initialize_mem_wal(unsharded=True)
    return Table.open(made.uri, durable=False)


def reached(made: Table) -> dict[bytes, int]:
    (entry,) = [index for index in entries(at(made)) if index.name == MEM_WAL]
    return {each.shard: each.generation for each in mem_wal.progress_of(entry)}


def test_progress_of_a_log_is_noted(logged: Table) -> None:
    """Never back; what pylance set up stays; rows stay."""
    before = entries(at(logged))[0]
    for progress, expected in (
        ([(SHARD, 3)], {SHARD: 3}),
        ([(SHARD, 2), (OTHER, 1)], {SHARD: 3, OTHER: 1}),
        ([], {SHARD: 3, OTHER: 1}),
        ([(SHARD, 9)], {SHARD: 9, OTHER: 1}),
    ):
        noted = tuple(op.Progress(shard, generation) for shard, generation in progress)
        logged.refresh().commit(op.UpdateMemWalState(noted))
        assert reached(logged) == expected
    theirs = lance.dataset(logged.uri)
    assert (theirs.mem_wal_index_details() or {})["num_shards"] == 1
    assert theirs.to_table()["id"].to_pylist() == [1, 2]
    assert entries(at(logged))[0].uuid != before.uuid


def test_progress_comes_with_an_update_too(logged: Table) -> None:
    logged.commit(op.Update(progress=(op.Progress(SHARD, 4),)))
    assert reached(logged) == {SHARD: 4}
    logged.refresh().commit(op.UpdateMemWalState((op.Progress(SHARD, 5),)))
    assert reached(logged) == {SHARD: 5}
    with pytest.raises(RetryableConflict, match="rule same_shard"):
        logged.commit(op.UpdateMemWalState((op.Progress(SHARD, 6),)))


def test_progress_without_a_log_makes_the_entry(made: Table) -> None:
    made.commit(op.UpdateMemWalState((op.Progress(SHARD, 4),)))
    assert reached(made) == {SHARD: 4}
    assert len(entries(at(made))) == 2


def test_of_the_librarys_own_indices_there_is_one(logged: Table) -> None:
    """Whoever brings another one takes the place of what is there by then."""
    (entry,) = entries(at(logged))
    message = type(entry.message)()
    message.CopyFrom(entry.message)
    message.uuid.uuid = uuid.uuid4().bytes
    ours = op.CreateIndex(new=(type(entry)(message),), removed=(entry,))
    logged.set_metadata({"k": "v"})
    shutil.rmtree(Path(logged.uri, "_indices"), ignore_errors=True)
    after = logged.commit(replace(ours, removed=())).table
    assert [index.uuid for index in entries(at(after))] == [uuid.UUID(bytes=message.uuid.uuid)]
