"""One after the other, for those who can: writers on one machine wait at a directory for their turn.

Nobody needs a turn to be right: who is first is decided by `create` alone, and a writer elsewhere, or of another
library, asks for none. But those who wait lose no races among themselves, and the system lets them go on about in the
order in which they came. A turn ends with its process at the latest. Who has waited too long, because somebody was
stopped in the middle of a turn, goes on without.
"""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PATIENCE_SECONDS = 2.0


@contextmanager
def turn(directory: Path, patience: float = _PATIENCE_SECONDS) -> Iterator[bool]:
    """Tells whether it is one: not where the directory is missing, its file system knows no locks, or it took too
    long."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield False
        return
    waiting: _Waiting | None = None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = True
        except BlockingIOError:
            waiting = _Waiting(descriptor)
            mine = waiting.came_within(patience)
        except OSError:
            mine = False
        yield mine
    finally:
        if waiting is None or not waiting.leave():
            os.close(descriptor)


class _Waiting:
    """A thread that stands in line, since a wait for a lock cannot be given an end. Who gives up leaves the descriptor
    to it, and its turn is over as soon as it comes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._came = threading.Event()
        self._either = threading.Lock()
        self._over = self._left = False
        threading.Thread(target=self._stand, name="waits for its turn", daemon=True).start()

    def came_within(self, seconds: float) -> bool:
        return self._came.wait(seconds)

    def leave(self) -> bool:
        """Whether the descriptor is the thread's to close."""
        with self._either:
            self._left = not self._over
            return self._left

    def _stand(self) -> None:
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        with self._either:
            self._over = True
            if self._left:
                os.close(self._descriptor)
        self._came.set()
