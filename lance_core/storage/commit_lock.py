"""One after the other, for those who can: writers on one machine wait at a directory for their turn.

Nobody needs a turn to be right: who is first is decided by `create` alone, and a writer elsewhere, or of another
library, asks for none. But those who wait lose no races among themselves, and the system lets them go on about in the
order in which they came. A turn ends with its process at the latest. Who has waited too long, because somebody was
stopped in the middle of a turn, goes on without; and as long as that lasts, nobody of this process waits there again.
"""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PATIENCE_SECONDS = 2.0
_open: set[int] = set()
"""Descriptors that hold a turn or wait for one. A forked process would keep the turn of its parent with them."""
_blocked: set[Path] = set()
"""Directories at which somebody of this process has waited too long, and still stands in line."""


def _forget() -> None:
    for descriptor in _open:
        with suppress(OSError):
            os.close(descriptor)
    _open.clear()
    _blocked.clear()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def commit_lock(directory: Path, patience: float = _PATIENCE_SECONDS) -> Iterator[bool]:
    """Tells whether it is one: not where the directory is missing, its file system knows no locks, or it took too
    long."""
    if directory in _blocked:
        yield False
        return
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield False
        return
    _open.add(descriptor)
    waiting: _LockWaiter | None = None
    mine = False
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = True
        except BlockingIOError:
            with suppress(RuntimeError):  # no thread can be had just now
                waiting = _LockWaiter(descriptor, directory)
                mine = waiting.came_within(patience)
        except OSError:
            pass
        yield mine
    finally:
        if waiting is None or not waiting.leave():
            _close(descriptor)


class _LockWaiter:
    """A thread that stands in line, since a wait for a lock cannot be given an end. Who gives up leaves the descriptor
    to it, and its turn is over as soon as it comes."""

    def __init__(self, descriptor: int, directory: Path) -> None:
        self._descriptor = descriptor
        self._directory = directory
        self._came = threading.Event()
        self._either = threading.Lock()
        self._over = self._left = False
        threading.Thread(target=self._stand, name="waits for its turn", daemon=True).start()

    def came_within(self, seconds: float) -> bool:
        if self._came.wait(seconds):
            return True
        with self._either:
            if not self._over:
                _blocked.add(self._directory)
            return self._over

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
            _blocked.discard(self._directory)
            if self._left:
                _close(self._descriptor)
        self._came.set()


def _close(descriptor: int) -> None:
    """The turn is over for every copy of the descriptor that a fork made."""
    _open.discard(descriptor)
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
