"""Process kill harness: many processes write to one table, are killed at random moments and restarted with the same
intents.

The operating system decides what a seed decides in the simulation. A failure is not reproducible, but real files, real
sockets and real kills find what a simulation does not model. `assign_work` distributes the operations; `run_hammer`
runs the processes and kills them. `hammer_writer.py` is one process, `hammer_locations.py` creates the table, and
`hammer_invariants.py` checks the result.
"""

import json
import os
import random
import selectors
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, cast

from tests.histories.hammer_locations import TableLocation
from tests.histories.hammer_writer import VERBS, WorkItem, WorkResult

ROOT = Path(__file__).parents[2]
_VERB_WEIGHTS = dict(zip(VERBS, (70, 8, 8, 9, 5), strict=True))
_SHARED_KEYS = 5
_SILENCE_SECONDS_MAX = 90.0


@dataclass(frozen=True, slots=True)
class Size:
    writers: int
    works_per_writer: int
    """Number of operations of each writer."""
    kill_count: int
    seed: int = 0


@dataclass
class HammerResult:
    """Results that all writers reported."""

    seconds: float = 0.0
    kill_count: int = 0
    results: list[WorkResult] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Writers that gave up, with the end of their error output."""

    @property
    def errors(self) -> Counter[str]:
        return Counter(each.partition(":")[0] for result in self.results for each in result.errors)

    def figures(self) -> dict[str, str]:
        commits = [each for each in self.results if each.version is not None and not each.already_committed]
        durations = sorted(each.seconds for each in commits)
        if not commits:
            return {}
        mean = statistics.fmean(each.attempts for each in commits)
        return {
            "kills": str(self.kill_count),
            "commits/s": f"{len(commits) / self.seconds:.0f}",
            "attempts": f"{mean:.2f} (maximum {max(each.attempts for each in commits)})",
            "seconds": f"{statistics.median(durations):.3f} (slowest {durations[-1]:.2f})",
            "errors": ", ".join(f"{name} {count}" for name, count in sorted(self.errors.items())) or "none",
            **{f"errors of {each.intent}": each.errors[0] for each in self.results if each.errors},
        }


def assign_work(size: Size) -> list[tuple[WorkItem, ...]]:
    """Return the operations of each writer. A writer updates and deletes its own rows; all writers upsert the keys
    below zero."""
    generator = random.Random(size.seed)
    return [_assign_writer(generator, writer, size.works_per_writer) for writer in range(size.writers)]


def _assign_writer(generator: random.Random, writer: int, count: int) -> tuple[WorkItem, ...]:
    own_rows: list[int] = []
    work_items = []
    for number in range(count):
        (verb,) = generator.choices(list(_VERB_WEIGHTS), list(_VERB_WEIGHTS.values()))
        if verb in ("update", "delete") and not own_rows:
            verb = "append"
        row = writer * 10_000 + number
        if verb == "append":
            own_rows.append(row)
        elif verb == "upsert":
            row = -1 - generator.randrange(_SHARED_KEYS)
        elif verb != "compact":
            row = own_rows[generator.randrange(len(own_rows))]
        if verb == "delete":
            own_rows.remove(row)
        value = writer * 10_000 + number if verb == "upsert" else 0
        work_items.append(WorkItem(f"{writer}.{number} {verb}", verb, row, value))
    return tuple(work_items)


class _WriterProcess:
    """Writer process, restarted after a kill, with its remaining operations."""

    def __init__(self, location: TableLocation, work: tuple[WorkItem, ...], errors: IO[str]) -> None:
        self._location, self._work, self._errors = location, work, errors
        self._reported_count = 0
        self.start()

    def start(self) -> None:
        """Start a process. It repeats the last operation that was reported, which must be already committed."""
        self.is_ready, self._unparsed = False, b""
        command = [sys.executable, "-m", "tests.histories.hammer_writer"]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )
        remaining = self._work[max(self._reported_count - 1, 0) :]
        self._remaining = iter(remaining)
        job = {
            "uri": self._location.uri,
            "options": dict(self._location.options),
            "durable": False,
            "work": [asdict(each) for each in remaining],
        }
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job).encode())
        self.process.stdin.close()

    def kill(self) -> None:
        self.process.kill()
        self.is_ready = False

    @property
    def is_working(self) -> bool:
        return self.is_ready and self.process.poll() is None

    @property
    def output(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def read_results(self) -> list[WorkResult] | None:
        """Read the results that the process has reported; `None` at the end of its output."""
        data = os.read(self.output.fileno(), 1 << 16)
        *lines, self._unparsed = (self._unparsed + data).split(b"\n")
        results = []
        for line in lines:
            if line == b"ready":
                self.is_ready = True
            else:
                results.append(WorkResult(**json.loads(line)))
                index = self._work.index(next(self._remaining))
                self._reported_count = max(self._reported_count, index + 1)
        return results if data else None


class _ProcessKiller:
    """Distributes the kills evenly over the operations, not over time, because most time is spent on process starts. A
    kill happens in the middle of an operation: after a random part of the typical duration since a writer reported."""

    def __init__(self, size: Size) -> None:
        self._generator = random.Random(size.seed + 1)
        self._results_between_kills = size.writers * size.works_per_writer / (size.kill_count + 1)
        self._kill_count_max = size.kill_count
        self._next_kill_after = self._results_between_kills
        self._typical_seconds = 0.01
        self._target: _WriterProcess | None = None
        self._due = 0.0
        self.kill_count = 0

    @property
    def seconds_until_action(self) -> float:
        """Seconds until the next action."""
        return _SILENCE_SECONDS_MAX if self._target is None else max(0.0, self._due - time.perf_counter())

    @property
    def is_idle(self) -> bool:
        return self._target is None

    def record_result(self, result: WorkResult) -> None:
        self._typical_seconds += (result.seconds - self._typical_seconds) / 20

    def kill_if_due(self, writers: Sequence[_WriterProcess], reported_count: int) -> None:
        if self._target and self._due <= time.perf_counter():
            if self._target.is_working:
                self._target.kill()
                self.kill_count += 1
                self._next_kill_after += self._results_between_kills
            self._target = None
        working = [each for each in writers if each.is_working]
        if (
            self._target is None
            and working
            and self.kill_count < self._kill_count_max
            and reported_count >= self._next_kill_after
        ):
            self._target = self._generator.choice(working)
            self._due = time.perf_counter() + 2 * self._typical_seconds * self._generator.random()


def run_hammer(location: TableLocation, size: Size) -> HammerResult:
    result = HammerResult()
    started = time.perf_counter()
    with selectors.DefaultSelector() as selector, tempfile.TemporaryFile("w+") as errors:
        writers = [_WriterProcess(location, work, errors) for work in assign_work(size)]
        try:
            result.kill_count = _run_writers(writers, size, selector, result)
        finally:
            for writer in writers:
                writer.kill()
                writer.process.wait()
                writer.output.close()
        errors.seek(0)
        result.problems += [line for line in errors.read().splitlines() if line and not line.startswith(" ")][-5:]
    result.seconds = time.perf_counter() - started
    return result


def _run_writers(
    writers: Sequence[_WriterProcess], size: Size, selector: selectors.BaseSelector, result: HammerResult
) -> int:
    """Run until all operations are done, and return the number of kills."""
    killer = _ProcessKiller(size)
    reported: set[str] = set()
    for writer in writers:
        selector.register(writer.output, selectors.EVENT_READ, writer)
    while selector.get_map():
        readable = selector.select(killer.seconds_until_action)
        if not readable and killer.is_idle:
            result.problems.append(f"no writer reported a result for {_SILENCE_SECONDS_MAX:.0f} s")
            break
        for key, _ in readable:
            writer = cast(_WriterProcess, key.data)
            results = writer.read_results()
            for each in results or ():
                result.results.append(each)
                reported.add(each.intent)
                killer.record_result(each)
            if results is None:
                selector.unregister(writer.output)
                writer.output.close()
                code = writer.process.wait()
                if code == -signal.SIGKILL:
                    writer.start()
                    selector.register(writer.output, selectors.EVENT_READ, writer)
                elif code:
                    result.problems.append(f"a writer process ended with exit code {code}")
        killer.kill_if_due(writers, len(reported))
    return killer.kill_count
