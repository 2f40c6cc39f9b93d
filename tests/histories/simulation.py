"""Many writers on one table, in a schedule drawn from a seed, over a store that loses and delays answers, lists what
was true a moment ago, and is cut off when a process is killed. The code under test is the production commit loop.

    Simulation(seed).run().check()

What an outcome promises is compared with what the history says at the end: an acknowledged intent is in exactly the
version that was named, one that was refused is in none, and all others are in one at most.
"""

import enum
import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lance_core import CommitUndecided, ConflictError, StorageError
from lance_core.format import naming
from lance_core.format.operations import Append, Overwrite
from lance_core.snapshot import list_versions, load_transaction
from lance_core.storage.memory import MemoryStore
from lance_core.storage.store import ObjectInfo, Put
from tests.histories.baton import Baton, Killed
from tests.lance_core.world import SCHEMA, World, fragment

ATTEMPTS = 8
TRIES = 4
"""How often somebody goes on with an intent after a crash or an error."""


class Answer(enum.Enum):
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    """Definitely not committed."""
    UNKNOWN = "unknown"
    """Killed, or told that nobody knows."""


@dataclass
class Work:
    """One intention, and what became of it as far as those who had it were told."""

    name: str
    overwrite: bool = False
    intent: str | None = None
    answers: list[Answer] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Odds:
    """Of each thing that can go wrong, at each call where it can."""

    killed: float = 0.004
    fails: float = 0.01
    lost: float = 0.12
    never: float = 0.06
    late: float = 0.08
    stale: float = 0.10


