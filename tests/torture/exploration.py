"""T-ENUM, schedule enumeration: runs every order of the calls of two writers, with every fault at every call;
`tests/histories/exploration.py` states how large the spaces are. `History(operations, choices, fault)` with the
reported values reproduces a schedule."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tests.histories.exploration import FAULT_KINDS, Fault, History, explore_schedules, sample_schedules
from tests.histories.simulated_operation_pairs import OPERATION_PAIRS
from tests.torture.report import Report

CALLS_PER_APPEND = 7
"""Number of store calls of an append without an intent and without conflicts."""
WRITERS = ("writer 0", "writer 1")


@dataclass(frozen=True, slots=True)
class Size:
    every: int = 1
    """Run one of this many orders of two appends without intents."""
    preemptions: int = 2
    preemptions_with_a_fault: int = 1
    split_index: int = 0
    split_count: int = 1


PR = Size(every=60, preemptions=1, preemptions_with_a_fault=0)
NIGHTLY = Size()


def split(size: Size, count: int) -> Sequence[Size]:
    return [replace(size, split_index=index, split_count=count) for index in range(count)]


def run(size: Size) -> Report:
    started = time.perf_counter()
    failures: list[str] = []
    tried_by_space: dict[str, int] = {}
    for space, name, histories in [*_spaces(size)][size.split_index :: size.split_count]:
        tried = 0
        try:
            for _ in histories:
                tried += 1
        except Exception as error:  # noqa: BLE001 - every error is a failure
            failures.append(f"{name}: {type(error).__name__}: {error}")
        tried_by_space[space] = tried_by_space.get(space, 0) + tried
    figures = {name: f"{count:,}" for name, count in tried_by_space.items()}
    return Report("exploration", sum(tried_by_space.values()), time.perf_counter() - started, tuple(failures), figures)


def _spaces(size: Size) -> Iterator[tuple[str, str, Iterator[History]]]:
    """Yield the name of the space, the name of the part, and its histories."""
    appends = OPERATION_PAIRS["appends"]
    faults = [
        Fault(WRITERS[0], call_number, kind) for call_number in range(CALLS_PER_APPEND) for kind in FAULT_KINDS
    ]  # the other writer is symmetric
    for fault in [None, *faults]:
        whole = "all orders of two appends"
        if size.every == 1:
            histories = explore_schedules(appends, preemptions=None, fault=fault, has_intents=False)
        else:
            histories = sample_schedules(appends, calls_per_writer=CALLS_PER_APPEND, every=size.every, fault=fault)
        yield whole if fault is None else f"{whole}, one fault", f"{whole}, {fault}", histories
    for pair, operations in OPERATION_PAIRS.items():
        bound = f"orders of ten pairs with intents, {size.preemptions} preemptions"
        yield (
            bound,
            f"{pair}, {size.preemptions} preemptions",
            explore_schedules(operations, preemptions=size.preemptions),
        )
        bound = f"orders of ten pairs with intents, {size.preemptions_with_a_fault} preemptions, one fault"
        call_counts = {writer: History(operations, ()).run().stores[writer].call_count for writer in WRITERS}
        calls = [(writer, number) for writer in WRITERS for number in range(call_counts[writer])]
        for fault in [Fault(writer, number, kind) for writer, number in calls for kind in FAULT_KINDS]:
            histories = explore_schedules(operations, preemptions=size.preemptions_with_a_fault, fault=fault)
            yield bound, f"{pair}, {fault}, {size.preemptions_with_a_fault} preemptions", histories
