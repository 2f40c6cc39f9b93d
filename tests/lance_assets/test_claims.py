"""Recorders of one version in every kind of order, on a database that shows an added key only some time later: one of
them puts the event, whoever dies in between."""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest

from lance_assets import lance_table, recording
from lance_assets.metadata import VersionFacts

LEDGER = lance_table("orders", uri="orders.lance").ledger
KEY = "v0000000001"
FACTS = cast(VersionFacts, SimpleNamespace(partition=KEY, data_version="1-x", version=1))
SEEDS = 600
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
    waits: int = 0

    def mine(self) -> str:
        return cast(str, self.own.name)

    def point(self) -> None:
        """A recorder waits here for its turn."""
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


@dataclass
class Database:
    """As much of an instance as recording asks for. A key has its place when it is added, and shows when its adder's
    transaction ends, which may be after others have looked."""

    turns: Turns
    dies: tuple[str, int] | None
    keys: dict[tuple[str, str], bool] = field(default_factory=dict)
    """In the order of their places, and whether they show."""
    events: list[str] = field(default_factory=list)
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

    def recorded(self, *_: object) -> dict[str, str]:
        self._call()
        return {KEY: "1-x"} if self.events else {}

    def put(self, event: object) -> None:
        self._call()
        self.events.append(self.turns.mine())

    def get_run_by_id(self, run_id: str) -> object:
        status = dg.DagsterRunStatus.FAILURE if run_id in self.dead else dg.DagsterRunStatus.STARTED
        return SimpleNamespace(status=status)

    def add_run_tags(self, *_: object) -> None:
        self._call()


def play(seed: int, monkeypatch: pytest.MonkeyPatch, *, recorders: int, somebody_dies: bool) -> Database:
    draw = random.Random(seed)
    names = [f"run-{number}" for number in range(recorders)]
    dies = (draw.choice(names), draw.randint(1, 14)) if somebody_dies else None
    turns = Turns(draw, changes=draw.choice((0.1, 0.3, 1.0)))
    database = Database(turns, dies)
    monkeypatch.setattr(recording, "recorded", database.recorded)
    monkeypatch.setattr(recording, "materialization", lambda *_: None)
    monkeypatch.setattr("lance_assets.claims._pause", turns.wait)

    def work(name: str) -> Callable[[], None]:
        log = SimpleNamespace(info=lambda *_: None, warning=lambda *_: None)
        context: Any = SimpleNamespace(
            instance=database, run=SimpleNamespace(run_id=name), log=log, log_event=database.put
        )
        return lambda: cast(None, recording.record_in_run(context, LEDGER, FACTS))

    turns.run({name: work(name) for name in names})
    return database


@pytest.mark.parametrize("recorders", [2, 3])
def test_one_of_them_puts_the_event(recorders: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(SEEDS):
        database = play(seed, monkeypatch, recorders=recorders, somebody_dies=False)
        assert len(database.events) == 1, seed
        assert database.turns.waits <= WAITS_MAX, seed
        assert [key for of, key in database.keys if of == LEDGER.claim_set] == [], seed


def test_whoever_dies_there_are_never_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where there is none, the next who comes along puts it."""
    died_without = 0
    for seed in range(SEEDS):
        database = play(seed, monkeypatch, recorders=3, somebody_dies=True)
        assert len(database.events) <= 1, seed
        died_without += not database.events
    assert died_without < SEEDS / 3


def test_the_orders_that_are_tried_need_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "wait_for_others", lambda *_: None)
    twice = [seed for seed in range(SEEDS) if len(play(seed, monkeypatch, recorders=2, somebody_dies=False).events) > 1]
    assert twice
