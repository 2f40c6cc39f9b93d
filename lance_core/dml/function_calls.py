"""Function calls: calls the function of a computed column at a limited rate, with a timeout, and again after some
errors.

Plain functions are called one after the other. Calls of asynchronous functions overlap, in an event loop that lives as
long as the function, so that a client which `setup=` opens can keep its connections. Start with `FunctionCalls`.
"""

import asyncio
import inspect
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from lance_core.dml.call_settings import CONCURRENCY, class_name, is_asynchronous
from lance_core.dml.computed_column import ComputedColumn, Function
from lance_core.errors import InvalidInput, MissingDependency
from lance_core.expressions import Projection
from lance_core.runtime import SYSTEM_RUNTIME, Runtime

RETRY_SECONDS_MAX = 60.0
"""Longest wait before a repeated call, unless the error names another."""
_DOUBLINGS_MAX = 60
"""Number of attempts after which the wait does not double any more, so that it stays a number."""
T = TypeVar("T")
Item = TypeVar("Item")


class FunctionFailed(Exception):
    """Error that the function of the user raised, as opposed to a result of a wrong form."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True)
class Pacer:
    """Spaces the calls of one task evenly."""

    seconds_between: float
    next_at: float = 0.0
    """Time of the monotonic clock at which the next call may start."""

    def reserve(self, now: float) -> float:
        """Reserve a start, and return the seconds until then."""
        starts_at = max(now, self.next_at)
        self.next_at = starts_at + self.seconds_between
        return starts_at - now


@dataclass(slots=True)
class _LoadedFunction:
    """Function of a job in this process, with its event loop if it is asynchronous."""

    key: tuple[str, Mapping[str, tuple[str, ...]]]
    function: Function
    loop: asyncio.Runner | None


_loaded: list[_LoadedFunction] = []
"""The function that this process loaded last: an earlier job has ended, and its model may be large."""
_devices: ContextVar[Mapping[str, tuple[str, ...]]] = ContextVar("lance_core_devices", default={})  # noqa: B039


@contextmanager
def assigned_devices(devices: Mapping[str, tuple[str, ...]]) -> Any:
    """Declare the addresses of the devices of the task that runs in the block, by the name of the resource."""
    token = _devices.set(dict(devices))
    try:
        yield
    finally:
        _devices.reset(token)


def device_addresses(resource: str = "gpu") -> tuple[str, ...]:
    """Return the addresses of the devices that the running task may use, such as `("1",)`.

    `setup=` calls it to load a model on the device of its task. The result is empty if no resource was requested, or
    if the workers assign none, as with a local master.
    """
    return tuple(_devices.get().get(resource, ()))


class FunctionCalls:
    """Calls of the function of one column in one task. A function that `setup=` makes is made once for a job, and again
    where a task gets other devices."""

    def __init__(
        self, column: ComputedColumn, job: str, *, pacer: Pacer | None = None, runtime: Runtime = SYSTEM_RUNTIME
    ) -> None:
        self.column = column
        self._pacer, self._runtime = pacer, runtime
        self._loaded = _load(column, job)
        self._names = column.retried_names

    @property
    def function(self) -> Function:
        return self._loaded.function

    def for_each(
        self, items: Iterable[Item], work: Callable[[Item], Coroutine[Any, Any, None]], is_ended: Callable[[], bool]
    ) -> None:
        """Run `work` for each item until `is_ended`; at once for several items if the function is asynchronous."""
        pending = iter(items)

        async def next_ones() -> None:
            for item in pending:
                if is_ended():
                    return
                await work(item)

        loop = self._loaded.loop
        if loop is None:
            _run_to_end(next_ones())
            return
        loop.run(_together([next_ones() for _ in range(self.column.concurrency or CONCURRENCY)]))

    async def call(self, make_argument: Callable[[], object], label: str) -> object:
        """Return the result of a call, which is repeated after errors of `retry_on`. Raise `FunctionFailed` with the
        last error. The argument is made for each attempt, since it may be a file that the function has read. `label`
        names the call in notes of errors."""
        for attempt in range(self.column.retries + 1):
            if self._pacer is not None:
                await self._sleep(self._pacer.reserve(self._runtime.elapsed_ns() / 1e9))
            try:
                return await self._call_once(make_argument())
            except MissingDependency:
                raise
            except Exception as error:
                if attempt == self.column.retries or not self._is_retried(error):
                    error.add_note(f"{label} raised this")
                    raise FunctionFailed(error) from error
                await self._sleep(self._retry_wait(error, attempt))
        raise AssertionError("unreachable")

    async def _call_once(self, argument: object) -> object:
        result = self._loaded.function(argument)
        if not inspect.isawaitable(result):
            return result
        if self.column.timeout is None:
            return await result
        async with asyncio.timeout(self.column.timeout):
            return await result

    async def _sleep(self, seconds: float) -> None:
        if seconds <= 0:
            return
        if self._loaded.loop is None:
            self._runtime.sleep(seconds)
        else:
            await asyncio.sleep(seconds)

    def _is_retried(self, error: Exception) -> bool:
        if _retry_after(error) is not None:
            return True
        return any({each.__name__, class_name(each)} & self._names for each in type(error).__mro__)

    def _retry_wait(self, error: Exception, attempt: int) -> float:
        """Return the wait that the error names, or one that doubles each time, with a random part so that workers do
        not return at once."""
        if (named := _retry_after(error)) is not None:
            return named
        wait = self.column.retry_seconds * 2.0 ** min(attempt, _DOUBLINGS_MAX) * (0.5 + self._runtime.random())
        return min(wait, RETRY_SECONDS_MAX)


def _retry_after(error: Exception) -> float | None:
    """Return the number of seconds after which the service wants to be called again, if the error has one."""
    seconds = getattr(error, "retry_after", None)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return None
    return max(0.0, float(seconds))


def _load(column: ComputedColumn, job: str) -> _LoadedFunction:
    """Return the function of the column for a job."""
    key = (job, _devices.get())
    if _loaded and _loaded[0].key == key:
        return _loaded[0]
    for earlier in _loaded:
        if earlier.loop is not None:
            earlier.loop.close()
    _loaded.clear()
    loop: asyncio.Runner | None = None
    if column.sql is not None:
        function: Function = _SqlFunction(column)
    elif column.fn is not None:
        function = column.fn
    else:
        assert column.setup is not None
        made: Any
        if is_asynchronous(column.setup):
            loop = asyncio.Runner()
            made = loop.run(column.setup())  # type: ignore[arg-type]  # a coroutine
        else:
            made = column.setup()
        if not callable(made):
            raise InvalidInput(
                f"computed column {column.name!r}: setup= must return a function, not {type(made).__name__}"
            )
        function = made
        column.check_asynchronous(f"computed column {column.name!r}", function)
    if is_asynchronous(function) and loop is None:
        loop = asyncio.Runner()
    _loaded.append(_LoadedFunction(key, function, loop))
    return _loaded[0]


def _run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits for an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    coroutine.close()
    raise InvalidInput("a plain function of a computed column returned an awaitable; declare it with async def")


async def _together(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines at once. The first error ends the others."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _SqlFunction:
    column: ComputedColumn

    def __call__(self, batch: Any) -> object:
        column = self.column
        projection = Projection.parse({column.name: str(column.sql)}, batch.schema, types={column.name: column.type})
        return projection.evaluate(batch).column(0)
