"""Shared code of harnesses with seeded histories: runs a range of seeds, some of them twice to check determinism."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tests.histories.simulation import Simulation
from tests.torture.report import Report


@dataclass(frozen=True, slots=True)
class Size:
    seeds: int
    first: int = 0
    twice: int = 20
    """Repeat one of this many histories; the repetition must be identical."""


def split(size: Size, count: int) -> Sequence[Size]:
    ends = [size.first + size.seeds * number // count for number in range(count + 1)]
    return [replace(size, seeds=end - first, first=first) for first, end in pairwise(ends)]


def run_seeds(harness: str, history: Callable[[int], Simulation], size: Size) -> Report:
    started = time.perf_counter()
    failures, versions, events = [], 0, 0
    for seed in range(size.first, size.first + size.seeds):
        reproduction = f"{history.__name__}({seed}).run().check()"
        ran = history(seed)
        try:
            digest = ran.run().digest  # the check may write: it finishes an interrupted cleanup
            ran.check()
            if seed % size.twice == 0 and history(seed).run().digest != digest:
                failures.append(f"{reproduction} differs between two runs")
        except Exception as error:  # noqa: BLE001 - every error is a failure
            failures.append(f"{reproduction}: {type(error).__name__}: {error}")
        versions += ran.observer.version_count
        events += ran.event_count
    figures = {"versions": f"{versions:,}", "calls and their results": f"{events:,}"}
    return Report(harness, size.seeds, time.perf_counter() - started, tuple(failures), figures)
