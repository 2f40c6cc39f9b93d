"""Cooperative scheduler: runs recorders in threads, one at a time, and switches between them at database calls only.

A seeded random generator selects the next thread, so an interleaving is reproducible. `FakeInstance` is the database of
the recorders; it shows an added key only some time after it was added. Start at `CooperativeScheduler.run`.
"""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import dagster as dg

SLEEPS_MAX = 500
_SWITCH_TIMEOUT_S = 30


class SimulatedCrash(BaseException):
    """End of a recorder whose process is killed."""


@dataclass
class CooperativeScheduler:
    """Scheduler that lets one thread at a time run to its next database call."""

    random: random.Random
    switch_probability: float
    runnable: dict[str, threading.Event] = field(default_factory=dict)
    """Threads that wait for their turn, each with the event that lets it run."""
    paused: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Released by a thread each time that it waits for its turn or ends."""
    local: threading.local = field(default_factory=threading.local)
    failures: list[BaseException] = field(default_factory=list)
    sleep_count: int = 0
    is_disabled: bool = False
    """True once a single thread continues alone, which then never waits."""

    def current_name(self) -> str:
        return "" if self.is_disabled else cast(str, self.local.name)

    def wait_for_turn(self) -> None:
        if self.is_disabled:
            return
        turn = self.runnable[self.current_name()] = threading.Event()
        self.paused.release()
        assert turn.wait(_SWITCH_TIMEOUT_S)

    def sleep(self, _seconds: float) -> None:
        """Replace `time.sleep`: let other threads run. Too many sleeps mean that the threads wait for each other."""
        self.sleep_count += 1
        if self.sleep_count > SLEEPS_MAX:
            raise SimulatedCrash
        self.wait_for_turn()

    def run(self, functions: dict[str, Callable[[], None]]) -> None:
        """Run the functions by thread name, and raise the first failure of one of them."""

        def run_thread(name: str, function: Callable[[], None]) -> None:
            self.local.name = name
            try:
                self.wait_for_turn()
                function()
            except SimulatedCrash:
                pass
            except BaseException as error:  # noqa: BLE001 - `run` raises it in the thread of its caller
                self.failures.append(error)
            finally:
                self.paused.release()

        threads = [threading.Thread(target=run_thread, args=item) for item in functions.items()]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert self.paused.acquire(timeout=_SWITCH_TIMEOUT_S)
        name = ""
        while self.runnable:
            # A low probability makes some threads run while others wait for long, a high one makes them alternate.
            if name not in self.runnable or self.random.random() < self.switch_probability:
                name = self.random.choice(sorted(self.runnable))
            self.runnable.pop(name).set()
            assert self.paused.acquire(timeout=_SWITCH_TIMEOUT_S)
        for thread in threads:
            thread.join(_SWITCH_TIMEOUT_S)
        if self.failures:
            raise self.failures[0]


@dataclass
class FakeInstance:
    """Part of a Dagster instance that recording uses.

    A key gets its position when it is added, and becomes visible when the transaction that added it ends, possibly
    after other threads have read the keys.
    """

    scheduler: CooperativeScheduler
    crash_at: tuple[str, int] | None
    """Thread that crashes, and the number of its call at which it does."""
    is_visible: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Partition sets and keys in the order of their positions, each with whether it is visible."""
    events: list[dg.AssetMaterialization] = field(default_factory=list)
    crashed: set[str] = field(default_factory=set)
    call_counts: dict[str, int] = field(default_factory=dict)

    def _begin_call(self) -> None:
        name = self.scheduler.current_name()
        if name in self.crashed:
            raise SimulatedCrash
        self.call_counts[name] = self.call_counts.get(name, 0) + 1
        self.scheduler.wait_for_turn()
        if self.crash_at == (name, self.call_counts[name]):
            self.crashed.add(name)
            raise SimulatedCrash

    def add_dynamic_partitions(self, partition_set: str, keys: Sequence[str]) -> None:
        self._begin_call()
        for key in keys:
            self.is_visible.setdefault((partition_set, key), False)
        self._begin_call()
        for key in keys:
            self.is_visible[(partition_set, key)] = True

    def get_dynamic_partitions(self, partition_set: str) -> list[str]:
        self._begin_call()
        return [key for (name, key), is_visible in self.is_visible.items() if name == partition_set and is_visible]

    def delete_dynamic_partition(self, partition_set: str, key: str) -> None:
        self._begin_call()
        self.is_visible.pop((partition_set, key), None)

    def fetch_materializations(self, records_filter: dg.AssetRecordsFilter, **_: object) -> object:
        self._begin_call()
        partitions = records_filter.asset_partitions
        records = [
            SimpleNamespace(asset_materialization=event)
            for event in reversed(self.events)
            if partitions is None or event.partition in partitions
        ]
        return SimpleNamespace(records=records, has_more=False)

    def get_materialized_partitions(self, _: dg.AssetKey) -> set[str]:
        self._begin_call()
        return {event.partition for event in self.events if event.partition is not None}

    def report_runless_asset_event(self, event: dg.AssetMaterialization) -> None:
        self.store_event(event)

    def store_event(self, event: dg.AssetMaterialization) -> None:
        self._begin_call()
        self.events.append(event)

    def get_run_by_id(self, run_id: str) -> object:
        status = dg.DagsterRunStatus.FAILURE if run_id in self.crashed else dg.DagsterRunStatus.STARTED
        return SimpleNamespace(status=status, run_id=run_id, root_run_id=None)

    def get_run_ids(self, *_: object, **__: object) -> list[str]:
        return []

    def add_run_tags(self, *_: object) -> None:
        self._begin_call()

    def has_run(self, _: str) -> bool:
        return True
