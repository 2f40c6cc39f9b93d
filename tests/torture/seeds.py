"""What harnesses of seeded histories share: how many seeds, and running them, some of them twice."""

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
    """One in so many is run again, and has to be the same history."""


def shares(size: Size, count: int) -> Sequence[Size]:
    ends = [size.first + size.seeds * number // count for number in range(count + 1)]
    return [replace(size, seeds=end - first, first=first) for first, end in pairwise(ends)]


def run_seeds(harness: str, history: Callable[[int], Simulation], size: Size) -> Report:
    begun = time.perf_counter()
    found, versions, events = [], 0, 0
    for seed in range(size.first, size.first + size.seeds):
        again = f"{history.__name__}({seed}).run().check()"
        ran = history(seed)
        try:
            digest = ran.run().digest  # to check may write: a cleanup that was cut off is finished
            ran.check()
            if seed % size.twice == 0 and history(seed).run().digest != digest:
                found.append(f"{again} is another history each time")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is found
            found.append(f"{again}: {type(error).__name__}: {error}")
        versions += ran.eye.versions
        events += ran.events
    told = {"versions": f"{versions:,}", "calls and what became of them": f"{events:,}"}
    return Report(harness, size.seeds, time.perf_counter() - begun, tuple(found), told)
