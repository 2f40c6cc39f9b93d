"""Mixed fleet: processes of this library and of pylance change one table and are killed at random moments, while others
compact it and remove old versions.

    result = run_fleet(location, Size(ours=2, pylance=2, seconds=10, kill_count=20))
    violations = find_violations(location, result)

The oracle is the log of announcements and acknowledgements of each writer. An acknowledged change is in the table
exactly once. A change that was announced and not acknowledged is there once or not at all; a writer of this library
repeats it under its intent, so that none of its changes stays undecided. Both libraries read the same rows of every
version.
"""

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import lance

from lance_core import Table
from lance_core.fsck.report import Severity
from tests.histories.hammer_locations import TableLocation
from tests.histories.mixed_fleet_writer import Message, RowChange, WriterJob, run_writer

_MODULE = "tests.histories.mixed_fleet_writer"
_START_SECONDS_MAX = 60.0
_STOP_SECONDS_MAX = 900.0
"""Seconds after which a process that does not end counts as hanging; on a busy machine, a last change takes minutes."""
_EXTENSION = 5
"""Multiple of the time of a run after which the remaining kills are left out."""
_MESSAGES_BEFORE_KILL = (1, 2, 3, 6)
"""Numbers of messages after which a process may be killed, each equally likely: within its first change, after it, or
later. A process that could be killed at any time would never end a change on a machine that starts processes slowly."""


@dataclass(frozen=True, slots=True)
class Size:
    ours: int
    """Number of writers of this library."""
    pylance: int
    seconds: float
    kill_count: int
    """Number of kills; a machine that starts processes slowly takes longer for all of them, or ends before."""
    maintainers: tuple[str, ...] = ("ours maintenance", "pylance maintenance")
    seed: int = 0


@dataclass
class WriterLog:
    """Log of one writer over all of its processes."""

    job: WriterJob
    possible: dict[int, set[int | None]] = field(default_factory=dict)
    """Values that each row may have; `None` if it may be absent."""
    pending: RowChange | None = None
    next_number: int = 0
    acknowledged_count: int = 0
    errors: list[str] = field(default_factory=list)

    def record(self, message: Message) -> None:
        change = message.change
        if message.kind == "begin":
            self.pending, self.next_number = change, change.number + 1
            return
        self.pending = None
        if message.kind == "failed":
            self.errors.append(message.error)
            self._mark_undecided(change)
            return
        self.acknowledged_count += 1
        if not self._is_maintenance:
            self.possible[change.row] = {change.value}

    def record_kill(self) -> None:
        """Record that the process was killed. A change that nothing repeats stays undecided."""
        if self.pending and self.job.engine != "ours":
            self._mark_undecided(self.pending)
            self.pending = None

    def next_job(self) -> WriterJob:
        """Return the job of the next process."""
        rows = {
            row: value
            for row, values in self.possible.items()
            if len(values) == 1 and (value := next(iter(values))) is not None
        }
        return replace(self.job, first_number=self.next_number, pending=self.pending, rows=rows)

    @property
    def _is_maintenance(self) -> bool:
        return self.job.engine.endswith("maintenance")

    def _mark_undecided(self, change: RowChange) -> None:
        if not self._is_maintenance:
            self.possible[change.row] = {*self.possible.get(change.row, {None}), change.value}


@dataclass
class FleetResult:
    logs: Sequence[WriterLog]
    kill_count: int = 0
    problems: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, str]:
        acknowledged: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        for log in self.logs:
            acknowledged[log.job.engine] += log.acknowledged_count
            errors[log.job.engine] += len(log.errors)
        return {
            "kills": str(self.kill_count),
            **{f"acknowledged by {engine}": str(count) for engine, count in sorted(acknowledged.items())},
            **{f"errors of {engine}": str(count) for engine, count in sorted(errors.items())},
        }


class _Writer:
    """Process of a writer, with the log of all processes before it."""

    def __init__(self, log: WriterLog) -> None:
        self.log = log
        self._random = random.Random(f"{log.job.seed} {log.job.writer}")
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self._messages_left = self._random.choice(_MESSAGES_BEFORE_KILL)
        self.output, output = context.Pipe(duplex=False)
        stop, self._stop = context.Pipe(duplex=False)
        self.process: BaseProcess = context.Process(target=run_writer, args=(self.log.next_job(), output, stop))
        self.process.start()
        output.close()
        stop.close()

    def read_messages(self) -> bool:
        """Record the messages that have arrived. Return `False` at their end."""
        try:
            while self.output.poll():
                self.log.record(self.output.recv())
                self._messages_left -= 1
        except (EOFError, OSError):
            return False
        return True

    @property
    def may_be_killed(self) -> bool:
        return self._messages_left <= 0

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.read_messages()
        self.log.record_kill()
        self.close()

    def request_stop(self) -> None:
        self._stop.send("stop")

    def close(self) -> None:
        self.process.join()
        self.output.close()
        self._stop.close()


