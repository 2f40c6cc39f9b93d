"""T-ENUM: every order of the calls of two writers, with every fault at every call; `tests/histories/exploration.py`
says how large the spaces are. A schedule is seen again by `History(verbs, choices, fault)` with what is told.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tests.histories.exploration import HOWS, Fault, History, explored, some_orders
from tests.histories.pairs_of_verbs import PAIRS
from tests.torture.report import Report

CALLS = 7
"""Of an append without an intent, where nobody is in the way."""
WRITERS = ("writer 0", "writer 1")


@dataclass(frozen=True, slots=True)
class Size:
    every: int = 1
    """Of the orders of two appends without intents, one in so many."""
    preemptions: int = 2
    preemptions_with_a_fault: int = 1
    share: int = 0
    shares: int = 1


PR = Size(every=60, preemptions=1, preemptions_with_a_fault=0)
NIGHTLY = Size()


def shares(size: Size, count: int) -> Sequence[Size]:
    return [replace(size, share=share, shares=count) for share in range(count)]


def run(size: Size) -> Report:
    begun = time.perf_counter()
    found: list[str] = []
    told: dict[str, int] = {}
    for what, name, histories in [*_spaces(size)][size.share :: size.shares]:
        tried = 0
        try:
            for _ in histories:
                tried += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, it is found
            found.append(f"{name}: {type(error).__name__}: {error}")
        told[what] = told.get(what, 0) + tried
    figures = {name: f"{count:,}" for name, count in told.items()}
    return Report("exploration", sum(told.values()), time.perf_counter() - begun, tuple(found), figures)


def _spaces(size: Size) -> Iterator[tuple[str, str, Iterator[History]]]:
    """Each with what it is part of, and its own name."""
    appends = PAIRS["appends"]
    faults = [Fault(WRITERS[0], call, how) for call in range(CALLS) for how in HOWS]  # the other one is the same
    for fault in [None, *faults]:
        whole = "all orders of two appends"
        if size.every == 1:
            histories = explored(appends, preemptions=None, fault=fault, intents=False)
        else:
            histories = some_orders(appends, calls=CALLS, every=size.every, fault=fault)
        yield whole if fault is None else f"{whole}, one fault", f"{whole}, {fault}", histories
    for pair, verbs in PAIRS.items():
        bound = f"orders of ten pairs with intents, {size.preemptions} preemptions"
        yield bound, f"{pair}, {size.preemptions} preemptions", explored(verbs, preemptions=size.preemptions)
        bound = f"orders of ten pairs with intents, {size.preemptions_with_a_fault} preemptions, one fault"
        calls = {who: History(verbs, ()).run().stores[who].calls for who in WRITERS}
        for fault in [Fault(who, call, how) for who in WRITERS for call in range(calls[who]) for how in HOWS]:
            histories = explored(verbs, preemptions=size.preemptions_with_a_fault, fault=fault)
            yield bound, f"{pair}, {fault}, {size.preemptions_with_a_fault} preemptions", histories
