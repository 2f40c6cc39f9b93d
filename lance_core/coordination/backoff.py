"""How long somebody waits who lost a race, and when it is time to give up.

A wait is measured in turns: in what it took, here and now, to look, judge and put. On a fast disk that is a
millisecond, beyond an ocean a second. Who has lost often waits less, so that those who came first go first and nobody
starves; a random part keeps two that lost together from meeting again.
"""

from lance_core.runtime import Runtime

_FIRST_WAIT_ATTEMPTS = 4.0
"""How many turns the first wait takes at most; each further one takes half as many."""
_SHORTEST_WAIT_ATTEMPTS = 0.5
_WAIT_SECONDS_MAX = 2.0
_DEADLINE_SECONDS = 60.0
_DEADLINE_ATTEMPTS = 4
"""Work that takes longer than a minute may be repeated for so many times what it took."""


class Backoff:
    """Of one piece of work and its repetitions."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._begun = self._turn_begun = runtime.elapsed_ns()
        self._turns = 0
        self._longest = 0
        self._shortest = 0

    def wait(self) -> None:
        """A turn was for nothing: wait before the next one."""
        took = self._runtime.elapsed_ns() - self._turn_begun
        self._longest = max(self._longest, took)
        self._shortest = min(self._shortest or took, took)  # a longer one was kept waiting itself
        turns = max(_SHORTEST_WAIT_ATTEMPTS, _FIRST_WAIT_ATTEMPTS / 2**self._turns)
        self._turns += 1
        seconds = min(_WAIT_SECONDS_MAX, turns * self._shortest / 1e9) * self._runtime.random()
        if seconds > 0:
            self._runtime.sleep(seconds)
        self._turn_begun = self._runtime.elapsed_ns()

    @property
    def is_expired(self) -> bool:
        """Whether repeating it all once more would take too long: asked after a turn, or before the next one."""
        now = self._runtime.elapsed_ns()
        longest = max(self._longest, now - self._turn_begun)
        return now - self._begun > max(_DEADLINE_SECONDS * 1e9, _DEADLINE_ATTEMPTS * longest)
