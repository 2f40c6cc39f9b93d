"""Single-flight: which threads share a call, and that no thread waits in vain."""

import itertools
import os
import select
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import Table
from lance_core.coordination import single_flight
from lance_core.coordination.single_flight import Answer, SingleFlight
from lance_core.format.ids import Version
from lance_core.format.naming import NamingScheme
from lance_core.storage.store import Store
from lance_core.versions import snapshot, version_hint
from lance_core.versions.snapshot import Snapshot

ENDLESS_PATIENCE_SECONDS = 60.0
"""Longer than a test waits for an answer, so that a thread that waits in vain fails the test."""


class ObservedSingleFlight(SingleFlight[Answer]):
    """A single-flight that reports each thread that joins."""

    def __init__(self, patience_seconds: float = ENDLESS_PATIENCE_SECONDS) -> None:
        super().__init__(patience_seconds)
        self._joined = threading.Semaphore(0)
        self.interruption: threading.Event | None = None
        """If set, the next thread that joins is interrupted once this event is set."""

    def _join(self, key: Hashable, own: "single_flight._Flight[Answer]") -> "single_flight._Flight[Answer] | None":
        if self.interruption:
            own.may_begin, self.interruption = InterruptedEvent(self.interruption), None
        try:
            return super()._join(key, own)
        finally:
            self._joined.release()

    def wait_for_join(self) -> None:
        assert self._joined.acquire(timeout=30)


class Interruption(BaseException):
    pass


class InterruptedEvent(threading.Event):
    """An event whose waiting thread is interrupted as soon as `interruption` is set."""

    def __init__(self, interruption: threading.Event) -> None:
        super().__init__()
        self._interruption = interruption

    def wait(self, timeout: float | None = None) -> bool:
        assert self._interruption.wait(30)
        raise Interruption


class PausedCall:
    """A call that is in progress until `may_continue` is set, and the threads that arrive meanwhile."""

    def __init__(self, pool: ThreadPoolExecutor, patience_seconds: float) -> None:
        self.flights: ObservedSingleFlight[int] = ObservedSingleFlight(patience_seconds)
        self._pool = pool
        self._numbers = itertools.count(1)
        started, self.may_continue = threading.Event(), threading.Event()

        def call() -> int:
            started.set()
            assert self.may_continue.wait(30)
            return next(self._numbers)

        self.first = pool.submit(self.flights.do, "key", call)
        self.flights.wait_for_join()
        assert started.wait(30)

    def join(self, call: Callable[[], int] | None = None, key: str = "key") -> "Future[int]":
        future = self._pool.submit(self.flights.do, key, call or (lambda: next(self._numbers)))
        self.flights.wait_for_join()
        return future


@contextmanager
def paused_call(patience_seconds: float = ENDLESS_PATIENCE_SECONDS) -> Iterator[PausedCall]:
    with ThreadPoolExecutor(16) as pool:
        paused = PausedCall(pool, patience_seconds)
        try:
            yield paused
        finally:
            paused.may_continue.set()


def test_a_lone_thread_calls_at_once() -> None:
    flights: SingleFlight[int] = SingleFlight()
    assert (flights.do("key", lambda: 1), flights.do("key", lambda: 2)) == (1, 2)
    assert flights._current == {}


def test_threads_that_arrive_during_a_call_share_the_next_one() -> None:
    with paused_call() as paused:
        others = [paused.join() for _ in range(5)]
        paused.may_continue.set()
        assert paused.first.result(10) == 1
        assert [each.result(10) for each in others] == [2] * 5
        assert paused.flights._current == {}


def test_a_call_of_another_key_is_not_waited_for() -> None:
    with paused_call() as paused:
        assert paused.join(lambda: 7, key="another key").result(10) == 7


def test_a_call_within_a_call_does_not_wait_for_it() -> None:
    flights: SingleFlight[int] = SingleFlight(ENDLESS_PATIENCE_SECONDS)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(flights.do, "key", lambda: flights.do("key", lambda: 3) + 1).result(10) == 4


def test_an_error_concerns_only_the_thread_that_called() -> None:
    def fail() -> int:
        raise ValueError("mine")

    with paused_call() as paused:
        failing = paused.join(fail)
        others = [paused.join(lambda: 5) for _ in range(3)]
        paused.may_continue.set()
        with pytest.raises(ValueError, match="mine"):
            failing.result(10)
        assert [each.result(10) for each in others] == [5] * 3
        assert paused.flights._current == {}


