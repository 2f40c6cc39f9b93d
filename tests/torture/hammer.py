"""T-HAMMER, process kill harness: many processes on one table are killed at random moments, on local disk and in an
object store behind a network that loses, delays and truncates messages. The processes and the check are in
`tests/histories/hammer*.py`."""

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.histories.hammer import Played, hammer
from tests.histories.hammer import Size as Processes
from tests.histories.hammer_invariants import judge
from tests.histories.hammer_locations import Place, local_place, s3_place
from tests.torture.report import Report

ATTEMPTS_MEAN_MAX = 2.0


@dataclass(frozen=True, slots=True)
class Size:
    local: Processes
    s3: Processes
    faults: float = 0.05
    """Fraction of all requests that a fault affects."""


PR = Size(local=Processes(writers=4, works=8, kills=8), s3=Processes(writers=3, works=4, kills=2))
NIGHTLY = Size(local=Processes(writers=8, works=100, kills=200), s3=Processes(writers=8, works=25, kills=20))


def run(size: Size) -> Report:
    started = time.perf_counter()
    failures: list[str] = []
    figures: dict[str, str] = {}

    def play(name: str, place: Place, processes: Processes) -> int:
        played = hammer(place, processes)
        problems = [*judge(place, processes, played), *_check_attempts(played)]
        failures.extend(
            f"{name}, {processes}: {problem}; it depends on timing, so repeat the run" for problem in problems
        )
        figures.update({f"{name}: {what}": figure for what, figure in played.told().items()})
        return len(played.answers)

    with tempfile.TemporaryDirectory() as directory:
        tried = play("local", local_place(Path(directory)), size.local)
    with s3_place(size.faults, size.s3.seed) as place:
        tried += play("s3", place, size.s3)
    return Report("hammer", tried, time.perf_counter() - started, tuple(failures), figures)


def _check_attempts(played: Played) -> list[str]:
    attempts = [answer.attempts for answer in played.answers if answer.version and not answer.landed_before]
    mean = statistics.fmean(attempts) if attempts else 0
    return [f"{mean:.2f} attempts per commit on average"] if mean > ATTEMPTS_MEAN_MAX else []
