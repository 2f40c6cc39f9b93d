"""Concurrent requests: maps a function that waits for a store over many items, and deletes many objects.

How many calls run at the same time is a property of the store: an object store allows as many as its limiter
(`request_limiter.py`), every other store one. Results come in the order of the items. Start with `map_requests`, and
with `ConcurrentCalls` for a few different calls. `SharedThreadPool` bounds the threads of all callers together.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from threading import Event, Lock, local
from types import TracebackType
from typing import TypeVar

from lance_core.storage.request_limiter import BYTES_MAX
from lance_core.storage.request_scope import RequestScope, current_scope, run_in_scope
from lance_core.storage.store import Store, SupportsBatchDelete, SupportsConcurrency

_CALLS_MAX = 16
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def requests_max(store: Store) -> int:
    """Return how many calls of the store may wait at the same time."""
    return store.requests_max if isinstance(store, SupportsConcurrency) else 1


def map_requests(
    store: Store,
    call: Callable[[_Item], _Result],
    items: Iterable[_Item],
    *,
    size_of: Callable[[_Item], int] = lambda _item: 0,
) -> Iterator[_Result]:
    """Yield the result of a call for each item, in order. The calls run in threads if the store allows several.

    `size_of` returns the size of a result, as far as it is known. Calls run ahead of the caller only as long as the
    results that wait for it are small enough together. The first error of a call is raised, and ends the rest: calls
    that have not begun are dropped, and requests are not retried. The same happens if the caller closes the iterator.
    """
    remaining = iter(items)
    first = list(islice(remaining, 2))
    concurrency = requests_max(store)
    if concurrency == 1 or len(first) < 2 or current_scope().is_concurrent:
        yield from map(call, chain(first, remaining))
        return
    outer = current_scope()
    scope = RequestScope(outer.deadline, Event(), is_concurrent=True)
    pending: deque[tuple[Future[_Result], int]] = deque()
    pending_bytes = 0
    upcoming = chain(first, remaining)
    pool = ThreadPoolExecutor(concurrency, thread_name_prefix="lance-request")
    try:
        while True:
            while len(pending) < 2 * concurrency and (not pending or pending_bytes < BYTES_MAX):
                following = list(islice(upcoming, 1))
                if not following:
                    break
                size = size_of(following[0])
                pending.append((pool.submit(run_in_scope, scope, partial(call, following[0])), size))
                pending_bytes += size
            if not pending:
                return
            future, size = pending.popleft()
            result = future.result()
            pending_bytes -= size
            yield result
    finally:
        scope.cancelled.set()
        pool.shutdown(wait=True, cancel_futures=True)


class ConcurrentCalls:
    """A few calls that wait for a store at the same time, each of which may use `map_requests`.

    On a store that allows no concurrency, each call runs when it is started. At the end of the `with` block, calls
    that have not begun are dropped.
    """

    def __init__(self, store: Store) -> None:
        self._pool = ThreadPoolExecutor(_CALLS_MAX, "lance-calls") if requests_max(store) > 1 else None
        outer = current_scope()
        self._scope = RequestScope(outer.deadline, Event(), is_concurrent=outer.is_concurrent)

    def __enter__(self) -> "ConcurrentCalls":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._scope.cancelled.set()
            self._pool.shutdown(wait=True, cancel_futures=True)

    def start(self, call: Callable[[], _Result]) -> Callable[[], _Result]:
        """Start a call. Return a function that waits for its result."""
        if self._pool is None:
            result = call()
            return lambda: result
        return self._pool.submit(run_in_scope, self._scope, call).result


class SharedThreadPool:
    """Threads that all callers of a process share, for calls that wait for a store. A module holds one instance.

    A call that runs in such a thread and maps over the same instance makes its calls itself, one after another: it
    would otherwise wait for threads that wait for it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._reset_after_fork()
        os.register_at_fork(after_in_child=self._reset_after_fork)

    def _reset_after_fork(self) -> None:
        """Start without threads in a forked process, which has none of its parent's."""
        self._pools: dict[int, ThreadPoolExecutor] = {}
        self._lock = Lock()
        self._own = local()

    def map(self, call: Callable[[_Item], _Result], items: Iterable[_Item], concurrency: int) -> list[_Result]:
        """Return the result of a call for each item, in order. At most `concurrency` calls run at the same time, for
        all callers that pass this number together. The first error ends the map, and calls that have not begun are
        dropped."""
        first = list(islice(remaining := iter(items), 2))
        if len(first) < 2 or concurrency < 2 or getattr(self._own, "is_busy", False):
            return [call(item) for item in chain(first, remaining)]
        pool = self._pool_of(concurrency)
        futures = [pool.submit(call, item) for item in chain(first, remaining)]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def _pool_of(self, concurrency: int) -> ThreadPoolExecutor:
        with self._lock:
            pool = self._pools.get(concurrency)
            if pool is None:
                own = self._own
                pool = ThreadPoolExecutor(concurrency, self._name, initializer=lambda: setattr(own, "is_busy", True))
                self._pools[concurrency] = pool
            return pool


def delete_all(store: Store, paths: Iterable[str]) -> None:
    """Delete objects, in any order, with as few requests as the store allows. Missing objects are no error."""
    if isinstance(store, SupportsBatchDelete):
        store.delete_all(list(paths))
    else:
        for path in paths:
            store.delete(path)
