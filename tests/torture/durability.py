"""T-DUR, durability harness: simulates a power failure after every call by which an operation changes the disk; see
`tests/histories/durability.py`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.histories.durability import KINDS, written
from tests.torture.report import Report


@dataclass(frozen=True, slots=True)
class Size:
    every: int = 1
    """Check one of this many states that an operation can leave."""
    kinds: tuple[str, ...] = KINDS


PR = Size(every=15, kinds=("create", "append", "update row 0", "branch"))
NIGHTLY = Size()


def split(size: Size, count: int) -> Sequence[Size]:
    return [replace(size, kinds=size.kinds[at::count]) for at in range(count)]


def run(size: Size) -> Report:
    started = time.perf_counter()
    tried = calls = 0
    failures: list[str] = []
    for kind in size.kinds:
        table = written(kind)
        calls += len(table.events)
        failures += [f"{kind}: {order}, and is not on the disk" for order in table.in_disorder()]
        states = table.states()[:: size.every]
        tried += len(states)
        failures += [f"{kind}: {problem}" for state in states if (problem := table.broken(state))]
        if kind in ("append", "delete row 0"):
            undetected = table.silent_about_a_damaged_head(every=size.every)
            failures += [f"{kind}: a damaged head of {length} is not reported" for length in undetected]
        table.close()
    return Report(
        "durability",
        tried,
        time.perf_counter() - started,
        tuple(failures),
        {"calls that change the disk": f"{calls:,}"},
    )
