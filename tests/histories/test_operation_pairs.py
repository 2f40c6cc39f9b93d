"""Pairs of changes planned on one version; `operation_pairs.py` says what is promised, `make torture` tries all
of them.
"""

import pytest

from lance_core.commit import loop
from lance_core.transactions.conflicts import ConflictResult
from lance_core.transactions.verdicts import Verdict
from tests.histories.operation_pairs import NOT_IN_ORDER, Pairs
from tests.histories.table_operations import CHANGES

PAIRS = [(first, second) for first in CHANGES for second in CHANGES]
EVERY = 11


@pytest.fixture(scope="module", params=[False, True], ids=["addresses", "stable row ids"])
def pairs(request: pytest.FixtureRequest) -> Pairs:
    return Pairs(stable=request.param)


@pytest.mark.parametrize("begin", range(4))
def test_one_after_the_other(pairs: Pairs, begin: int) -> None:
    """Some of all pairs, others for each kind of row ids."""
    chosen = PAIRS[begin + 4 * pairs.stable :: 8 * EVERY]
    assert len(chosen) > 40
    wrong = [text for pair in chosen if (text := pairs.broken(*pair))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("pair", [tuple(sorted(pair)) for pair in NOT_IN_ORDER], ids=" and ".join)
def test_as_if_each_had_been_first(pairs: Pairs, pair: tuple[str, str]) -> None:
    first, second = pair
    assert not pairs.broken(first, second)
    assert not pairs.broken(second, first)


def test_values_for_a_column_that_is_written_anew_are_not_lost(pairs: Pairs) -> None:
    assert not pairs.broken("recast v", "append")
    assert ("recast v", "append without w") not in pairs.refused


def test_a_loop_that_finds_no_conflicts_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "judge", lambda ours, others: ConflictResult(Verdict.COMPATIBLE, "none", None))
    tried = Pairs(stable=False)
    assert tried.broken("add z of nulls", "add y of nulls")
    assert not tried.broken("append", "append several files")
