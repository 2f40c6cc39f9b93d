"""File descriptors: opens files so that their descriptors are closed even if a signal handler raises.

A signal handler may raise between two instructions of Python, also between the return of `os.open` and the assignment
of its result, and then nothing can close the descriptor. So the system call runs inside of `list.extend`, which no
handler interrupts, and the list owns the descriptor.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_FILE_MODE = 0o666


def open_into(owner: list[int], path: str | os.PathLike[str], flags: int) -> None:
    """Open a file or a directory, and append its descriptor to a list, whose owner closes it."""
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
