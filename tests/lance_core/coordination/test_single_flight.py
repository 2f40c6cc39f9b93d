"""Threads that ask the same at the same time: who shares an answer with whom, and that nobody waits in vain."""

import itertools
import os
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
from lance_core.versions import snapshot
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot


class Watched(SingleFlight[Answer]):
    """Tells who has come."""

    def __init__(self) -> None:
        super().__init__()
        self.came = threading.Semaphore(0)
        self.stops: threading.Event | None = None
        """Whoever comes next is stopped when this is set."""

    def _join(self, what: Hashable, mine: "single_flight._Flight[Answer]") -> "single_flight._Flight[Answer] | None":
        if self.stops:
            mine.may_begin, self.stops = Stopped(self.stops), None
        try:
            return super()._join(what, mine)
        finally:
            self.came.release()

    def has_come(self) -> None:
        assert self.came.acquire(timeout=30)


class Stop(BaseException):
    pass


class Stopped(threading.Event):
    def __init__(self, when: threading.Event) -> None:
        super().__init__()
        self._when = when

    def wait(self, timeout: float | None = None) -> bool:
        assert self._when.wait(30)
        raise Stop


class Held:
    """A question that does not end before it is told to, and those who come meanwhile."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.asked: Watched[int] = Watched()
        self._pool = pool
        self._numbers = itertools.count(1)
        began, self.goes_on = threading.Event(), threading.Event()

        def question() -> int:
            began.set()
            assert self.goes_on.wait(30)
            return next(self._numbers)

        self.first = pool.submit(self.asked.do, "it", question)
        self.asked.has_come()
        assert began.wait(30)

    def comes(self, question: Callable[[], int] | None = None, what: str = "it") -> "Future[int]":
        found = self._pool.submit(self.asked.do, what, question or (lambda: next(self._numbers)))
        self.asked.has_come()
        return found


@contextmanager
def held() -> Iterator[Held]:
    with ThreadPoolExecutor(16) as pool:
        found = Held(pool)
        try:
            yield found
        finally:
            found.goes_on.set()


def test_who_comes_alone_asks_at_once() -> None:
    asked: SingleFlight[int] = SingleFlight()
    assert (asked.do("it", lambda: 1), asked.do("it", lambda: 2)) == (1, 2)
    assert asked._current == {}


def test_those_who_come_meanwhile_share_the_next_answer() -> None:
    with held() as here:
        others = [here.comes() for _ in range(5)]
        here.goes_on.set()
        assert here.first.result(10) == 1
        assert [each.result(10) for each in others] == [2] * 5
        assert here.asked._current == {}


def test_another_question_is_not_waited_for() -> None:
    with held() as here:
        assert here.comes(lambda: 7, what="something else").result(10) == 7


@pytest.fixture
def nobody_waits_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """To lose patience would hide it."""

    def refuse(*given: object) -> None:
        raise AssertionError("waited for a question that has no end")

    monkeypatch.setattr(single_flight, "_PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(SingleFlight, "_take_over", refuse)


@pytest.mark.usefixtures("nobody_waits_in_vain")
def test_a_question_within_a_question_is_asked() -> None:
    asked: SingleFlight[int] = SingleFlight()
    assert asked.do("it", lambda: asked.do("it", lambda: 3) + 1) == 4


def test_an_error_is_that_of_who_asked() -> None:
    def fail() -> int:
        raise ValueError("mine")

    with held() as here:
        failing = here.comes(fail)
        others = [here.comes(lambda: 5) for _ in range(3)]
        here.goes_on.set()
        with pytest.raises(ValueError, match="mine"):
            failing.result(10)
        assert [each.result(10) for each in others] == [5] * 3
        assert here.asked._current == {}


def test_a_question_without_an_end_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_flight, "_PATIENCE_SECONDS", 0.05)
    with held() as here:
        assert here.comes(lambda: 8).result(10) == 8
        assert here.comes(lambda: 9).result(10) == 9, "and those who come later do not wait for it again"
        assert here.asked._current == {}
        here.goes_on.set()
        assert here.first.result(10) == 1
        assert here.asked._current == {}


def test_who_is_interrupted_before_its_turn_leaves_nobody_waiting() -> None:
    with held() as here:
        stop = here.asked.stops = threading.Event()
        interrupted = here.comes()
        other = here.comes(lambda: 6)
        stop.set()
        with pytest.raises(Stop):
            interrupted.result(10)
        assert other.result(10) == 6
        assert here.comes(lambda: 7).done() is False, "the first question is still asked"
        here.goes_on.set()
        assert here.first.result(10) == 1


@pytest.mark.usefixtures("nobody_waits_in_vain")
def test_a_forked_process_waits_for_no_thread_of_the_other() -> None:
    with held() as here:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(writing, b"%d" % here.asked.do("it", lambda: 4))
            finally:
                os._exit(0)
        os.close(writing)
        try:
            assert os.read(reading, 1) == b"4"
        finally:
            os.close(reading)
            os.waitpid(child, 0)


def test_no_answer_is_older_than_the_one_who_gets_it() -> None:
    asked: SingleFlight[int] = SingleFlight()
    now = 0

    def again(_: int) -> None:
        nonlocal now
        for _ in range(200):
            with lock:
                now += 1
                known = now
            assert asked.do("it", look) >= known

    def look() -> int:
        os.stat(".")  # others go on
        return now

    lock = threading.Lock()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(again, range(8)))
    assert asked._current == {}


def test_tables_that_are_opened_at_once_are_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, pa.table({"id": [1]}))
    looks = itertools.count()
    began, goes_on = threading.Event(), threading.Event()
    look = snapshot._load_latest

    def held_look(location: Location) -> Snapshot:
        if next(looks) == 0:
            began.set()
            assert goes_on.wait(30)
        return look(location)

    asked: Watched[Snapshot] = Watched()
    monkeypatch.setattr(snapshot, "_load_latest", held_look)
    monkeypatch.setattr(snapshot, "_shared_loads", asked)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(Table.open, uri)
        assert began.wait(30)
        others = [pool.submit(Table.open, uri) for _ in range(4)]
        for _ in (first, *others):
            asked.has_come()
        assert pool.submit(Table.open, uri, durable=False).result(10).version == 1, "by another store: it does not wait"
        goes_on.set()
        opened = [each.result(10) for each in (first, *others)]
    assert next(looks) == 3
    assert {table.version for table in opened} == {1}
    assert len({id(table.manifest) for table in opened}) == 2


def test_a_table_that_allows_other_places_is_looked_at_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read with one's permissions is not handed to who lacks them."""
    uri = str(tmp_path / "t")
    Table.create(uri, pa.table({"id": [1]}))
    asked: Watched[Snapshot] = Watched()
    began, goes_on = threading.Event(), threading.Event()
    look = snapshot._load_latest
    looked: list[tuple[str, ...]] = []

    def held_look(location: Location) -> Snapshot:
        looked.append(location.access.bases)
        began.set()
        assert goes_on.wait(30)
        return look(location)

    monkeypatch.setattr(snapshot, "_load_latest", held_look)
    monkeypatch.setattr(snapshot, "_shared_loads", asked)
    with ThreadPoolExecutor(8) as pool:
        opened = [pool.submit(Table.open, uri)]
        assert began.wait(30)
        elsewhere = str(tmp_path / "elsewhere")
        opened += [pool.submit(Table.open, uri, bases=bases) for bases in ([elsewhere], [elsewhere], [])]
        for _ in opened:
            asked.has_come()
        goes_on.set()
        assert [each.result(10).version for each in opened] == [1] * 4
    assert looked[0] == ()
    assert {elsewhere in bases for bases in looked[1:]} == {True, False}
