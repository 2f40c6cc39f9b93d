"""Back-off: decides how long a writer waits after a lost race, and when it gives up.

The length of a wait is a multiple of the time that an attempt takes to read the history, judge it and put. On a fast
disk this is a millisecond, on a distant object store a second. A writer that has lost often waits less, so that early
arrivals commit first and none starves; a random factor keeps two writers that lost together from colliding again.
"""

from lance_core.runtime import Runtime

_FIRST_WAIT_ATTEMPTS = 4.0
"""Maximum length of the first wait, in attempts; each further wait is half as long."""
_SHORTEST_WAIT_ATTEMPTS = 0.5
_WAIT_SECONDS_MAX = 2.0
_DEADLINE_SECONDS = 60.0
_DEADLINE_ATTEMPTS = 4
"""Work whose attempts are long may be repeated beyond the deadline, for this many times its longest attempt."""


class Backoff:
    """Back-off of one piece of work and its repetitions."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._began = self._attempt_began = runtime.elapsed_ns()
        self._waits = 0
        self._longest = 0
        self._shortest = 0

    def wait(self) -> None:
        """Wait after a failed attempt, before the next one."""
        took = self._runtime.elapsed_ns() - self._attempt_began
        self._longest = max(self._longest, took)
        self._shortest = min(self._shortest or took, took)  # a longer attempt was delayed itself
        attempts = max(_SHORTEST_WAIT_ATTEMPTS, _FIRST_WAIT_ATTEMPTS / 2**self._waits)
        self._waits += 1
        seconds = min(_WAIT_SECONDS_MAX, attempts * self._shortest / 1e9) * self._runtime.random()
        if seconds > 0:
            self._runtime.sleep(seconds)
        self._attempt_began = self._runtime.elapsed_ns()

    @property
    def is_expired(self) -> bool:
        """True if another repetition would take too long. Called after an attempt, or before the next one."""
        now = self._runtime.elapsed_ns()
        longest = max(self._longest, now - self._attempt_began)
        return now - self._began > max(_DEADLINE_SECONDS * 1e9, _DEADLINE_ATTEMPTS * longest)
