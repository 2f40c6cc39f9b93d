"""Appends of several threads that meet at one table: what goes together, what everybody is told, and that one that is
refused takes nobody along."""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import (
    CommitUndecided,
    IncompatibleConflict,
    LanceError,
    Table,
    gathering,
)
from lance_core.snapshot import load_transaction
from lance_core.together import Waiting
from lance_core.transactions.invariants import InvariantViolation
from tests.lance_core.meeting import (
    EVERY_MANIFEST,
    fails_from_now_on,
    meeting,
    raising,
    second_version,
)
from tests.lance_core.world import Fault, FaultyStore, World


def test_those_who_come_meanwhile_share_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    with meeting(monkeypatch, 3) as held:
        for name in ("a", "b", "c"):
            held.append(name)
    written = held.written()
    assert [each.snapshot.version for each in written] == [2, 3, 3, 3]
    assert [each.landing.rows_added for each in written] == [1, 1, 1, 1]
    assert [each.landing.files for each in written] == [1, 1, 1, 1]
    assert [each.rebased_over for each in written] == [(), (2,), (2,), (2,)]
    assert [each.attempts for each in written] == [1, 1, 1, 1]
    assert not any(each.landed_before for each in written)
    assert held.table.names() == ["first", "alone", "a", "b", "c"]
    assert held.parts(3) == 3


def test_each_intent_is_found_in_the_version_that_it_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    with meeting(monkeypatch, 2) as held:
        for name in ("a", "b"):
            held.append(name, intent=name)
    again = held.table.append("again", intent="a", writer=9)
    assert (again.snapshot.version, again.landed_before) == (3, True)
    assert again.landing == held.written()[1].landing
    assert held.table.names() == ["first", "alone", "a", "b"]


def test_an_intent_is_found_though_its_record_knows_of_no_landing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the process had been killed right after the put."""
    with meeting(monkeypatch, 2) as held:
        monkeypatch.setattr("lance_core.intents.note_landing", lambda *args, **named: None)
        for name in ("a", "b"):
            held.append(name, intent=name)
    monkeypatch.undo()
    again = held.table.append("again", intent="b", writer=9)
    assert (again.snapshot.version, again.landed_before) == (3, True)
    assert (again.landing.rows_added, again.landing.files) == (1, 1)
    assert held.table.names() == ["first", "alone", "a", "b"]


def test_appends_of_different_origin_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a version says of where it comes from is true of all its rows."""
    with meeting(monkeypatch, 4) as held:
        for name, run in (("a", "1"), ("b", "2"), ("c", "1"), ("d", "2")):
            held.append(name, run=run)
    assert [each.snapshot.version for each in held.written()] == [2, 3, 4, 3, 4]
    for version, run in ((3, "1"), (4, "2")):
        transaction = load_transaction(held.table.location(), held.table.at(version).manifest)
        assert transaction is not None
        assert transaction.properties["run"] == run


def test_one_whose_rows_are_there_already_takes_nobody_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """`b` brings a file that the first version has."""
    with meeting(monkeypatch, 3) as held:
        held.append("a")
        held.append("b", brought=tuple(held.table.at(1).manifest.fragments))
        held.append("c")
    refused = held.answers[2].exception()
    assert isinstance(refused, LanceError)
    assert "first.lance" in str(refused)
    versions = [held.answers[number].result().snapshot.version for number in (0, 1, 3)]
    assert versions == [2, 3, 4]
    assert held.table.names() == ["first", "alone", "a", "c"]


def test_one_planned_before_an_overwrite_takes_nobody_along(monkeypatch: pytest.MonkeyPatch) -> None:
    with meeting(monkeypatch, 2) as held:
        other = World(held.store.inner)
        other.overwrite("anew", writer=7)  # version 2; the first one is stopped before it
        held.append("old")
        held.append("new", base=other.at(2))
    assert isinstance(held.answers[0].exception(), IncompatibleConflict)
    assert isinstance(held.answers[1].exception(), IncompatibleConflict)
    assert held.answers[2].result().snapshot.version == 3
    assert held.table.names() == ["anew", "new"]


