"""The simulation, with appends that go together: crowds of threads whose appends are folded into one version, beside
writers of all other kinds, and others who hold the same intents.

    Together(seed).run().check()

A crowd is one thread here, which leads what it gathered, as whoever is first does in `gathering.py`. So what is tried
is the fold, its landing and its falling apart, and not who waits for whom.
"""

from collections.abc import Callable

from lance_core import CommitUndecided, LanceError, gathering
from lance_core.commit import Outcome
from lance_core.format.operations import Append
from lance_core.format.transaction import Transaction
from lance_core.gathering import _Waiting
from lance_core.snapshot import load_latest
from lance_core.transactions.figures import files_written
from lance_core.transactions.fold import uuids_of
from lance_core.writes import Begun, begin, check_files, written
from tests.histories.baton import Killed
from tests.histories.network import CALM, HARD
from tests.histories.simulation import ATTEMPTS, TRIES, Answer, Simulation, Work
from tests.histories.verbs import WORK, Verb

_Member = tuple[Work, Begun, _Waiting]


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
        given = self.ports(process)
        group: list[_Member] = []
        for work in crowd:
            try:
                base = load_latest(self.location())
                begun = begin(self.location(), base, verb="append", intent=work.intent, ports=given)
                if not isinstance(begun, Begun):
                    work.versions.append(begun.landing.version)
                    work.answers.append(Answer.ACKNOWLEDGED)
                    continue
                self._of_uuid[begun.uuid] = work.name
                operation = work.verb.planning(self.disk, given)(base)
                assert isinstance(operation, Append)
                check_files(self.location(), files_written(operation, base.manifest))
                ours = Transaction(begun.read_version, begun.uuid, operation, {})
                since = begun.record.base if begun.record else base.version
                waiting = _Waiting(self.location(), ours, base, since, ATTEMPTS, given, begun.moment)
                group.append((work, begun, waiting))
            except LanceError as error:
                self._refused(work, error)
        while group:
            first, *others = group
            company = [each for each in others if first[2].goes_with(each[2])]
            self._lead([first, *company])
            group = [each for each in others if each[2].answer is None]
            for _, _, waiting in company:
                waiting.alone = waiting.answer is None

    def _lead(self, group: list[_Member]) -> None:
        leader = group[0][2]
        try:
            leader.answer = gathering._lead([waiting for _, _, waiting in group])
        except LanceError as error:
            leader.answer = error
        for work, begun, waiting in group:
            self._answered(work, begun, waiting.answer)

    def _answered(self, work: Work, begun: Begun, answer: Outcome | LanceError | None) -> None:
        if isinstance(answer, Outcome):
            try:
                work.versions.append(written(begun, answer).landing.version)
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


def gathered(seed: int) -> Together:
    """One in four without faults."""
    return Together(seed, odds=HARD if seed % 4 else CALM, writers=seed % 3)
