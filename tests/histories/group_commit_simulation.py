"""Group commit simulation: groups of appends that are folded into one version, concurrently with writers of all other
kinds and with other holders of the same intents.

    GroupCommitSimulation(seed).run().check()

One actor plays all threads of a group and leads the appends that it collected, like the first thread in
`lance_core/commit/group_commit.py`. The simulation therefore tests the shared file, the fold, its commit and its
decomposition, and not which thread waits for which. Two of three appends have rows in memory, the others have a file of
their own.
"""

from collections.abc import Callable, Sequence

import pyarrow as pa

from lance_core import CommitUndecided, LanceError
from lance_core.commit.data_files import FileCapacity, check_files
from lance_core.commit.group_commit import PendingAppend, commit_group
from lance_core.commit.loop import CommitResult
from lance_core.commit.write_protocol import StartedWrite, begin, record_result
from lance_core.datafiles.conform import Conversion
from lance_core.datafiles.fragment_writer import BufferedRows, FileLimits, buffer_rows
from lance_core.format.operations import Append
from lance_core.format.transaction import Transaction
from lance_core.transactions.change_summary import files_written
from lance_core.transactions.fold import parts_of, uuids_of
from lance_core.versions.snapshot import list_versions, load_latest, load_transaction
from tests.histories.cooperative_scheduler import ProcessKilled
from tests.histories.simulated_network import HARSH_NETWORK, RELIABLE_NETWORK
from tests.histories.simulated_operations import FIELD_NAMES, SCHEMA, WORK_PROPERTY, SimulatedOperation
from tests.histories.simulation import COMMIT_ATTEMPTS, TRIES_PER_INTENT, Outcome, Simulation, WorkItem
from tests.lance_core.in_memory_table import STORAGE_VERSION, InMemoryTable

_Member = tuple[WorkItem, StartedWrite, PendingAppend]


