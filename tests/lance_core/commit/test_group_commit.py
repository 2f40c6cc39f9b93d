"""Group commit: concurrent appends of one process share a version, each gets its own result, and a refused append does
not fail the others.
"""

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
from tests.lance_core.concurrent_appends import (
    PUT_OF_ANY_VERSION,
    PUT_OF_VERSION_3,
    concurrent_appends,
    fail_every_call,
    interrupt_at_line,
    raiser_of,
)
from tests.lance_core.in_memory_table import Fault, FaultyStore, InMemoryTable, deterministic_runtime


def test_appends_that_arrive_during_a_commit_share_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    with concurrent_appends(monkeypatch, 3) as appends:
        for name in ("a", "b", "c"):
            appends.append(name)
    results = appends.results()
    assert [each.snapshot.version for each in results] == [2, 3, 3, 3]
    assert [each.summary.rows_added for each in results] == [1, 1, 1, 1]
    assert [each.summary.files for each in results] == [1, 1, 1, 1]
    assert [each.rebased_over for each in results] == [(), (2,), (2,), (2,)]
    assert [each.attempts for each in results] == [1, 1, 1, 1]
    assert not any(each.already_committed for each in results)
    assert appends.table.file_names() == ["first", "alone", "a", "b", "c"]
    assert appends.part_count(3) == 3


def test_each_intent_is_found_in_the_version_that_it_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    with concurrent_appends(monkeypatch, 2) as appends:
        for name in ("a", "b"):
            appends.append(name, intent=name)
    again = appends.table.append("again", intent="a", writer=9)
    assert (again.snapshot.version, again.already_committed) == (3, True)
    assert again.summary == appends.results()[1].summary
    assert appends.table.file_names() == ["first", "alone", "a", "b"]


def test_an_intent_is_found_without_a_commit_in_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproduces a process that is killed right after the put."""
    with concurrent_appends(monkeypatch, 2) as appends:
        monkeypatch.setattr("lance_core.coordination.idempotency.record_commit", lambda *args, **named: None)
        for name in ("a", "b"):
            appends.append(name, intent=name)
    monkeypatch.undo()
    again = appends.table.append("again", intent="b", writer=9)
    assert (again.snapshot.version, again.already_committed) == (3, True)
    assert (again.summary.rows_added, again.summary.files) == (1, 1)
    assert appends.table.file_names() == ["first", "alone", "a", "b"]


def test_appends_with_different_properties_do_not_share_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The properties of a version are true for all rows that it adds."""
    with concurrent_appends(monkeypatch, 4) as appends:
        for name, run in (("a", "1"), ("b", "2"), ("c", "1"), ("d", "2")):
            appends.append(name, run=run)
    assert [each.snapshot.version for each in appends.results()] == [2, 3, 4, 3, 4]
    for version, run in ((3, "1"), (4, "2")):
        transaction = load_transaction(appends.table.location(), appends.table.at(version).manifest)
        assert transaction is not None
        assert transaction.properties["run"] == run


def test_an_append_of_a_referenced_file_does_not_fail_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """`b` appends a file that the first version references already."""
    with concurrent_appends(monkeypatch, 3) as appends:
        appends.append("a")
        appends.append("b", own_fragments=tuple(appends.table.at(1).manifest.fragments))
        appends.append("c")
    error = appends.futures[2].exception()
    assert isinstance(error, LanceError)
    assert "first.lance" in str(error)
    versions = [appends.futures[number].result().snapshot.version for number in (0, 1, 3)]
    assert versions == [2, 3, 4]
    assert appends.table.file_names() == ["first", "alone", "a", "c"]


