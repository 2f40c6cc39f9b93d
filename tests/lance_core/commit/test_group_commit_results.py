"""Rows of several appends in one file: who shares it, what each is told of it, and that it is nobody's where not all of
it can land."""

from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import CommitUndecided, StorageError, Table
from lance_core.commit import data_files, group_commit
from lance_core.commit.write_protocol import StartedWrite, begin, finish_append
from lance_core.coordination import idempotency
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.datafiles.ipc_codec import IpcCodec
from lance_core.format import naming
from lance_core.format.fragment import StorageVersion
from lance_core.transactions.fold import parts_of
from lance_core.versions.snapshot import load_transaction
from tests.lance_core.meeting import fails_from_now_on, held_rows, landed_together, meeting, raising, second_version
from tests.lance_core.world import Fault, FaultyStore, World, calling, creating, runtime


def test_those_who_bring_rows_share_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with meeting(monkeypatch, 3) as held:
        held.append("", rows=[1])
        held.append("", rows=[2, 3, 4])
        held.append("", rows=[5, 6])
    written = held.written()
    assert [each.snapshot.version for each in written] == [2, 3, 3, 3]
    assert held.rows() == [[1, 2, 3, 4, 5, 6]]
    assert [each.summary.rows_added for each in written[1:]] == [1, 3, 2]
    assert [each.summary.files for each in written[1:]] == [1, 1, 1]
    (file,) = held.table.at(3).manifest.fragments[-1].files
    assert sum(each.summary.bytes for each in written[1:]) == file.size
    assert not any(each.already_committed for each in written)


def test_who_comes_with_a_file_goes_with_those_who_bring_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """But does not write for them, where it leads."""
    with meeting(monkeypatch, 5) as held:
        held.append("a")
        held.append("", rows=[1])
        held.append("b")
        held.append("", rows=[2])
        held.append("c", run="other")
    written = held.written()
    assert [each.snapshot.version for each in written] == [2, 3, 4, 3, 4, 5]
    assert held.rows() == [[1, 2]]
    assert sorted(name for name in held.table.names() if len(name) == 1) == ["a", "b", "c"]
    assert [each.summary.rows_added for each in written] == [1] * 6


def test_files_of_their_own_come_after_the_shared_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with meeting(monkeypatch, 4) as held:
        held.append("", rows=[1])
        held.append("b", intent="b")
        held.append("", rows=[2, 3])
        held.append("c")
    written = held.written()
    assert [each.snapshot.version for each in written] == [2, 3, 3, 3, 3]
    assert [each.summary.rows_added for each in written] == [1, 1, 1, 2, 1]
    assert [each.summary.bytes for each in written[2::2]] == [1, 1]
    assert held.rows() == [[1, 2, 3]]
    assert held.table.names()[-2:] == ["b", "c"]


