"""T-SIM: seeded schedules of many writers over a store that loses, delays, repeats and tears; see
`tests/histories/simulation.py`."""

from tests.histories.simulation import simulated
from tests.torture.report import Report
from tests.torture.seeds import Size, run_seeds, shares

PR = Size(seeds=600)
NIGHTLY = Size(seeds=20_000)


def run(size: Size) -> Report:
    return run_seeds("simulation", simulated, size)


__all__ = ["NIGHTLY", "PR", "Size", "run", "shares"]
