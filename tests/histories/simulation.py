"""Deterministic simulation: many writers on one table, in a schedule drawn from a seed, over a simulated network. The
writers append, delete, update, upsert, compact, restore, overwrite, and change columns and configuration. The code
under test is that of production, from the retry of an operation to the put.

    Simulation(seed).run().check()

The final check compares every outcome with the history: an acknowledged intent is in exactly the version that its
caller was given, a rejected one is in no version, and any other is in at most one. Every version has the rows that its
operation makes of the rows of the previous version, so the order of the versions explains all of them.
"""

import enum
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Self

from lance_core import CommitUndecided, ConflictError, InvalidInput, LanceError, NotFound, StorageError
from lance_core.commit.intent_history import REMOVED_COMMIT
from lance_core.commit.write_protocol import Change, StartedWrite, begin, commit_with_retry, finish
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
from tests.histories.cooperative_scheduler import CooperativeScheduler, ProcessKilled
from tests.histories.simulated_network import CLOCK_RESOLUTIONS, HARSH_NETWORK, NETWORKS, FaultProbabilities
from tests.histories.simulated_operations import (
    CONFIG_KEYS,
    SCHEMA,
    WORK_PROPERTY,
    DataFileContents,
    SimulatedOperation,
    TableState,
)
from tests.histories.simulated_store import HOSTS, START_TIME, SimulatedClock, SimulatedStore, StoreObserver
from tests.lance_core.in_memory_table import STORAGE_VERSION, InMemoryTable, deterministic_runtime