def test_a_file_takes_so_many_rows_as_its_limits_want(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = FileLimits(rows_max=3)
    with meeting(monkeypatch, 6) as held:
        held.append("", rows=[1, 1], limits=limits)
        held.append("", rows=[2, 2], limits=limits)
        held.append("", rows=[3], limits=limits)
        held.append("", rows=[4], limits=FileLimits(rows_max=4))
        held.append("", rows=[5, 5, 5, 5], limits=limits)
        held.append("", rows=[6], limits=limits)
    assert [each.snapshot.version for each in held.written()] == [2, 3, 4, 3, 5, 6, 4]
    assert held.rows() == [[1, 1, 3], [2, 2, 6], [4], [5, 5, 5], [5]]


def test_a_file_takes_so_many_bytes_as_its_limits_want(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = FileLimits(bytes_max=24)
    with meeting(monkeypatch, 3) as held:
        held.append("", rows=[1, 1], limits=limits)
        held.append("", rows=[2, 2], limits=limits)
        held.append("", rows=[3], limits=limits)
    assert [each.snapshot.version for each in held.written()] == [2, 3, 4, 3]
    assert held.rows() == [[1, 1, 3], [2, 2]]


def test_only_rows_of_one_storage_version_share_a_file() -> None:
    ours = held_rows({"id": [1]})
    assert ours.can_share_file(held_rows({"id": [2]}))
    assert not ours.can_share_file(replace(ours, version=StorageVersion(2, 0)))


def test_those_who_come_while_others_are_written_come_into_the_file_too() -> None:
    others = (held_rows({"id": rows}) for rows in ([2, 3], [4], [5]))
    location = World().location()
    (made,) = data_files.write_shared_file(location, held_rows({"id": [1]}), others, runtime())
    assert IpcCodec(location.store).open(made.files[0].qualified_path).table["id"].to_pylist() == [1, 2, 3, 4, 5]
    assert made.physical_rows == 5


def test_the_version_says_whose_rows_are_where(monkeypatch: pytest.MonkeyPatch) -> None:
    with meeting(monkeypatch, 3) as held:
        for rows in ([1], [2, 2], [3, 3, 3]):
            held.append("", rows=rows)
    made_by = load_transaction(held.table.location(), held.table.at(3).manifest)
    assert made_by
    assert held.rows() == [[1, 2, 2, 3, 3, 3]]
    places = [(part.first_row, part.append.fragments[0].physical_rows) for part in parts_of(made_by)]
    assert places == [(0, 1), (1, 2), (3, 3)]


def test_a_file_takes_so_many_bytes_as_others_can_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "SHARED_BYTES_MAX", 24)
    with meeting(monkeypatch, 4) as held:
        held.append("", rows=[1, 1])
        held.append("", rows=[2, 2])
        held.append("", rows=[3])
        held.append("", rows=[4])
    assert held.written()
    assert held.rows() == [[1, 1, 3], [2, 2, 4]]


def test_who_shares_a_file_is_found_by_its_intent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though no record knows of the file or of the landing, as if the process had been killed right after the put."""
    with meeting(monkeypatch, 2) as held:
        monkeypatch.setattr("lance_core.coordination.idempotency.record_commit", lambda *args, **named: None)
        held.append("", rows=[1], intent="a")
        held.append("", rows=[2, 3], intent="b")
    monkeypatch.undo()
    told = held.written()[2].summary
    again = held.table.append("again", intent="b", writer=9)
    assert (again.snapshot.version, again.already_committed) == (3, True)
    assert again.summary == told
    assert (told.rows_added, told.files) == (2, 1)
    assert held.rows() == [[1, 2, 3]]


def test_who_brings_other_columns_has_a_file_of_its_own(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    table = Table.create(str(tmp_path / "t"), schema)
    wide, narrow = pa.table({"a": [1], "b": ["x"]}, schema), pa.table({"a": [2]})
    told = landed_together(table, wide, narrow, wide)
    assert [each.snapshot.version for each in told] == [2, 3, 2]
    assert table.refresh().to_table()["b"].to_pylist() == ["x", "x", None]


def test_where_a_file_cannot_be_written_for_all_each_writes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with meeting(monkeypatch, 3) as held:
        held.append("", rows=[1], intent="a")
        held.append("b")
        held.append("", rows=[2])
        held.store.faults.append(Fault(calling("put", naming.DATA), "fails"))
    assert [each.snapshot.version for each in held.written()] == [2, 3, 4, 5]
    assert held.rows() == [[1], [2]]


def test_what_was_cut_short_is_not_committed_for_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut() -> None:
        store = held.store.inner
        (path,) = (each.path for each in store.walk(naming.DATA) if "alone" not in each.path and "fi" not in each.path)
        store.put(path, store.read(path)[:-1])

    with meeting(monkeypatch, 2) as held:
        held.append("", rows=[1])
        held.append("", rows=[2])
        held.store.faults.append(Fault(calling("head", naming.DATA), "", cut))
    assert [each.snapshot.version for each in held.written()] == [2, 3, 4]
    assert held.rows() == [[1], [2]]


def test_who_cannot_be_written_takes_nobody_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where it leads nor where it goes along."""
    with meeting(monkeypatch, 3) as held:
        for value in (1, 2, 3):
            held.append("", rows=[value])
        held.store.faults += [Fault(calling("put", naming.DATA), "fails")] * 2
    errors = [answer.exception() for answer in held.answers]
    assert [type(each) for each in errors] == [type(None), StorageError, type(None), type(None)]
    assert held.rows() == [[2], [3]]


def test_where_a_shared_file_cannot_land_each_writes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with meeting(monkeypatch, 3) as held:
        for value in (1, 2, 3):
            held.append("", rows=[value], intent=f"of {value}")
        held.store.faults.append(Fault(second_version(held.store), "fails"))
    assert [each.snapshot.version for each in held.written()] == [2, 3, 4, 5]
    assert held.rows() == [[1], [2], [3]]


def test_who_writes_for_itself_tells_its_intention_of_the_file() -> None:
    """Whoever repeats it may take a while, and no cleanup takes the file meanwhile."""
    store = FaultyStore()
    table = World(store)
    table.create("first")
    begun = begin(table.location(), table.at(), verb="append", intent="a", runtime=runtime(1))
    store.faults.append(Fault(creating(naming.VERSIONS), "fails"))
    assert isinstance(begun, StartedWrite)
    with pytest.raises(StorageError):
        finish_append(begun, held_rows({"id": [1]}), properties={}, attempts=1)
    (file,) = idempotency.read_record(store, idempotency.path_of("a")).files
    assert store.head(f"{naming.DATA}/{file}")


def test_one_that_is_alone_is_written_once() -> None:
    store = FaultyStore()
    table = World(store)
    table.create("first")
    begun = begin(table.location(), table.at(), verb="append", intent=None, runtime=runtime(1))
    store.faults.append(Fault(calling("put", naming.DATA), "fails"))
    assert isinstance(begun, StartedWrite)
    with pytest.raises(StorageError):
        finish_append(begun, held_rows({"id": [1]}), properties={}, attempts=1)
    assert table.names() == ["first"]


def test_rows_that_landed_elsewhere_are_not_committed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process holds the same intent, and was first."""
    with meeting(monkeypatch, 3) as held:
        for value in (1, 2, 3):
            held.append("", rows=[value], intent=f"of {value}")
        other = World(held.store.inner)
        assert other.append("twin", intent="of 2", base=1, writer=8).snapshot.version == 2
    written = held.written()
    assert (written[2].snapshot.version, written[2].already_committed) == (2, True)
    assert held.rows() == [[1], [3]]
    assert held.table.names().count("twin") == 1


def test_two_who_hold_one_intent_do_not_share_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes second finds what the first has done, and the others go on together all the same."""
    with meeting(monkeypatch, 3) as held:
        held.append("", rows=[1])
        held.append("", rows=[2], intent="twins")
        held.append("", rows=[2], intent="twins")
    written = held.written()
    assert [each.snapshot.version for each in written] == [2, 3, 3, 3]
    assert [each.already_committed for each in written] == [False, False, False, True]
    assert written[3].summary == written[2].summary
    assert held.rows() == [[1, 2]]


def test_a_shared_file_follows_what_came_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written once, and its version is another one."""
    with meeting(monkeypatch, 2) as held:
        held.append("", rows=[1])
        held.append("", rows=[2])
        held.store.faults.append(
            Fault(second_version(held.store), "", lambda: World(held.store.inner).append("theirs", writer=7))
        )
    written = held.written()
    assert [each.snapshot.version for each in written] == [2, 4, 4]
    assert [each.attempts for each in written] == [1, 2, 2]
    assert held.rows() == [[1, 2]]
    assert len(held.store.inner.walk(naming.DATA)) == 4


def test_when_the_one_that_writes_is_stopped_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of theirs can have landed, so nobody is told that it might."""
    with meeting(monkeypatch, 3) as held:
        for value in (1, 2, 3):
            held.append("", rows=[value])
        held.store.faults.append(Fault(calling("put", naming.DATA), "", raising(KeyboardInterrupt())))
    assert isinstance(held.answers[1].exception(), KeyboardInterrupt)
    assert [held.answers[number].result().snapshot.version for number in (2, 3)] == [3, 4]
    assert held.rows() == [[2], [3]]


def test_nobody_who_shares_a_file_is_told_more_than_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with meeting(monkeypatch, 2) as held:
        held.append("", rows=[1], intent="a")
        held.append("", rows=[2], intent="b")
        held.store.faults.append(Fault(second_version(held.store), "lost", lambda: fails_from_now_on(held.store)))
    assert [type(held.answers[number].exception()) for number in (1, 2)] == [CommitUndecided] * 2
    held.store.faults.clear()
    for name in ("a", "b"):
        again = held.table.append("again", intent=name, writer=9)
        assert (again.snapshot.version, again.already_committed) == (3, True)
    assert held.rows() == [[1, 2]]


def test_who_stood_in_line_for_too_long_writes_its_own_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "_PATIENCE_SECONDS", 0.01)
    with meeting(monkeypatch, 1) as held:
        held.append("", rows=[1], intent="impatient")
        assert held.answers[1].result(60).snapshot.version == 2
    assert held.answers[0].result().snapshot.version == 3
    assert held.rows() == [[1]]


