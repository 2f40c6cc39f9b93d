"""Cleanup harness: threads append to a real table while another one cleans it up continuously; see
`tests/histories/concurrent_cleanup.py`."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.histories.concurrent_cleanup import run_concurrent_cleanup
from tests.torture.report import Report


@dataclass(frozen=True, slots=True)
class Size:
    seconds: float


PR = Size(seconds=5)
NIGHTLY = Size(seconds=120)


def run(size: Size) -> Report:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        result = run_concurrent_cleanup(str(Path(directory, "t")), seconds=size.seconds)
    failures = tuple(f"{problem}; it depends on timing, so repeat the run" for problem in result.problems)
    figures = {
        "acknowledged": f"{len(result.acknowledged):,}",
        "of undecided outcome": f"{len(result.undecided):,}",
        "rejected": f"{len(result.rejected):,}",
        "tagged versions read": f"{result.versions_read:,}",
        "cleanups": f"{result.cleanup_count:,}",
        "versions removed": f"{result.versions_removed:,}",
    }
    return Report("cleaner", len(result.acknowledged), time.perf_counter() - started, failures, figures)
