"""Cooperative scheduler: runs several actors in one thread, one at a time, in an order drawn from a seeded generator.

Each actor runs production code on a stack of its own and yields control at every step, so one seed always gives the
same schedule. The yielding actor draws its successor and switches to it directly, or continues if it drew itself. The
stacks are greenlets and not threads: a history switches about a thousand times, and a switch between greenlets makes no
system call. An actor may therefore wait for another one only by yielding control.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial

from greenlet import getcurrent, greenlet


class ProcessKilled(BaseException):
    """The process was killed. This is a `BaseException`, because no handler of the code under test may catch it."""


class CooperativeScheduler:
    """Scheduler of the actors of one history. With the probability `keep_running_probability` a yielding actor
    continues, so that the others wait for a long time in the middle of their work."""

    def __init__(self, seed: int, *, keep_running_probability: float = 0.0) -> None:
        self.random = random.Random(seed)
        self._keep_running_probability = keep_running_probability
        self._runnable: dict[str, greenlet] = {}
        self._current = ""
        self._failures: list[BaseException] = []

    @property
    def current(self) -> str:
        """Name of the running actor; empty when none runs."""
        return self._current

    def choose_next(self, runnable: Sequence[str]) -> str:
        """Choose the next actor from those that can run."""
        if (
            self._keep_running_probability
            and self._current in runnable
            and self.random.random() < self._keep_running_probability
        ):
            return self._current
        return self.random.choice(runnable)

    def yield_control(self) -> None:
        """Yield control to the next actor, which may be the calling one."""
        caller = self._current
        if not caller:  # the actors have not started yet, or have all ended
            return
        self._current = self.choose_next(sorted(self._runnable))
        if self._current != caller:
            self._runnable[self._current].switch()

    def run_actors(self, actors: dict[str, Callable[[], None]]) -> None:
        """Run the actors until the last one has ended. Raise the first error that one of them raised."""
        for name, body in actors.items():
            self._runnable[name] = greenlet(partial(self._run_actor, name, body), getcurrent())
        while self._runnable:  # an actor that has ended switches back to here
            self._current = self.choose_next(sorted(self._runnable))
            self._runnable[self._current].switch()
        self._current = ""
        if self._failures:
            raise self._failures[0]

    def _run_actor(self, name: str, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:  # noqa: BLE001 - every error is raised again by `run_actors`
            self._failures.append(error)
        finally:
            del self._runnable[name]


def current_actor_id() -> int:
    """Return a value that identifies the calling actor."""
    return id(getcurrent())
