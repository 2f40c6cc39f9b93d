"""Threads of one process that want to know the same at the same time ask once.

    one asks  ──►  one of those who came meanwhile asks for all of them  ──►  ...

An answer that was on its way before somebody came may miss what they know already, so nobody is given it: who comes
waits for the next one, and shares that. Nobody waits for company; who comes alone asks at once. Where the one who asked
for others got no answer, each of them asks by itself.
"""

import os
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Answer = TypeVar("Answer")

_PATIENCE_SECONDS = 10.0
"""Who has waited for so long for a question before theirs goes on without its end."""


@dataclass(slots=True, eq=False)
class _Flight(Generic[Answer]):
    """One question, and all who are given its answer."""

    thread: int
    """Of who asks."""
    following: "_Flight[Answer] | None" = None
    begins: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    answer: tuple[Answer] | None = None


class SingleFlight(Generic[Answer]):
    """Of one kind, by what they are about. There is one of these in a module, for as long as the process lasts."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """In a forked process: those who ask are threads of the other one."""
        self._lock = threading.Lock()
        self._asked: dict[Hashable, _Flight[Answer]] = {}

    def do(self, key: Hashable, question: Callable[[], Answer]) -> Answer:
        """What `question` says, asked by this thread or by another, after this was called. Of one thing, everybody's
        question has to be as good as another's."""
        mine = _Flight[Answer](threading.get_ident())
        try:
            joined = self._join(key, mine)
            if joined is None:  # within a question of its own, for which it cannot wait
                return question()
            if joined is not mine:
                joined.ended.wait(_PATIENCE_SECONDS)
                return joined.answer[0] if joined.answer else question()
            if not mine.begins.wait(_PATIENCE_SECONDS):
                self._take_over(key, mine)
            answer = question()
            mine.answer = (answer,)
            return answer
        finally:
            try:
                self._leave(key, mine)
            except BaseException:  # interrupted on the way out
                self._leave(key, mine)
                raise

    def _join(self, what: Hashable, mine: _Flight[Answer]) -> _Flight[Answer] | None:
        """Its own round, if it is the first of one: that begins at once, or after the one that is asked now."""
        with self._lock:
            now = self._asked.get(what)
            if now is None:
                self._asked[what] = mine
                mine.begins.set()
                return mine
            if now.thread == mine.thread:
                return None
            if now.following is None:
                now.following = mine
            return now.following

    def _take_over(self, what: Hashable, mine: _Flight[Answer]) -> None:
        """From one who still asks, and whose leaving will then change nothing here."""
        with self._lock:
            self._asked[what] = mine

    def _leave(self, what: Hashable, mine: _Flight[Answer]) -> None:
        """Whoever is interrupted in here does it again from the beginning: no step may rely on the one before it."""
        with self._lock:
            now = self._asked.get(what)
            if now is mine:
                if mine.following is None:
                    del self._asked[what]
                else:
                    self._asked[what] = mine.following
            elif now is not None and now.following is mine:  # interrupted before it began
                now.following = None
            if (after := self._asked.get(what)) is not None:
                after.begins.set()
        mine.ended.set()
