"""Many writers on one table, in a schedule drawn from a seed, over a store that loses and delays answers, lists what
was true a moment ago, and is cut off when a process is killed. They append, delete, update, upsert, compact, restore,
overwrite, and change columns and config; the code under test is the production's, from the verb's re-run to the put.

    Simulation(seed).run().check()

What an outcome promises is compared with what the history says at the end: an acknowledged intent is in exactly the
version that was named, one that was refused is in none, and all others are in one at most. And every version has the
rows that its change, done to the rows of the version before, comes to: the order of versions explains them all.
"""

import enum
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Self

from lance_core import CommitUndecided, ConflictError, InvalidInput, LanceError, NotFound, StorageError
from lance_core.commit.change import Change, commit_with_retry
from lance_core.commit.write_protocol import StartedWrite, begin, finish
from lance_core.format import naming
from lance_core.format.operations import Overwrite, ReserveFragments
from lance_core.format.transaction import Transaction
from lance_core.fsck import manifests
from lance_core.runtime import Runtime
from lance_core.storage.store import Store
from lance_core.transactions.apply import NewTable
from lance_core.transactions.fold import uuids_of
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, list_versions, load_latest, load_transaction
from tests.histories.cooperative_scheduler import Baton, Killed
from tests.histories.simulated_network import HARD, Odds
from tests.histories.simulated_network import KINDS as KINDS_OF_STORES
from tests.histories.simulated_operations import MARKS, SCHEMA, WORK, Disk, State, Verb
from tests.histories.simulated_store import BEGINNING, Clock, Eye, Stored
from tests.lance_core.world import VERSION, World, runtime

ATTEMPTS = 8
UNDER_WAY_MAX = timedelta(minutes=1)
TRIES = 4
"""How often somebody goes on with an intent after a crash or an error."""
ROOTS = [f"r{number}" for number in range(8)]
KEYS = [*ROOTS[:3], "k0", "k1", "k2"]
KINDS = {
    "append": 3,
    "append a key": 1,
    "delete": 3,
    "move": 3,
    "rewrite column": 3,
    "upsert": 4,
    "compact": 2,
    "config": 1,
    "add column": 1,
    "drop column": 0.5,
    "restore": 0.5,
    "overwrite": 0.5,
}
"""What somebody may want to do, and how likely."""


class Answer(enum.Enum):
    ACKNOWLEDGED = "acknowledged"
    NOTHING = "nothing"
    """There was nothing to change."""
    REFUSED = "refused"
    """Definitely not committed."""
    UNKNOWN = "unknown"
    """Killed, or told that nobody knows."""


@dataclass
class Work:
    """One intention, and what became of it as far as those who had it were told."""

    verb: Verb
    intent: str | None = None
    answers: list[Answer] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    refusals: list[LanceError] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.verb.work


