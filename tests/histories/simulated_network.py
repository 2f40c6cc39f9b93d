"""The store as one process sees it: answers get lost and come late, listings are what was true a moment ago, and at any
call the process may be killed, or stand still while days go by.

What a store may not do by its contract is not among it: to show half of a put, to read less than there is, to say
"created" twice. What is torn all the same is a data file, which its codec writes by itself: its writer is killed in the
middle of it, or never notices.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from lance_core import StorageError
from lance_core.format import naming
from lance_core.storage.store import ObjectInfo, Put, ReportsLastChange, SupportsOrderedListing
from tests.histories.cooperative_scheduler import Baton, Killed
from tests.histories.simulated_store import Clock, Stored


@dataclass(frozen=True)
class Odds:
    """Of each thing that can go wrong, at each call where it can."""

    killed: float = 0.004
    fails: float = 0.01
    lost: float = 0.12
    """Done, and nobody hears. So is a `put` that says it failed."""
    never: float = 0.06
    """Not done, and nobody knows: no answer, or one that says to try again (409)."""
    late: float = 0.08
    twice: float = 0.02
    """Done, and done once more later: somebody on the way repeated it."""
    stale: float = 0.10
    stale_for: timedelta = timedelta(minutes=1)
    """How old something can be that a listing does not show."""
    torn: float = 0.01
    stands_still: float = 0.0
    """The process, for seconds to days; the others meanwhile go on, or not."""


HARD = Odds(killed=0.015, fails=0.025, lost=0.25, never=0.15, late=0.2, twice=0.05, stale=0.3, torn=0.03)
CALM = Odds(killed=0, fails=0, lost=0, never=0, late=0, twice=0, stale=0, torn=0)

TICK = timedelta(milliseconds=3)
STILL = (timedelta(seconds=5), timedelta(minutes=2), timedelta(hours=2), timedelta(days=8))
"""How long a process may stand still, each as likely as the others."""


class Around(Protocol):
    """What a network is part of."""

    baton: Baton
    odds: Odds
    stored: Stored
    clock: Clock

    def log(self, what: str, where: str = "") -> None: ...

    def pass_time(self, by: timedelta) -> None: ...

    def later(self, call: str, path: str, data: bytes) -> None:
        """It is under way, and arrives some time, or not at all."""


class Network:
    """All processes share what is stored, and what is still under way."""

    description = "memory://simulated"

    def __init__(self, around: Around) -> None:
        self._around = around

    def _call(self, name: str, path: str) -> random.Random:
        around = self._around
        around.baton.step()
        chance = around.baton.random
        around.log(name, path)
        still = chance.random() < around.odds.stands_still
        around.pass_time(chance.choice(STILL) if still else TICK)
        if chance.random() < around.odds.killed:
            around.log("killed")
            raise Killed
        if chance.random() < around.odds.fails:
            self._fails(name, path)
        return chance

    def _fails(self, name: str, path: str) -> None:
        self._around.log("fails")
        raise StorageError(f"the simulation lets {name} {path} fail")

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self._call("read", path)
        return self._around.stored.read(path, start, length)

    def head(self, path: str) -> ObjectInfo | None:
        self._call("head", path)
        return self._around.stored.head(path)

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        chance = self._call("list", directory)
        found = list(self._around.stored.list(directory, start_after))
        versions = [info for info in found if info.path.endswith(".manifest")]
        if len(versions) > 1 and chance.random() < self._around.odds.stale:
            missed = versions[chance.randrange(2)]  # the newest, or a hole below it
            if self._around.clock.now - missed.modified <= self._around.odds.stale_for:
                self._around.log("stale")
                found.remove(missed)
        return found

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        self._call("walk", directory)
        return self._around.stored.walk(directory)

    def put(self, path: str, data: bytes) -> None:
        chance = self._call("put", path)
        around = self._around
        draw = chance.random()
        if path.startswith(naming.DATA) and draw < around.odds.torn:
            around.log("torn")
            around.stored.put(path, data[: chance.randrange(len(data))])
            if draw < around.odds.torn / 2:
                raise Killed
            return
        around.stored.put(path, data)
        if draw > 1 - around.odds.twice:
            around.log("twice")
            around.later("put", path, data)
        elif draw > 1 - around.odds.twice - around.odds.fails:
            self._fails("the answer to put", path)

    def create(self, path: str, data: bytes) -> Put:
        chance = self._call("create", path)
        draw = chance.random()
        around, odds = self._around, self._around.odds
        if draw < odds.late:
            around.log("late")
            around.later("create", path, data)
            return Put.UNKNOWN
        if draw < odds.late + odds.never:
            around.log("never")
            return Put.UNKNOWN
        answer = around.stored.create(path, data)
        around.log(answer.value)
        if chance.random() < odds.killed * 5:
            around.log("killed before the answer")
            raise Killed
        if draw > 1 - odds.lost:
            around.log("lost")
            return Put.UNKNOWN
        if chance.random() < odds.twice:
            around.log("twice")
            around.later("create", path, data)
        return answer

    def delete(self, path: str) -> None:
        chance = self._call("delete", path)
        self._around.stored.delete(path)
        if chance.random() < self._around.odds.fails:
            self._fails("the answer to delete", path)

    def ensure_durable(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._call("settle", path)


class InOrder(Network, SupportsOrderedListing):
    """As object stores list."""

    def list_first(self, directory: str, count: int) -> Sequence[ObjectInfo]:
        return self.list(directory)[:count]


class Telling(Network, ReportsLastChange):
    """As a local directory tells when it last changed."""

    def put_volatile(self, path: str, data: bytes) -> None:
        self._call("note", path)
        self._around.stored.put_volatile(path, data)

    def head_if_directory_unchanged(self, path: str) -> ObjectInfo | None:
        self._call("last change", path)
        return self._around.stored.head_if_directory_unchanged(path)


KINDS = (Network, InOrder, Telling)
