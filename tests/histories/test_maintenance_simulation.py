"""Seeded histories of a table that is cleaned up beside its writers, and proof that they notice what is broken.

A failing seed is run again by `kept_up(seed).run().check()`; `make torture` has many more of them.
"""

import pytest

from tests.histories.cleanup_defects import DEFECTS_OF_CLEANUP, RARE, beside_cleanup
from tests.histories.commit_defects import Defect, noticed
from tests.histories.maintenance_simulation import kept_up

SEEDS = 280
"""2,000 commits."""
PARTS = 4
SEEDS_TO_CATCH_A_DEFECT = 800


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_that_is_needed_goes(part: int) -> None:
    """Whatever is named stays whole, what was acknowledged opens, and a cleanup of later days leaves nothing else."""
    for seed in range(part, SEEDS, PARTS):
        try:
            kept_up(seed).run().check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_the_histories_are_worth_running() -> None:
    """Of some together: versions are made, removed and named, and branches begun."""
    finished = [kept_up(seed).run() for seed in range(40)]
    assert sum(each.eye.versions for each in finished) > 250
    assert sum(each.cleaned for each in finished) > 40
    assert sum(len(each.tags) for each in finished) > 40
    assert sum(len(each.branches) for each in finished) > 15
    assert sum(each.removed for each in finished) > 40


@pytest.mark.parametrize("seed", [1, 2, 4, 8])
def test_a_seed_is_a_history(seed: int) -> None:
    assert kept_up(seed).run().digest == kept_up(seed).run().digest


@pytest.mark.parametrize("name", sorted(DEFECTS_OF_CLEANUP.keys() - set(RARE)))
def test_a_broken_cleanup_is_noticed(name: str) -> None:
    assert noticed(DEFECTS_OF_CLEANUP[name], range(SEEDS_TO_CATCH_A_DEFECT))


def test_what_is_not_broken_is_not_noticed() -> None:
    assert not noticed(Defect(lambda patch: None, beside_cleanup), range(20))