@pytest.mark.parametrize("first", ["old", "new"])
def test_an_append_planned_before_an_overwrite_does_not_fail_the_others(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome is the same for a leader and a follower: the group checks the commits since its oldest base."""
    with concurrent_appends(monkeypatch, 2) as appends:
        other = InMemoryTable(appends.store.inner)
        other.overwrite("replaced", writer=7)  # version 2; the first append is paused before it puts that version
        bases = {"old": None, "new": other.at(2)}
        for name in sorted(bases, key=lambda each: each != first):
            appends.append(name, base=bases[name])
    outcomes = {each.exception() is None for each in appends.futures}
    refused = appends.futures[1 if first == "old" else 2]
    assert outcomes == {True, False}
    assert isinstance(appends.futures[0].exception(), IncompatibleConflict)
    assert isinstance(refused.exception(), IncompatibleConflict)
    assert appends.table.file_names() == ["replaced", "new"]
    assert appends.table.at().version == 3


def test_a_repetition_of_an_earlier_attempt_commits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been committed in versions that the other appends need not search."""
    with concurrent_appends(monkeypatch, 2) as appends:
        begin(
            appends.table.location(),
            appends.table.at(1),
            verb="Append",
            intent="interrupted",
            runtime=deterministic_runtime(8),
        )
        other = InMemoryTable(appends.store.inner)
        other.append("theirs", writer=7)
        appends.append("a", base=other.at(2))
        appends.append("again", base=other.at(2), intent="interrupted")
    assert [each.snapshot.version for each in appends.results()] == [3, 4, 5]


def test_an_append_without_rows_commits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with concurrent_appends(monkeypatch, 3) as appends:
        appends.append("a")
        appends.append("nothing", own_fragments=())
        appends.append("b")
    assert [each.snapshot.version for each in appends.results()] == [2, 3, 4, 3]


def test_a_group_uses_the_largest_number_of_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    with concurrent_appends(monkeypatch, 2) as appends:
        appends.append("a", attempts=1)
        appends.append("b")
        appends.store.faults.append(
            Fault(PUT_OF_VERSION_3, "", lambda: InMemoryTable(appends.store.inner).append("theirs", writer=7))
        )
    assert [each.snapshot.version for each in appends.results()] == [2, 4, 4]


@pytest.mark.parametrize("slow", ["a", "b"])
def test_files_of_a_slow_append_are_leased_until_they_are_referenced(
    slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleanup may be about to delete them."""
    with concurrent_appends(monkeypatch, 2) as appends:
        for name in ("a", "b"):
            appends.append(name, started_ago=timedelta(hours=2 if name == slow else 0))
    assert [each.snapshot.version for each in appends.results()] == [2, 3, 3]
    assert [call for call, path in appends.store.calls if path.startswith(f"{LEASE_DIRECTORY}/")] == ["put", "delete"]


def test_an_interrupted_follower_never_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group of the follower cannot be put, and later appends must not wait for the interrupted one."""
    interrupted: list[PendingAppend] = []

    def release(append: PendingAppend) -> None:
        append.answer = CommitUndecided("unread", uuid="", version=0)
        assert append.turn
        append.turn.set()

    def interrupt() -> None:
        (key,) = group_commit._queues
        group_commit._hand_over(key, interrupted[0], ())

    with concurrent_appends(monkeypatch, 3) as appends:
        appends.append("a")
        appends.append("b")
        (queue,) = group_commit._queues.values()
        interrupted.append(queue.waiting[1])
        appends.append("c")
        appends.store.faults.append(Fault(PUT_OF_VERSION_3, "fails", interrupt))
        appends.futures.pop(2)  # its thread is not really interrupted and returns at the end
        appends.futures[2].add_done_callback(lambda _: release(interrupted[0]))
    assert [answer.result().snapshot.version for answer in appends.futures] == [2, 3, 4]
    assert appends.table.file_names() == ["first", "alone", "a", "c"]


def test_appends_commit_alone_after_a_failed_group(monkeypatch: pytest.MonkeyPatch) -> None:
    with concurrent_appends(monkeypatch, 3) as appends:
        for name in ("a", "b", "c"):
            appends.append(name)
        appends.store.faults.append(Fault(PUT_OF_VERSION_3, "fails"))
    assert [each.snapshot.version for each in appends.results()] == [2, 3, 4, 5]
    assert appends.table.file_names() == ["first", "alone", "a", "b", "c"]


def test_each_result_lists_the_versions_it_was_rebased_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with concurrent_appends(monkeypatch, 2) as appends:
        other = InMemoryTable(appends.store.inner)
        other.append("theirs", writer=7)  # version 2; the first append is paused before it puts that version
        appends.append("old")
        appends.append("new", base=other.at(2))
    assert [each.rebased_over for each in appends.results()] == [(2,), (2, 3), (3,)]
    assert [each.snapshot.version for each in appends.results()] == [3, 4, 4]


def test_an_unexpected_error_of_a_group_fails_none_of_its_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    with concurrent_appends(monkeypatch, 2) as appends:
        appends.append("a")
        appends.append("b")
        appends.store.faults.append(Fault(PUT_OF_VERSION_3, "", raiser_of(InvariantViolation("injected"))))
    assert [each.snapshot.version for each in appends.results()] == [2, 3, 4]
    assert appends.table.file_names() == ["first", "alone", "a", "b"]


def test_appends_with_different_base_paths_do_not_share_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each result has the location that its append was given."""
    with concurrent_appends(monkeypatch, 3) as appends:
        for name, bases in (("a", ("/elsewhere",)), ("b", ()), ("c", ("/elsewhere",))):
            appends.append(name, bases=bases)
    results = appends.results()
    assert [each.snapshot.version for each in results] == [2, 3, 4, 3]
    assert [each.snapshot.location.access.bases for each in results] == [(), ("/elsewhere",), (), ("/elsewhere",)]


def test_an_append_that_waits_too_long_commits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "QUEUE_PATIENCE_SECONDS", 0.01)
    with concurrent_appends(monkeypatch, 1) as appends:
        appends.append("impatient")
        assert appends.futures[1].result(60).snapshot.version == 2
    assert appends.futures[0].result().snapshot.version == 3


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:lance is not fork-safe")
def test_a_forked_process_has_an_empty_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """The append that was committing during the fork belongs to a thread of the parent."""
    with concurrent_appends(monkeypatch, 0) as appends:
        child = os.fork()
        if child == 0:
            try:
                appends.store.faults.clear()
                os._exit(appends.table.append("child", writer=7).snapshot.version)
            finally:
                os._exit(9)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2


def test_an_unanswered_group_is_undecided_for_all_its_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared put is not answered and then the store fails: no append of the group may assume an outcome."""
    with concurrent_appends(monkeypatch, 2) as appends:
        appends.append("a", intent="a")
        appends.append("b", intent="b")
        appends.store.faults.append(Fault(PUT_OF_VERSION_3, "lost", lambda: fail_every_call(appends.store)))
    for number in (1, 2):
        undecided = appends.futures[number].exception()
        assert isinstance(undecided, CommitUndecided)
        assert undecided.version == 3
    appends.store.faults.clear()
    for name in ("a", "b"):
        again = appends.table.append("again", intent=name, writer=9)
        assert (again.snapshot.version, again.already_committed) == (3, True)
    assert appends.table.file_names() == ["first", "alone", "a", "b"]


def test_an_append_committed_by_another_process_is_not_put_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process has the same intent and commits first."""
    with concurrent_appends(monkeypatch, 2) as appends:
        appends.append("a", intent="a")
        appends.append("b", intent="b")
        other = InMemoryTable(appends.store.inner)
        assert other.append("twin", intent="a", base=1, writer=8).snapshot.version == 2
    alone, twin, b = appends.results()
    assert (twin.snapshot.version, twin.summary.rows_added) == (2, 1)
    assert appends.table.file_names().count("a") + appends.table.file_names().count("twin") == 1
    assert sorted(appends.table.file_names()) == ["alone", "b", "first", "twin"]
    assert {alone.snapshot.version, b.snapshot.version} == {3, 4}


def test_followers_of_an_interrupted_leader_are_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with concurrent_appends(monkeypatch, 3) as appends:
        for name in ("a", "b"):
            appends.append(name, intent=name)
        appends.append("c", run="other")
        appends.store.faults.append(Fault(PUT_OF_VERSION_3, "", interrupt))
    assert isinstance(appends.futures[1].exception(), KeyboardInterrupt)
    assert isinstance(appends.futures[2].exception(), CommitUndecided)
    assert appends.futures[3].result().snapshot.version == 3
    assert appends.table.append("again", intent="b", writer=9).snapshot.version == 4


def test_an_append_interrupted_while_it_waits_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    with concurrent_appends(monkeypatch, 2) as appends:
        appends.append("a", interrupted=True)
        appends.append("b")
    assert isinstance(appends.futures[1].exception(), KeyboardInterrupt)
    assert appends.futures[2].result().snapshot.version == 3
    assert appends.table.file_names() == ["first", "alone", "b"]


@pytest.mark.parametrize("function", ["_enter", "_hand_over"])
def test_an_interruption_at_any_line_leaves_no_queue(function: str) -> None:
    """A queue that remains would make every later append wait for a leader that does not exist."""
    table, line, was_interrupted = InMemoryTable(FaultyStore()), 0, True
    table.create("first")
    while was_interrupted:
        with interrupt_at_line(function, call=0, line=line) as interruptions:
            with suppress(KeyboardInterrupt):
                table.append(f"{line}", writer=line + 1)
            was_interrupted = bool(interruptions)
        assert not group_commit._queues
        line += 1
    assert line > 5


@pytest.mark.parametrize("call", [0, 1], ids=["first leader", "leader of a group"])
@pytest.mark.parametrize("group_commits", [True, False], ids=["group commits", "group fails"])
def test_an_append_interrupted_on_its_way_out_hands_the_lead_over(call: int, group_commits: bool) -> None:
    """It passes on the answers of its followers as well."""
    line, was_interrupted = 0, True
    while was_interrupted:
        with (
            pytest.MonkeyPatch.context() as patch,
            interrupt_at_line("_hand_over", call=call, line=line) as interruptions,
        ):
            with concurrent_appends(patch, 3) as appends:
                for name in ("a", "b", "c"):
                    appends.append(name)
                if not group_commits:
                    appends.store.faults.append(Fault(PUT_OF_VERSION_3, "fails"))
            was_interrupted = bool(interruptions)
        errors = [answer.exception() for answer in appends.futures]
        assert [type(error) for error in errors if error] == [KeyboardInterrupt] * was_interrupted
        assert appends.table.file_names() == ["first", "alone", "a", "b", "c"]
        line += 1
    assert line > 5


def test_an_interruption_while_collecting_followers_keeps_them_in_the_queue() -> None:
    line, was_interrupted = 0, True
    while was_interrupted:
        with (
            pytest.MonkeyPatch.context() as patch,
            interrupt_at_line("_collect_followers", call=0, line=line) as interruptions,
        ):
            with concurrent_appends(patch, 3) as appends:
                for name in ("a", "b", "c"):
                    appends.append(name)
            was_interrupted = bool(interruptions)
        errors = [answer.exception() for answer in appends.futures]
        assert [type(error) for error in errors if error] == [KeyboardInterrupt] * was_interrupted
        assert appends.table.file_names() == ["first", "alone", *([] if was_interrupted else ["a"]), "b", "c"]
        line += 1
    assert line > 5


def test_a_group_has_at_most_parts_max_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "PARTS_MAX", 2)
    with concurrent_appends(monkeypatch, 3) as appends:
        for name in ("a", "b", "c"):
            appends.append(name)
    assert [each.snapshot.version for each in appends.results()] == [2, 3, 3, 4]


def test_an_append_within_a_handed_over_commit_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with concurrent_appends(monkeypatch, 1) as appends:
        appends.append("outer")

        def append_inner() -> None:
            monkeypatch.setattr(group_commit, "QUEUE_PATIENCE_SECONDS", 0.01)
            appends.table.append("inner", writer=7)
            assert not appends.waiting.acquire(blocking=False)

        appends.store.faults.append(Fault(PUT_OF_VERSION_3, "", append_inner))
    assert appends.results()[1].snapshot.version == 4
    assert appends.table.file_names() == ["first", "alone", "inner", "outer"]


def test_an_append_within_a_commit_does_not_wait_for_it() -> None:
    store = FaultyStore()
    table = InMemoryTable(store)
    table.create("first")
    store.faults.append(Fault(PUT_OF_ANY_VERSION, "", lambda: table.append("inner", writer=2)))
    assert table.append("outer").snapshot.version == 3
    assert table.file_names() == ["first", "inner", "outer"]


def test_many_threads_on_a_real_table(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, pa.table({"id": [0]}), durable=False)
    start = threading.Barrier(8)

    def append_rows(number: int) -> Sequence[tuple[int, int, bool]]:
        start.wait(60)
        commits = []
        for step in range(8):
            value = number * 100 + step
            committed = Table.open(uri, durable=False).append(pa.table({"id": [value]}), intent=f"of {value}")
            assert value in committed.table.to_table()["id"].to_pylist()
            commits.append((value, committed.version, committed.already_committed))
        return commits

    with ThreadPoolExecutor(8) as pool:
        commits = [each for batch in pool.map(append_rows, range(8)) for each in batch]
    ours, theirs = Table.open(uri), lance.dataset(uri)
    rows = sorted([0, *(value for value, _, _ in commits)])
    assert sorted(ours.to_table()["id"].to_pylist()) == sorted(theirs.to_table()["id"].to_pylist()) == rows
    assert ours.version < 65  # some of them shared a version
    assert not any(before for _, _, before in commits)
    for value, version, _ in commits:
        again = Table.open(uri, durable=False).append(pa.table({"id": [value]}), intent=f"of {value}")
        assert (again.version, again.already_committed) == (version, True)
    assert ours.fsck().errors == ()
