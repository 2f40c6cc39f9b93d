"""Seeded histories of the production commit loop, and proof that they notice when it is broken.

A failing seed is run again by `simulated(seed).run().check()`; `make torture` has many more of them.
"""

import pytest

from tests.histories.commit_defects import DEFECTS, Defect, noticed
from tests.histories.simulated_network import CALM, HARD
from tests.histories.simulation import Answer, Simulation, simulated

SEEDS = 1200
PARTS = 6
SEEDS_TO_CATCH_A_DEFECT = 300


@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_is_kept(part: int) -> None:
    """Acknowledged exactly once, refused never, unknown at most once; versions dense, counters never back."""
    for seed in range(part, SEEDS, PARTS):
        try:
            simulated(seed).run().check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_the_schedules_are_worth_running() -> None:
    """Of a few seeds together: work that landed, work that was refused, and work that nobody knows about."""
    finished = [Simulation(seed, odds=HARD).run() for seed in range(30)]
    answers = [answer for simulation in finished for work in simulation.work for answer in work.answers]
    assert set(answers) == set(Answer)
    assert answers.count(Answer.ACKNOWLEDGED) > len(answers) / 5


@pytest.mark.parametrize("seed", [1, 2, 3, 42])
def test_a_seed_is_a_history(seed: int) -> None:
    assert Simulation(seed, odds=HARD).run().digest == Simulation(seed, odds=HARD).run().digest


def test_seeds_differ() -> None:
    assert len({Simulation(seed).run().digest for seed in range(10)}) == 10


def test_without_faults_everybody_is_acknowledged() -> None:
    """But for those who were planned before an overwrite, and are told so."""
    for seed in range(20):
        simulation = Simulation(seed, odds=CALM).run()
        simulation.check()
        for work in simulation.work:
            assert work.answers[-1] is not Answer.UNKNOWN


@pytest.mark.parametrize("name", DEFECTS)
def test_a_broken_loop_is_noticed(name: str) -> None:
    assert noticed(DEFECTS[name], range(SEEDS_TO_CATCH_A_DEFECT))


def test_what_is_not_broken_is_not_noticed() -> None:
    assert not noticed(Defect(lambda patch: None), range(20))
