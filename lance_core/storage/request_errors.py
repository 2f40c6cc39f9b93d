"""What can go wrong with one request to an object store, told apart by what the caller can do next; and how long one
goes on asking.

Each kind of bucket turns its client's own errors into `RequestError`, once. `object_store.py` decides: to ask again, to
say "exists" or "unknown", or to raise. A message is free of secrets when it gets here.
"""

import enum
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_WAIT_SECONDS_MAX = 10.0
_CONNECTS_MAX = 4
_A = TypeVar("_A")


class RequestErrorKind(enum.Enum):
    ABSENT = "there is no such object"
    EXISTS = "something is there"
    FORBIDDEN = "it is not allowed"
    REFUSED = "the store does not do it"
    """Definitely not done, and it would not be the next time."""
    UNREACHED = "the store was not reached"
    """Definitely not done: the request was never sent."""
    BUSY = "the store is busy"
    LOST = "there was no usable answer"
    """Of these two a write may have landed all the same, or may land yet."""


class RequestError(Exception):
    def __init__(self, kind: RequestErrorKind, told: str) -> None:
        super().__init__(f"{kind.value}: {told}" if told else kind.value)
        self.kind = kind
        self.told = told


def kind_of_status(status: int) -> RequestErrorKind:
    """By HTTP alone. 409 is no verdict: the store met another request half way, and asks to be asked again."""
    if status == 404:
        return RequestErrorKind.ABSENT
    if status == 412:
        return RequestErrorKind.EXISTS
    if status in (401, 403):
        return RequestErrorKind.FORBIDDEN
    if status in (429, 503):
        return RequestErrorKind.BUSY
    if status in (408, 409) or status >= 500:
        return RequestErrorKind.LOST
    return RequestErrorKind.REFUSED


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and for how long altogether, a request that may be repeated is."""

    seconds_max: float = 180.0
    repeats_max: int = 10
    pause: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic

    def wait(self, attempt: int) -> None:
        """Longer each time, and never for as long as others do."""
        self.pause(min(_WAIT_SECONDS_MAX, 0.1 * 2**attempt) * (0.5 + random.random() / 2))

    def run(self, request: Callable[[], _A], *, again: frozenset[RequestErrorKind]) -> _A:
        """Repeats what failed in one of these ways."""
        start = self.now()
        attempt = 0
        while True:
            try:
                return request()
            except RequestError as trouble:
                most = (
                    min(self.repeats_max, _CONNECTS_MAX)
                    if trouble.kind is RequestErrorKind.UNREACHED
                    else self.repeats_max
                )
                if trouble.kind not in again or attempt >= most or self.now() - start >= self.seconds_max:
                    raise
            self.wait(attempt)
            attempt += 1