COMMIT_ATTEMPTS = 8
UNCHANGED_OPERATION = "nothing"
"""Name that the summary of an operation without changes has."""
DELAY_MAX = timedelta(minutes=1)
TRIES_PER_INTENT = 4
"""Number of attempts with one intent after a crash or an error."""
ROOTS = [f"r{number}" for number in range(8)]
UPSERT_KEYS = [*ROOTS[:3], "k0", "k1", "k2"]
OPERATION_WEIGHTS = {
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
"""Kinds of operations and their weights."""


class Outcome(enum.Enum):
    ACKNOWLEDGED = "acknowledged"
    UNCHANGED = "unchanged"
    """The operation had nothing to change."""
    REJECTED = "rejected"
    """The operation was definitely not committed."""
    UNDECIDED = "undecided"
    """The process was killed, or could not find out whether the commit succeeded."""


@dataclass
class WorkItem:
    """One requested operation with the outcomes that its callers received."""

    operation: SimulatedOperation
    intent: str | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    upper_bounds: set[int] = field(default_factory=set)
    """Subset of `versions`: the highest one that the commit can have had, since a cleanup removed it."""
    errors: list[LanceError] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.operation.name


class Simulation:
    def __init__(
        self, seed: int, *, faults: FaultProbabilities | None = None, writers: int = 3, rounds: int = 2
    ) -> None:
        self.scheduler = CooperativeScheduler(seed)
        self.faults = faults or FaultProbabilities()
        self.clock = SimulatedClock(self.scheduler.random.choice(CLOCK_RESOLUTIONS))
        self.observer = StoreObserver()
        self.shared_store = SimulatedStore(self.clock, self.observer)
        self.data_files = DataFileContents()
        self.delayed_requests: list[tuple[str, str, bytes]] = []
        self.work_items: list[WorkItem] = []
        self._events = hashlib.sha256()
        self._writers = writers
        self._rounds = rounds
        self._process_count = 0
        self.event_count = 0
        self._network_type = NETWORKS[seed % len(NETWORKS)]
        self._stable_row_ids = self.scheduler.random.random() < 0.5

    def run(self) -> Self:
        self.create_table()
        self.scheduler.run_actors(self._actors())
        while self.delayed_requests:
            self._deliver(0)
        return self

    def create_table(self) -> None:
        location, process_runtime = InMemoryTable(self.shared_store).location(), deterministic_runtime(0)
        fragments = [
            self.data_files.write_fragment(location, process_runtime, ROOTS[first:end])
            for first, end in ((0, 2), (2, 8))
        ]
        started = begin(
            location,
            NewTable(STORAGE_VERSION, self._stable_row_ids),
            verb="create",
            intent=None,
            runtime=process_runtime,
        )
        assert isinstance(started, StartedWrite)
        finish(started, Overwrite(tuple(fragments), SCHEMA), properties={}, attempts=1)

    def process_store(self) -> Store:
        """Return the store as a process sees it."""
        return self._network_type(self)

    def location(self) -> Location:
        return InMemoryTable(self.process_store()).location()

    def record_event(self, event: str, path: str = "") -> None:
        self.event_count += 1
        self._events.update(f"{self.scheduler.current} {event} {path}\n".encode())

    @property
    def digest(self) -> str:
        """Digest of all events and of the bytes that they led to."""
        digest = self._events.copy()
        for directory in (naming.VERSIONS, naming.TRANSACTIONS):
            for info in self.shared_store.list(directory):
                digest.update(info.path.encode() + self.shared_store.read(info.path))
        return digest.hexdigest()

    def advance_time(self, duration: timedelta) -> None:
        """Advance the clock. A delayed request arrives within a minute or never."""
        generator = self.scheduler.random
        while self.delayed_requests and (duration > DELAY_MAX or generator.random() < 0.15):
            index = generator.randrange(len(self.delayed_requests))
            if duration > DELAY_MAX and generator.random() < 0.5:
                self.delayed_requests.pop(index)
            else:
                self._deliver(index)
        self.clock.advance(duration)

    def delay_request(self, method: str, path: str, data: bytes) -> None:
        self.delayed_requests.append((method, path, data))

    def _deliver(self, index: int) -> None:
        method, path, data = self.delayed_requests.pop(index)
        self.record_event("arrives", path)
        if method == "put":
            self.shared_store.put(path, data)
        else:
            self.shared_store.create(path, data)

    def runtime(self, process: int) -> Runtime:
        """Return the runtime of a process, whose clock is wrong by up to two days, and is set while it runs."""
        skew = timedelta(hours=process * 7919 % 97 - 48)
        host = 1 + process % (HOSTS - 1)
        return replace(
            deterministic_runtime(process),
            now_ns=lambda: self._nanoseconds(self.clock.now + self.clock.offsets[host] + skew),
            elapsed_ns=lambda: self.clock.elapsed_ns,
        )

    @staticmethod
    def _nanoseconds(time: datetime) -> int:
        return int(START_TIME.timestamp()) * 10**9 + (time - START_TIME) // timedelta(microseconds=1) * 1000

    def _actors(self) -> dict[str, Callable[[], None]]:
        """Make the actors: some with intents, two of them with the same one, and some without."""
        actors: dict[str, Callable[[], None]] = {}
        for writer in range(self._writers):
            work_items = [
                self._draw_work(f"w{writer}r{turn}", with_intent=(writer + turn) % 3 != 0)
                for turn in range(self._rounds)
            ]
            actors[f"writer {writer}"] = self._make_actor(work_items)
        shared = self._draw_work("shared", with_intent=True)
        actors["twin 1"] = self._make_actor([shared])
        actors["twin 2"] = self._make_actor([shared])
        return actors

    def _draw_work(self, name: str, *, with_intent: bool) -> WorkItem:
        generator = self.scheduler.random
        (kind,) = generator.choices(list(OPERATION_WEIGHTS), weights=list(OPERATION_WEIGHTS.values()))
        pool = {"upsert": UPSERT_KEYS, "append a key": UPSERT_KEYS[3:]}.get(kind, ROOTS)
        roots = frozenset(generator.sample(pool, generator.randrange(1, 4)))
        can_replan = kind not in ("append", "append a key", "overwrite", "restore")
        operation = SimulatedOperation(kind, name, roots, key=generator.choice(CONFIG_KEYS), can_replan=can_replan)
        work = WorkItem(operation, intent=f"intent of {name}" if with_intent else None)
        self.work_items.append(work)
        return work

    def _make_actor(self, work_items: Sequence[WorkItem]) -> Callable[[], None]:
        def run_all() -> None:
            for work in work_items:
                self._run_work(work)

        return run_all

    def _run_work(self, work: WorkItem) -> None:
        """Run an operation. Without an intent there is one attempt, because an undecided outcome rules out repeats."""
        for _ in range(TRIES_PER_INTENT if work.intent else 1):
            self._process_count += 1
            try:
                outcome = self._attempt_work(work, process=self._process_count)
            except ProcessKilled:
                outcome = Outcome.UNDECIDED
            work.outcomes.append(outcome)
            if outcome in (Outcome.ACKNOWLEDGED, Outcome.UNCHANGED):
                return

    def _attempt_work(self, work: WorkItem, *, process: int) -> Outcome:
        process_runtime, operation = self.runtime(process), work.operation
        try:
            base = load_latest(self.location())
            change = Change(
                operation.kind,
                operation.make_planner(self.data_files, process_runtime),
                UNCHANGED_OPERATION,
                operation.can_replan,
            )
            properties = {WORK_PROPERTY: operation.name}
            written = commit_with_retry(
                change,
                base.location,
                base,
                intent=work.intent,
                properties=properties,
                retries=COMMIT_ATTEMPTS,
                runtime=process_runtime,
            )
        except (CommitUndecided, ConflictError, InvalidInput, NotFound, StorageError) as error:
            if isinstance(error, CommitUndecided):
                return Outcome.UNDECIDED
            work.errors.append(error)
            return Outcome.REJECTED
        if written.summary.operation == UNCHANGED_OPERATION:
            return Outcome.UNCHANGED
        work.versions.append(written.summary.version)
        if written.summary.operation == REMOVED_COMMIT:
            work.upper_bounds.add(written.summary.version)
        if not self.faults.stale_listing:
            newest = load_latest(self.location()).version
            assert newest >= written.summary.version, (
                f"{work.name} does not read its own version {written.summary.version}"
            )
        return Outcome.ACKNOWLEDGED

    def check(self) -> None:
        """Raise `AssertionError` if the history violates a guarantee."""
        world = InMemoryTable(self.observer.archive)
        numbers = list(list_versions(world.location()).numbers)
        assert numbers == list(range(1, len(numbers) + 1)), f"versions are not dense: {numbers}"
        operations = {work.name: work.operation for work in self.work_items}
        versions_by_work: dict[str, list[int]] = {name: [] for name in operations}
        uuids: list[str] = []
        counters: list[tuple[int, int]] = []
        root_of_row_id: dict[int, str] = {}
        history: dict[int, TableState] = {}
        for number in numbers:
            snapshot = world.at(number)
            transaction = load_transaction(world.location(), snapshot.manifest)
            assert transaction is not None
            names = self._work_names(transaction)
            history[number] = actual = self.data_files.read_state(snapshot)
            expected = history[max(1, number - 1)]
            for name in names:
                expected = operations[name].apply_to_model(
                    expected, history, self.data_files.planned_version(transaction.operation)
                )
                versions_by_work[name].append(number)
            assert names or number == 1 or isinstance(transaction.operation, ReserveFragments)
            message = (
                f"version {number} is not the result of {[operations[name] for name in names]} on the previous version"
            )
            assert actual.equals_unordered(expected), f"{message}: {actual}, expected {expected}"
            self._check_row_ids(snapshot, root_of_row_id)
            uuids += uuids_of(transaction)
            counters.append((snapshot.manifest.max_fragment_id, snapshot.manifest.next_row_id))
        assert len(set(uuids)) == len(uuids), "a transaction is in two versions"
        assert counters == sorted(counters), "a counter decreased"
        for work in self.work_items:
            self._check_work(work, versions_by_work[work.name])
        snapshots = [world.at(number).manifest for number in numbers]
        truncated = {
            f"{file.path} does not have {file.size} bytes"
            for manifest in snapshots
            for fragment in manifest.fragments
            for file in fragment.files
            if len(self.observer.archive.read(f"{naming.DATA}/{file.path}")) != file.size
        }
        assert not truncated, f"truncated files are committed: {truncated}"
        errors = [finding for manifest in snapshots for finding in manifests.check_version(manifest)]
        errors += [
            finding
            for manifest in snapshots
            for fragment in manifest.fragments
            for finding in manifests.check_fragment(manifest, fragment)
        ]
        assert not errors, f"the manifests have errors: {errors}"

    def _work_names(self, transaction: Transaction) -> list[str]:
        """Return the names of the operations that a version contains."""
        name = transaction.properties.get(WORK_PROPERTY)
        return [] if name is None else [name]

    def _check_row_ids(self, snapshot: Snapshot, root_of_row_id: dict[int, str]) -> None:
        """Check that a stable row id identifies one row in all versions."""
        if not self._stable_row_ids:
            return
        row_ids: set[int] = set()
        for fragment in snapshot.manifest.fragments:
            ids = self.data_files.row_ids(fragment)
            for offset, row in self.data_files.cached_rows(snapshot, fragment).items():
                root = row.partition(".")[0]
                assert ids[offset] not in row_ids, f"row id {ids[offset]} exists twice in version {snapshot.version}"
                assert root_of_row_id.setdefault(ids[offset], root) == root, (
                    f"row id {ids[offset]} identifies both {root_of_row_id[ids[offset]]} and {root}"
                )
                row_ids.add(ids[offset])

    def _check_work(self, work: WorkItem, committed_in: Sequence[int]) -> None:
        assert len(committed_in) <= 1, f"{work.name} is in versions {committed_in}"
        for version in work.versions:
            is_bounded = version in work.upper_bounds and committed_in and committed_in[0] < version
            assert committed_in == [version] or is_bounded, (
                f"{work.name} was acknowledged as version {version}, but is in {committed_in}"
            )
        if set(work.outcomes) <= {Outcome.REJECTED, Outcome.UNCHANGED}:
            assert not committed_in, f"{work.name} was rejected, but is in version {committed_in}"


def simulate_writers(seed: int) -> Simulation:
    """Return the simulation of a seed. Three in four have a harsh network."""
    return Simulation(seed, faults=HARSH_NETWORK if seed % 4 else None)
