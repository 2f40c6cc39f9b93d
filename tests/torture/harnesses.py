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
from types import ModuleType
from typing import Protocol, cast

from tests.torture.report import Report

SIZES = ("pr", "full", "nightly")
"""Sizes of a run; `full` is another name of `nightly`."""


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
    "power-loss": Harness(splits=4),
    "syscall-faults": Harness(splits=4),
    "mixed-fleet": Harness(is_exclusive=True),
}


class _Module(Protocol):
    PR: object
    NIGHTLY: object

    def run(self, size: object) -> Report: ...

    def split(self, size: object, count: int) -> Sequence[object]: ...


def import_harness(name: str) -> ModuleType:
    """Import the module of a harness. A hyphen in the name is an underscore in the name of the module."""
    return importlib.import_module(f"tests.torture.{name.replace('-', '_')}")


def run_split(name: str, size: str, split_index: int) -> Report:
    """Run one split of a harness in a process of its own."""
    module = cast(_Module, import_harness(name))
    chosen = module.PR if size == "pr" else module.NIGHTLY
    count = HARNESSES[name].splits
    started = time.perf_counter()
    report = module.run(module.split(chosen, count)[split_index] if count > 1 else chosen)
    return Report(name, report.case_count, time.perf_counter() - started, report.failures, report.figures)
