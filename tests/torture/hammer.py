"""T-HAMMER, process kill harness: many processes on one table are killed at random moments, on local disk and in an
object store behind a network that loses, delays and truncates messages. The processes and the check are in
`tests/histories/hammer*.py`."""

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.histories.hammer import HammerResult, run_hammer
from tests.histories.hammer import Size as Processes
from tests.histories.hammer_invariants import find_violations
from tests.histories.hammer_locations import TableLocation, create_local_table, create_s3_table
from tests.torture.report import Report

ATTEMPTS_MEAN_MAX = 2.0


@dataclass(frozen=True, slots=True)
class Size:
    local: Processes
    s3: Processes
    faults: float = 0.05
    """Fraction of all requests that a fault affects."""


PR = Size(
    local=Processes(writers=4, works_per_writer=8, kill_count=8),
    s3=Processes(writers=3, works_per_writer=4, kill_count=2),
)
NIGHTLY = Size(
    local=Processes(writers=8, works_per_writer=100, kill_count=200),
    s3=Processes(writers=8, works_per_writer=25, kill_count=20),
)


def run(size: Size) -> Report:
    started = time.perf_counter()
    failures: list[str] = []
    figures: dict[str, str] = {}

    def run_processes(name: str, location: TableLocation, processes: Processes) -> int:
        result = run_hammer(location, processes)
        problems = [*find_violations(location, processes, result), *_check_attempts(result)]
        failures.extend(
            f"{name}, {processes}: {problem}; it depends on timing, so repeat the run" for problem in problems
        )
        figures.update({f"{name}: {what}": figure for what, figure in result.figures().items()})
        return len(result.results)

    with tempfile.TemporaryDirectory() as directory:
        tried = run_processes("local", create_local_table(Path(directory)), size.local)
    with create_s3_table(size.faults, size.s3.seed) as location:
        tried += run_processes("s3", location, size.s3)
    return Report("hammer", tried, time.perf_counter() - started, tuple(failures), figures)


def _check_attempts(result: HammerResult) -> list[str]:
    attempts = [each.attempts for each in result.results if each.version and not each.already_committed]
    mean = statistics.fmean(attempts) if attempts else 0
    return [f"{mean:.2f} attempts per commit on average"] if mean > ATTEMPTS_MEAN_MAX else []
