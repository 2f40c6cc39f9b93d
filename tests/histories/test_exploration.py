"""Every history of two writers within bounds, and with every fault at every call; see `exploration.py`.

`HISTORIES_PREEMPTIONS=3` explores further, for as long as that takes.
"""

import os
from collections.abc import Callable

import pytest

from lance_core import commit
from lance_core.transactions.rebase import Rebased
from tests.histories.exploration import HOWS, Fault, History, explored
from tests.histories.simulation import Answer
from tests.histories.verbs import Verb

PREEMPTIONS = int(os.environ.get("HISTORIES_PREEMPTIONS", "1"))
FIRST = frozenset({"r0", "r1"})
SECOND = frozenset({"r1", "r2"})
NEW = frozenset({"r1", "k0"})
PAIRS = {
    "appends": (Verb("append", "a"), Verb("append", "b")),
    "deletions of one fragment": (Verb("delete", "a", frozenset({"r0"})), Verb("delete", "b", frozenset({"r1"}))),
    "deletions of one row": (Verb("delete", "a", FIRST), Verb("delete", "b", SECOND)),
    "an update beside a delete": (Verb("move", "a", FIRST), Verb("delete", "b", SECOND)),
    "a column beside an update": (Verb("rewrite column", "a", FIRST), Verb("move", "b", frozenset({"r2"}))),
    "upserts of one key": (Verb("upsert", "a", NEW), Verb("upsert", "bb", NEW)),
    "an upsert beside an append": (Verb("upsert", "a", NEW), Verb("append a key", "b", frozenset({"k0"}))),
    "a compaction beside a delete": (Verb("compact", "a"), Verb("delete", "b", frozenset({"r1"}))),
    "a column added beside an append": (Verb("add column", "a"), Verb("append", "b")),
    "an overwrite beside an append": (Verb("overwrite", "a", again=False), Verb("append", "b", again=False)),
}


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
    monkeypatch.setattr(commit, "_with_uuid", lambda others, uuid: None)


def _no_rebase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "rebase", lambda ours, base, head, others, fetched: Rebased(ours))


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