def test_an_endless_call_is_not_waited_for_without_limit() -> None:
    with paused_call(patience_seconds=0.05) as paused:
        assert paused.join(lambda: 8).result(10) == 8
        assert paused.join(lambda: 9).result(10) == 9, "later threads do not wait for the endless call again"
        assert paused.flights._current == {}
        paused.may_continue.set()
        assert paused.first.result(10) == 1
        assert paused.flights._current == {}


def test_a_thread_interrupted_before_its_call_leaves_no_thread_waiting() -> None:
    with paused_call() as paused:
        interruption = paused.flights.interruption = threading.Event()
        interrupted = paused.join()
        other = paused.join(lambda: 6)
        interruption.set()
        with pytest.raises(Interruption):
            interrupted.result(10)
        assert other.result(10) == 6
        assert paused.join(lambda: 7).done() is False, "the first call is still in progress"
        paused.may_continue.set()
        assert paused.first.result(10) == 1


def test_a_forked_process_waits_for_no_thread_of_its_parent() -> None:
    with paused_call() as paused:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(writing, b"%d" % paused.flights.do("key", lambda: 4))
            finally:
                os._exit(0)
        os.close(writing)
        try:
            assert select.select([reading], [], [], 10)[0], "the child waits for a thread of its parent"
            assert os.read(reading, 1) == b"4"
        finally:
            os.close(reading)
            os.waitpid(child, 0)


def test_no_answer_is_older_than_its_request() -> None:
    flights: SingleFlight[int] = SingleFlight()
    now = 0

    def check_answers(_: int) -> None:
        nonlocal now
        for _ in range(200):
            with lock:
                now += 1
                known = now
            assert flights.do("key", read_clock) >= known

    def read_clock() -> int:
        os.stat(".")  # releases the interpreter lock, so that other threads proceed
        return now

    lock = threading.Lock()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(check_answers, range(8)))
    assert flights._current == {}


class PausedLoads:
    """Counts the loads of newest versions and pauses the first one until `may_continue` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.flights: ObservedSingleFlight[Snapshot] = ObservedSingleFlight()
        self.started, self.may_continue = threading.Event(), threading.Event()
        self.count = 0
        self._lock = threading.Lock()
        self._find_newest = version_hint.find_newest
        monkeypatch.setattr(version_hint, "find_newest", self._pause_first)
        monkeypatch.setattr(snapshot, "shared_loads", self.flights)

    def _pause_first(self, store: Store) -> tuple[Version, NamingScheme] | None:
        with self._lock:
            self.count += 1
            is_first = self.count == 1
        if is_first:
            self.started.set()
            assert self.may_continue.wait(30)
        return self._find_newest(store)


def test_threads_that_open_a_table_concurrently_share_a_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, pa.table({"id": [1]}))
    loads = PausedLoads(monkeypatch)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(Table.open, uri)
        assert loads.started.wait(30)
        others = [pool.submit(Table.open, uri) for _ in range(4)]
        for _ in (first, *others):
            loads.flights.wait_for_join()
        with_other_store = pool.submit(Table.open, uri, durable=False)
        assert with_other_store.result(10).version == 1, "a load through another store does not wait"
        loads.may_continue.set()
        opened = [each.result(10) for each in (first, *others)]
    assert loads.count == 3
    assert {table.version for table in opened} == {1}
    assert len({id(table.manifest) for table in opened}) == 2


def test_a_load_with_other_base_paths_is_not_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot that is read with the permissions of one caller is not given to a caller without them."""
    uri = str(tmp_path / "t")
    Table.create(uri, pa.table({"id": [1]}))
    loads = PausedLoads(monkeypatch)
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(Table.open, uri)]
        assert loads.started.wait(30)
        elsewhere = str(tmp_path / "elsewhere")
        futures += [pool.submit(Table.open, uri, bases=bases) for bases in ([elsewhere], [elsewhere], [])]
        for _ in futures:
            loads.flights.wait_for_join()
        loads.may_continue.set()
        first, with_bases, also_with_bases, without_bases = (future.result(10) for future in futures)
    assert [table.version for table in (first, with_bases, also_with_bases, without_bases)] == [1] * 4
    manifests = {id(table.manifest) for table in (first, with_bases, without_bases)}
    assert len(manifests) == 3
