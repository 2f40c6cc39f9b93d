"""Simulated network: the store as one process sees it. Answers are lost or delayed, listings are stale, and at any call
the process may be killed or suspended for days.

It never does what the contract of a store excludes: show a part of a put, read fewer bytes than exist or answer
"created" twice. A data file may be torn nevertheless, because the codec writes it without the store: its writer is
killed in the middle of it, or does not notice.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from lance_core import StorageError
from lance_core.format import naming
from lance_core.storage.answer_dates import AnswerDates
from lance_core.storage.store import (
    ObjectInfo,
    Put,
    ReportsClockJumps,
    ReportsLastChange,
    SupportsOrderedListing,
    SupportsShortWalk,
)
from tests.histories.cooperative_scheduler import CooperativeScheduler, ProcessKilled
from tests.histories.simulated_store import HOSTS, SimulatedClock, SimulatedStore


@dataclass(frozen=True)
class FaultProbabilities:
    """Probability of each fault, at each call where it can occur."""

    kill: float = 0.004
    request_error: float = 0.01
    lost_answer: float = 0.12
    """The request is executed and its answer is lost. A `put` that reports a failure also counts as lost."""
    dropped_request: float = 0.06
    """The request is not executed and its outcome is unknown: no answer, or one that asks for a retry (409)."""
    delayed_request: float = 0.08
    duplicated_request: float = 0.02
    """The request is executed, and once more later: an intermediary repeated it."""
    stale_listing: float = 0.10
    stale_listing_age_max: timedelta = timedelta(minutes=1)
    """Maximum age of an object that a stale listing omits."""
    torn_data_file: float = 0.01
    suspension: float = 0.0
    """The process is suspended for seconds to days while the others may continue."""
    clock_change: float = 0.02
    """The clock of the store, or of the machine of some processes, is set back or ahead."""


HARSH_NETWORK = FaultProbabilities(
    kill=0.015,
    request_error=0.025,
    lost_answer=0.25,
    dropped_request=0.15,
    delayed_request=0.2,
    duplicated_request=0.05,
    stale_listing=0.3,
    torn_data_file=0.03,
)
RELIABLE_NETWORK = FaultProbabilities(
    kill=0,
    request_error=0,
    lost_answer=0,
    dropped_request=0,
    delayed_request=0,
    duplicated_request=0,
    stale_listing=0,
    torn_data_file=0,
)

CALL_DURATION = timedelta(milliseconds=3)
SUSPENSIONS = (timedelta(seconds=5), timedelta(minutes=2), timedelta(hours=2), timedelta(days=8))
"""Durations of a suspension, each equally likely."""
CLOCK_ERRORS = tuple(
    sign * timedelta(seconds=seconds) for seconds in (0, 1, 90, 2 * 3600, 3 * 24 * 3600) for sign in (1, -1)
)
"""Differences from the true time that a clock is set to, each equally likely."""
CLOCK_RESOLUTIONS = (timedelta(microseconds=1), timedelta(seconds=1), timedelta(seconds=2))
"""Resolutions of the modification times of a store: of Linux, of HTTP dates, and of FAT."""


class SimulationContext(Protocol):
    """Simulation that the network belongs to."""

    scheduler: CooperativeScheduler
    faults: FaultProbabilities
    shared_store: SimulatedStore
    clock: SimulatedClock

    def record_event(self, event: str, path: str = "") -> None: ...

    def advance_time(self, duration: timedelta) -> None: ...

    def delay_request(self, method: str, path: str, data: bytes) -> None:
        """Delay a request, which arrives later or never."""


class SimulatedNetwork:
    """Network between all processes and the shared store, with the requests that are delayed."""

    description = "memory://simulated"

    def __init__(self, context: SimulationContext) -> None:
        self._context = context

    def _begin_call(self, name: str, path: str) -> random.Random:
        context = self._context
        context.scheduler.yield_control()
        generator = context.scheduler.random
        context.record_event(name, path)
        is_suspended = generator.random() < context.faults.suspension
        context.advance_time(generator.choice(SUSPENSIONS) if is_suspended else CALL_DURATION)
        if generator.random() < context.faults.clock_change:
            context.record_event("clock changed")
            context.clock.offsets[generator.randrange(HOSTS)] = generator.choice(CLOCK_ERRORS)
        if generator.random() < context.faults.kill:
            context.record_event("killed")
            raise ProcessKilled
        if generator.random() < context.faults.request_error:
            self._fail_request(name, path)
        return generator

    def _fail_request(self, name: str, path: str) -> None:
        self._context.record_event("failed")
        raise StorageError(f"simulated failure of {name} {path}")

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self._begin_call("read", path)
        return self._context.shared_store.read(path, start, length)

    def head(self, path: str) -> ObjectInfo | None:
        self._begin_call("head", path)
        return self._context.shared_store.head(path)

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        generator = self._begin_call("list", directory)
        listed = list(self._context.shared_store.list(directory, start_after))
        versions = [info for info in listed if info.path.endswith(".manifest")]
        if len(versions) > 1 and generator.random() < self._context.faults.stale_listing:
            omitted = versions[generator.randrange(2)]  # the newest version, or the one before it
            if self._context.shared_store.age(omitted.path) <= self._context.faults.stale_listing_age_max:
                self._context.record_event("stale listing")
                listed.remove(omitted)
        return listed

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        self._begin_call("walk", directory)
        return self._context.shared_store.walk(directory)

    def put(self, path: str, data: bytes) -> None:
        generator = self._begin_call("put", path)
        context = self._context
        draw = generator.random()
        if path.startswith(naming.DATA) and draw < context.faults.torn_data_file:
            context.record_event("data file torn")
            context.shared_store.put(path, data[: generator.randrange(len(data))])
            if draw < context.faults.torn_data_file / 2:
                raise ProcessKilled
            return
        context.shared_store.put(path, data)
        if draw > 1 - context.faults.duplicated_request:
            context.record_event("duplicated")
            context.delay_request("put", path, data)
        elif draw > 1 - context.faults.duplicated_request - context.faults.request_error:
            self._fail_request("the answer to put", path)

    def create(self, path: str, data: bytes) -> Put:
        generator = self._begin_call("create", path)
        draw = generator.random()
        context, faults = self._context, self._context.faults
        if draw < faults.delayed_request:
            context.record_event("delayed")
            context.delay_request("create", path, data)
            return Put.UNKNOWN
        if draw < faults.delayed_request + faults.dropped_request:
            context.record_event("dropped")
            return Put.UNKNOWN
        answer = context.shared_store.create(path, data)
        context.record_event(answer.value)
        if generator.random() < faults.kill * 5:
            context.record_event("killed before the answer")
            raise ProcessKilled
        if draw > 1 - faults.lost_answer:
            context.record_event("answer lost")
            return Put.UNKNOWN
        if generator.random() < faults.duplicated_request:
            context.record_event("duplicated")
            context.delay_request("create", path, data)
        return answer

    def delete(self, path: str) -> None:
        generator = self._begin_call("delete", path)
        self._context.shared_store.delete(path)
        if generator.random() < self._context.faults.request_error:
            self._fail_request("the answer to delete", path)

    def ensure_durable(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._begin_call("make durable", path)


class DatingNetwork(SimulatedNetwork, ReportsClockJumps):
    """Network to a store that dates its answers."""

    def __init__(self, context: SimulationContext) -> None:
        super().__init__(context)
        self._dates = AnswerDates(lambda: context.clock.elapsed_ns)

    def has_clock_jumped_since(self, elapsed_ns: int) -> bool:
        return self._dates.has_jumped_since(elapsed_ns)

    def _begin_call(self, name: str, path: str) -> random.Random:
        generator = super()._begin_call(name, path)
        self._dates.record(self._context.clock.store_now)
        return generator


class OrderedListingNetwork(DatingNetwork, SupportsOrderedListing, SupportsShortWalk):
    """Network to a store that lists in order, like an object store."""

    def list_first(self, directory: str, count: int, start_after: str = "") -> Sequence[ObjectInfo]:
        return self.list(directory, start_after)[:count]

    def walk_first(self, directory: str, count: int) -> Sequence[ObjectInfo]:
        return self.walk(directory)[:count]


class ChangeReportingNetwork(SimulatedNetwork, ReportsLastChange):
    """Network to a store that reports when a directory last changed, like a local directory."""

    def put_volatile(self, path: str, data: bytes) -> None:
        self._begin_call("put volatile", path)
        self._context.shared_store.put_volatile(path, data)

    def head_if_directory_unchanged(self, path: str) -> ObjectInfo | None:
        self._begin_call("last change", path)
        return self._context.shared_store.head_if_directory_unchanged(path)


NETWORKS = (DatingNetwork, OrderedListingNetwork, ChangeReportingNetwork)
