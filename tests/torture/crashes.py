"""T-CRASH: every call of every verb, in every kind of place, is where a process is stopped; see
`tests/histories/crashes.py`. A point is seen again by its place, its deed and its number.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.histories.crashes import Stage
from tests.histories.deeds import DEEDS
from tests.histories.places import PLACES
from tests.torture.report import Report

SLOW = {"bucket of an emulator": 5}
"""Places that take so many times longer, and get so many times less."""


@dataclass(frozen=True, slots=True)
class Size:
    every: int = 1
    """Of the points of each deed, one in so many; another one for each deed."""
    places: tuple[str, ...] = tuple(PLACES)
    deeds: tuple[str, ...] = tuple(DEEDS)


PR = Size(every=17, deeds=tuple(DEEDS)[::4])
NIGHTLY = Size()


def shares(size: Size, count: int) -> Sequence[Size]:
    return [replace(size, deeds=size.deeds[at::count]) for at in range(count)]


def run(size: Size) -> Report:
    begun = time.perf_counter()
    tried: Counter[str] = Counter()
    found: list[str] = []
    for place in size.places:
        every = size.every * SLOW.get(place, 1)
        for number, name in enumerate(size.deeds):
            deed = DEEDS[name]
            if not deed.fits(place):
                continue
            stage = Stage(PLACES[place](), deed)
            for point in [*stage.points()][number % every :: every]:
                tried[place] += 1
                if wrong := stage.broken(point):
                    found.append(f"{place}, {name}, {wrong}")
            stage.close()
    told = {f"points, {place}": f"{count:,}" for place, count in tried.items()}
    return Report("crashes", tried.total(), time.perf_counter() - begun, tuple(found), told)
