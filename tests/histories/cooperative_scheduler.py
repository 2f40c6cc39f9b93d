"""One actor at a time: each runs real code on a stack of its own, and hands a baton on at every step.

Who goes on is drawn from a seeded generator, so that a schedule can be run again exactly. Whoever has the baton draws,
and hands it straight to the next one; who draws itself just goes on. The stacks are greenlets and not threads: changing
between them costs no call to the system, of which a history would make a thousand. So an actor must not wait for
another one by anything but a step.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from unittest.mock import patch

from greenlet import getcurrent, greenlet

from lance_core.commit import fencing

_NEVER_SIDE_BY_SIDE = 1 << 30
"""Where the product would send so many calls off together, an actor makes them one by one: they are steps too."""


class Killed(BaseException):
    """The process is gone: no handler of the code under test may run for it, so it is no `Exception`."""


class Baton:
    """`holds_on` is how likely it is that who has it goes on: the others wait for long in the middle of their work."""

    def __init__(self, seed: int, *, holds_on: float = 0.0) -> None:
        self.random = random.Random(seed)
        self._holds_on = holds_on
        self._waiting: dict[str, greenlet] = {}
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
            self._waiting[self._current].switch()

    def run(self, actors: dict[str, Callable[[], None]]) -> None:
        """Until the last actor is done. The first thing that one of them raised is raised again."""
        for name, act in actors.items():
            self._waiting[name] = greenlet(partial(self._act, name, act), getcurrent())
        with patch.object(fencing, "CONCURRENCY", _NEVER_SIDE_BY_SIDE):
            while self._waiting:  # whoever is done comes back here
                self._current = self.choose(sorted(self._waiting))
                self._waiting[self._current].switch()
        self._current = ""
        if self._failures:
            raise self._failures[0]

    def _act(self, name: str, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the caller of run
            self._failures.append(error)
        finally:
            del self._waiting[name]


def me() -> int:
    """The actor who asks, whatever it is called."""
    return id(getcurrent())
