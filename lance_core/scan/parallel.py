"""Parallel map: threads work ahead of the consumer. Results come in order, and the number of buffered results is
bounded.

The codec and the query engine release the interpreter lock while they work, so threads are sufficient. No work begins
before the first result is requested.
"""

import itertools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from lance_core.storage.concurrency import requests_max
from lance_core.storage.store import Store

Item = TypeVar("Item")
Result = TypeVar("Result")

THREADS = min(16, (os.cpu_count() or 1) + 2)
"""A few more than there are processors, since some threads wait for a disk."""
_BUFFERED_RESULTS = 2
"""Finished results that may wait beyond those in progress."""


def threads_of(store: Store) -> int:
    """Return the number of threads that read from a store: a few for a local disk, which wait for the processor, and
    as many as an object store answers requests at the same time."""
    return max(THREADS, requests_max(store))


def map_in_order(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    threads: int = THREADS,
    size_of: Callable[[Item], int] | None = None,
    size_max: int = 0,
) -> Generator[Result, None, None]:
    """Yield `work(item)` for each item, in order. The first error ends the map, and work that has not begun
    is cancelled. With `size_of`, the items in progress and those whose results wait have at most the size `size_max`
    together, but for a single item."""
    remaining = iter(items)
    first = list(itertools.islice(remaining, 2))
    if len(first) < 2 or threads < 2:
        yield from map(work, itertools.chain(first, remaining))
        return
    pending: deque[tuple[Future[Result], int]] = deque()
    pending_size = 0
    with ThreadPoolExecutor(threads, thread_name_prefix="lance-read") as pool:
        try:
            for item in itertools.chain(first, remaining):
                size = 0 if size_of is None else size_of(item)
                while pending and (len(pending) >= threads + _BUFFERED_RESULTS or pending_size + size > size_max > 0):
                    future, finished_size = pending.popleft()
                    pending_size -= finished_size
                    yield future.result()
                pending.append((pool.submit(work, item), size))
                pending_size += size
            while pending:
                yield pending.popleft()[0].result()
        finally:
            for future, _ in pending:
                future.cancel()