class Network:
    """The store as one process sees it. All processes share what is stored, and what is still under way."""

    description = "memory://simulated"

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation

    def _call(self, name: str, path: str) -> random.Random:
        simulation = self._simulation
        simulation.baton.step()
        simulation.land_some()
        chance = simulation.baton.random
        simulation.log(name, path)
        if chance.random() < simulation.odds.killed:
            simulation.log("killed")
            raise Killed
        if chance.random() < simulation.odds.fails:
            simulation.log("fails")
            raise StorageError(f"the simulation lets {name} {path} fail")
        return chance

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self._call("read", path)
        return self._simulation.stored.read(path, start, length)

    def head(self, path: str) -> ObjectInfo | None:
        self._call("head", path)
        return self._simulation.stored.head(path)

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        chance = self._call("list", directory)
        found = list(self._simulation.stored.list(directory, start_after))
        if len(found) > 1 and chance.random() < self._simulation.odds.stale:
            self._simulation.log("stale")
            del found[chance.randrange(2)]  # the newest, or a hole below it
        return found

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        self._call("walk", directory)
        return self._simulation.stored.walk(directory)

    def put(self, path: str, data: bytes) -> None:
        self._call("put", path)
        self._simulation.stored.put(path, data)

    def create(self, path: str, data: bytes) -> Put:
        chance = self._call("create", path)
        draw = chance.random()
        odds = self._simulation.odds
        if draw < odds.late:
            self._simulation.log("late")
            self._simulation.under_way.append((path, data))
            return Put.UNKNOWN
        if draw < odds.late + odds.never:
            self._simulation.log("never")
            return Put.UNKNOWN
        answer = self._simulation.stored.create(path, data)
        self._simulation.log(answer.value)
        if chance.random() < odds.killed * 5:
            self._simulation.log("killed before the answer")
            raise Killed
        if draw > 1 - odds.lost:
            self._simulation.log("lost")
            return Put.UNKNOWN
        return answer

    def delete(self, path: str) -> None:
        raise AssertionError(f"writers delete nothing, {path} neither")

    def settle(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._call("settle", path)


class Simulation:
    def __init__(self, seed: int, *, odds: Odds | None = None, writers: int = 3, rounds: int = 2) -> None:
        self.baton = Baton(seed)
        self.odds = odds or Odds()
        self.stored = MemoryStore()
        self.under_way: list[tuple[str, bytes]] = []
        self.work: list[Work] = []
        self._events = hashlib.sha256()
        self._writers = writers
        self._rounds = rounds
        self._processes = 0

    def run(self) -> "Simulation":
        World(self.stored).create("first")
        self.baton.run(self._actors())
        while self.under_way:
            self._land(0)
        return self

    def log(self, what: str, where: str = "") -> None:
        self._events.update(f"{self.baton.current} {what} {where}\n".encode())

    @property
    def digest(self) -> str:
        """Of everything that happened, and of the bytes it led to."""
        digest = self._events.copy()
        for directory in (naming.VERSIONS, naming.TRANSACTIONS):
            for info in self.stored.list(directory):
                digest.update(info.path.encode() + self.stored.read(info.path))
        return digest.hexdigest()

    def land_some(self) -> None:
        while self.under_way and self.baton.random.random() < 0.15:
            self._land(self.baton.random.randrange(len(self.under_way)))

    def _land(self, index: int) -> None:
        path, data = self.under_way.pop(index)
        self.log("arrives", path)
        self.stored.create(path, data)

    def _actors(self) -> dict[str, Callable[[], None]]:
        """Some with intents, two of them with the same; some without; and often one who overwrites."""
        actors: dict[str, Callable[[], None]] = {}
        for writer in range(self._writers):
            jobs = [
                self._job(f"w{writer}r{turn}", with_intent=(writer + turn) % 3 != 0) for turn in range(self._rounds)
            ]
            actors[f"writer {writer}"] = self._doing(jobs)
        shared = self._job("shared", with_intent=True)
        actors["twin 1"] = self._doing([shared])
        actors["twin 2"] = self._doing([shared])
        draw = self.baton.random.random()
        if draw < 0.5:
            actors["overwriter"] = self._doing([self._job("over", with_intent=draw < 0.25, overwrite=True)])
        return actors

    def _job(self, name: str, *, with_intent: bool, overwrite: bool = False) -> Work:
        work = Work(name, overwrite, intent=f"intent of {name}" if with_intent else None)
        self.work.append(work)
        return work

    def _doing(self, jobs: Sequence[Work]) -> Callable[[], None]:
        def act() -> None:
            for work in jobs:
                self._do(work)

        return act

    def _do(self, work: Work) -> None:
        """Without an intent there is one try: nobody may repeat it after an answer that was not definite."""
        for _ in range(TRIES if work.intent else 1):
            self._processes += 1
            try:
                answer = self._try(work, process=self._processes)
            except Killed:
                answer = Answer.UNKNOWN
            work.answers.append(answer)
            if answer is Answer.ACKNOWLEDGED:
                return

    def _try(self, work: Work, *, process: int) -> Answer:
        world = World(Network(self))
        try:
            base = world.at()
            parts = (fragment(world.store, f"{work.name}-p{process}"),)
            operation = Overwrite(parts, SCHEMA) if work.overwrite else Append(parts)
            written = world.write(operation, base=base, writer=process, intent=work.intent, attempts=ATTEMPTS)
        except (CommitUndecided, ConflictError, StorageError) as error:
            return Answer.UNKNOWN if isinstance(error, CommitUndecided) else Answer.REFUSED
        work.versions.append(written.snapshot.version)
        return Answer.ACKNOWLEDGED

    def check(self) -> None:
        """Raises AssertionError where the history breaks a promise."""
        world = World(self.stored)
        numbers = list(list_versions(world.location()).numbers)
        assert numbers == list(range(1, len(numbers) + 1)), f"versions are not dense: {numbers}"
        landed: dict[str, list[int]] = {work.name: [] for work in self.work}
        uuids: list[str] = []
        counters: list[tuple[int, int]] = []
        expected: list[str] = []
        for number in numbers:
            manifest = world.at(number).manifest
            transaction = load_transaction(world.location(), manifest)
            assert transaction is not None
            operation = transaction.operation
            assert isinstance(operation, Append | Overwrite)
            names = [file.path.removesuffix(".lance") for part in operation.fragments for file in part.files]
            expected = names if isinstance(operation, Overwrite) else expected + names
            assert world.names(number) == expected, f"version {number} does not have the rows that were committed"
            uuids.append(transaction.uuid)
            counters.append((manifest.max_fragment_id, manifest.next_row_id))
            if number > 1:
                landed[names[0].partition("-")[0]].append(number)
        assert len(set(uuids)) == len(uuids), "a transaction is in two versions"
        assert counters == sorted(counters), "a counter went back"
        for work in self.work:
            self._check_work(work, landed[work.name])

    def _check_work(self, work: Work, landed: Sequence[int]) -> None:
        assert len(landed) <= 1, f"{work.name} is in versions {landed}"
        for version in work.versions:
            assert landed == [version], f"{work.name} was acknowledged as version {version}, and is in {landed}"
        if set(work.answers) == {Answer.REFUSED}:
            assert not landed, f"{work.name} was refused, and is in version {landed}"
