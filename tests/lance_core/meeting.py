"""Appends that meet at a table, in an order that a test says: for tests of the line and of what they become.

The first writer stops at its put until `meeting` ends; those that come meanwhile wait for it. Start with `meeting`.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from types import FrameType, FunctionType
from typing import Any

import pyarrow as pa
import pytest

from lance_core import Table
from lance_core.commit import group_commit
from lance_core.commit.data_files import FileCapacity
from lance_core.commit.fencing import ClockReading
from lance_core.commit.group_commit import PendingAppend, commit_alone, commit_group
from lance_core.commit.loop import ATTEMPTS
from lance_core.commit.write_protocol import StartedWrite, WriteResult, begin, finish, finish_append, record_result
from lance_core.datafiles.conform import Conversion
from lance_core.datafiles.fragment_writer import BufferedRows, FileLimits, buffer_rows
from lance_core.datafiles.ipc_codec import IpcCodec
from lance_core.format import naming
from lance_core.format.fragment import Fragment
from lance_core.format.ids import Version
from lance_core.format.operations import Append
from lance_core.format.transaction import Transaction
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.transactions.fold import parts_of
from lance_core.versions.snapshot import Snapshot, load_transaction
from tests.lance_core.world import SCHEMA, VERSION, Fault, FaultyStore, World, creating, fragment, runtime

NO_LIMITS = FileLimits()
EVERY_MANIFEST = creating(naming.VERSIONS + "/")


class _Told(threading.Event):
    """Tells when somebody waits for it, and interrupts whom it is told to."""

    def __init__(self, waiting: threading.Semaphore, *, stops: bool) -> None:
        super().__init__()
        self._waiting = waiting
        self._stops = stops

    def wait(self, timeout: float | None = None) -> bool:
        self._waiting.release()
        if self._stops:
            raise KeyboardInterrupt
        return super().wait(timeout)


@dataclass
class Meeting:
    """The first writer stops at its put until so many others wait for it."""

    store: FaultyStore
    table: World
    waiting: threading.Semaphore
    pool: ThreadPoolExecutor
    answers: list[Future[WriteResult]] = field(default_factory=list)
    stopped: bool = False
    """Whether the next one that waits is interrupted."""

    def append(
        self,
        name: str,
        *,
        base: Snapshot | None = None,
        intent: str | None = None,
        brought: tuple[Fragment, ...] | None = None,
        bases: tuple[str, ...] = (),
        stopped: bool = False,
        rows: Sequence[int] | None = None,
        limits: FileLimits = NO_LIMITS,
        attempts: int = ATTEMPTS,
        begun_ago: timedelta = timedelta(0),
        **properties: str,
    ) -> None:
        """In a thread of its own, of a file or of rows that are in memory. After the first one, it returns when that
        one waits in line."""
        number = len(self.answers) + 1
        fragments = (fragment(self.store.inner, name),) if brought is None and rows is None else brought or ()
        held = None if rows is None else held_rows({"id": rows}, limits)

        def work() -> WriteResult:
            at = base or self.table.at(1)
            location = self.table.location()
            location = replace(location, access=replace(location.access, bases=bases))
            begun = begin(location, at, verb=Append.name, intent=intent, runtime=runtime(number))
            if isinstance(begun, WriteResult):
                return begun
            if begun_ago:
                begun = replace(begun, started_at=ClockReading(-int(begun_ago.total_seconds() * 1e9), 0))
            if held:
                return finish_append(begun, held, properties=properties, attempts=attempts)
            return finish(begun, Append(fragments), properties=properties, attempts=attempts)

        self.stopped = stopped
        self.answers.append(self.pool.submit(work))
        if number > 1:
            assert self.waiting.acquire(timeout=60)

    def written(self) -> list[WriteResult]:
        return [answer.result(60) for answer in self.answers]

    def rows(self) -> list[list[int]]:
        """Of each file that was written here, in the newest version."""
        codec = IpcCodec(self.store.inner)
        files = [file for part in self.table.at().manifest.fragments for file in part.files]
        written = [file.qualified_path for file in files if len(file.path) > len("a-name.lance")]
        return [codec.open(place).table["id"].to_pylist() for place in written]

    def parts(self, version: int) -> int:
        transaction = load_transaction(self.table.location(), self.table.at(version).manifest)
        assert transaction is not None
        return len(parts_of(transaction))


def held_rows(columns: dict[str, Sequence[int]], limits: FileLimits = NO_LIMITS) -> BufferedRows:
    batch = pa.record_batch(columns)
    held = buffer_rows(
        [batch], schema=SCHEMA, version=VERSION, limits=limits, conversion=Conversion.EXACT, what="rows"
    )  # fmt: skip
    assert held
    return held


@contextmanager
def meeting(monkeypatch: pytest.MonkeyPatch, others: int) -> Iterator[Meeting]:
    waiting = threading.Semaphore(0)
    there, arrived = threading.Event(), threading.Event()
    held: list[Meeting] = []
    monkeypatch.setattr(group_commit, "Event", lambda: _Told(waiting, stops=bool(held) and held[0].stopped))

    def stop_there() -> None:
        there.set()
        arrived.wait(60)

    store = FaultyStore()
    table = World(store)
    table.create("first")
    with ThreadPoolExecutor(others + 1) as pool:
        made = Meeting(store, table, waiting, pool)
        held.append(made)
        store.faults.append(Fault(EVERY_MANIFEST, "", stop_there))
        made.append("alone")
        assert there.wait(60)
        try:
            yield made
        finally:
            arrived.set()
        for answer in made.answers:
            answer.exception(60)
    assert not group_commit._queues


def raising(error: BaseException) -> Callable[[], None]:
    def stop() -> None:
        raise error

    return stop


def interrupted(monkeypatch: pytest.MonkeyPatch, name: str, *, call: int, line: int) -> list[str]:
    """So many calls of this function of the line into it, and so many lines, somebody presses Ctrl-C. Filled when it
    comes to that."""
    real, calls, done = vars(group_commit)[name], count(), list[str]()
    assert isinstance(real, FunctionType)

    def stopping(*args: object) -> object:
        if next(calls) != call:
            return real(*args)
        lines = set[int]()

        def trace(frame: FrameType, event: str, _: object) -> Any:
            if frame.f_code is not real.__code__:
                return None
            if event == "line" and frame.f_lineno not in lines:  # nothing stops it where it leaves a `with`
                lines.add(frame.f_lineno)
                if len(lines) > line:
                    done.append(name)
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return real(*args)
        finally:
            sys.settrace(before)

    monkeypatch.setattr(group_commit, name, stopping)
    return done


def second_version(store: FaultyStore) -> Callable[[str, str], bool]:
    return lambda call, path: call == "create" and path == naming.manifest_path(Version(3))


def fails_from_now_on(store: FaultyStore) -> None:
    store.faults += [Fault(lambda call, path: True, "fails")] * 20


def landed_together(
    table: Table, *brought: pa.Table, intent: str | None = None, properties: Mapping[str, str] | None = None
) -> list[WriteResult]:
    """As threads that meet: all of them come while the file of the first is open. Who finds that it has to go on by
    itself does so afterwards."""
    done: list[WriteResult] = []
    waiting: list[tuple[StartedWrite, PendingAppend]] = []
    for number, rows in enumerate(brought):
        manifest, name = table.manifest, f"{intent} {number}" if intent else None
        held = buffer_rows(
            rows.to_batches(),
            schema=manifest.schema,
            version=manifest.storage_version,
            limits=NO_LIMITS,
            conversion=Conversion.EXACT,
            what="rows",
        )
        begun = begin(table._location, table._snapshot, verb="append", intent=name, runtime=SYSTEM_RUNTIME)
        if isinstance(begun, WriteResult):
            done.append(begun)
            continue
        ours = Transaction(begun.read_version, begun.uuid, Append(()), properties or {})
        me = PendingAppend(
            table._location, ours, begun.base, begun.since, ATTEMPTS, SYSTEM_RUNTIME, begun.started_at, held,
            begun.record,
        )  # fmt: skip
        waiting.append((begun, me))
    leader, company = (waiting[0][1] if waiting else None), list[PendingAppend]()

    def more() -> Sequence[PendingAppend]:
        if company or leader is None or leader.rows is None:
            return ()
        room = FileCapacity(leader.rows)
        came = [each for _, each in waiting[1:] if leader.can_join(each) and each.rows and room.try_reserve(each.rows)]
        company.extend(came)
        return came

    if leader:
        leader.answer = commit_group(leader, company, more)
    for begun, each in waiting:
        each.answer = each.answer or commit_alone(each)
        done.append(record_result(begun, each.result()))
    return done
