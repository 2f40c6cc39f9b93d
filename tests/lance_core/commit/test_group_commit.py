"""Appends of several threads that meet at one table: what goes together, what everybody is told, and that one that is
refused takes nobody along."""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import CommitUndecided, IncompatibleConflict, LanceError, Table
from lance_core.commit import group_commit
from lance_core.commit.group_commit import PendingAppend
from lance_core.commit.write_protocol import begin
from lance_core.coordination.leases import LEASE_DIRECTORY
from lance_core.transactions.invariants import InvariantViolation
from lance_core.versions.snapshot import load_transaction
from tests.lance_core.meeting import (
    EVERY_MANIFEST,
    fails_from_now_on,
    interrupted,
    meeting,
    raising,
    second_version,
)
from tests.lance_core.world import Fault, FaultyStore, World, runtime


def test_those_who_come_meanwhile_share_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    with meeting(monkeypatch, 3) as held:
        for name in ("a", "b", "c"):
            held.append(name)
    written = held.written()
    assert [each.snapshot.version for each in written] == [2, 3, 3, 3]
    assert [each.summary.rows_added for each in written] == [1, 1, 1, 1]
    assert [each.summary.files for each in written] == [1, 1, 1, 1]
    assert [each.rebased_over for each in written] == [(), (2,), (2,), (2,)]
    assert [each.attempts for each in written] == [1, 1, 1, 1]
    assert not any(each.already_committed for each in written)
    assert held.table.names() == ["first", "alone", "a", "b", "c"]
    assert held.parts(3) == 3


def test_each_intent_is_found_in_the_version_that_it_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    with meeting(monkeypatch, 2) as held:
        for name in ("a", "b"):
            held.append(name, intent=name)
    again = held.table.append("again", intent="a", writer=9)
    assert (again.snapshot.version, again.already_committed) == (3, True)
    assert again.summary == held.written()[1].summary
    assert held.table.names() == ["first", "alone", "a", "b"]


def test_an_intent_is_found_though_its_record_knows_of_no_landing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the process had been killed right after the put."""
    with meeting(monkeypatch, 2) as held:
        monkeypatch.setattr("lance_core.coordination.idempotency.record_commit", lambda *args, **named: None)
        for name in ("a", "b"):
            held.append(name, intent=name)
    monkeypatch.undo()
    again = held.table.append("again", intent="b", writer=9)
    assert (again.snapshot.version, again.already_committed) == (3, True)
    assert (again.summary.rows_added, again.summary.files) == (1, 1)
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


@pytest.mark.parametrize("first", ["old", "new"])
def test_one_planned_before_an_overwrite_takes_nobody_along(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it leads or goes along: what was committed since the oldest of them were planned is looked at."""
    with meeting(monkeypatch, 2) as held:
        other = World(held.store.inner)
        other.overwrite("anew", writer=7)  # version 2; the first one is stopped before it
        bases = {"old": None, "new": other.at(2)}
        for name in sorted(bases, key=lambda each: each != first):
            held.append(name, base=bases[name])
    told = {each.exception() is None for each in held.answers}
    refused = held.answers[1 if first == "old" else 2]
    assert told == {True, False}
    assert isinstance(held.answers[0].exception(), IncompatibleConflict)
    assert isinstance(refused.exception(), IncompatibleConflict)
    assert held.table.names() == ["anew", "new"]
    assert held.table.at().version == 3


def test_one_that_was_begun_earlier_goes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have landed where the others need not look."""
    with meeting(monkeypatch, 2) as held:
        begin(held.table.location(), held.table.at(1), verb="Append", intent="cut off", runtime=runtime(8))
        other = World(held.store.inner)
        other.append("theirs", writer=7)
        held.append("a", base=other.at(2))
        held.append("again", base=other.at(2), intent="cut off")
    assert [each.snapshot.version for each in held.written()] == [3, 4, 5]


def test_one_without_rows_goes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with meeting(monkeypatch, 3) as held:
        held.append("a")
        held.append("nothing", brought=())
        held.append("b")
    assert [each.snapshot.version for each in held.written()] == [2, 3, 4, 3]


def test_they_try_as_often_as_the_most_patient_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with meeting(monkeypatch, 2) as held:
        held.append("a", attempts=1)
        held.append("b")
        held.store.faults.append(
            Fault(second_version(held.store), "", lambda: World(held.store.inner).append("theirs", writer=7))
        )
    assert [each.snapshot.version for each in held.written()] == [2, 4, 4]


@pytest.mark.parametrize("old", ["a", "b"])
def test_files_of_one_who_took_long_are_held_until_they_are_named(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cleanup may be about to take them."""
    with meeting(monkeypatch, 2) as held:
        for name in ("a", "b"):
            held.append(name, begun_ago=timedelta(hours=2 if name == old else 0))
    assert [each.snapshot.version for each in held.written()] == [2, 3, 3]
    assert [call for call, path in held.store.calls if path.startswith(f"{LEASE_DIRECTORY}/")] == ["put", "delete"]


