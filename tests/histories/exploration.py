"""Schedule exploration: runs two writers in every order of their storage calls, each with one fault at every call.

    for history in explore_schedules(operations, preemptions=2, fault=None): ...

A schedule is reproduced from its choices alone: they decide which actor runs next, and after the last of them the
running actor continues. Later runs branch from the choices that a run met.

The number of calls determines the number of orders. An append without an intent makes 7 calls if no writer conflicts
with it, so two appends have 3,432 orders, and some more for those that conflict: all of them run (`preemptions=None`).
With intents each writer makes 11 to 13 calls, which gives millions of orders. The space is then that of all orders with
at most `preemptions` switches away from an actor that could continue, and all of it runs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Self

from lance_core import StorageError
from lance_core.storage.store import ObjectInfo, Put, Store
from tests.histories.cooperative_scheduler import CooperativeScheduler, ProcessKilled
from tests.histories.simulated_operations import SimulatedOperation
from tests.histories.simulation import Outcome, Simulation, WorkItem

FAULT_KINDS = ("killed before", "killed after", "fails", "lost", "never", "late", "later")
"""Faults of a call. The last four are for creates: executed without an answer; not executed; executed when both writers
have ended; executed when the surviving writers have repeated their work."""


@dataclass(frozen=True)
class Fault:
    writer: str
    call_number: int
    kind: str


class ScriptedScheduler(CooperativeScheduler):
    """Scheduler that follows given choices and then lets the running actor continue."""

    def __init__(self, choices: Sequence[str]) -> None:
        super().__init__(0)
        self.choices = choices
        self.decisions: list[tuple[str, tuple[str, ...]]] = []

    def choose_next(self, runnable: Sequence[str]) -> str:
        position = len(self.decisions)
        preferred = self.choices[position] if position < len(self.choices) else self.current
        chosen = preferred if preferred in runnable else runnable[0]
        self.decisions.append((chosen, tuple(runnable)))
        return chosen


@dataclass
class SteppedWriterStore:
    """Store of one writer: each call is a step, and the call that the fault specifies fails."""

    history: "History"
    writer: str
    call_count: int = 0
    description: str = "memory://explored"

    def _begin_call(self) -> str:
        self.history.scheduler.yield_control()
        fault = self.history.fault
        call_number = self.call_count
        self.call_count += 1
        if fault is None or (fault.writer, fault.call_number) != (self.writer, call_number):
            return ""
        if fault.kind == "killed before":
            raise ProcessKilled
        if fault.kind == "fails":
            raise StorageError(f"call {call_number} of {self.writer} fails, as its fault specifies")
        return fault.kind

    def _end_call(self, fault_kind: str) -> None:
        if fault_kind == "killed after":
            raise ProcessKilled

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        fault_kind = self._begin_call()
        data = self.history.shared_store.read(path, start, length)
        self._end_call(fault_kind)
        return data

    def head(self, path: str) -> ObjectInfo | None:
        self._end_call(self._begin_call())
        return self.history.shared_store.head(path)

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        self._end_call(self._begin_call())
        return self.history.shared_store.list(directory, start_after)

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        self._end_call(self._begin_call())
        return self.history.shared_store.walk(directory)

    def put(self, path: str, data: bytes) -> None:
        fault_kind = self._begin_call()
        self.history.shared_store.put(path, data)
        self._end_call(fault_kind)

    def create(self, path: str, data: bytes) -> Put:
        fault_kind = self._begin_call()
        if fault_kind in ("late", "later"):
            self.history.delay_request("create", path, data)
        if fault_kind in ("late", "later", "never"):
            return Put.UNKNOWN
        answer = self.history.shared_store.create(path, data)
        self._end_call(fault_kind)
        return Put.UNKNOWN if fault_kind == "lost" else answer

    def delete(self, path: str) -> None:
        raise AssertionError(f"a writer deleted {path}, and writers must delete nothing")

    def ensure_durable(self, paths: Sequence[str]) -> None:
        self._begin_call()


class History(Simulation):
    """Two writers that each run one operation under an intent, after which new processes repeat each operation once."""

    def __init__(
        self,
        operations: Sequence[SimulatedOperation],
        choices: Sequence[str],
        fault: Fault | None = None,
        *,
        is_intent_shared: bool = False,
        has_intents: bool = True,
    ) -> None:
        super().__init__(0)
        self.scripted_scheduler = self.scheduler = ScriptedScheduler(choices)
        self.fault = fault
        self.stores: dict[str, SteppedWriterStore] = {}
        for operation in operations[:1] if is_intent_shared else operations:
            self.work_items.append(WorkItem(operation, intent=f"intent of {operation.name}" if has_intents else None))
        self._work_by_writer = [self.work_items[0]] * len(operations) if is_intent_shared else self.work_items

    def process_store(self) -> Store:
        return self.stores.get(self.scheduler.current, self.shared_store)

    def run(self) -> Self:
        self.create_table()
        self.stores = {
            f"writer {number}": SteppedWriterStore(self, f"writer {number}")
            for number in range(len(self._work_by_writer))
        }
        actors = dict(zip(self.stores, (self._make_actor([work]) for work in self._work_by_writer), strict=True))
        self.scheduler.run_actors(actors)
        writer_stores, self.stores = self.stores, {}
        if self.fault is not None and self.fault.kind == "late":
            self._deliver_all()
        for work in self.work_items:
            if work.intent is not None:  # without an intent no process may repeat the operation
                self._run_work(work)
        self._deliver_all()
        self.stores = writer_stores
        return self

    def _deliver_all(self) -> None:
        while self.delayed_requests:
            self._deliver(0)

    def _run_work(self, work: WorkItem) -> None:
        """Run an operation once. Every repetition runs in a new process."""
        self._process_count += 1
        try:
            work.outcomes.append(self._attempt_work(work, process=self._process_count))
        except ProcessKilled:
            work.outcomes.append(Outcome.UNDECIDED)


def explore_schedules(
    operations: Sequence[SimulatedOperation],
    *,
    preemptions: int | None,
    fault: Fault | None = None,
    is_intent_shared: bool = False,
    has_intents: bool = True,
) -> Iterator[History]:
    """Yield every history with at most `preemptions` switches away from an actor that could continue; `None` means no
    limit. Each history is checked, and an error reports its choices."""
    unexplored: list[tuple[tuple[str, ...], int]] = [((), 0)]
    while unexplored:
        choices, preemptions_used = unexplored.pop()
        history = check_history(
            History(operations, choices, fault, is_intent_shared=is_intent_shared, has_intents=has_intents)
        )
        yield history
        decisions = history.scripted_scheduler.decisions
        for position in range(len(choices), len(decisions)):
            chosen, runnable = decisions[position]
            is_forced = position == 0 or decisions[position - 1][0] not in runnable
            if not is_forced and preemptions is not None and preemptions_used >= preemptions:
                continue
            before = tuple(actor for actor, _runnable in decisions[:position])
            used = preemptions_used + (0 if is_forced else 1)
            unexplored += [((*before, other), used) for other in runnable if other != chosen]


def sample_schedules(
    operations: Sequence[SimulatedOperation], *, calls_per_writer: int, every: int, fault: Fault | None = None
) -> Iterator[History]:
    """Yield one in `every` of all orders of two writers without intents that make `calls_per_writer` calls each, evenly
    spread."""
    for first_writer_positions in islice(combinations(range(2 * calls_per_writer), calls_per_writer), 0, None, every):
        choices = tuple(
            f"writer {0 if position in first_writer_positions else 1}" for position in range(2 * calls_per_writer)
        )
        yield check_history(History(operations, choices, fault, has_intents=False))


def check_history(history: History) -> History:
    try:
        history.run().check()
    except AssertionError as error:
        order = "".join(actor.removeprefix("writer ") for actor, _runnable in history.scripted_scheduler.decisions)
        raise AssertionError(f"{history.fault}, order {order}: {error}") from error
    return history
