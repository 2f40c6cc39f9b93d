"""T-DUR: the power goes after any call by which a verb changes the disk; see `tests/histories/durability.py`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.histories.durability import KINDS, written
from tests.torture.report import Report


@dataclass(frozen=True, slots=True)
class Size:
    every: int = 1
    """Of the states that a deed can leave, one in so many."""
    kinds: tuple[str, ...] = KINDS


PR = Size(every=15, kinds=("create", "append", "update row 0", "branch"))
NIGHTLY = Size()


def shares(size: Size, count: int) -> Sequence[Size]:
    return [replace(size, kinds=size.kinds[at::count]) for at in range(count)]


def run(size: Size) -> Report:
    begun = time.perf_counter()
    tried = calls = 0
    found: list[str] = []
    for kind in size.kinds:
        table = written(kind)
        calls += len(table.events)
        found += [f"{kind}: {each}, and is not on the disk" for each in table.in_disorder()]
        states = table.states()[:: size.every]
        tried += len(states)
        found += [f"{kind}: {wrong}" for state in states if (wrong := table.broken(state))]
        if kind in ("append", "delete row 0"):
            silent = table.silent_about_a_damaged_head(every=size.every)
            found += [f"{kind}: a head of {each} is not told to be damaged" for each in silent]
        table.close()
    return Report(
        "durability", tried, time.perf_counter() - begun, tuple(found), {"calls that change the disk": f"{calls:,}"}
    )
