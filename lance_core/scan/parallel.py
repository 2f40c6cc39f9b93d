"""Work done ahead of whoever asks for it, by a few threads, its results in order and no more of them than a window.

The codec and the engine let go of the interpreter while they work, so threads are enough. Nothing is begun before the
first result is asked for.
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
"""A few more than there are processors, since some wait for a disk."""
_AHEAD = 2
"""Results that may be ready beyond those in work."""


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], *, threads: int = THREADS
) -> Generator[Result, None, None]:
    """What `work` makes of each; the first error ends it, and what was not begun is not."""
    coming = iter(items)
    first = list(itertools.islice(coming, 2))
    if len(first) < 2 or threads < 2:
        yield from map(work, itertools.chain(first, coming))
        return
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="lance-read") as pool:
        try:
            for item in itertools.chain(first, coming):
                pending.append(pool.submit(work, item))
                if len(pending) >= threads + _AHEAD:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
