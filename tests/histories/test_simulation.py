"""Tests of the production commit loop in seeded histories, and proof that they detect planted defects.

`simulate_writers(seed).run().check()` reproduces a failing seed; `make torture` runs many more of them.
"""

import pytest

from tests.histories.commit_defects import COMMIT_DEFECTS
from tests.histories.defect_detection import (
    detect_defect,
    find_failing_seed,
    first_tried,
    simulate_on_mixed_networks,
)
from tests.histories.simulated_network import HARSH_NETWORK, RELIABLE_NETWORK
from tests.histories.simulation import Outcome, Simulation, simulate_writers

SEEDS = 200
PARTS = 2
SEEDS_TO_DETECT_A_DEFECT = 300
DETECTING_SEEDS = {
    "deletion file name reused": 184,
    "rule incompatible disabled": 40,
    "rule new_keys disabled": 60,
    "rule same_rows disabled": 158,
}
"""Seeds to try first, since they detected a defect that few seeds detect."""


@pytest.mark.parametrize("part", range(PARTS))
def test_guarantees_hold(part: int) -> None:
    """An acknowledged commit exists once, a rejected one never, an undecided one at most once; versions are dense, and
    no counter decreases."""
    for seed in range(part, SEEDS, PARTS):
        try:
            simulate_writers(seed).run().check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_histories_have_every_outcome() -> None:
    finished = [Simulation(seed, faults=HARSH_NETWORK).run() for seed in range(30)]
    outcomes = [outcome for simulation in finished for work in simulation.work_items for outcome in work.outcomes]
    assert set(outcomes) == set(Outcome)
    assert outcomes.count(Outcome.ACKNOWLEDGED) > len(outcomes) / 5


@pytest.mark.parametrize("seed", [1, 2, 3, 42])
def test_histories_are_deterministic(seed: int) -> None:
    first, second = (Simulation(seed, faults=HARSH_NETWORK).run() for _ in range(2))
    assert first.digest == second.digest


def test_seeds_differ() -> None:
    assert len({Simulation(seed).run().digest for seed in range(10)}) == 10


def test_every_outcome_is_decided_without_faults() -> None:
    """A rejection is possible: a writer that planned before an overwrite receives a conflict."""
    for seed in range(20):
        simulation = Simulation(seed, faults=RELIABLE_NETWORK).run()
        simulation.check()
        for work in simulation.work_items:
            assert work.outcomes[-1] is not Outcome.UNDECIDED


@pytest.mark.parametrize("name", COMMIT_DEFECTS)
def test_defects_are_detected(name: str) -> None:
    assert detect_defect(name, first_tried(DETECTING_SEEDS.get(name), SEEDS_TO_DETECT_A_DEFECT))


def test_no_defect_is_detected_in_the_product() -> None:
    assert not find_failing_seed(simulate_on_mixed_networks, range(20))
