"""Folded appends in seeded histories, and proof that they notice when folding is broken."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from lance_core import LanceError, commit, gathering
from lance_core.format.operations import Append
from lance_core.format.transaction import Transaction
from lance_core.transactions.fold import fold as fold_all
from tests.histories.network import HARD
from tests.histories.together import Together, gathered, shared_versions

SEEDS = 60


def test_every_promise_is_kept() -> None:
    shared = 0
    for seed in range(SEEDS):
        try:
            simulation = gathered(seed).run()
            simulation.check()
        except AssertionError as error:
            raise AssertionError(f"gathered({seed}): {error}") from error
        shared += shared_versions(simulation)
    assert shared > SEEDS / 4, "hardly anything went together"


def _no_look_for_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "parts_of", lambda transaction: ())


def _everybody_has_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is found later is taken for the transaction that it is in, or for none."""

    def found_in(transaction: Transaction, uuid: str) -> Transaction | None:
        return transaction if transaction.uuid == uuid else None

    for room in ("commit", "writes"):
        monkeypatch.setattr(f"lance_core.{room}.found_in", found_in)


def _one_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fold(ours: Sequence[Transaction], uuid: str) -> Transaction:
        folded = fold_all(ours, uuid)
        assert isinstance(folded.operation, Append)
        return replace(folded, operation=Append(folded.operation.fragments[1:]))

    monkeypatch.setattr(gathering, "fold", fold)


@pytest.mark.parametrize(
    "breaks",
    [
        _no_look_for_the_parts,
        _everybody_has_the_whole,
        _one_is_left_out,
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
