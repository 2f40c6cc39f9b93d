"""The simulation, with appends that go together: crowds of threads whose appends are folded into one version, beside
writers of all other kinds, and others who hold the same intents.

    Together(seed).run().check()

A crowd is one thread here, which leads what it gathered, as whoever is first does in
`lance_core/commit/group_commit.py`. So what is tried is the file they share, the fold, its landing and its falling
apart, and not who waits for whom. Two of three bring rows that are in memory, the others a file of their own.
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
from tests.histories.cooperative_scheduler import Killed
from tests.histories.simulated_network import CALM, HARD
from tests.histories.simulated_operations import NAMES, SCHEMA, WORK, Verb
from tests.histories.simulation import ATTEMPTS, TRIES, Answer, Simulation, Work
from tests.lance_core.world import VERSION, World

_Member = tuple[Work, StartedWrite, PendingAppend]


class Together(Simulation):
    def _actors(self) -> dict[str, Callable[[], None]]:
        actors = super()._actors()
        self._of_uuid: dict[str, str] = {}
        for number in range(2):
            crowd = [self._append(f"c{number}m{member}") for member in range(3)]
            actors[f"crowd {number}"] = self._gathering(crowd)
            actors[f"twin of crowd {number}"] = self._doing(crowd[:1])
        return actors

    def _append(self, name: str) -> Work:
        work = Work(Verb("append", name, again=False), intent=f"intent of {name}")
        self.work.append(work)
        return work

    def _gathering(self, crowd: list[Work]) -> Callable[[], None]:
        def act() -> None:
            left = list(crowd)
            for _ in range(TRIES):
                self._processes += 1
                try:
                    self._together(left, process=self._processes)
                except Killed:
                    for work in left:
                        work.answers.append(Answer.UNKNOWN)
                left = [work for work in left if work.answers[-1] is not Answer.ACKNOWLEDGED]
                if not left:
                    return

        return act

    def _together(self, crowd: list[Work], *, process: int) -> None:
        given = self.runtime(process)
        group: list[_Member] = []
        for work in crowd:
            try:
                base = load_latest(self.location())
                begun = begin(self.location(), base, verb="append", intent=work.intent, runtime=given)
                if not isinstance(begun, StartedWrite):
                    work.versions.append(begun.summary.version)
                    work.answers.append(Answer.ACKNOWLEDGED)
                    continue
                self._of_uuid[begun.uuid] = work.name
                rows = self._held(work)
                operation = Append(()) if rows else work.verb.planning(self.disk, given)(base)
                assert isinstance(operation, Append)
                check_files(self.location(), files_written(operation, base.manifest))
                ours = Transaction(begun.read_version, begun.uuid, operation, {})
                waiting = PendingAppend(
                    self.location(), ours, base, begun.since, ATTEMPTS, given, begun.started_at, rows, begun.record
                )
                group.append((work, begun, waiting))
            except LanceError as error:
                self._refused(work, error)
        while group:
            (work, begun, leader), *others = group
            room = FileCapacity(leader.rows) if leader.rows else None
            company = [each for each in others if self._goes_with(leader, each[2], room)]
            self._lead((work, begun, leader), company)
            group = [each for each in others if each[2].answer is None]
            for _, _, waiting in company:
                waiting.is_alone = waiting.answer is None

    def _held(self, work: Work) -> BufferedRows | None:
        """Of those who bring rows that are to be written when they are committed."""
        if self.baton.random.random() < 1 / 3:
            return None
        names = work.verb.brought()
        batch = pa.record_batch({NAMES[0]: list(names), NAMES[1]: [""] * len(names)})
        return buffer_rows(
            [batch], schema=SCHEMA, version=VERSION, limits=FileLimits(), conversion=Conversion.EXACT, what=work.name
        )

    def _goes_with(self, leader: PendingAppend, other: PendingAppend, room: FileCapacity | None) -> bool:
        has_place = other.rows is None or (room is not None and room.try_reserve(other.rows))
        return leader.can_join(other) and has_place

    def _lead(self, first: _Member, company: list[_Member]) -> None:
        """They come one by one while the file is open."""
        leader, others = first[2], [waiting for _, _, waiting in company]
        came: list[PendingAppend] = []

        def more() -> Sequence[PendingAppend]:
            newcomers = others[len(came) : len(came) + 1] if leader.rows else others
            came.extend(newcomers)
            return newcomers

        try:
            leader.answer = commit_group(leader, came, more)
        except LanceError as error:
            leader.answer = error
        group = [first, *company]
        for work, begun, waiting in group:
            self._answered(work, begun, waiting.answer)

    def _answered(self, work: Work, begun: StartedWrite, answer: CommitResult | LanceError | None) -> None:
        if isinstance(answer, CommitResult):
            try:
                work.versions.append(record_result(begun, answer).summary.version)
                work.answers.append(Answer.ACKNOWLEDGED)
            except LanceError as error:
                self._refused(work, error, landed=True)
        elif answer is not None:
            self._refused(work, answer)

    def _refused(self, work: Work, error: LanceError, *, landed: bool = False) -> None:
        if landed or isinstance(error, CommitUndecided):
            work.answers.append(Answer.UNKNOWN)
        else:
            work.refusals.append(error)
            work.answers.append(Answer.REFUSED)

    def _names(self, transaction: Transaction) -> list[str]:
        if WORK in transaction.properties:
            return super()._names(transaction)
        return [self._of_uuid[uuid] for uuid in uuids_of(transaction) if uuid in self._of_uuid]


def shared_versions(simulation: Together) -> int:
    """How many versions hold more than one append, to know that something was tried."""
    names = [number for work in simulation.work for number in set(work.versions)]
    return len(names) - len(set(names))


def shared_files(simulation: Together) -> int:
    """How many versions have a file of several appends."""
    world = World(simulation.eye.archive)
    made = [
        load_transaction(world.location(), world.at(number).manifest)
        for number in list_versions(world.location()).numbers
    ]
    return sum(any(part.first_row for part in parts_of(each)) for each in made if each)


def gathered(seed: int) -> Together:
    """One in four without faults."""
    return Together(seed, odds=HARD if seed % 4 else CALM, writers=seed % 3)
