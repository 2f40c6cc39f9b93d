"""T-CRASH, crash point harness: stops a process at every storage call of every operation, in every kind of place; see
`tests/histories/crash_points.py`. The place, the operation and the number of a failure reproduce it."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.histories.crash_points import Stage
from tests.histories.stoppable_operations import DEEDS
from tests.histories.storage_backends import PLACES
from tests.torture.report import Report

SLOW = {"bucket of an emulator": 5}
"""Places that are slower by this factor, and get fewer points by the same factor."""


@dataclass(frozen=True, slots=True)
class Size:
    every: int = 1
    """Run one of this many points of each operation; each operation starts at a different point."""
    places: tuple[str, ...] = tuple(PLACES)
    deeds: tuple[str, ...] = tuple(DEEDS)


PR = Size(every=17, deeds=tuple(DEEDS)[::4])
NIGHTLY = Size()


def split(size: Size, count: int) -> Sequence[Size]:
    return [replace(size, deeds=size.deeds[at::count]) for at in range(count)]


def run(size: Size) -> Report:
    started = time.perf_counter()
    tried: Counter[str] = Counter()
    failures: list[str] = []
    for place in size.places:
        every = size.every * SLOW.get(place, 1)
        for number, name in enumerate(size.deeds):
            deed = DEEDS[name]
            if not deed.fits(place):
                continue
            stage = Stage(PLACES[place](), deed)
            for point in [*stage.points()][number % every :: every]:
                tried[place] += 1
                if problem := stage.broken(point):
                    failures.append(f"{place}, {name}, {problem}")
            stage.close()
    figures = {f"points, {place}": f"{count:,}" for place, count in tried.items()}
    return Report("crashes", tried.total(), time.perf_counter() - started, tuple(failures), figures)
