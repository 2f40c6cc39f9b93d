"""Tests of operation pairs planned on one version; `operation_pairs.py` states the guarantees, and `make torture` runs
all pairs.
"""

import pytest

from tests.histories.operation_pairs import NOT_SERIALIZABLE, OperationPairs
from tests.histories.planted_defects import planted_defect
from tests.histories.table_operations import TABLE_OPERATIONS

PAIRS = [(first, second) for first in TABLE_OPERATIONS for second in TABLE_OPERATIONS]
EVERY = 22


@pytest.fixture(scope="module", params=[False, True], ids=["addresses", "stable row ids"])
def pairs(request: pytest.FixtureRequest) -> OperationPairs:
    return OperationPairs(request.param)


@pytest.mark.parametrize("first_pair", range(4))
def test_pairs_are_serializable(pairs: OperationPairs, first_pair: int) -> None:
    """A sample of all pairs, different ones for each kind of row ids."""
    chosen = PAIRS[first_pair + 4 * pairs.stable_row_ids :: 8 * EVERY]
    assert len(chosen) > 20
    problems = [problem for pair in chosen if (problem := pairs.find_problem(*pair))]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("pair", [tuple(sorted(pair)) for pair in NOT_SERIALIZABLE], ids=" and ".join)
def test_pairs_as_if_each_ran_first(pairs: OperationPairs, pair: tuple[str, str]) -> None:
    first, second = pair
    assert not pairs.find_problem(first, second)
    assert not pairs.find_problem(second, first)


def test_values_for_a_column_that_is_rewritten_are_kept(pairs: OperationPairs) -> None:
    assert not pairs.find_problem("recast v", "append")
    assert ("recast v", "append without w") not in pairs.rejected


@pytest.mark.parametrize(
    "change", ["drop v", "delete by v", "update v of fragment 0", "compact", "rename v", "recast v"]
)
def test_replaced_values_are_those_of_the_newest_column(pairs: OperationPairs, change: str) -> None:
    for replacement in ("replace v by key", "replace v of fragment 0"):
        assert not pairs.find_problem(change, replacement)


def test_ignored_conflicts_are_detected() -> None:
    pairs = OperationPairs(stable_row_ids=False)
    with planted_defect("all conflicts ignored"):
        assert pairs.find_problem("add z of nulls", "add y of nulls")
        assert not pairs.find_problem("append", "append several files")
