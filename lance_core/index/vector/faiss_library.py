"""The library faiss: its import on first use, and its number of threads.

Threads of faiss that have no work wait in a busy loop by default, which takes the processor from those that have some:
where cores are shared, two threads take a hundred times as long as one. The variable `OMP_WAIT_POLICY`, which the
library reads when it is loaded, lets them sleep. If another module has loaded it before, training uses one thread.

A forked process uses one thread: OpenMP would wait for the threads of the parent.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from lance_core.storage.optional_packages import import_package

_POLICY = "OMP_WAIT_POLICY"
_loaded_here = False
"""True if idle threads sleep, since this module has loaded the library."""


def faiss() -> ModuleType:
    """Return the library, or raise `MissingDependency`."""
    if "faiss" in sys.modules:
        return import_package("faiss", extra="search", needed_for="a vector index")
    return _load()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let faiss use one thread if its idle threads do not sleep, unless the environment sets `OMP_NUM_THREADS`."""
    library = faiss()
    if _loaded_here or "OMP_NUM_THREADS" in os.environ:  # Spark sets it for its workers to the cores of a task
        yield
        return
    threads = library.omp_get_max_threads()
    library.omp_set_num_threads(1)
    try:
        yield
    finally:
        library.omp_set_num_threads(threads)


def _load() -> ModuleType:
    global _loaded_here
    is_set = _POLICY in os.environ
    if not is_set:
        os.environ[_POLICY] = "PASSIVE"
    try:
        library = import_package("faiss", extra="search", needed_for="a vector index")
        _loaded_here = os.environ[_POLICY].upper() == "PASSIVE"
    finally:
        if not is_set:
            del os.environ[_POLICY]
    return library


def _use_one_thread() -> None:
    set_threads = getattr(sys.modules.get("faiss"), "omp_set_num_threads", None)
    if set_threads is not None:
        set_threads(1)


os.register_at_fork(after_in_child=_use_one_thread)
