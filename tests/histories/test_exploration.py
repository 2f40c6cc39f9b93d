"""Every history of two writers within bounds, and with every fault at every call; see `exploration.py`.

`HISTORIES_PREEMPTIONS=3` explores further, for as long as that takes.
"""

import os
from collections.abc import Callable

import pytest

from lance_core.commit import loop
from lance_core.transactions.rebase import Rebased
from tests.histories.exploration import HOWS, Fault, History, explored, some_orders
from tests.histories.simulated_operation_pairs import PAIRS
from tests.histories.simulation import Answer

PREEMPTIONS = int(os.environ.get("HISTORIES_PREEMPTIONS", "1"))


@pytest.mark.parametrize("pair", PAIRS)
def test_every_order(pair: str) -> None:
    histories = list(explored(PAIRS[pair], preemptions=PREEMPTIONS))
    assert len(histories) > 10
    for history in histories:
        for work in history.work:
            assert Answer.UNKNOWN not in work.answers


@pytest.mark.parametrize("pair", ["deletions of one fragment", "upserts of one key", "a compaction beside a delete"])
def test_every_order_of_one_intent_twice(pair: str) -> None:
    for history in explored(PAIRS[pair], preemptions=PREEMPTIONS, shared=True):
        assert set(history.work[0].answers) <= {Answer.ACKNOWLEDGED, Answer.NOTHING}


CALLS = 7
"""Of an append without an intent, where nobody is in the way."""
EVERY = 60


@pytest.mark.parametrize("how", ["", *HOWS])
def test_all_orders_evenly(how: str) -> None:
    """A part of what `make torture` runs all of: two appends in every order, with every fault at every call."""
    for call in range(CALLS if how else 1):
        fault = Fault("writer 0", call, how) if how else None
        histories = list(some_orders(PAIRS["appends"], calls=CALLS, every=EVERY, fault=fault))
        assert len(histories) == 58
        assert all(history.stores["writer 1"].calls >= CALLS for history in histories)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("pair", ["appends", "deletions of one fragment", "upserts of one key"])
def test_every_fault_at_every_call(pair: str, how: str) -> None:
    """Of the first writer, in every order of one change of hands less. Who repeats the intent later finds it, or does
    it."""
    calls = max(history.stores["writer 0"].calls for history in explored(PAIRS[pair], preemptions=1))
    met = 0
    for call in range(calls):
        for history in explored(PAIRS[pair], preemptions=PREEMPTIONS - 1, fault=Fault("writer 0", call, how)):
            met += 1
            _check_answers(history, how)
    assert met >= calls


def _check_answers(history: History, how: str) -> None:
    for work in history.work:
        assert work.answers[-1] is not Answer.UNKNOWN or how == "later"
        if how == "lost":  # nobody but the loop need know
            assert set(work.answers) <= {Answer.ACKNOWLEDGED, Answer.NOTHING}


def _no_look_for_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_with_uuid", lambda others, uuid: None)


def _no_rebase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "rebase", lambda ours, base, head, others, fetched: Rebased(ours))


@pytest.mark.parametrize("breaks", [_no_look_for_our_own, _no_rebase], ids=lambda each: each.__name__.strip("_"))
def test_a_broken_loop_is_noticed(
    breaks: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)
    with pytest.raises(AssertionError):  # noqa: PT012 - one of these histories
        for pair in PAIRS.values():
            for history in explored(pair, preemptions=1):
                _check_answers(history, "")
            for call in range(12):
                for history in explored(pair, preemptions=0, fault=Fault("writer 0", call, "lost")):
                    _check_answers(history, "lost")
