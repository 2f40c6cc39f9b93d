"""Threads that append to a real table beside a cleaner that never rests; see `tests/histories/beside_a_cleaner.py`."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.histories.beside_a_cleaner import beside_a_cleaner
from tests.torture.report import Report


@dataclass(frozen=True, slots=True)
class Size:
    seconds: float


PR = Size(seconds=5)
NIGHTLY = Size(seconds=120)


def run(size: Size) -> Report:
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        met = beside_a_cleaner(str(Path(directory, "t")), seconds=size.seconds)
    found = tuple(f"{wrong}; chance decides, so run it some times" for wrong in met.wrong)
    told = {
        "acknowledged": f"{len(met.acknowledged):,}",
        "told that nobody knows": f"{len(met.unknown):,}",
        "refused": f"{len(met.refused):,}",
        "named versions read": f"{met.read:,}",
        "cleanups": f"{met.cleanups:,}",
        "versions removed": f"{met.removed:,}",
    }
    return Report("cleaner", len(met.acknowledged), time.perf_counter() - begun, found, told)
