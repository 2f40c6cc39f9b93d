"""Mutation testing harness: plants every defect of `tests/histories/commit_defects.py` and `cleanup_defects.py`, and
expects the history checks to detect each of them. A detected defect is reported with its seed; an undetected one is a
failure."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.histories.cleanup_defects import CLEANUP_DEFECTS, RARELY_DETECTED
from tests.histories.commit_defects import COMMIT_DEFECTS
from tests.histories.defect_detection import detect_defect
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
    chosen = [*COMMIT_DEFECTS, *CLEANUP_DEFECTS][:: size.every][size.split_index :: size.split_count]
    for name in chosen:
        if failure := detect_defect(name, range(size.seeds)):
            first[name] = failure.partition(":")[0]
        elif name in RARELY_DETECTED:
            first[name] = f"not by {size.seeds} seeds, but by separate tests"
        else:
            failures.append(f"{size.seeds} seeds do not detect {name!r}: detect_defect({name!r}, range(...))")
    return Report("defects", len(chosen), time.perf_counter() - started, tuple(failures), first)
