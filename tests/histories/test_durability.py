"""The power goes while something is written; `durability.py` says how, `make torture` tries all that can be left."""

import pytest

from tests.histories.durability import written

KINDS = ("create", "append", "update row 0", "tag")


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_acknowledged_survives(kind: str) -> None:
    table = written(kind)
    assert not table.in_disorder()
    states = table.states()
    assert len(states) > 8
    chosen = [*states[:: max(1, len(states) // 6)], states[-1]]
    assert chosen[-1].acknowledged
    wrong = [text for state in chosen if (text := table.broken(state))]
    table.close()
    assert not wrong, "\n".join(wrong)


def test_what_nobody_synced_is_noticed() -> None:
    table = written("append", durable=False)
    assert any("was acknowledged" in text for text in table.in_disorder())
    assert any("is named by" in text for text in table.in_disorder())
    states = [state for state in table.states() if state.acknowledged]
    nothing_kept = next(state for state in states if ", 0 of" in state.told)
    assert "acknowledged, and lost" in table.broken(nothing_kept)
    assert any("CorruptHead" in table.broken(state) for state in states[:25:3])
    table.close()


def test_a_damaged_head_is_told() -> None:
    table = written("append")
    assert not table.silent_about_a_damaged_head(every=41)
    table.close()
