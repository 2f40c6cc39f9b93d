"""What the outside world gives to the rooms that must not take it: time, chance, fresh uuids, waiting.

Handed in, so that the same code runs in production and in a simulation that decides all of them.
"""

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Runtime:
    now_ns: Callable[[], int]
    """Nanoseconds since 1970, UTC."""
    new_uuid: Callable[[], uuid.UUID]
    elapsed_ns: Callable[[], int]
    """Nanoseconds since some moment; never back, whatever happens to the clock."""
    random: Callable[[], float]
    """From 0 up to 1."""
    sleep: Callable[[float], None]
    """Seconds."""


SYSTEM_RUNTIME = Runtime(
    now_ns=time.time_ns,
    new_uuid=uuid.uuid4,
    elapsed_ns=time.monotonic_ns,
    random=random.random,
    sleep=time.sleep,
)
