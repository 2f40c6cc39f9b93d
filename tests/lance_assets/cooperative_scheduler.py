"""Several who record at once, in every kind of order: each goes on to its next look at the database when it is drawn,
and that database shows an added key only some time later."""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import dagster as dg

WAITS_MAX = 500


class Died(BaseException):
    """Where its process was killed."""


@dataclass
class Turns:
    """Of all recorders one goes on at a time, to its next look at the database; which one is drawn."""

    draw: random.Random
    changes: float
    waiting: dict[str, threading.Event] = field(default_factory=dict)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ended: set[str] = field(default_factory=set)
    own: threading.local = field(default_factory=threading.local)
    failures: list[BaseException] = field(default_factory=list)
    waits: int = 0
    is_over: bool = False
    """Whoever goes on alone needs no turn."""

    def mine(self) -> str:
        return "" if self.is_over else cast(str, self.own.name)

    def point(self) -> None:
        """A recorder waits here for its turn."""
        if self.is_over:
            return
        turn = self.waiting[self.mine()] = threading.Event()
        self.arrived.release()
        assert turn.wait(30)

    def wait(self, _: float) -> None:
        self.waits += 1
        if self.waits > WAITS_MAX:
            raise Died  # they wait for each other
        self.point()

    def run(self, works: dict[str, Callable[[], None]]) -> None:
        def begin(name: str, work: Callable[[], None]) -> None:
            self.own.name = name
            try:
                self.point()
                work()
            except Died:
                pass
            except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the caller of run
                self.failures.append(error)
            finally:
                self.ended.add(name)
                self.arrived.release()

        threads = [threading.Thread(target=begin, args=each) for each in works.items()]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert self.arrived.acquire(timeout=30)
        name = ""
        while self.waiting:
            # Some are fast, and stand still for long: each alternates with each is one order among many.
            if name not in self.waiting or self.draw.random() < self.changes:
                name = self.draw.choice(sorted(self.waiting))
            self.waiting.pop(name).set()
            assert self.arrived.acquire(timeout=30)
        for thread in threads:
            thread.join(30)
        if self.failures:
            raise self.failures[0]


@dataclass
class Database:
    """As much of an instance as recording asks for. A key has its place when it is added, and shows when its adder's
    transaction ends, which may be after others have looked."""

    turns: Turns
    dies: tuple[str, int] | None
    keys: dict[tuple[str, str], bool] = field(default_factory=dict)
    """In the order of their places, and whether they show."""
    events: list[dg.AssetMaterialization] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)
    calls: dict[str, int] = field(default_factory=dict)

    def _call(self) -> None:
        name = self.turns.mine()
        self.calls[name] = self.calls.get(name, 0) + 1
        self.turns.point()
        if self.dies == (name, self.calls[name]):
            self.dead.add(name)
            raise Died

    def add_dynamic_partitions(self, of: str, added: Sequence[str]) -> None:
        self._call()
        for key in added:
            self.keys.setdefault((of, key), False)
        self._call()
        for key in added:
            self.keys[(of, key)] = True

    def get_dynamic_partitions(self, of: str) -> list[str]:
        self._call()
        return [key for (name, key), shows in self.keys.items() if name == of and shows]

    def delete_dynamic_partition(self, of: str, key: str) -> None:
        self._call()
        self.keys.pop((of, key), None)

    def fetch_materializations(self, wanted: dg.AssetRecordsFilter, **_: object) -> object:
        self._call()
        there = [each for each in self.events if each.partition in (wanted.asset_partitions or ())]
        return SimpleNamespace(records=[SimpleNamespace(asset_materialization=each) for each in there], has_more=False)

    def put(self, event: dg.AssetMaterialization) -> None:
        self._call()
        self.events.append(event)

    def get_run_by_id(self, run_id: str) -> object:
        status = dg.DagsterRunStatus.FAILURE if run_id in self.dead else dg.DagsterRunStatus.STARTED
        return SimpleNamespace(status=status)

    def add_run_tags(self, *_: object) -> None:
        self._call()

    def has_run(self, _: str) -> bool:
        return True
