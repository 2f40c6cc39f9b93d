"""Folded appends in seeded histories, and proof that they notice when folding is broken."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from lance_core import LanceError
from lance_core.commit import group_commit, loop, write_protocol
from lance_core.commit.data_files import write_shared_file
from lance_core.commit.group_commit import PendingAppend
from lance_core.commit.loop import CommitResult
from lance_core.datafiles.fragment_writer import BufferedRows, RollingWriter
from lance_core.format.fragment import Fragment
from lance_core.format.operations import Append
from lance_core.format.transaction import Transaction
from lance_core.runtime import Runtime
from lance_core.versions.location import Location
from tests.histories.group_commit_simulation import Together, gathered, shared_files, shared_versions
from tests.histories.simulated_network import HARD

SEEDS = 60


def test_every_promise_is_kept() -> None:
    shared = files = 0
    for seed in range(SEEDS):
        try:
            simulation = gathered(seed).run()
            simulation.check()
        except AssertionError as error:
            raise AssertionError(f"gathered({seed}): {error}") from error
        shared += shared_versions(simulation)
        files += shared_files(simulation)
    assert shared > SEEDS / 4, "hardly anything went together"
    assert files > SEEDS / 4, "hardly a file was shared"


def _no_look_for_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "parts_of", lambda transaction: ())


def _everybody_has_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is found later is taken for the transaction that it is in, or for none."""

    def found_in(transaction: Transaction, uuid: str) -> Transaction | None:
        return transaction if transaction.uuid == uuid else None

    for module in (loop, write_protocol):
        monkeypatch.setattr(module, "part_with_uuid", found_in)


def _a_fragment_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what was put together."""
    real = group_commit._commit

    def commit(one: PendingAppend, ours: Transaction) -> CommitResult:
        assert isinstance(ours.operation, Append)
        if len(ours.operation.fragments) > 1:
            ours = replace(ours, operation=Append(ours.operation.fragments[1:]))
        return real(one, ours)

    monkeypatch.setattr(group_commit, "_commit", commit)


def _the_last_rows_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those who share a file."""

    def write(
        location: Location, first: BufferedRows, others: Iterable[BufferedRows], runtime: Runtime
    ) -> tuple[Fragment, ...]:
        came = [first, *others]
        writer = RollingWriter(location.codec, first.version, first.limits, runtime.new_uuid)
        for each in came[:-1] or came:
            writer.write_all(each)
        (made,) = writer.finish()
        return (Fragment.of(files=made.files, physical_rows=sum(each.rows for each in came)),)

    monkeypatch.setattr(group_commit, "write_shared_file", write)


def _a_shared_file_is_kept_by_those_who_go_on_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be committed as a whole is committed by each, as a whole."""
    shared: list[tuple[Fragment, ...]] = []

    def write(
        location: Location, first: BufferedRows, others: Iterable[BufferedRows], runtime: Runtime
    ) -> tuple[Fragment, ...]:
        shared.append(write_shared_file(location, first, others, runtime))
        return shared[-1]

    def alone(one: PendingAppend) -> CommitResult:
        return group_commit._commit(one, group_commit._with_files(one, shared[-1] if shared else ()))

    monkeypatch.setattr(group_commit, "write_shared_file", write)
    monkeypatch.setattr(group_commit, "commit_alone", alone)


@pytest.mark.parametrize(
    "breaks",
    [
        _no_look_for_the_parts,
        _everybody_has_the_whole,
        _a_fragment_is_left_out,
        _the_last_rows_are_not_written,
        _a_shared_file_is_kept_by_those_who_go_on_alone,
    ],
    ids=lambda breaks: breaks.__name__.strip("_"),
)
def test_broken_folding_is_noticed(
    breaks: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)
    for seed in range(200):
        try:
            Together(seed, odds=HARD, writers=1).run().check()
        except (AssertionError, LanceError):
            return
    pytest.fail("200 seeds did not notice")
