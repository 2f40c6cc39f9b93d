"""Defect detection: finds the first seeded history that detects a planted defect.

detect_defect("rebase skipped", range(300))
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pyarrow as pa

from lance_core import LanceError
from tests.histories.cleanup_defects import CLEANUP_DEFECTS
from tests.histories.maintenance_simulation import HARSH_WITH_SUSPENSIONS, MaintenanceSimulation
from tests.histories.planted_defects import planted_defect
from tests.histories.simulated_network import HARSH_NETWORK, RELIABLE_NETWORK
from tests.histories.simulation import Simulation

Simulate = Callable[[int], Simulation]
RELIABLE_WITH_LONG_SUSPENSIONS = replace(RELIABLE_NETWORK, suspension=0.1)


def simulate_on_mixed_networks(seed: int) -> Simulation:
    return Simulation(seed, faults=HARSH_NETWORK if seed % 2 else RELIABLE_NETWORK)


def simulate_cleanups(seed: int) -> MaintenanceSimulation:
    faults = (HARSH_WITH_SUSPENSIONS, RELIABLE_WITH_LONG_SUSPENSIONS)[seed % 2]
    return MaintenanceSimulation(seed, faults=faults, cleaners=3)


def simulate_many_cleanups(seed: int) -> MaintenanceSimulation:
    """Simulate many taggers, writers and cleanups, each of which often waits in the middle of its work."""
    faults = replace(RELIABLE_NETWORK, suspension=0.005)
    return MaintenanceSimulation(seed * 3 + 4, faults=faults, cleaners=4, writers=4, taggers=4)


def simulate_clock_changes(seed: int) -> MaintenanceSimulation:
    """Simulate cleanups while the clock of the store and those of the processes are set often."""
    return MaintenanceSimulation(seed, faults=replace(RELIABLE_NETWORK, clock_change=0.05), cleaners=3)


def detect_defect(name: str, seeds: Iterable[int]) -> str:
    """Return the first seed whose history detects a planted defect, with the error; empty if none does."""
    with planted_defect(name):
        return find_failing_seed(_simulation_for(name), seeds)


def first_tried(seed: int | None, count: int) -> Iterable[int]:
    """Return `count` seeds, and before them the one that is known to detect a defect.

    After a change of the product the known seed may detect it no more. The others still do, but take longer.
    """
    return range(count) if seed is None else (seed, *range(count))


def find_failing_seed(simulate: Simulate, seeds: Iterable[int]) -> str:
    """Return the first seed whose history fails, with the error; empty if none does."""
    for seed in seeds:
        try:
            simulate(seed).run().check()
        except (AssertionError, KeyError, LanceError, pa.ArrowInvalid) as error:  # a defect may also cause other errors
            return f"seed {seed}: {type(error).__name__}: {error}"
    return ""


def _simulation_for(name: str) -> Simulate:
    if name == "check after tagging skipped":
        return simulate_many_cleanups
    if name.startswith("clock set"):
        return simulate_clock_changes
    return simulate_cleanups if name in CLEANUP_DEFECTS else simulate_on_mixed_networks
