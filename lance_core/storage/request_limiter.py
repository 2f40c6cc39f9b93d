"""Request limiter: decides how many requests of this process to one bucket are in flight, in number and in bytes.

    caller's thread ──► slot of the bucket's limiter ──► one attempt ──► answer
                            ▲                                │
                            └── retry policy: back off ◄─────┘  busy, lost or not reached

Every attempt takes a slot, whichever thread makes it, and gives it back before the wait for the next attempt. The
limit is a property of the store, not of the machine (`005-requests-in-flight.md`). It adapts: an answer that the store
is busy halves it, and answered requests raise it again. Start with `RequestLimiter.run`.
"""

import os
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from lance_core.storage.request_errors import RequestError, RequestErrorKind

REQUESTS_MAX = 64
"""Default for the requests in flight to one bucket."""
BYTES_MAX = 256 * 2**20
"""Default for the bytes of the requests in flight to one bucket."""
_SIZE_WEIGHT = 0.2
"""Weight of the newest answer in the expected size of an answer of unknown size."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RequestStatistics:
    """Requests that this process has sent to one bucket, without those of the codec of data files."""

    requests: int = 0
    """Attempts, including retries."""
    busy: int = 0
    """Attempts that the store answered with "slow down"."""
    failed: int = 0
    """Attempts that did not reach the store, or whose answer was lost."""
    bytes_sent: int = 0
    bytes_received: int = 0
    in_flight_max: int = 0
    """Most requests that were in flight at the same time."""
    limit: int = REQUESTS_MAX
    """Current limit, lower than the configured one while the store is busy."""


class RequestLimiter:
    """Limit on the requests in flight to one bucket. Thread-safe."""

    def __init__(self, requests_max: int = REQUESTS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self.requests_max, self.bytes_max = max(1, requests_max), max(1, bytes_max)
        self._limit = float(self.requests_max)
        self._free = threading.Condition()
        self._in_flight = 0
        self._bytes = 0
        self._expected = 0.0
        self._decreases = 0
        """Number of times that the limit was halved."""
        self._statistics = RequestStatistics(limit=self.requests_max)

    def run(self, request: Callable[[], _T], *, sent: int = 0, received_max: int = 0) -> _T:
        """Return the answer to one attempt, which starts when there is a slot for it and for its bytes.

        `received_max` is the maximum size of the answer. Until one has arrived, an answer counts with the size that
        recent ones had, because most of them are far smaller than what was asked for."""
        size = sent + min(received_max, int(self._expected))
        decreases = self._acquire(size)
        received, outcome = 0, None
        try:
            answer = request()
            received = len(answer) if isinstance(answer, bytes) else 0
            return answer
        except RequestError as error:
            outcome = error.kind
            raise
        finally:
            self._release(size, decreases, outcome, sent, received)

    @property
    def statistics(self) -> RequestStatistics:
        with self._free:
            return replace(self._statistics, limit=int(self._limit))

    def _acquire(self, size: int) -> int:
        """Wait for a slot. A single request starts whatever its size is."""
        with self._free:
            while self._in_flight and (self._in_flight >= int(self._limit) or self._bytes + size > self.bytes_max):
                self._free.wait()
            self._in_flight += 1
            self._bytes += size
            return self._decreases

    def _release(self, size: int, decreases: int, outcome: RequestErrorKind | None, sent: int, received: int) -> None:
        with self._free:
            counted = self._statistics
            self._statistics = replace(
                counted,
                requests=counted.requests + 1,
                busy=counted.busy + (outcome is RequestErrorKind.BUSY),
                failed=counted.failed + (outcome in (RequestErrorKind.LOST, RequestErrorKind.UNREACHED)),
                bytes_sent=counted.bytes_sent + sent,
                bytes_received=counted.bytes_received + received,
                in_flight_max=max(counted.in_flight_max, self._in_flight),
            )
            if received:
                self._expected += _SIZE_WEIGHT * (received - self._expected)
            if outcome is RequestErrorKind.BUSY:
                if decreases == self._decreases:  # the requests of one burst halve the limit once
                    self._limit = max(1.0, self._limit / 2)
                    self._decreases += 1
            elif outcome not in (RequestErrorKind.LOST, RequestErrorKind.UNREACHED):
                self._limit = min(float(self.requests_max), self._limit + 1 / self._limit)
            self._in_flight -= 1
            self._bytes -= size
            self._free.notify_all()


_limiters: dict[Hashable, tuple[str, RequestLimiter]] = {}
_limiters_lock = threading.Lock()
_LIMITERS_MAX = 1000


def shared_limiter(key: Hashable, name: str, requests_max: int, bytes_max: int) -> RequestLimiter:
    """Return the limiter of a bucket, one for each process and `key`. `name` identifies it in the statistics."""
    found = _limiters.get(key)
    if found is None:
        with _limiters_lock:
            found = _limiters.get(key)
            if found is None:
                if len(_limiters) >= _LIMITERS_MAX:  # renewed credentials need a new one each time
                    del _limiters[next(iter(_limiters))]
                found = _limiters[key] = name, RequestLimiter(requests_max, bytes_max)
    return found[1]


def request_statistics() -> Mapping[str, RequestStatistics]:
    """Return the statistics of each bucket that this process has used, by its URI. Settings that differ, such as
    renewed credentials, count together."""
    total: dict[str, RequestStatistics] = {}
    with _limiters_lock:
        limiters = list(_limiters.values())
    for name, limiter in limiters:
        own, sum_ = limiter.statistics, total.get(name)
        total[name] = own if sum_ is None else _sum(sum_, own)
    return total


def _sum(one: RequestStatistics, other: RequestStatistics) -> RequestStatistics:
    return RequestStatistics(
        requests=one.requests + other.requests,
        busy=one.busy + other.busy,
        failed=one.failed + other.failed,
        bytes_sent=one.bytes_sent + other.bytes_sent,
        bytes_received=one.bytes_received + other.bytes_received,
        in_flight_max=max(one.in_flight_max, other.in_flight_max),
        limit=min(one.limit, other.limit),
    )


def _forget() -> None:
    """Start without limiters in a forked process: the slots belong to threads of its parent."""
    global _limiters_lock
    _limiters_lock = threading.Lock()
    _limiters.clear()


os.register_at_fork(after_in_child=_forget)