class Simulation:
    def __init__(self, seed: int, *, odds: Odds | None = None, writers: int = 3, rounds: int = 2) -> None:
        self.baton = Baton(seed)
        self.odds = odds or Odds()
        self.clock = Clock()
        self.eye = Eye()
        self.stored = Stored(self.clock, self.eye)
        self.disk = Disk()
        self.under_way: list[tuple[str, str, bytes]] = []
        self.work: list[Work] = []
        self._events = hashlib.sha256()
        self._writers = writers
        self._rounds = rounds
        self._processes = 0
        self.events = 0
        self._network = KINDS_OF_STORES[seed % len(KINDS_OF_STORES)]
        self._stable = self.baton.random.random() < 0.5

    def run(self) -> Self:
        self.create()
        self.baton.run(self._actors())
        while self.under_way:
            self._land(0)
        return self

    def create(self) -> None:
        location, given = World(self.stored).location(), runtime(0)
        parts = [self.disk.fragment(location, given, ROOTS[at:end]) for at, end in ((0, 2), (2, 8))]
        begun = begin(location, NewTable(VERSION, self._stable), verb="create", intent=None, runtime=given)
        assert isinstance(begun, StartedWrite)
        finish(begun, Overwrite(tuple(parts), SCHEMA), properties={}, attempts=1)

    def store(self) -> Store:
        """As a process sees it."""
        return self._network(self)

    def location(self) -> Location:
        return World(self.store()).location()

    def log(self, what: str, where: str = "") -> None:
        self.events += 1
        self._events.update(f"{self.baton.current} {what} {where}\n".encode())

    @property
    def digest(self) -> str:
        """Of everything that happened, and of the bytes it led to."""
        digest = self._events.copy()
        for directory in (naming.VERSIONS, naming.TRANSACTIONS):
            for info in self.stored.list(directory):
                digest.update(info.path.encode() + self.stored.read(info.path))
        return digest.hexdigest()

    def pass_time(self, by: timedelta) -> None:
        """What is under way arrives within a minute, or never."""
        chance = self.baton.random
        while self.under_way and (by > UNDER_WAY_MAX or chance.random() < 0.15):
            index = chance.randrange(len(self.under_way))
            if by > UNDER_WAY_MAX and chance.random() < 0.5:
                self.under_way.pop(index)
            else:
                self._land(index)
        self.clock.move(by)

    def later(self, call: str, path: str, data: bytes) -> None:
        self.under_way.append((call, path, data))

    def _land(self, index: int) -> None:
        call, path, data = self.under_way.pop(index)
        self.log("arrives", path)
        if call == "put":
            self.stored.put(path, data)
        else:
            self.stored.create(path, data)

    def runtime(self, process: int) -> Runtime:
        """Of a process, whose clock is wrong by up to two days."""
        skew = (process * 7919 % 97 - 48) * 3600 * 10**9
        return replace(
            runtime(process),
            now_ns=lambda: int(BEGINNING.timestamp()) * 10**9 + self.clock.elapsed_ns + skew,
            elapsed_ns=lambda: self.clock.elapsed_ns,
        )

    def _actors(self) -> dict[str, Callable[[], None]]:
        """Some with intents, two of them with the same; some without."""
        actors: dict[str, Callable[[], None]] = {}
        for writer in range(self._writers):
            jobs = [
                self._job(f"w{writer}r{turn}", with_intent=(writer + turn) % 3 != 0) for turn in range(self._rounds)
            ]
            actors[f"writer {writer}"] = self._doing(jobs)
        shared = self._job("shared", with_intent=True)
        actors["twin 1"] = self._doing([shared])
        actors["twin 2"] = self._doing([shared])
        return actors

    def _job(self, name: str, *, with_intent: bool) -> Work:
        chance = self.baton.random
        (kind,) = chance.choices(list(KINDS), weights=list(KINDS.values()))
        pool = {"upsert": KEYS, "append a key": KEYS[3:]}.get(kind, ROOTS)
        roots = frozenset(chance.sample(pool, chance.randrange(1, 4)))
        again = kind not in ("append", "append a key", "overwrite", "restore")
        verb = Verb(kind, name, roots, key=chance.choice(MARKS), again=again)
        work = Work(verb, intent=f"intent of {name}" if with_intent else None)
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
            if answer in (Answer.ACKNOWLEDGED, Answer.NOTHING):
                return

    def _try(self, work: Work, *, process: int) -> Answer:
        given, verb = self.runtime(process), work.verb
        try:
            base = load_latest(self.location())
            change = Change(verb.kind, verb.planning(self.disk, given), "nothing", verb.again)
            properties = {WORK: verb.work}
            written = commit_with_retry(
                change, base.location, base, intent=work.intent, properties=properties, retries=ATTEMPTS, runtime=given
            )
        except (CommitUndecided, ConflictError, InvalidInput, NotFound, StorageError) as error:
            if isinstance(error, CommitUndecided):
                return Answer.UNKNOWN
            work.refusals.append(error)
            return Answer.REFUSED
        if written.summary.operation == "nothing":
            return Answer.NOTHING
        work.versions.append(written.summary.version)
        if not self.odds.stale:
            seen = load_latest(self.location()).version
            assert seen >= written.summary.version, f"{work.name} does not see its version {written.summary.version}"
        return Answer.ACKNOWLEDGED

    def check(self) -> None:
        """Raises AssertionError where the history breaks a promise."""
        world = World(self.eye.archive)
        numbers = list(list_versions(world.location()).numbers)
        assert numbers == list(range(1, len(numbers) + 1)), f"versions are not dense: {numbers}"
        verbs = {work.name: work.verb for work in self.work}
        landed: dict[str, list[int]] = {name: [] for name in verbs}
        uuids: list[str] = []
        counters: list[tuple[int, int]] = []
        names_of_ids: dict[int, str] = {}
        history: dict[int, State] = {}
        for number in numbers:
            snapshot = world.at(number)
            transaction = load_transaction(world.location(), snapshot.manifest)
            assert transaction is not None
            names = self._names(transaction)
            history[number] = found = self.disk.state(snapshot)
            expected = history[max(1, number - 1)]
            for name in names:
                expected = verbs[name].expected(expected, history, self.disk.planned_on(transaction.operation))
                landed[name].append(number)
            assert names or number == 1 or isinstance(transaction.operation, ReserveFragments)
            told = f"version {number} is not what {[verbs[name] for name in names]} makes of the version before"
            assert found.same_as(expected), f"{told}: {found}, expected {expected}"
            self._check_ids(snapshot, names_of_ids)
            uuids += uuids_of(transaction)
            counters.append((snapshot.manifest.max_fragment_id, snapshot.manifest.next_row_id))
        assert len(set(uuids)) == len(uuids), "a transaction is in two versions"
        assert counters == sorted(counters), "a counter went back"
        for work in self.work:
            self._check_work(work, landed[work.name])
        snapshots = [world.at(number).manifest for number in numbers]
        sizes = {
            f"{file.path} has not its {file.size} bytes"
            for manifest in snapshots
            for part in manifest.fragments
            for file in part.files
            if len(self.eye.archive.read(f"{naming.DATA}/{file.path}")) != file.size
        }
        assert not sizes, f"what was cut short is committed: {sizes}"
        errors = [finding for manifest in snapshots for finding in manifests.check_version(manifest)]
        errors += [
            found for each in snapshots for part in each.fragments for found in manifests.check_fragment(each, part)
        ]
        assert not errors, f"a look over the table finds {errors}"

    def _names(self, transaction: Transaction) -> list[str]:
        """Of the work that a version is of."""
        name = transaction.properties.get(WORK)
        return [] if name is None else [name]

    def _check_ids(self, snapshot: Snapshot, names: dict[int, str]) -> None:
        """A stable id stands for one row, in all versions."""
        if not self._stable:
            return
        seen: set[int] = set()
        for fragment in snapshot.manifest.fragments:
            ids = self.disk.ids(fragment)
            for at, row in self.disk.rows_at_rest(snapshot, fragment).items():
                root = row.partition(".")[0]
                assert ids[at] not in seen, f"row id {ids[at]} is there twice in version {snapshot.version}"
                assert names.setdefault(ids[at], root) == root, f"row id {ids[at]} was {names[ids[at]]}, and is {root}"
                seen.add(ids[at])

    def _check_work(self, work: Work, landed: Sequence[int]) -> None:
        assert len(landed) <= 1, f"{work.name} is in versions {landed}"
        for version in work.versions:
            assert landed == [version], f"{work.name} was acknowledged as version {version}, and is in {landed}"
        if set(work.answers) <= {Answer.REFUSED, Answer.NOTHING}:
            assert not landed, f"{work.name} was refused, and is in version {landed}"


def simulated(seed: int) -> Simulation:
    """One in four in weather that is only bad."""
    return Simulation(seed, odds=HARD if seed % 4 else None)
