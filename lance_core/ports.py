"""What the outside world gives to the rooms that must not take it: time, fresh uuids, waiting.

Handed in, so that the same code runs in production and in a simulation that decides all three.
"""

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

_WAIT_SECONDS_MAX = 2.0


@dataclass(frozen=True, slots=True)
class Ports:
    now_ns: Callable[[], int]
    """Nanoseconds since 1970, UTC."""
    new_uuid: Callable[[], uuid.UUID]
    pause: Callable[[int], None]
    """Wait before the next turn; the argument counts turns from 0."""


def _jittered(attempt: int) -> None:
    time.sleep(min(_WAIT_SECONDS_MAX, 0.002 * 2**attempt) * random.random())


SYSTEM = Ports(now_ns=time.time_ns, new_uuid=uuid.uuid4, pause=_jittered)
