"""Seeded defects: the product is broken in every way that `tests/histories/defects*.py` knows, and each has to be
noticed. One that is seen is told with its seed; one that is not is what this harness finds.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.histories.defects import DEFECTS, noticed
from tests.histories.defects_of_cleanup import DEFECTS_OF_CLEANUP, RARE
from tests.torture.report import Report


@dataclass(frozen=True, slots=True)
class Size:
    seeds: int
    every: int = 1
    share: int = 0
    shares: int = 1


PR = Size(seeds=300, every=4)
NIGHTLY = Size(seeds=3_000)


def shares(size: Size, count: int) -> Sequence[Size]:
    return [replace(size, share=share, shares=count) for share in range(count)]


def run(size: Size) -> Report:
    begun = time.perf_counter()
    found: list[str] = []
    first: dict[str, str] = {}
    chosen = [*DEFECTS.items(), *DEFECTS_OF_CLEANUP.items()][:: size.every][size.share :: size.shares]
    for name, defect in chosen:
        seen = noticed(defect, range(size.seeds))
        if seen:
            first[name] = seen.partition(":")[0]
        elif name in RARE:
            first[name] = f"not by {size.seeds} seeds, by tests of its own"
        else:
            found.append(f"{name!r} is not noticed by {size.seeds} seeds: noticed(DEFECTS[{name!r}], range(...))")
    return Report("defects", len(chosen), time.perf_counter() - begun, tuple(found), first)
