"""Tests of group commits in seeded histories, and proof that they detect planted defects."""

import pytest

from lance_core import LanceError
from tests.histories.group_commit_defects import GROUP_COMMIT_DEFECTS
from tests.histories.group_commit_simulation import (
    GroupCommitSimulation,
    count_shared_files,
    count_shared_versions,
    simulate_group_commits,
)
from tests.histories.planted_defects import planted_defect
from tests.histories.simulated_network import HARSH_NETWORK

SEEDS = 60


def test_guarantees_hold() -> None:
    shared_versions = shared_files = 0
    for seed in range(SEEDS):
        try:
            simulation = simulate_group_commits(seed).run()
            simulation.check()
        except AssertionError as error:
            raise AssertionError(f"simulate_group_commits({seed}): {error}") from error
        shared_versions += count_shared_versions(simulation)
        shared_files += count_shared_files(simulation)
    assert shared_versions > SEEDS / 4, "too few versions hold several appends"
    assert shared_files > SEEDS / 4, "too few files hold several appends"


@pytest.mark.parametrize("name", GROUP_COMMIT_DEFECTS)
def test_defects_are_detected(name: str) -> None:
    with planted_defect(name):
        for seed in range(200):
            try:
                GroupCommitSimulation(seed, faults=HARSH_NETWORK, writers=1).run().check()
            except (AssertionError, LanceError):
                return
    pytest.fail("200 seeds did not detect the defect")
