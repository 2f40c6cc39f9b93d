"""Cleanup harness: threads append to a real table while another one cleans it up continuously; see
`tests/histories/concurrent_cleanup.py`."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.histories.concurrent_cleanup import beside_a_cleaner
from tests.torture.report import Report


@dataclass(frozen=True, slots=True)
class Size:
    seconds: float


PR = Size(seconds=5)
NIGHTLY = Size(seconds=120)


def run(size: Size) -> Report:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        met = beside_a_cleaner(str(Path(directory, "t")), seconds=size.seconds)
    failures = tuple(f"{problem}; it depends on timing, so repeat the run" for problem in met.wrong)
    figures = {
        "acknowledged": f"{len(met.acknowledged):,}",
        "of undecided outcome": f"{len(met.unknown):,}",
        "refused": f"{len(met.refused):,}",
        "named versions read": f"{met.read:,}",
        "cleanups": f"{met.cleanups:,}",
        "versions removed": f"{met.removed:,}",
    }
    return Report("cleaner", len(met.acknowledged), time.perf_counter() - started, failures, figures)
