"""Process pool for concurrent appends: writer processes that append to one table, and the race that a workload times.

The processes live for the whole workload, and each one works for any system, so that no process starts while the clock
runs. Start reading with `Race`; the code of a process is in `writer.py`.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.appending import Library, Options, System
from benchmarks.harness import CallFigures, Case, Entrant
from benchmarks.report import Facts
from benchmarks.writer import Task, TaskResult

_ROOT = Path(__file__).parents[1]


class Fleet:
    def __init__(self, size: int) -> None:
        command = [sys.executable, "-m", "benchmarks.writer"]
        self._processes = [
            subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(size)
        ]

    def run_tasks(self, tasks: Sequence[Task]) -> list[TaskResult]:
        """Run one task per process concurrently, and return when the last one has finished."""
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
                raise RuntimeError(f"a writer process ended with exit code {process.wait()}; its output is above")
            answers.append(TaskResult(**json.loads(line)))
        return answers

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


@contextmanager
def start_fleet(size: int) -> Generator[Fleet, None, None]:
    started = Fleet(size)
    try:
        yield started
    finally:
        started.close()


@dataclass
class Race:
    """Runner of one system. Each call is one race on a new table."""

    fleet: Fleet
    system: System
    library: Library
    writers: int
    appends: int
    uri_for: Callable[[str], str]
    """Return an unused URI for a name."""
    options: Options = field(default_factory=dict)
    fault_free_options: Options = field(default_factory=dict)
    """Options of the calls that are not timed. They bypass the fault injection."""
    intents: bool = False
    is_compared: bool = True
    """`True` ends the run if the systems hold different rows; `False` only reports lost and duplicate rows."""
    log: Callable[[str], None] = field(default=lambda line: None)
    _races: int = 0
    _uri: str = ""
    _results: list[TaskResult] = field(default_factory=list)

    def before(self) -> None:
        self._races += 1
        name = self.system.name.replace(", ", "-").replace(" ", "-")
        self._uri = self.uri_for(f"{name}-{self.writers}-{self._races}")
        self.library.create(self._uri, self.fault_free_options)
        if self._races == 1:  # each process imports the library of this system
            warm_up_uri = self.uri_for(f"{name}-{self.writers}-loading")
            self.library.create(warm_up_uri, self.fault_free_options)
            self.fleet.run_tasks(
                [self._task(warm_up_uri, writer, 1, self.fault_free_options) for writer in range(self.writers)]
            )

    def call(self) -> None:
        self._results = self.fleet.run_tasks(
            [self._task(self._uri, writer, self.appends, self.options) for writer in range(self.writers)]
        )

    def call_figures(self) -> CallFigures:
        """Count the errors, and the rows that were acknowledged but are missing ("lost") or stored more than once
        ("doubled")."""
        id_counts = Counter(self.library.read_ids(self._uri, self.fault_free_options))
        acknowledged = self.writers * self.appends - sum(result.given_up for result in self._results)
        for error in {result.error for result in self._results if result.error}:
            self.log(f"{self.system.name}: {error.splitlines()[0]}")
        counts = {
            "failed": sum(result.failed for result in self._results),
            "given up": sum(result.given_up for result in self._results),
            "lost": max(0, acknowledged - len(id_counts)),
            "doubled": id_counts.total() - len(id_counts),
        }
        return CallFigures({"slowest append": max(result.slowest for result in self._results)}, counts)

    def facts(self) -> Facts:
        if not self.is_compared:
            return {"appends": self.writers * self.appends}
        return {"distinct rows": len(set(self.library.read_ids(self._uri, self.fault_free_options)))}

    def _task(self, uri: str, writer: int, count: int, options: Options) -> Task:
        return Task(self.system.name, uri, options, writer * self.appends, count, self.intents)


def race_case(name: str, systems: Sequence[System], enter: Callable[[System], Race]) -> Case:
    return Case(
        name,
        tuple(Entrant(system.name, system.side, partial(enter, system), system.needs) for system in systems),
    )
