"""Worker memory: keeps the resident memory of Python workers small.

Spark keeps a worker for many tasks, and glibc keeps what a task has freed for the next one, in an arena for each thread
of the codec. After a scan of wide rows that is several hundred megabytes, which the executor's limit for memory counts.
`006-memory-of-workers.md` has the measurements. Elsewhere than on Linux with glibc these functions do nothing.
"""

import ctypes
import functools
import os
import sys

_ARENAS_MAX = 2
_M_ARENA_MAX = -8
"""Parameter of `mallopt`, from `malloc.h`."""
RESIDENT_BYTES_KEPT = 256 * 1024**2
"""Resident memory below which nothing is returned: the libraries alone take about 200 MB, and returning memory takes
tens of milliseconds."""


def limit_arenas() -> None:
    """Limit the number of arenas from which threads allocate."""
    if library := _glibc():
        library.mallopt(_M_ARENA_MAX, _ARENAS_MAX)


def return_freed_memory() -> None:
    """Return memory that was freed to the system, if the process has much resident memory."""
    if (library := _glibc()) and resident_bytes() > RESIDENT_BYTES_KEPT:
        library.malloc_trim(0)


def resident_bytes() -> int:
    """Return the resident memory of this process on Linux."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "malloc_trim") else None
