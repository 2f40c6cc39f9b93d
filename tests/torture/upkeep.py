"""T-SIM with maintenance: cleanup, tags, branches and readers run concurrently with the writers, and days may pass at
any call; see `tests/histories/maintenance_simulation.py`. A seed makes about 7 versions: 50,000 in all."""

from tests.histories.maintenance_simulation import simulate_maintenance
from tests.torture.report import Report
from tests.torture.seeds import Size, run_seeds, split

PR = Size(seeds=300)
NIGHTLY = Size(seeds=7_200)


def run(size: Size) -> Report:
    return run_seeds("upkeep", simulate_maintenance, size)


__all__ = ["NIGHTLY", "PR", "Size", "run", "split"]
