"""Request errors and retry policy: failures of one request to an object store, classified by what the caller does
next.

Each bucket implementation translates the errors of its client library into a `RequestError`. `object_store.py` then
retries, answers "exists" or "unknown", or raises. The bucket has already removed secrets from the message.
"""

import enum
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from lance_core.storage.request_scope import current_scope

_WAIT_SECONDS_MAX = 10.0
_CONNECT_RETRIES_MAX = 4
_T = TypeVar("_T")


class RequestErrorKind(enum.Enum):
    """Category of a failed request. After all but `BUSY` and `LOST`, the request definitely had no effect."""

    ABSENT = "the object does not exist"
    EXISTS = "an object already exists"
    FORBIDDEN = "access is denied"
    REFUSED = "the store rejected the request"
    """A retry would be rejected as well."""
    UNREACHED = "the store was not reached"
    """The request was never sent."""
    BUSY = "the store is busy"
    """A write may have taken effect, or may still do so."""
    LOST = "there was no usable answer"
    """A write may have taken effect, or may still do so."""


class RequestError(Exception):
    """Failure of one request. `detail` is the service's own code or message, free of secrets."""

    def __init__(self, kind: RequestErrorKind, detail: str) -> None:
        super().__init__(f"{kind.value}: {detail}" if detail else kind.value)
        self.kind = kind
        self.detail = detail


def kind_of_status(status: int) -> RequestErrorKind:
    """Return the category for an HTTP status.

    409 decides nothing: the request met a concurrent one, and the store expects a retry.
    """
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
    """Limits on the number of retries and on the total time of a request that may be repeated."""

    seconds_max: float = 180.0
    retries_max: int = 10
    sleep: Callable[[float], None] = lambda seconds: current_scope().wait(seconds)
    """Wait between two attempts. By default it ends when the results are no longer wanted."""
    now: Callable[[], float] = time.monotonic

    def back_off(self, attempt: int) -> None:
        """Sleep before the next attempt: exponential back-off with random jitter."""
        self.sleep(min(_WAIT_SECONDS_MAX, 0.1 * 2**attempt) * (0.5 + random.random() / 2))

    def run(self, request: Callable[[], _T], *, retry_on: frozenset[RequestErrorKind]) -> _T:
        """Return the answer to the request, retrying it after errors of the kinds in `retry_on`."""
        start = self.now()
        attempt = 0
        while True:
            try:
                return request()
            except RequestError as error:
                retries_max = (
                    min(self.retries_max, _CONNECT_RETRIES_MAX)
                    if error.kind is RequestErrorKind.UNREACHED
                    else self.retries_max
                )
                has_ended = self.now() - start >= self.seconds_max or current_scope().is_over()
                if error.kind not in retry_on or attempt >= retries_max or has_ended:
                    raise
            self.back_off(attempt)
            attempt += 1
