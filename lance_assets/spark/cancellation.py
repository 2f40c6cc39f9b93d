"""Cancellation: when a block of code is cancelled, interrupts the Spark jobs that the block started.

    with cancel_with_caller(spark):
        append(...)

Spark continues a job for which its caller no longer waits; on a cluster and behind Spark Connect it runs to its end.
`cancel_with_caller` tags every job of this thread and interrupts the jobs by that tag. The other functions of this
package do not use it: a caller that can be cancelled wraps its calls in it.
"""

import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lance_assets.spark.session import classic_context

_INTERRUPT_TIMEOUT_S = 10.0
"""Longest wait for Spark to accept an interrupt. A driver that has to end must not wait for a Spark that hangs."""


@contextmanager
def cancel_with_caller(spark: SparkSession) -> Iterator[None]:
    """Interrupt the Spark jobs of the `with` block when it ends with an exception or the process gets a signal."""
    tag = f"lance-assets-{uuid.uuid4()}"
    # Another thread interrupts the jobs, and the tags of a classic session are visible only to the thread that added
    # them. Cancellation by a tag of its context reaches the jobs of all threads.
    context = classic_context(spark)
    add, remove, interrupt = (
        (spark.addTag, spark.removeTag, spark.interruptTag)
        if context is None
        else (context.addJobTag, context.removeJobTag, context.cancelJobsWithTag)
    )
    add(tag)
    try:
        with _interrupt_on_signal(lambda: _interrupt_with_timeout(interrupt, tag)) as signal_errors:
            yield
    except BaseException as error:
        has_answered = _interrupt_with_timeout(interrupt, tag)
        if isinstance(error, Exception) and not signal_errors:
            remove(tag)
            raise
        _close_connection(context)
        if has_answered:
            _reactivate_session(spark, context)
        if signal_errors and error is not signal_errors[0]:  # Spark's error about the cancelled jobs replaced it
            raise signal_errors[0] from error
        raise
    remove(tag)


@contextmanager
def _interrupt_on_signal(interrupt: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Call `interrupt` from the handlers of SIGINT and SIGTERM; yield a list of the errors of the previous handlers.

    The handler itself has to interrupt the jobs: while its exception propagates, PySpark waits for the abandoned job.
    """
    errors: list[BaseException] = []
    if threading.current_thread() is not threading.main_thread():
        yield errors
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: FrameType | None) -> None:
        interrupt()
        handler = previous[signal.Signals(number)]
        try:
            if callable(handler):
                handler(number, frame)
        except BaseException as error:
            errors.append(error)
            raise

    replaced = [number for number, handler in previous.items() if callable(handler)]
    for number in replaced:
        signal.signal(number, handle)
    try:
        yield errors
    finally:
        for number in replaced:
            signal.signal(number, previous[number])


@contextmanager
def keep_sigint_handler() -> Iterator[None]:
    """Restore the caller's SIGINT handler after a block that may start Spark.

    PySpark installs its own handler, which cancels the jobs of all threads.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if previous not in (signal.default_int_handler, signal.SIG_DFL, None):
            signal.signal(signal.SIGINT, previous)


def _close_connection(context: SparkContext | None) -> None:
    """Close this thread's connection to Java.

    The exception may have interrupted the thread while it read a response, and the rest of that response must not be
    read as the response to the next request. Py4J closes the connection by itself for KeyboardInterrupt only.
    """
    if context is None or context._gateway is None:
        return
    client = context._gateway._gateway_client
    # If Py4J has no connection per thread, the interrupted connection came from a pool and is not used again.
    connection = client.get_thread_connection() if hasattr(client, "get_thread_connection") else None
    if connection is not None:
        connection.close()


def _reactivate_session(spark: SparkSession, context: SparkContext | None) -> None:
    """Make `spark` the active session of this thread again.

    A new thread in Java serves a new connection, and it has no active session. Without one, Spark knows no data source
    that is written in Python, such as `format("lance")`.
    """
    if context is None:
        return
    try:
        spark.createDataFrame([], "none int")  # PySpark sets the thread's active session here
    except (PySparkException, Py4JError, OSError):  # Spark has ended
        return


def _interrupt_with_timeout(interrupt: Callable[[str], object], tag: str) -> bool:
    """Interrupt the jobs with this tag; return whether Spark accepted it in time.

    Another thread does it, since the connection of the calling thread may be in use.
    """

    def run() -> None:
        try:
            interrupt(tag)
        except (PySparkException, Py4JError, OSError):  # Spark has ended, and its jobs with it
            return

    thread = threading.Thread(target=run, name="lance-interrupt", daemon=True)
    thread.start()
    thread.join(_INTERRUPT_TIMEOUT_S)
    return not thread.is_alive()