def test_who_was_stopped_after_it_was_taken_along_never_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it goes with cannot be put, and whoever comes after it must not wait for it."""
    taken: list[Waiting] = []

    def let_go(stopped: Waiting) -> None:
        stopped.answer = CommitUndecided("nobody reads this", uuid="", version=0)
        stopped.called.set()

    def stop() -> None:
        ((key, gate),) = gathering._gates.items()
        gathering._leave(key, gate, taken[0], ())

    with meeting(monkeypatch, 3) as held:
        held.append("a")
        held.append("b")
        (gate,) = gathering._gates.values()
        taken.append(gate.waiting[1])
        held.append("c")
        held.store.faults.append(Fault(second_version(held.store), "fails", stop))
        held.answers.pop(2)  # its thread is let go when all is over, since it was not stopped in earnest
        held.answers[2].add_done_callback(lambda _: let_go(taken[0]))
    assert [answer.result().snapshot.version for answer in held.answers] == [2, 3, 4]
    assert held.table.names() == ["first", "alone", "a", "c"]


def test_where_the_whole_cannot_be_put_each_tries_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with meeting(monkeypatch, 3) as held:
        for name in ("a", "b", "c"):
            held.append(name)
        held.store.faults.append(Fault(second_version(held.store), "fails"))
    assert [each.snapshot.version for each in held.written()] == [2, 3, 4, 5]
    assert held.table.names() == ["first", "alone", "a", "b", "c"]


def test_each_is_told_what_came_between_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with meeting(monkeypatch, 2) as held:
        other = World(held.store.inner)
        other.append("theirs", writer=7)  # version 2; the first one is stopped before it
        held.append("old")
        held.append("new", base=other.at(2))
    assert [each.rebased_over for each in held.written()] == [(2,), (2, 3), (3,)]
    assert [each.snapshot.version for each in held.written()] == [3, 4, 4]


def test_an_error_of_one_that_nobody_foresaw_takes_nobody_along(monkeypatch: pytest.MonkeyPatch) -> None:
    with meeting(monkeypatch, 2) as held:
        held.append("a")
        held.append("b")
        held.store.faults.append(Fault(second_version(held.store), "", raising(InvariantViolation("seen to"))))
    assert [each.snapshot.version for each in held.written()] == [2, 3, 4]
    assert held.table.names() == ["first", "alone", "a", "b"]


def test_who_may_reach_other_places_goes_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """And each is given the table by its own way."""
    with meeting(monkeypatch, 3) as held:
        for name, bases in (("a", ("/elsewhere",)), ("b", ()), ("c", ("/elsewhere",))):
            held.append(name, bases=bases)
    written = held.written()
    assert [each.snapshot.version for each in written] == [2, 3, 4, 3]
    assert [each.snapshot.location.access.bases for each in written] == [(), ("/elsewhere",), (), ("/elsewhere",)]


def test_who_stood_in_line_for_too_long_steps_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_PATIENCE_SECONDS", 0.01)
    with meeting(monkeypatch, 1) as held:
        held.append("impatient")
        assert held.answers[1].result(60).snapshot.version == 2
    assert held.answers[0].result().snapshot.version == 3


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:lance is not fork-safe")
def test_a_forked_process_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was committing when it was forked is a thread of its parent."""
    with meeting(monkeypatch, 0) as held:
        child = os.fork()
        if child == 0:
            try:
                held.store.faults.clear()
                os._exit(held.table.append("child", writer=7).snapshot.version)
            finally:
                os._exit(9)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2


def test_nobody_is_told_more_than_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared put is not answered, and then the store fails: none of those in it may believe anything."""
    with meeting(monkeypatch, 2) as held:
        held.append("a", intent="a")
        held.append("b", intent="b")
        held.store.faults.append(Fault(second_version(held.store), "lost", lambda: fails_from_now_on(held.store)))
    for number in (1, 2):
        undecided = held.answers[number].exception()
        assert isinstance(undecided, CommitUndecided)
        assert undecided.version == 3
    held.store.faults.clear()
    for name in ("a", "b"):
        again = held.table.append("again", intent=name, writer=9)
        assert (again.snapshot.version, again.landed_before) == (3, True)
    assert held.table.names() == ["first", "alone", "a", "b"]


def test_an_append_that_landed_elsewhere_is_not_put_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process holds the same intent, and was first."""
    with meeting(monkeypatch, 2) as held:
        held.append("a", intent="a")
        held.append("b", intent="b")
        other = World(held.store.inner)
        assert other.append("twin", intent="a", base=1, writer=8).snapshot.version == 2
    alone, twin, b = held.written()
    assert (twin.snapshot.version, twin.landing.rows_added) == (2, 1)
    assert held.table.names().count("a") + held.table.names().count("twin") == 1
    assert sorted(held.table.names()) == ["alone", "b", "first", "twin"]
    assert {alone.snapshot.version, b.snapshot.version} == {3, 4}


def test_when_the_one_that_commits_is_stopped_the_others_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with meeting(monkeypatch, 3) as held:
        for name in ("a", "b"):
            held.append(name, intent=name)
        held.append("c", run="other")
        held.store.faults.append(Fault(second_version(held.store), "", stop))
    assert isinstance(held.answers[1].exception(), KeyboardInterrupt)
    assert isinstance(held.answers[2].exception(), CommitUndecided)
    assert held.answers[3].result().snapshot.version == 3
    assert held.table.append("again", intent="b", writer=9).snapshot.version == 4


def test_who_is_stopped_while_it_waits_leaves_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with meeting(monkeypatch, 2) as held:
        held.append("a", stopped=True)
        held.append("b")
    assert isinstance(held.answers[1].exception(), KeyboardInterrupt)
    assert held.answers[2].result().snapshot.version == 3
    assert held.table.names() == ["first", "alone", "b"]


def test_a_commit_within_a_commit_does_not_wait_for_itself() -> None:
    store = FaultyStore()
    table = World(store)
    table.create("first")
    store.faults.append(Fault(EVERY_MANIFEST, "", lambda: table.append("inner", writer=2)))
    assert table.append("outer").snapshot.version == 3
    assert table.names() == ["first", "inner", "outer"]


def test_many_threads_on_a_real_table(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, pa.table({"id": [0]}), durable=False)
    start = threading.Barrier(8)

    def work(number: int) -> Sequence[tuple[int, int, bool]]:
        start.wait(60)
        told = []
        for turn in range(8):
            value = number * 100 + turn
            made = Table.open(uri, durable=False).append(pa.table({"id": [value]}), intent=f"of {value}")
            assert value in made.table.to_table()["id"].to_pylist()
            told.append((value, made.version, made.landed_before))
        return told

    with ThreadPoolExecutor(8) as pool:
        told = [each for one in pool.map(work, range(8)) for each in one]
    ours, theirs = Table.open(uri), lance.dataset(uri)
    rows = sorted([0, *(value for value, _, _ in told)])
    assert sorted(ours.to_table()["id"].to_pylist()) == sorted(theirs.to_table()["id"].to_pylist()) == rows
    assert ours.version < 65  # some of them went together
    assert not any(before for _, _, before in told)
    for value, version, _ in told:
        again = Table.open(uri, durable=False).append(pa.table({"id": [value]}), intent=f"of {value}")
        assert (again.version, again.landed_before) == (version, True)
    assert ours.fsck().errors == ()