def run_fleet(location: TableLocation, size: Size) -> FleetResult:
    """Run the processes for the given time, then stop those that are left."""
    multiprocessing.get_context("forkserver").set_forkserver_preload([_MODULE, "lance", "lance.file"])
    engines = [*["ours"] * size.ours, *["pylance"] * size.pylance, *size.maintainers]
    jobs = [
        WriterJob(engine, location.uri, dict(location.options), number, size.seed)
        for number, engine in enumerate(engines)
    ]
    result = FleetResult([WriterLog(job) for job in jobs])
    writers = [_Writer(log) for log in result.logs]
    try:
        _run_and_kill(writers, size, result)
        _stop(writers, result)
    finally:
        for writer in writers:
            if writer.process.is_alive():
                writer.process.kill()
            writer.close()
    return result


def _run_and_kill(writers: Sequence[_Writer], size: Size, result: FleetResult) -> None:
    generator = random.Random(size.seed)
    for writer in writers:
        writer.output.poll(_START_SECONDS_MAX)
    started = time.monotonic()
    kill_times = sorted(generator.uniform(0, size.seconds) for _ in range(size.kill_count))
    while (elapsed := time.monotonic() - started) < (size.seconds * _EXTENSION if kill_times else size.seconds):
        is_due = bool(kill_times) and kill_times[0] <= elapsed
        if is_due and (victims := [writer for writer in writers if writer.may_be_killed]):
            kill_times.pop(0)
            victim = generator.choice(victims)
            victim.kill()
            result.kill_count += 1
            victim.start()
            continue
        until = kill_times[0] - elapsed if kill_times and not is_due else size.seconds
        _read(writers, until, result)


def _read(writers: Iterable[_Writer], seconds: float, result: FleetResult) -> None:
    by_output = {writer.output: writer for writer in writers if not writer.output.closed}
    for output in wait(list(by_output), timeout=seconds):
        assert isinstance(output, Connection)
        writer = by_output[output]
        if not writer.read_messages():
            writer.process.join()
            result.problems.append(f"a process of {writer.log.job.engine} ended with {writer.process.exitcode}")
            writer.log.record_kill()
            writer.close()
            writer.start()


def _stop(writers: Sequence[_Writer], result: FleetResult) -> None:
    """Let every process finish its change."""
    for writer in writers:
        writer.request_stop()
    deadline = time.monotonic() + _STOP_SECONDS_MAX
    for writer in writers:
        writer.process.join(max(0.0, deadline - time.monotonic()))
        writer.read_messages()
        if writer.process.exitcode != 0:
            result.problems.append(f"a process of {writer.log.job.engine} did not stop: {writer.process.exitcode}")


def find_violations(location: TableLocation, result: FleetResult, *, versions_checked: int = 300) -> list[str]:
    """Compare the rows that both libraries read with the logs, and open at most this many versions with both."""
    violations = list(result.problems)
    possible: dict[int, set[int | None]] = {}
    for log in result.logs:
        possible |= log.possible
        if log.pending and log.job.engine == "ours":
            violations.append(f"{log.pending.intent} was neither acknowledged nor repeated")
    options = dict(location.faultless_options) or None
    try:
        table = location.open_table()
        dataset = lance.dataset(location.uri, storage_options=options)
        rows_read = {"Table": _rows(table.to_table()), "pylance": _rows(dataset.to_table())}
    except Exception as error:  # noqa: BLE001 - both libraries have errors of many types
        return [*violations, f"the newest version cannot be read: {type(error).__name__}: {error}"]
    for reader, rows in rows_read.items():
        violations += [f"{reader} reads {difference}" for difference in _find_differences(possible, rows)]
    violations += _compare_versions(table, location, versions_checked)
    return violations + [f"fsck: {each}" for each in table.fsck("head").findings if each.severity is Severity.ERROR]


def _rows(table: object) -> list[tuple[int, int]]:
    columns = [table[name].to_pylist() for name in ("id", "n")]  # type: ignore[index]
    return sorted(zip(*columns, strict=True))


def _find_differences(possible: Mapping[int, set[int | None]], rows: Sequence[tuple[int, int]]) -> list[str]:
    values: dict[int, list[int]] = {}
    for row, number in rows:
        values.setdefault(row, []).append(number)
    differences = []
    for row in sorted({*possible, *values}):
        found = values.get(row, [])
        value: int | None = found[0] if found else None
        if len(found) > 1 or value not in possible.get(row, {None}):
            differences.append(f"row {row} with {found}, but {possible.get(row)} is possible")
    return differences


def _compare_versions(table: Table, location: TableLocation, versions_checked: int) -> list[str]:
    """Open versions with both libraries and compare their rows, evenly over the history if there are many."""
    options = dict(location.faultless_options) or None
    numbers = table.version_numbers()
    violations = []
    for number in numbers[:: -(-len(numbers) // versions_checked)]:
        try:
            ours = _rows(table.at(number).to_table())
            theirs = _rows(lance.dataset(location.uri, version=int(number), storage_options=options).to_table())
        except Exception as error:  # noqa: BLE001 - both libraries have errors of many types
            violations.append(f"version {number} cannot be read: {type(error).__name__}: {error}")
        else:
            if ours != theirs:
                violations.append(f"version {number} has other rows for pylance than for Table")
    return violations
