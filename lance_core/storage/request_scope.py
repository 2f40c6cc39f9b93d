"""Request scope: the deadline of the requests that a block of code sends, and whether their results are still wanted.

A scope bounds retries. A request that is in flight ends with its own timeout. `concurrency.py` passes the scope of its
caller on to its threads. Start with `request_deadline`.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from threading import Event
from typing import TypeVar

_T = TypeVar("_T")


@dataclass(slots=True)
class RequestScope:
    """Bounds of the requests that a block of code sends."""

    deadline: float = float("inf")
    """Time of the monotonic clock after which nothing is retried."""
    cancelled: Event = field(default_factory=Event)
    is_concurrent: bool = False
    """True in the threads of `map_requests`."""

    def is_over(self) -> bool:
        return self.cancelled.is_set() or time.monotonic() >= self.deadline

    def wait(self, seconds: float) -> None:
        """Wait before a retry; no longer than until the scope is over."""
        self.cancelled.wait(min(seconds, max(0.0, self.deadline - time.monotonic())))


_scope: ContextVar[RequestScope] = ContextVar("request_scope")
_UNBOUNDED = RequestScope()


def current_scope() -> RequestScope:
    return _scope.get(_UNBOUNDED)


@contextmanager
def request_deadline(seconds: float) -> Iterator[None]:
    """Retry no request of this block after this time, nor those that other threads send for it through `map_requests`.
    A request that is in flight ends with its own timeout."""
    outer = current_scope()
    inner = replace(outer, deadline=min(outer.deadline, time.monotonic() + seconds))
    token = _scope.set(inner)
    try:
        yield
    finally:
        _scope.reset(token)


def run_in_scope(scope: RequestScope, call: Callable[[], _T]) -> _T:
    """Call a function whose requests belong to this scope."""
    token = _scope.set(scope)
    try:
        return call()
    finally:
        _scope.reset(token)
