"""T-SIM with group commit: simulated appends that are combined into one version; see
`tests/histories/group_commit_simulation.py`."""

from tests.histories.group_commit_simulation import simulate_group_commits
from tests.torture.report import Report
from tests.torture.seeds import Size, run_seeds, split

PR = Size(seeds=200)
NIGHTLY = Size(seeds=5_000)


def run(size: Size) -> Report:
    return run_seeds("together", simulate_group_commits, size)


__all__ = ["NIGHTLY", "PR", "Size", "run", "split"]
