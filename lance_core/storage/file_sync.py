"""File syncs: opens files and directories, and syncs them to the disk.

A sync that has failed is never repeated in this process (`002-failed-syncs.md`), and several files are synced in about
the time of one (`006-syncs-of-a-commit.md`). Start with `sync_files`.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_NEW_FILE_MODE = 0o666
_WRITTEN_AHEAD_BYTES_MAX = 1024**2
"""Maximum size of a file that the system begins to write before the first of several syncs."""
_OPEN_FILES_MAX = 32
"""Maximum number of files that are open at the same time to be synced."""
_HAS_FILE_ADVICE = hasattr(os, "posix_fadvise")
_failed_directories: dict[tuple[int, int], int] = {}
"""Directories whose sync has failed, each with an open descriptor, so that no other gets its inode number."""
_failed_files: set[tuple[int, int, int]] = set()
"""Files whose sync has failed: device, inode number and modification time."""


def sync_file(path: Path | str) -> None:
    """Sync a file or a directory, unless an earlier sync of it has failed."""
    with open_descriptor(path, os.O_RDONLY) as descriptor:
        _sync_descriptor(descriptor)


def sync_files(paths: Sequence[Path | str]) -> None:
    """Sync files. The system begins to write all small ones before the first sync waits, so that one commit of the file
    system's journal covers them together."""
    for start in range(0, len(paths), _OPEN_FILES_MAX):
        owner: list[int] = []
        try:
            for path in paths[start : start + _OPEN_FILES_MAX]:
                open_into(owner, path, os.O_RDONLY)
            for descriptor in owner if len(owner) > 1 else ():
                _begin_to_write(descriptor)
            for descriptor in owner:
                _sync_descriptor(descriptor)
        finally:
            for descriptor in owner:
                os.close(descriptor)


def _begin_to_write(descriptor: int) -> None:
    """Let the system write a small file without waiting for it. This is a hint. It would also drop the parts of a large
    file from the cache that are written already."""
    if _HAS_FILE_ADVICE and os.fstat(descriptor).st_size <= _WRITTEN_AHEAD_BYTES_MAX:
        with suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _sync_descriptor(descriptor: int) -> None:
    check_no_sync_failed(descriptor)
    try:
        os.fsync(descriptor)
    except OSError:
        _record_failed_sync(descriptor)
        raise


def _record_failed_sync(descriptor: int) -> None:
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        _failed_directories.setdefault((status.st_dev, status.st_ino), os.dup(descriptor))
    else:
        _failed_files.add((status.st_dev, status.st_ino, status.st_mtime_ns))


def check_no_sync_failed(file: str | int) -> None:
    """Raise `OSError` if a sync of this file or directory has failed in this process. A missing one passes."""
    if not (_failed_directories or _failed_files):
        return
    try:
        status = os.stat(file)
    except OSError:
        return
    identity = status.st_dev, status.st_ino
    if identity in _failed_directories or (*identity, status.st_mtime_ns) in _failed_files:
        raise OSError(
            errno.EIO,
            "an earlier sync in this process failed, and data that it did not write may be lost even if a later sync "
            "succeeds. Check the disk, then start the process again",
        )


def sync_if_allowed(directory: Path) -> None:
    """Sync a directory unless it may not be opened: a process without that permission created no entry in it."""
    with suppress(PermissionError):
        sync_file(directory)


def open_into(owner: list[int], path: str | os.PathLike[str], flags: int) -> None:
    """Open a file or a directory, and append its descriptor to a list, whose owner closes it.

    A signal handler may raise between two instructions of Python, also between the return of `os.open` and the
    assignment of its result, and then nothing can close the descriptor. So the system call runs inside of
    `list.extend`, which no handler interrupts.
    """
    owner.extend(map(os.open, (path,), (flags,), (_NEW_FILE_MODE,)))


@contextmanager
def open_descriptor(path: str | os.PathLike[str], flags: int) -> Iterator[int]:
    """Open a file or a directory for a block of code."""
    owner: list[int] = []
    try:
        open_into(owner, path, flags)
        yield owner[0]
    finally:
        for descriptor in owner:
            os.close(descriptor)
