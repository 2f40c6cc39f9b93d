"""Single-flight: threads of one process that request the same result concurrently share one call.

    one thread calls  ──►  one of the threads that arrived meanwhile calls for all of them  ──►  ...

A call that began before a thread arrived may miss what that thread knows already, so its result is not given to that
thread: it waits for the next call and shares that one. No thread waits for others to arrive; a lone thread calls at
once. If the call of another thread fails, each waiting thread calls by itself. Start with `SingleFlight.do`.
"""

import os
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Answer = TypeVar("Answer")

PATIENCE_SECONDS = 10.0
"""Default of the maximum time to wait for the call of another thread."""


@dataclass(slots=True, eq=False)
class _Flight(Generic[Answer]):
    """One call, and the threads that share its answer."""

    thread: int
    """Thread that makes the call."""
    next: "_Flight[Answer] | None" = None
    """Call of the threads that arrived during this one."""
    may_begin: threading.Event = field(default_factory=threading.Event)
    has_ended: threading.Event = field(default_factory=threading.Event)
    answer: tuple[Answer] | None = None
    """The answer in a tuple; None until the call has succeeded."""


class SingleFlight(Generic[Answer]):
    """Calls whose result is the same for all callers, by key. A module holds one instance for the life of the process.
    A thread waits at most `patience_seconds` for the call of another thread."""

    def __init__(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Start without calls in a forked process: those in progress belong to threads of its parent."""
        self._lock = threading.Lock()
        self._current: dict[Hashable, _Flight[Answer]] = {}

    def do(self, key: Hashable, call: Callable[[], Answer]) -> Answer:
        """Return the result of a `call` that began after this method was called, by this thread or by another one. The
        calls of one key must be equivalent."""
        own = _Flight[Answer](threading.get_ident())
        try:
            joined = self._join(key, own)
            if joined is None:  # this thread is in a call for the same key and cannot wait for itself
                return call()
            if joined is not own:
                joined.has_ended.wait(self._patience_seconds)
                return joined.answer[0] if joined.answer else call()
            if not own.may_begin.wait(self._patience_seconds):
                self._take_over(key, own)
            answer = call()
            own.answer = (answer,)
            return answer
        finally:
            try:
                self._leave(key, own)
            except BaseException:  # an interrupt arrived while this thread was leaving
                self._leave(key, own)
                raise

    def _join(self, key: Hashable, own: _Flight[Answer]) -> _Flight[Answer] | None:
        """Return the call to wait for; `own` if this thread is the first to arrive, which makes the call itself, at
        once or after the current one. None if the current call is this thread's."""
        with self._lock:
            current = self._current.get(key)
            if current is None:
                self._current[key] = own
                own.may_begin.set()
                return own
            if current.thread == own.thread:
                return None
            if current.next is None:
                current.next = own
            return current.next

    def _take_over(self, key: Hashable, own: _Flight[Answer]) -> None:
        """Replace a current call that takes too long. When its thread leaves, nothing changes here."""
        with self._lock:
            self._current[key] = own

    def _leave(self, key: Hashable, own: _Flight[Answer]) -> None:
        """End this thread's part and let the next call begin. The caller repeats an interrupted call, so no step may
        rely on the one before it."""
        with self._lock:
            current = self._current.get(key)
            if current is own:
                if own.next is None:
                    del self._current[key]
                else:
                    self._current[key] = own.next
            elif current is not None and current.next is own:  # interrupted before it began
                current.next = None
            if (current := self._current.get(key)) is not None:
                current.may_begin.set()
        own.has_ended.set()
