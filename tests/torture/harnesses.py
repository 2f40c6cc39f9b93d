"""Registry of the harnesses of `make torture`. Each harness is a module of this package with these members:

Size            a frozen value with the numbers of a run
PR, NIGHTLY     two such values: a slice that fits into `make test`, and the full size
run(size)       run the harness and return a `Report`
split(size, n)  split a size into n parts, for harnesses that run in several processes
"""

import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from tests.torture.report import Report

SIZES = ("pr", "nightly")


@dataclass(frozen=True, slots=True)
class Harness:
    splits: int = 1
    is_exclusive: bool = False
    """`True` for a harness that measures time or uses the whole machine: no other harness runs concurrently."""


HARNESSES = {
    "simulation": Harness(splits=8),
    "together": Harness(splits=4),
    "upkeep": Harness(splits=8),
    "exploration": Harness(splits=8),
    "defects": Harness(splits=8),
    "crashes": Harness(splits=8),
    "durability": Harness(splits=4),
    "pairs": Harness(splits=4),
    "states": Harness(),
    "fuzz": Harness(splits=8),
    "limits": Harness(is_exclusive=True),
    "cleaner": Harness(is_exclusive=True),
    "hammer": Harness(is_exclusive=True),
}


class _Module(Protocol):
    PR: object
    NIGHTLY: object

    def run(self, size: object) -> Report: ...

    def split(self, size: object, count: int) -> Sequence[object]: ...


def run_split(name: str, size: str, split_index: int) -> Report:
    """Run one split of a harness in a process of its own."""
    module = cast(_Module, importlib.import_module(f"tests.torture.{name}"))
    chosen = module.NIGHTLY if size == "nightly" else module.PR
    count = HARNESSES[name].splits
    started = time.perf_counter()
    report = module.run(module.split(chosen, count)[split_index] if count > 1 else chosen)
    return Report(name, report.case_count, time.perf_counter() - started, report.failures, report.figures)
