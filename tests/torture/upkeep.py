"""T-SIM with cleaners, taggers, branchers and readers beside the writers, and days that pass at any call; see
`tests/histories/upkeep.py`. 7 versions a seed, more or less: 50,000 in all."""

from tests.histories.upkeep import kept_up
from tests.torture.report import Report
from tests.torture.seeds import Size, run_seeds, shares

PR = Size(seeds=300)
NIGHTLY = Size(seeds=7_200)


def run(size: Size) -> Report:
    return run_seeds("upkeep", kept_up, size)


__all__ = ["NIGHTLY", "PR", "Size", "run", "shares"]
