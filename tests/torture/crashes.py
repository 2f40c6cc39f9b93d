"""T-CRASH, crash point harness: stops a process at every storage call of every operation, on every storage
backend; see `tests/histories/crash_points.py`. The backend, the operation and the call of a failure reproduce it."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.histories.crash_points import CrashScenario
from tests.histories.stoppable_operations import STOPPABLE_OPERATIONS
from tests.histories.storage_backends import STORAGE_BACKENDS
from tests.torture.report import Report

SLOW = {"bucket of an emulator": 5}
"""Backends that are slower by this factor, and get fewer points by the same factor."""


@dataclass(frozen=True, slots=True)
class Size:
    every: int = 1
    """Run one of this many points of each operation; each operation starts at a different point."""
    backends: tuple[str, ...] = tuple(STORAGE_BACKENDS)
    operations: tuple[str, ...] = tuple(STOPPABLE_OPERATIONS)


PR = Size(every=17, operations=tuple(STOPPABLE_OPERATIONS)[::4])
NIGHTLY = Size()


def split(size: Size, count: int) -> Sequence[Size]:
    return [replace(size, operations=size.operations[at::count]) for at in range(count)]


def run(size: Size) -> Report:
    started = time.perf_counter()
    tried: Counter[str] = Counter()
    failures: list[str] = []
    for backend in size.backends:
        every = size.every * SLOW.get(backend, 1)
        for number, name in enumerate(size.operations):
            operation = STOPPABLE_OPERATIONS[name]
            if not operation.supports_backend(backend):
                continue
            scenario = CrashScenario(STORAGE_BACKENDS[backend](), operation)
            for point in [*scenario.crash_points()][number % every :: every]:
                tried[backend] += 1
                if problem := scenario.find_problem(point):
                    failures.append(f"{backend}, {name}, {problem}")
            scenario.close()
    figures = {f"points, {backend}": f"{count:,}" for backend, count in tried.items()}
    return Report("crashes", tried.total(), time.perf_counter() - started, tuple(failures), figures)
