"""Tests of every history of two writers within bounds, and with every fault at every call; see `exploration.py`.

`HISTORIES_PREEMPTIONS=3` explores more histories, which takes longer.
"""

import os

import pytest

from tests.histories.exploration import FAULT_KINDS, Fault, History, explore_schedules, sample_schedules
from tests.histories.planted_defects import planted_defect
from tests.histories.simulated_operation_pairs import OPERATION_PAIRS
from tests.histories.simulation import Outcome

PREEMPTIONS = int(os.environ.get("HISTORIES_PREEMPTIONS", "1"))
CALLS_PER_APPEND = 7
"""Number of calls of an append without an intent and without conflicts."""
EVERY = 120
"""Run one of this many orders."""


@pytest.mark.parametrize("pair", OPERATION_PAIRS)
def test_every_order(pair: str) -> None:
    histories = list(explore_schedules(OPERATION_PAIRS[pair], preemptions=PREEMPTIONS))
    assert len(histories) > 10
    for history in histories:
        for work in history.work_items:
            assert Outcome.UNDECIDED not in work.outcomes


@pytest.mark.parametrize(
    "pair", ["deletions of one fragment", "upserts of one key", "a compaction concurrent with a delete"]
)
def test_every_order_of_one_intent_twice(pair: str) -> None:
    for history in explore_schedules(OPERATION_PAIRS[pair], preemptions=PREEMPTIONS, is_intent_shared=True):
        assert set(history.work_items[0].outcomes) <= {Outcome.ACKNOWLEDGED, Outcome.UNCHANGED}


@pytest.mark.parametrize("fault_kind", ["", *FAULT_KINDS])
def test_sample_of_all_orders(fault_kind: str) -> None:
    """Two appends run in a sample of all orders, with every fault at every call; `make torture` runs all orders."""
    for call_number in range(CALLS_PER_APPEND if fault_kind else 1):
        fault = Fault("writer 0", call_number, fault_kind) if fault_kind else None
        histories = list(
            sample_schedules(OPERATION_PAIRS["appends"], calls_per_writer=CALLS_PER_APPEND, every=EVERY, fault=fault)
        )
        assert len(histories) == 29
        assert all(history.stores["writer 1"].call_count >= CALLS_PER_APPEND for history in histories)


@pytest.mark.parametrize("fault_kind", FAULT_KINDS)
@pytest.mark.parametrize("pair", ["appends", "deletions of one fragment", "upserts of one key"])
def test_every_fault_at_every_call(pair: str, fault_kind: str) -> None:
    """The first writer meets the fault, in every order with one preemption less. A later repetition of the intent finds
    the commit or makes it."""
    histories = explore_schedules(OPERATION_PAIRS[pair], preemptions=1)
    call_count = max(history.stores["writer 0"].call_count for history in histories)
    history_count = 0
    for call_number in range(call_count):
        fault = Fault("writer 0", call_number, fault_kind)
        for history in explore_schedules(OPERATION_PAIRS[pair], preemptions=PREEMPTIONS - 1, fault=fault):
            history_count += 1
            _check_outcomes(history, fault_kind)
    assert history_count >= call_count


@pytest.mark.parametrize("defect", ["own commit not searched for", "rebase skipped"])
def test_defects_are_detected(defect: str) -> None:
    with planted_defect(defect), pytest.raises(AssertionError):  # noqa: PT012 - one of these histories
        for pair in OPERATION_PAIRS.values():
            for history in explore_schedules(pair, preemptions=1):
                _check_outcomes(history, "")
            for call_number in range(12):
                fault = Fault("writer 0", call_number, "lost")
                for history in explore_schedules(pair, preemptions=0, fault=fault):
                    _check_outcomes(history, "lost")


def _check_outcomes(history: History, fault_kind: str) -> None:
    for work in history.work_items:
        assert work.outcomes[-1] is not Outcome.UNDECIDED or fault_kind == "later"
        if fault_kind == "lost":  # only the commit loop notices a lost answer
            assert set(work.outcomes) <= {Outcome.ACKNOWLEDGED, Outcome.UNCHANGED}
