"""Runtime: the sources of nondeterminism (clock, uuids, random numbers, sleep) as one injected value.

Code that needs one of them takes a `Runtime` as an argument, so the same code runs in production and in a simulation
that controls all of them.
"""

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Runtime:
    """Clock, uuid source, random number generator and sleep of a process or of a simulation."""

    now_ns: Callable[[], int]
    """Wall clock in nanoseconds since 1970, UTC."""
    new_uuid: Callable[[], uuid.UUID]
    elapsed_ns: Callable[[], int]
    """Monotonic clock in nanoseconds since an arbitrary start; it never goes back when the wall clock is changed."""
    random: Callable[[], float]
    """Random number from 0 up to, but not including, 1."""
    sleep: Callable[[float], None]
    """Wait for a number of seconds."""

    def with_drawn_uuid(self) -> "Runtime":
        """Return a runtime that begins with a uuid drawn now, so that work in threads gets its uuids in the order in
        which it was started."""
        drawn = [self.new_uuid()]
        return replace(self, new_uuid=lambda: drawn.pop() if drawn else self.new_uuid())


SYSTEM_RUNTIME = Runtime(
    now_ns=time.time_ns,
    new_uuid=uuid.uuid4,
    elapsed_ns=time.monotonic_ns,
    random=random.random,
    sleep=time.sleep,
)
