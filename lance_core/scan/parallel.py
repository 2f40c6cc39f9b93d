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

Item = TypeVar("Item")
Result = TypeVar("Result")

THREADS = min(16, (os.cpu_count() or 1) + 2)
"""A few more than there are processors, since some threads wait for a disk."""
_BUFFERED_RESULTS = 2
"""Finished results that may wait beyond those in progress."""


def map_in_order(
    work: Callable[[Item], Result], items: Iterable[Item], *, threads: int = THREADS
) -> Generator[Result, None, None]:
    """Yield `work(item)` for each item, in order. The first error ends the map, and work that has not begun
    is cancelled."""
    remaining = iter(items)
    first = list(itertools.islice(remaining, 2))
    if len(first) < 2 or threads < 2:
        yield from map(work, itertools.chain(first, remaining))
        return
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="lance-read") as pool:
        try:
            for item in itertools.chain(first, remaining):
                pending.append(pool.submit(work, item))
                if len(pending) >= threads + _BUFFERED_RESULTS:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
