"""Concurrent appends: appends that queue at one table in the order that a test chooses, for tests of group commit.

The first append pauses at its put until `concurrent_appends` ends; the appends that follow wait for it. Start with
`concurrent_appends`.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from types import FrameType
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
from tests.lance_core.in_memory_table import (
    SCHEMA,
    STORAGE_VERSION,
    Fault,
    FaultyStore,
    InMemoryTable,
    deterministic_runtime,
    on_create,
    put_fragment,
)

NO_LIMITS = FileLimits()
PUT_OF_ANY_VERSION = on_create(naming.VERSIONS + "/")
PUT_OF_VERSION_3 = on_create(naming.manifest_path(Version(3)))


class _ObservedEvent(threading.Event):
    """An event that reports each wait for it, and interrupts the waiting thread on request."""

    def __init__(self, waiting: threading.Semaphore, *, interrupts: bool) -> None:
        super().__init__()
        self._waiting = waiting
        self._interrupts = interrupts

    def wait(self, timeout: float | None = None) -> bool:
        self._waiting.release()
        if self._interrupts:
            raise KeyboardInterrupt
        return super().wait(timeout)


@dataclass
class ConcurrentAppends:
    """Appends of several threads, of which the first pauses at its put while the others queue behind it."""

    store: FaultyStore
    table: InMemoryTable
    waiting: threading.Semaphore
    pool: ThreadPoolExecutor
    futures: list[Future[WriteResult]] = field(default_factory=list)
    interrupts_next: bool = False
    """True if the next append that waits is interrupted."""

    def append(
        self,
        name: str,
        *,
        base: Snapshot | None = None,
        intent: str | None = None,
        own_fragments: tuple[Fragment, ...] | None = None,
        bases: tuple[str, ...] = (),
        interrupted: bool = False,
        rows: Sequence[int] | None = None,
        limits: FileLimits = NO_LIMITS,
        attempts: int = ATTEMPTS,
        started_ago: timedelta = timedelta(0),
        **properties: str,
    ) -> None:
        """Append a file, or `rows` that are in memory, in a thread of its own. For all but the first append, return
        once it waits in the queue."""
        number = len(self.futures) + 1
        if own_fragments is None and rows is None:
            own_fragments = (put_fragment(self.store.inner, name),)
        fragments = own_fragments or ()
        buffered = None if rows is None else buffered_rows({"id": rows}, limits)

        def write() -> WriteResult:
            at = base or self.table.at(1)
            location = self.table.location()
            location = replace(location, access=replace(location.access, bases=bases))
            runtime = deterministic_runtime(number)
            started = begin(location, at, verb=Append.name, intent=intent, runtime=runtime)
            if isinstance(started, WriteResult):
                return started
            if started_ago:
                started = replace(started, started_at=ClockReading(-int(started_ago.total_seconds() * 1e9), 0))
            if buffered:
                return finish_append(started, buffered, properties=properties, attempts=attempts)
            return finish(started, Append(fragments), properties=properties, attempts=attempts)

        self.interrupts_next = interrupted
        self.futures.append(self.pool.submit(write))
        if number > 1:
            assert self.waiting.acquire(timeout=60)

    def results(self) -> list[WriteResult]:
        return [future.result(60) for future in self.futures]

    def rows_by_file(self) -> list[list[int]]:
        """Return the rows of each file of the newest version that an append of rows has written."""
        codec = IpcCodec(self.store.inner)
        files = [file for part in self.table.at().manifest.fragments for file in part.files]
        paths = [file.qualified_path for file in files if len(file.path) > len("a-name.lance")]
        return [codec.open(path).table["id"].to_pylist() for path in paths]

    def part_count(self, version: int) -> int:
        transaction = load_transaction(self.table.location(), self.table.at(version).manifest)
        assert transaction is not None
        return len(parts_of(transaction))


def buffered_rows(columns: dict[str, Sequence[int]], limits: FileLimits = NO_LIMITS) -> BufferedRows:
    batch = pa.record_batch(columns)
    rows = buffer_rows(
        [batch], schema=SCHEMA, version=STORAGE_VERSION, limits=limits, conversion=Conversion.EXACT, what="rows"
    )  # fmt: skip
    assert rows
    return rows


@contextmanager
def concurrent_appends(monkeypatch: pytest.MonkeyPatch, others: int) -> Iterator[ConcurrentAppends]:
    """Pause an append at its put and yield the queue behind it, for at most `others` appends. The end of the block
    lets the first append continue and waits for all of them."""
    waiting = threading.Semaphore(0)
    has_paused, may_continue = threading.Event(), threading.Event()
    created: list[ConcurrentAppends] = []
    monkeypatch.setattr(
        group_commit,
        "Event",
        lambda: _ObservedEvent(waiting, interrupts=bool(created) and created[0].interrupts_next),
    )

    def pause() -> None:
        has_paused.set()
        may_continue.wait(60)

    store = FaultyStore()
    table = InMemoryTable(store)
    table.create("first")
    with ThreadPoolExecutor(others + 1) as pool:
        appends = ConcurrentAppends(store, table, waiting, pool)
        created.append(appends)
        store.faults.append(Fault(PUT_OF_ANY_VERSION, "", pause))
        appends.append("alone")
        assert has_paused.wait(60)
        try:
            yield appends
        finally:
            may_continue.set()
        for future in appends.futures:
            future.exception(60)
    assert not group_commit._queues


def raiser_of(error: BaseException) -> Callable[[], None]:
    def raise_error() -> None:
        raise error

    return raise_error


@contextmanager
def interrupt_at_line(function: str, *, call: int, line: int) -> Iterator[list[str]]:
    """Interrupt a function of group commit as Ctrl-C would: in its call number `call`, at its line number `line` as
    executed. Threads that start within the block count as well. The yielded list has an entry after the interruption.
    """
    calls, interruptions = count(), list[str]()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if code.co_name != function or code.co_filename != group_commit.__file__ or next(calls) != call:
            return None
        lines = set[int]()

        def trace_lines(frame: FrameType, event: str, _: object) -> Any:
            if event == "line" and frame.f_lineno not in lines:  # the line of a `with` comes again at its end
                lines.add(frame.f_lineno)
                if len(lines) > line:
                    interruptions.append(function)
                    raise KeyboardInterrupt
            return trace_lines

        return trace_lines

    before = sys.gettrace()
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        yield interruptions
    finally:
        sys.settrace(before)
        threading.settrace(before)


def fail_every_call(store: FaultyStore) -> None:
    store.faults += [Fault(lambda call, path: True, "fails")] * 20


def commit_together(
    table: Table, *batches: pa.Table, intent: str | None = None, properties: Mapping[str, str] | None = None
) -> list[WriteResult]:
    """Append all tables of rows as concurrent threads do whose rows arrive while the file of the first one is open.
    An append that cannot join the group commits alone afterwards."""
    results: list[WriteResult] = []
    pending: list[tuple[StartedWrite, PendingAppend]] = []
    for number, batch in enumerate(batches):
        manifest, name = table.manifest, f"{intent} {number}" if intent else None
        rows = buffer_rows(
            batch.to_batches(),
            schema=manifest.schema,
            version=manifest.storage_version,
            limits=NO_LIMITS,
            conversion=Conversion.EXACT,
            what="rows",
        )
        started = begin(table._location, table._snapshot, verb="append", intent=name, runtime=SYSTEM_RUNTIME)
        if isinstance(started, WriteResult):
            results.append(started)
            continue
        ours = Transaction(started.read_version, started.uuid, Append(()), properties or {})
        append = PendingAppend(
            table._location, ours, started.base, started.since, ATTEMPTS, SYSTEM_RUNTIME, started.started_at, rows,
            started.record,
        )  # fmt: skip
        pending.append((started, append))
    leader, followers = (pending[0][1] if pending else None), list[PendingAppend]()

    def collect_followers() -> Sequence[PendingAppend]:
        if followers or leader is None or leader.rows is None:
            return ()
        capacity = FileCapacity(leader.rows)
        joined = [
            append
            for _, append in pending[1:]
            if leader.can_join(append) and append.rows and capacity.try_reserve(append.rows)
        ]
        followers.extend(joined)
        return joined

    if leader:
        leader.answer = commit_group(leader, followers, collect_followers)
    for started, append in pending:
        append.answer = append.answer or commit_alone(append)
        results.append(record_result(started, append.result()))
    return results