def test_who_was_stopped_after_it_was_taken_along_never_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it goes with cannot be put, and whoever comes after it must not wait for it."""
    taken: list[PendingAppend] = []

    def let_go(stopped: PendingAppend) -> None:
        stopped.answer = CommitUndecided("nobody reads this", uuid="", version=0)
        assert stopped.turn
        stopped.turn.set()

    def stop() -> None:
        (key,) = group_commit._queues
        group_commit._hand_over(key, taken[0], ())

    with meeting(monkeypatch, 3) as held:
        held.append("a")
        held.append("b")
        (queue,) = group_commit._queues.values()
        taken.append(queue.waiting[1])
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
    monkeypatch.setattr(group_commit, "_PATIENCE_SECONDS", 0.01)
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
        assert (again.snapshot.version, again.already_committed) == (3, True)
    assert held.table.names() == ["first", "alone", "a", "b"]


def test_an_append_that_landed_elsewhere_is_not_put_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process holds the same intent, and was first."""
    with meeting(monkeypatch, 2) as held:
        held.append("a", intent="a")
        held.append("b", intent="b")
        other = World(held.store.inner)
        assert other.append("twin", intent="a", base=1, writer=8).snapshot.version == 2
    alone, twin, b = held.written()
    assert (twin.snapshot.version, twin.summary.rows_added) == (2, 1)
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


@pytest.mark.parametrize("where", ["_enter", "_hand_over"])
def test_who_is_stopped_at_the_gate_leaves_it_open(where: str) -> None:
    """Wherever in it: otherwise all who come later would wait for somebody who is gone."""
    table, line, stopped = World(FaultyStore()), 0, True
    table.create("first")
    while stopped:
        with pytest.MonkeyPatch.context() as patch:
            told = interrupted(patch, where, call=0, line=line)
            with suppress(KeyboardInterrupt):
                table.append(f"{line}", writer=line + 1)
            stopped = bool(told)
        assert not group_commit._queues
        line += 1
    assert line > 5


@pytest.mark.parametrize("leaves", [0, 1], ids=["who came first", "who has company"])
@pytest.mark.parametrize("lands", [True, False], ids=["lands", "has to be tried again"])
def test_who_is_stopped_on_its_way_out_passes_the_lead_on(leaves: int, lands: bool) -> None:
    """And the answers, whichever there are."""
    line, stopped = 0, True
    while stopped:
        with pytest.MonkeyPatch.context() as patch:
            told = interrupted(patch, "_hand_over", call=leaves, line=line)
            with meeting(patch, 3) as held:
                for name in ("a", "b", "c"):
                    held.append(name)
                if not lands:
                    held.store.faults.append(Fault(second_version(held.store), "fails"))
            stopped = bool(told)
        errors = [answer.exception() for answer in held.answers]
        assert [type(error) for error in errors if error] == [KeyboardInterrupt] * stopped
        assert held.table.names() == ["first", "alone", "a", "b", "c"]
        line += 1
    assert line > 5


def test_who_is_stopped_while_it_gathers_leaves_everybody_in_the_line() -> None:
    line, stopped = 0, True
    while stopped:
        with pytest.MonkeyPatch.context() as patch:
            told = interrupted(patch, "_collect_followers", call=0, line=line)
            with meeting(patch, 3) as held:
                for name in ("a", "b", "c"):
                    held.append(name)
            stopped = bool(told)
        errors = [answer.exception() for answer in held.answers]
        assert [type(error) for error in errors if error] == [KeyboardInterrupt] * stopped
        assert held.table.names() == ["first", "alone", *([] if stopped else ["a"]), "b", "c"]
        line += 1
    assert line > 5


def test_no_more_go_together_than_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "PARTS_MAX", 2)
    with meeting(monkeypatch, 3) as held:
        for name in ("a", "b", "c"):
            held.append(name)
    assert [each.snapshot.version for each in held.written()] == [2, 3, 3, 4]


def test_who_was_given_the_lead_does_not_wait_for_itself_either(monkeypatch: pytest.MonkeyPatch) -> None:
    with meeting(monkeypatch, 1) as held:
        held.append("outer")

        def within() -> None:
            monkeypatch.setattr(group_commit, "_PATIENCE_SECONDS", 0.01)
            held.table.append("inner", writer=7)
            assert not held.waiting.acquire(blocking=False)

        held.store.faults.append(Fault(second_version(held.store), "", within))
    assert held.written()[1].snapshot.version == 4
    assert held.table.names() == ["first", "alone", "inner", "outer"]


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
            told.append((value, made.version, made.already_committed))
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
        assert (again.version, again.already_committed) == (version, True)
    assert ours.fsck().errors == ()
