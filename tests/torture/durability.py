"""T-DUR, durability harness: simulates a power failure after every call by which an operation changes the disk; see
`tests/histories/durability.py`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.histories.durability import OPERATIONS, record_operation
from tests.torture.report import Report


@dataclass(frozen=True, slots=True)
class Size:
    every: int = 1
    """Check one of this many states that an operation can leave."""
    operations: tuple[str, ...] = OPERATIONS


PR = Size(every=15, operations=("create", "append", "update row 0", "branch"))
NIGHTLY = Size()


def split(size: Size, count: int) -> Sequence[Size]:
    return [replace(size, operations=size.operations[at::count]) for at in range(count)]


def run(size: Size) -> Report:
    started = time.perf_counter()
    tried = calls = 0
    failures: list[str] = []
    for name in size.operations:
        recorded = record_operation(name)
        calls += len(recorded.events)
        failures += [f"{name}: {violation}" for violation in recorded.find_ordering_violations()]
        states = recorded.possible_states()[:: size.every]
        tried += len(states)
        failures += [f"{name}: {problem}" for state in states if (problem := recorded.find_problem(state))]
        if name in ("append", "delete row 0"):
            undetected = recorded.find_undetected_damage(step=size.every)
            failures += [f"{name}: a damaged head of {length} is not reported" for length in undetected]
        recorded.close()
    return Report(
        "durability",
        tried,
        time.perf_counter() - started,
        tuple(failures),
        {"calls that change the disk": f"{calls:,}"},
    )
