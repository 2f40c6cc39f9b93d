"""Two writers, every order of their storage calls, and in each of them one thing that goes wrong, at every call: small
histories, but all of them.

    for schedule in explored(verbs, preemptions=2, fault=None): ...

A schedule is run again from its choices alone: who goes on is decided by them as far as they reach, and then by whoever
has the baton. What a run met is what the next ones branch from.

How many orders there are is decided by the calls. An append without an intent makes 7 of them where nobody is in the
way, so two have 3,432 orders and some more for those who meet: these are all run (`preemptions=None`). With intents it
is 11 to 13 calls each, millions of orders: there the space is that of all orders with at most so many changes of hands
that nobody's end asked for, and all of it is run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Self

from lance_core import StorageError
from lance_core.storage.store import ObjectInfo, Put, Store
from tests.histories.cooperative_scheduler import Baton, Killed
from tests.histories.simulated_operations import Verb
from tests.histories.simulation import Answer, Simulation, Work

HOWS = ("killed before", "killed after", "fails", "lost", "never", "late", "later")
"""What can go wrong at a call. The last four are of creates: done without an answer, not done, done when both have
ended, done when the survivors have repeated what they began."""


@dataclass(frozen=True)
class Fault:
    writer: str
    call: int
    how: str


class Scripted(Baton):
    """Goes on with who has the baton, but where a choice says otherwise."""

    def __init__(self, choices: Sequence[str]) -> None:
        super().__init__(0)
        self.choices = choices
        self.taken: list[tuple[str, tuple[str, ...]]] = []

    def choose(self, waiting: Sequence[str]) -> str:
        at = len(self.taken)
        wanted = self.choices[at] if at < len(self.choices) else self.current
        chosen = wanted if wanted in waiting else waiting[0]
        self.taken.append((chosen, tuple(waiting)))
        return chosen


@dataclass
class Stepped:
    """One writer's store: each call is a step, and the one that the fault names goes wrong."""

    history: "History"
    writer: str
    calls: int = 0
    description: str = "memory://explored"

    def _call(self) -> str:
        self.history.baton.step()
        fault = self.history.fault
        number = self.calls
        self.calls += 1
        if fault is None or (fault.writer, fault.call) != (self.writer, number):
            return ""
        if fault.how == "killed before":
            raise Killed
        if fault.how == "fails":
            raise StorageError(f"call {number} of {self.writer} is to fail")
        return fault.how

    def _after(self, how: str) -> None:
        if how == "killed after":
            raise Killed

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        how = self._call()
        data = self.history.stored.read(path, start, length)
        self._after(how)
        return data

    def head(self, path: str) -> ObjectInfo | None:
        self._after(self._call())
        return self.history.stored.head(path)

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        self._after(self._call())
        return self.history.stored.list(directory, start_after)

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        self._after(self._call())
        return self.history.stored.walk(directory)

    def put(self, path: str, data: bytes) -> None:
        how = self._call()
        self.history.stored.put(path, data)
        self._after(how)

    def create(self, path: str, data: bytes) -> Put:
        how = self._call()
        if how in ("late", "later"):
            self.history.later("create", path, data)
        if how in ("late", "later", "never"):
            return Put.UNKNOWN
        answer = self.history.stored.create(path, data)
        self._after(how)
        return Put.UNKNOWN if how == "lost" else answer

    def delete(self, path: str) -> None:
        raise AssertionError(f"writers delete nothing, {path} neither")

    def ensure_durable(self, paths: Sequence[str]) -> None:
        self._call()


class History(Simulation):
    """Two writers, each with one verb under an intent; then each verb once more, by somebody new."""

    def __init__(
        self,
        verbs: Sequence[Verb],
        choices: Sequence[str],
        fault: Fault | None = None,
        *,
        shared: bool = False,
        intents: bool = True,
    ) -> None:
        super().__init__(0)
        self.script = self.baton = Scripted(choices)
        self.fault = fault
        self.stores: dict[str, Stepped] = {}
        for verb in verbs[:1] if shared else verbs:
            self.work.append(Work(verb, intent=f"intent of {verb.work}" if intents else None))
        self._jobs = [self.work[0]] * len(verbs) if shared else self.work

    def store(self) -> Store:
        return self.stores.get(self.baton.current, self.stored)

    def run(self) -> Self:
        self.create()
        self.stores = {f"writer {number}": Stepped(self, f"writer {number}") for number in range(len(self._jobs))}
        actors = dict(zip(self.stores, (self._doing([job]) for job in self._jobs), strict=True))
        self.baton.run(actors)
        met, self.stores = self.stores, {}
        if self.fault is not None and self.fault.how == "late":
            self._land_all()
        for work in self.work:
            if work.intent is not None:  # without one nobody may repeat it
                self._do(work)
        self._land_all()
        self.stores = met
        return self

    def _land_all(self) -> None:
        while self.under_way:
            self._land(0)

    def _do(self, work: Work) -> None:
        """Once each; what is repeated is repeated by somebody new."""
        self._processes += 1
        try:
            work.answers.append(self._try(work, process=self._processes))
        except Killed:
            work.answers.append(Answer.UNKNOWN)


def explored(
    verbs: Sequence[Verb],
    *,
    preemptions: int | None,
    fault: Fault | None = None,
    shared: bool = False,
    intents: bool = True,
) -> Iterator[History]:
    """Every history with at most so many changes of hands that nobody's end asked for; None: every history. Each is
    checked; one that fails tells its choices."""
    open_ends: list[tuple[tuple[str, ...], int]] = [((), 0)]
    while open_ends:
        choices, used = open_ends.pop()
        history = checked(History(verbs, choices, fault, shared=shared, intents=intents))
        yield history
        taken = history.script.taken
        for at in range(len(choices), len(taken)):
            chosen, waiting = taken[at]
            forced = at == 0 or taken[at - 1][0] not in waiting
            if not forced and preemptions is not None and used >= preemptions:
                continue
            before = tuple(who for who, _waiting in taken[:at])
            for other in waiting:
                if other != chosen:
                    open_ends.append(((*before, other), used + (0 if forced else 1)))


def some_orders(verbs: Sequence[Verb], *, calls: int, every: int, fault: Fault | None = None) -> Iterator[History]:
    """Of all orders of two writers without intents who make so many calls each, one in so many, evenly."""
    for mine in islice(combinations(range(2 * calls), calls), 0, None, every):
        choices = tuple(f"writer {0 if at in mine else 1}" for at in range(2 * calls))
        yield checked(History(verbs, choices, fault, intents=False))


def checked(history: History) -> History:
    try:
        history.run().check()
    except AssertionError as error:
        turns = "".join(who.removeprefix("writer ") for who, _waiting in history.script.taken)
        raise AssertionError(f"{history.fault}, turns {turns}: {error}") from error
    return history