class GroupCommitSimulation(Simulation):
    def _actors(self) -> dict[str, Callable[[], None]]:
        actors = super()._actors()
        self._work_of_uuid: dict[str, str] = {}
        for number in range(2):
            group = [self._add_append(f"c{number}m{member}") for member in range(3)]
            actors[f"crowd {number}"] = self._make_group_actor(group)
            actors[f"twin of crowd {number}"] = self._make_actor(group[:1])
        return actors

    def _add_append(self, name: str) -> WorkItem:
        work = WorkItem(SimulatedOperation("append", name, can_replan=False), intent=f"intent of {name}")
        self.work_items.append(work)
        return work

    def _make_group_actor(self, group: list[WorkItem]) -> Callable[[], None]:
        def commit_all() -> None:
            remaining = list(group)
            for _ in range(TRIES_PER_INTENT):
                self._process_count += 1
                try:
                    self._commit_appends(remaining, process=self._process_count)
                except ProcessKilled:
                    for work in remaining:
                        work.outcomes.append(Outcome.UNDECIDED)
                remaining = [work for work in remaining if work.outcomes[-1] is not Outcome.ACKNOWLEDGED]
                if not remaining:
                    return

        return commit_all

    def _commit_appends(self, work_items: list[WorkItem], *, process: int) -> None:
        process_runtime = self.runtime(process)
        group: list[_Member] = []
        for work in work_items:
            try:
                base = load_latest(self.location())
                started = begin(self.location(), base, verb="append", intent=work.intent, runtime=process_runtime)
                if not isinstance(started, StartedWrite):
                    work.versions.append(started.summary.version)
                    work.outcomes.append(Outcome.ACKNOWLEDGED)
                    continue
                self._work_of_uuid[started.uuid] = work.name
                rows = self._buffer_rows(work)
                operation = Append(()) if rows else work.operation.make_planner(self.data_files, process_runtime)(base)
                assert isinstance(operation, Append)
                check_files(self.location(), files_written(operation, base.manifest))
                transaction = Transaction(started.read_version, started.uuid, operation, {})
                pending = PendingAppend(
                    self.location(),
                    transaction,
                    base,
                    started.since,
                    COMMIT_ATTEMPTS,
                    process_runtime,
                    started.started_at,
                    rows,
                    started.record,
                )
                group.append((work, started, pending))
            except LanceError as error:
                self._record_error(work, error)
        while group:
            (work, started, leader), *others = group
            capacity = FileCapacity(leader.rows) if leader.rows else None
            followers = [each for each in others if self._can_join(leader, each[2], capacity)]
            self._commit_group((work, started, leader), followers)
            group = [each for each in others if each[2].answer is None]
            for _, _, pending in followers:
                pending.is_alone = pending.answer is None

    def _buffer_rows(self, work: WorkItem) -> BufferedRows | None:
        """Return the rows of an append that are written at commit; `None` for an append with its own file."""
        if self.scheduler.random.random() < 1 / 3:
            return None
        names = work.operation.new_rows()
        batch = pa.record_batch({FIELD_NAMES[0]: list(names), FIELD_NAMES[1]: [""] * len(names)})
        return buffer_rows(
            [batch],
            schema=SCHEMA,
            version=STORAGE_VERSION,
            limits=FileLimits(),
            conversion=Conversion.EXACT,
            what=work.name,
        )

    def _can_join(self, leader: PendingAppend, other: PendingAppend, capacity: FileCapacity | None) -> bool:
        has_capacity = other.rows is None or (capacity is not None and capacity.try_reserve(other.rows))
        return leader.can_join(other) and has_capacity

    def _commit_group(self, first: _Member, followers: list[_Member]) -> None:
        """Commit a group. The followers arrive one by one while the file is open."""
        leader, others = first[2], [pending for _, _, pending in followers]
        arrived: list[PendingAppend] = []

        def next_followers() -> Sequence[PendingAppend]:
            newcomers = others[len(arrived) : len(arrived) + 1] if leader.rows else others
            arrived.extend(newcomers)
            return newcomers

        try:
            leader.answer = commit_group(leader, arrived, next_followers)
        except LanceError as error:
            leader.answer = error
        group = [first, *followers]
        for work, started, pending in group:
            self._record_answer(work, started, pending.answer)

    def _record_answer(self, work: WorkItem, started: StartedWrite, answer: CommitResult | LanceError | None) -> None:
        if isinstance(answer, CommitResult):
            try:
                work.versions.append(record_result(started, answer).summary.version)
                work.outcomes.append(Outcome.ACKNOWLEDGED)
            except LanceError as error:
                self._record_error(work, error, is_committed=True)
        elif answer is not None:
            self._record_error(work, answer)

    def _record_error(self, work: WorkItem, error: LanceError, *, is_committed: bool = False) -> None:
        if is_committed or isinstance(error, CommitUndecided):
            work.outcomes.append(Outcome.UNDECIDED)
        else:
            work.errors.append(error)
            work.outcomes.append(Outcome.REJECTED)

    def _work_names(self, transaction: Transaction) -> list[str]:
        if WORK_PROPERTY in transaction.properties:
            return super()._work_names(transaction)
        return [self._work_of_uuid[uuid] for uuid in uuids_of(transaction) if uuid in self._work_of_uuid]


def count_shared_versions(simulation: GroupCommitSimulation) -> int:
    """Return the number of versions that hold more than one append, as evidence that groups formed."""
    names = [number for work in simulation.work_items for number in set(work.versions)]
    return len(names) - len(set(names))


def count_shared_files(simulation: GroupCommitSimulation) -> int:
    """Return the number of versions that have a file of several appends."""
    world = InMemoryTable(simulation.observer.archive)
    transactions = [
        load_transaction(world.location(), world.at(number).manifest)
        for number in list_versions(world.location()).numbers
    ]
    return sum(any(part.first_row for part in parts_of(each)) for each in transactions if each)


def simulate_group_commits(seed: int) -> GroupCommitSimulation:
    """Return the simulation of a seed. One in four has no faults."""
    return GroupCommitSimulation(seed, faults=HARSH_NETWORK if seed % 4 else RELIABLE_NETWORK, writers=seed % 3)
