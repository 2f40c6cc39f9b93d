"""The harnesses that `make torture` knows, each a module of this package:

Size            a frozen value with its numbers
PR, NIGHTLY     such values: the slice that fits beside `make test`, and all of it
run(size)       does it, and returns a `Report`
shares(size, n) in n parts, for those that can be shared among processes
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
    shares: int = 1
    alone: bool = False
    """It measures time or fills the machine by itself: nothing else runs beside it."""


HARNESSES = {
    "simulation": Harness(shares=8),
    "together": Harness(shares=4),
    "upkeep": Harness(shares=8),
    "exploration": Harness(shares=8),
    "defects": Harness(shares=8),
    "crashes": Harness(shares=8),
    "durability": Harness(shares=4),
    "pairs": Harness(shares=4),
    "states": Harness(),
    "fuzz": Harness(shares=8),
    "cleaner": Harness(alone=True),
    "hammer": Harness(alone=True),
}


class _Module(Protocol):
    PR: object
    NIGHTLY: object

    def run(self, size: object) -> Report: ...

    def shares(self, size: object, count: int) -> Sequence[object]: ...


def run_share(name: str, size: str, share: int) -> Report:
    """In a process of its own."""
    module = cast(_Module, importlib.import_module(f"tests.torture.{name}"))
    wanted = module.NIGHTLY if size == "nightly" else module.PR
    count = HARNESSES[name].shares
    begun = time.perf_counter()
    report = module.run(module.shares(wanted, count)[share] if count > 1 else wanted)
    return Report(name, report.tried, time.perf_counter() - begun, report.found, report.told)
