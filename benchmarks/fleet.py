"""Many processes that append to one table at once, and the race that a workload times.

The processes stay for the whole workload, and each works for whichever system is asked for, so that nothing is started
while the clock runs. Start with `Race`; a process is `writer.py`.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.appending import Library, Options, System
from benchmarks.harness import Case, Entrant, Told
from benchmarks.report import Facts
from benchmarks.writer import Done, Task

_ROOT = Path(__file__).parents[1]


class Fleet:
    def __init__(self, size: int) -> None:
        command = [sys.executable, "-m", "benchmarks.writer"]
        self._processes = [
            subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(size)
        ]

    def work(self, tasks: Sequence[Task]) -> list[Done]:
        """One task a process, all at once; ends when the last one is done."""
        busy = self._processes[: len(tasks)]
        for process, task in zip(busy, tasks, strict=True):
            assert process.stdin is not None
            process.stdin.write(json.dumps(asdict(task)) + "\n")
            process.stdin.flush()
        answers = []
        for process in busy:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"a writing process ended with {process.wait()}; what it said is above")
            answers.append(Done(**json.loads(line)))
        return answers

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


@contextmanager
def fleet(size: int) -> Generator[Fleet, None, None]:
    started = Fleet(size)
    try:
        yield started
    finally:
        started.close()


@dataclass
class Race:
    """One system's runner: each call is one race, on a table of its own."""

    fleet: Fleet
    system: System
    library: Library
    writers: int
    appends: int
    place: Callable[[str], str]
    """From a name to a URI where nothing is."""
    options: Options = field(default_factory=dict)
    quiet_options: Options = field(default_factory=dict)
    """For what is not timed: no faults on this way."""
    intents: bool = False
    is_compared: bool = True
    """Whether a system that lost rows ends the run, or is only told of."""
    log: Callable[[str], None] = field(default=lambda line: None)
    _races: int = 0
    _uri: str = ""
    _done: list[Done] = field(default_factory=list)

    def before(self) -> None:
        self._races += 1
        name = self.system.name.replace(", ", "-").replace(" ", "-")
        self._uri = self.place(f"{name}-{self.writers}-{self._races}")
        self.library.create(self._uri, self.quiet_options)
        if self._races == 1:  # each process loads what this system needs
            aside = self.place(f"{name}-{self.writers}-loading")
            self.library.create(aside, self.quiet_options)
            self.fleet.work([self._task(aside, writer, 1, self.quiet_options) for writer in range(self.writers)])

    def call(self) -> None:
        self._done = self.fleet.work(
            [self._task(self._uri, writer, self.appends, self.options) for writer in range(self.writers)]
        )

    def told(self) -> Told:
        """Lost: acknowledged, and not there. Doubled: there more than once."""
        found = Counter(self.library.ids(self._uri, self.quiet_options))
        acknowledged = self.writers * self.appends - sum(each.given_up for each in self._done)
        for error in {each.error for each in self._done if each.error}:
            self.log(f"{self.system.name}: {error.splitlines()[0]}")
        counts = {
            "failed": sum(each.failed for each in self._done),
            "given up": sum(each.given_up for each in self._done),
            "lost": max(0, acknowledged - len(found)),
            "doubled": found.total() - len(found),
        }
        return Told({"slowest append": max(each.slowest for each in self._done)}, counts)

    def facts(self) -> Facts:
        if not self.is_compared:
            return {"appends": self.writers * self.appends}
        return {"distinct rows": len(set(self.library.ids(self._uri, self.quiet_options)))}

    def _task(self, uri: str, writer: int, count: int, options: Options) -> Task:
        return Task(self.system.name, uri, options, writer * self.appends, count, self.intents)


def race(name: str, systems: Sequence[System], enter: Callable[[System], Race]) -> Case:
    return Case(
        name,
        tuple(Entrant(each.name, each.side, lambda each=each: enter(each), each.needs) for each in systems),  # type: ignore[misc]
    )
