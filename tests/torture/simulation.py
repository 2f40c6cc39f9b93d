"""T-SIM, deterministic simulation: seeded schedules of many writers over a store that loses, delays, repeats and tears
requests; see `tests/histories/simulation.py`."""

from tests.histories.simulation import simulate_writers
from tests.torture.report import Report
from tests.torture.seeds import Size, run_seeds, split

PR = Size(seeds=600)
NIGHTLY = Size(seeds=20_000)


def run(size: Size) -> Report:
    return run_seeds("simulation", simulate_writers, size)


__all__ = ["NIGHTLY", "PR", "Size", "run", "split"]
