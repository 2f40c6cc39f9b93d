"""Mutation testing harness: breaks the product in every way that `tests/histories/*_defects.py` defines, and expects
the history checks to notice each defect. A noticed defect is reported with its seed; a defect that stays unnoticed is
a failure."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.histories.cleanup_defects import DEFECTS_OF_CLEANUP, RARE
from tests.histories.commit_defects import DEFECTS, noticed
from tests.torture.report import Report


@dataclass(frozen=True, slots=True)
class Size:
    seeds: int
    every: int = 1
    split_index: int = 0
    split_count: int = 1


PR = Size(seeds=300, every=4)
NIGHTLY = Size(seeds=3_000)


def split(size: Size, count: int) -> Sequence[Size]:
    return [replace(size, split_index=index, split_count=count) for index in range(count)]


def run(size: Size) -> Report:
    started = time.perf_counter()
    failures: list[str] = []
    first: dict[str, str] = {}
    chosen = [*DEFECTS.items(), *DEFECTS_OF_CLEANUP.items()][:: size.every][size.split_index :: size.split_count]
    for name, defect in chosen:
        seen = noticed(defect, range(size.seeds))
        if seen:
            first[name] = seen.partition(":")[0]
        elif name in RARE:
            first[name] = f"not by {size.seeds} seeds, but by separate tests"
        else:
            failures.append(f"{name!r} is not noticed by {size.seeds} seeds: noticed(DEFECTS[{name!r}], range(...))")
    return Report("defects", len(chosen), time.perf_counter() - started, tuple(failures), first)
