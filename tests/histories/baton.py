"""One thread at a time: actors run real code in threads of their own, and hand a baton on at every step.

Who goes on is drawn from a seeded generator, so that a schedule can be run again exactly. Whoever has the baton draws,
and hands it straight to the next one; who draws itself just goes on. So a step costs one change of threads at most.
"""

import random
import threading
from collections.abc import Callable, Sequence


class Killed(BaseException):
    """The process is gone: no handler of the code under test may run for it, so it is no `Exception`."""


class Baton:
    """`holds_on` is how likely it is that who has it goes on: the others wait for long in the middle of their work."""

    def __init__(self, seed: int, *, holds_on: float = 0.0) -> None:
        self.random = random.Random(seed)
        self._holds_on = holds_on
        self._waiting: dict[str, threading.Lock] = {}
        self._all_done = _held()
        self._current = ""
        self._failures: list[BaseException] = []

    @property
    def current(self) -> str:
        """Who has it."""
        return self._current

    def choose(self, waiting: Sequence[str]) -> str:
        """Who goes on."""
        if self._holds_on and self._current in waiting and self.random.random() < self._holds_on:
            return self._current
        return self.random.choice(waiting)

    def step(self) -> None:
        """Called by an actor: somebody else, or it itself again, goes on from here."""
        own = self._current
        if not own:  # before the actors began, or after the last was done: there is nobody else
            return
        self._current = self.choose(sorted(self._waiting))
        if self._current != own:
            waits = self._waiting[own]
            self._waiting[self._current].release()
            waits.acquire()

    def run(self, actors: dict[str, Callable[[], None]]) -> None:
        """Until the last actor is done. The first thing that one of them raised is raised again."""
        threads = []
        for name, act in actors.items():
            self._waiting[name] = _held()
            threads.append(threading.Thread(target=self._act, args=(name, act, self._waiting[name]), daemon=True))
        for thread in threads:
            thread.start()
        self._hand_on()
        self._all_done.acquire()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _act(self, name: str, act: Callable[[], None], waits: threading.Lock) -> None:
        waits.acquire()
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the caller of run
            self._failures.append(error)
        finally:
            del self._waiting[name]
            self._hand_on()

    def _hand_on(self) -> None:
        if not self._waiting:
            self._current = ""
            self._all_done.release()
            return
        self._current = self.choose(sorted(self._waiting))
        self._waiting[self._current].release()


def _held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock
