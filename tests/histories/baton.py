"""One thread at a time: actors run real code in threads of their own, and hand a baton back at every step.

Who goes on is drawn from a seeded generator, so that a schedule can be run again exactly.
"""

import random
import threading
from collections.abc import Callable, Sequence


class Killed(BaseException):
    """The process is gone: no handler of the code under test may run for it, so it is no `Exception`."""


class Baton:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._waiting: dict[str, threading.Semaphore] = {}
        self._returned = threading.Semaphore(0)
        self._current = ""
        self._failures: list[BaseException] = []

    @property
    def current(self) -> str:
        """Who has it."""
        return self._current

    def choose(self, waiting: Sequence[str]) -> str:
        """Who goes on."""
        return self.random.choice(waiting)

    def step(self) -> None:
        """Called by an actor: somebody else, or it itself again, goes on from here."""
        own = self._waiting[self._current]
        self._returned.release()
        own.acquire()

    def run(self, actors: dict[str, Callable[[], None]]) -> None:
        """Until the last actor is done. The first thing that one of them raised is raised again."""
        threads = []
        for name, act in actors.items():
            self._waiting[name] = threading.Semaphore(0)
            threads.append(threading.Thread(target=self._act, args=(name, act), daemon=True))
        for thread in threads:
            thread.start()
        while self._waiting:
            self._current = self.choose(sorted(self._waiting))
            self._waiting[self._current].release()
            self._returned.acquire()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _act(self, name: str, act: Callable[[], None]) -> None:
        self._waiting[name].acquire()
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the caller of run
            self._failures.append(error)
        finally:
            del self._waiting[name]
            self._returned.release()