KINDS = {
    "dictionaries": lambda at: pa.array(["a", f"b{at}", None], pa.string()).dictionary_encode(),
    "lists": lambda at: pa.array([[at], None, []], pa.list_(pa.int32())),
    "fixed": lambda at: pa.array([[at, 1.0], [2.0, 3.0], [4.0, at]], pa.list_(pa.float32(), 2)),
    "structs": lambda at: pa.array([{"x": at, "y": "y"}, None, {"x": None, "y": str(at)}]),
    "decimals": lambda at: pa.array([at, None, 7], pa.decimal128(20, 2)),
    "slices": lambda at: pa.array([{"x": number} for number in range(10)]).slice(at, 3),
    "bools": lambda at: pa.array([bool(at % 2), None, True]),
    "nothing": lambda at: pa.nulls(3, pa.int8()),
}


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_file_has_the_rows_of_each_in_their_order(kind: str, stable: bool, tmp_path: Path) -> None:
    uri, brought = str(tmp_path / "t"), [pa.table({"v": KINDS[kind](at)}) for at in range(4)]
    table = Table.create(uri, brought[0].schema, stable_row_ids=stable)
    told = landed_together(table, *brought)
    assert [each.snapshot.version for each in told] == [2] * 4
    expected = [row for rows in brought for row in rows.to_pylist()]
    table = table.refresh()
    assert table.to_table().to_pylist() == lance.dataset(uri).to_table().to_pylist() == expected
    assert len(table.manifest.fragments) == 1
    if stable:
        assert table.to_table(with_row_id=True)["_rowid"].to_pylist() == list(range(12))
    assert table.fsck().errors == ()


def test_blobs_of_several_lie_beside_the_file_that_they_share(tmp_path: Path) -> None:
    sizes = (10, 100_000, 5_000_000)
    schema = pa.schema([pa.field("v", pa.large_binary(), metadata={"lance-encoding:blob": "true"})])
    brought = [pa.table({"v": pa.array([bytes([at]) * size], pa.large_binary())}) for at, size in enumerate(sizes)]
    table = Table.create(str(tmp_path / "t"), schema)
    landed_together(table, *brought)
    table = table.refresh()
    blobs = table.blobs("v", [0, 1, 2])
    assert [blob.read() for blob in blobs if blob] == [rows["v"][0].as_py() for rows in brought]
    assert table.fsck().errors == ()
