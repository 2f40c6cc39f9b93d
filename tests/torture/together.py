"""T-SIM with group commit: simulated appends that are combined into one version; see `tests/histories/together.py`."""

from tests.histories.together import gathered
from tests.torture.report import Report
from tests.torture.seeds import Size, run_seeds, split

PR = Size(seeds=200)
NIGHTLY = Size(seeds=5_000)


def run(size: Size) -> Report:
    return run_seeds("together", gathered, size)


__all__ = ["NIGHTLY", "PR", "Size", "run", "split"]
