"""Tests of power failures during writes; `durability.py` defines them, and `make torture` tries all states that they
can leave.
"""

import pytest

from tests.histories.durability import record_operation

OPERATIONS = ("create", "append", "update row 0", "tag")


@pytest.mark.parametrize("name", OPERATIONS)
def test_acknowledged_operations_survive(name: str) -> None:
    recorded = record_operation(name)
    assert not recorded.find_ordering_violations()
    states = recorded.possible_states()
    assert len(states) > 8
    chosen = [*states[:: max(1, len(states) // 6)], states[-1]]
    assert chosen[-1].acknowledged
    problems = [problem for state in chosen if (problem := recorded.find_problem(state))]
    recorded.close()
    assert not problems, "\n".join(problems)


def test_missing_syncs_are_detected() -> None:
    recorded = record_operation("append", durable=False)
    assert any("acknowledged before" in violation for violation in recorded.find_ordering_violations())
    assert any("references" in violation for violation in recorded.find_ordering_violations())
    states = [state for state in recorded.possible_states() if state.acknowledged]
    nothing_kept = next(state for state in states if ", 0 of" in state.description)
    assert "acknowledged and lost" in recorded.find_problem(nothing_kept)
    assert any("CorruptHead" in recorded.find_problem(state) for state in states[:25:3])
    recorded.close()


def test_a_damaged_head_is_reported() -> None:
    recorded = record_operation("append")
    assert not recorded.find_undetected_damage(step=41)
    recorded.close()
