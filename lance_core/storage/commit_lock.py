"""Commit lock: an advisory file lock by which writers on one machine commit one after the other.

Correctness does not depend on the lock: `create` alone decides which writer commits, and writers on other machines or
of other libraries do not take it. Writers that take it lose no races to each other, and the operating system grants
it roughly in the order of arrival. The lock ends with its process at the latest. A writer that waits too long,
because the holder was suspended, continues without the lock; while that lasts, no other writer of its process waits
there.
"""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_TIMEOUT_SECONDS = 2.0
_open_descriptors: set[int] = set()
"""Descriptors that hold a lock or wait for one. A forked child that inherited them would keep its parent's locks."""
_blocked_directories: set[str] = set()
"""Directories for which a writer of this process timed out while its waiter thread still waits for the lock."""


def _reset_after_fork() -> None:
    for descriptor in _open_descriptors:
        with suppress(OSError):
            os.close(descriptor)
    _open_descriptors.clear()
    _blocked_directories.clear()


os.register_at_fork(after_in_child=_reset_after_fork)


@contextmanager
def commit_lock(path: Path | str, timeout_seconds: float = _TIMEOUT_SECONDS) -> Iterator[bool]:
    """Hold the lock of a directory, and yield whether it was acquired.

    The lock is not acquired if the directory does not exist, its file system has no locks, or the wait times out.
    """
    directory = os.fspath(path)
    if directory in _blocked_directories:
        yield False
        return
    owner: list[int] = []
    waiter: _LockWaiter | None = None
    is_locked = False
    try:
        try:
            # `LocalStore` opens its files in the same way: a signal handler cannot interrupt `extend`, so that no
            # descriptor is lost between its opening and its assignment.
            owner.extend(map(os.open, (directory,), (os.O_RDONLY | os.O_DIRECTORY,)))
        except OSError:
            yield False
            return
        (descriptor,) = owner
        _open_descriptors.add(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_locked = True
        except BlockingIOError:
            with suppress(RuntimeError):  # the process cannot start another thread at the moment
                waiter = _LockWaiter(descriptor, directory)
                is_locked = waiter.wait_for_lock(timeout_seconds)
        except OSError:
            pass
        yield is_locked
    finally:
        if owner and (waiter is None or not waiter.abandon()):
            _release(owner[0])


class _LockWaiter:
    """Thread that waits for a lock, because `flock` has no timeout.

    A caller that times out leaves the descriptor to the thread, which releases the lock as soon as it acquires it.
    """

    def __init__(self, descriptor: int, directory: str) -> None:
        self._descriptor = descriptor
        self._directory = directory
        self._acquired = threading.Event()
        self._mutex = threading.Lock()
        self._is_done = self._is_abandoned = False
        threading.Thread(target=self._acquire, name="commit-lock-waiter", daemon=True).start()

    def wait_for_lock(self, seconds: float) -> bool:
        """Return whether the lock was acquired in time; otherwise mark the directory as blocked."""
        if self._acquired.wait(seconds):
            return True
        with self._mutex:
            if not self._is_done:
                _blocked_directories.add(self._directory)
            return self._is_done

    def abandon(self) -> bool:
        """Give the lock up, and return whether the thread will close the descriptor."""
        with self._mutex:
            self._is_abandoned = not self._is_done
            return self._is_abandoned

    def _acquire(self) -> None:
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        with self._mutex:
            self._is_done = True
            _blocked_directories.discard(self._directory)
            if self._is_abandoned:
                _release(self._descriptor)
        self._acquired.set()


def _release(descriptor: int) -> None:
    """Unlock explicitly, because copies of the descriptor in forked processes would keep the lock after a close."""
    _open_descriptors.discard(descriptor)
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
