"""Work of Spark's ends with whoever asked for it: what was begun inside is interrupted when its driver's code is.

    with ending_together(spark):
        append(...)

Spark goes on with a job whose driver has stopped waiting for it, on a cluster and behind Spark Connect until the job is
done. Here everything begun by this thread has a tag, and is interrupted by it. No op does this by itself: whoever can
be cancelled does it around them.
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
"""For Spark to take the word; a driver that is told to end must not wait for one that hangs."""


@contextmanager
def cancel_with_caller(spark: SparkSession) -> Iterator[None]:
    tag = f"lance-assets-{uuid.uuid4()}"
    # A session's own tags are known to the thread that has added them alone, and who interrupts is another one.
    context = classic_context(spark)
    add, remove, interrupt = (
        (spark.addTag, spark.removeTag, spark.interruptTag)
        if context is None
        else (context.addJobTag, context.removeJobTag, context.cancelJobsWithTag)
    )
    add(tag)
    try:
        with _interrupt_on_signal(lambda: _interrupt_with_timeout(interrupt, tag)) as told:
            yield
    except BaseException as error:
        answers = _interrupt_with_timeout(interrupt, tag)
        if isinstance(error, Exception) and not told:
            remove(tag)
            raise
        _close_connection(context)
        if answers:
            _reactivate_session(spark, context)
        if told and error is not told[0]:  # what Spark said of its cancelled work came over it
            raise told[0] from error
        raise
    remove(tag)


@contextmanager
def _interrupt_on_signal(interrupt: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Work is interrupted by the signal itself: while the exception passes, PySpark waits for the job that it left.
    Gives what the handlers that were there before have raised."""
    told: list[BaseException] = []
    if threading.current_thread() is not threading.main_thread():
        yield told
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: FrameType | None) -> None:
        interrupt()
        handler = before[signal.Signals(number)]
        try:
            if callable(handler):
                handler(number, frame)
        except BaseException as error:
            told.append(error)
            raise

    ours = [number for number, handler in before.items() if callable(handler)]
    for number in ours:
        signal.signal(number, handle)
    try:
        yield told
    finally:
        for number in ours:
            signal.signal(number, before[number])


@contextmanager
def keep_sigint_handler() -> Iterator[None]:
    """Around what may start Spark: PySpark takes SIGINT for itself, to cancel everybody's jobs. Whoever had asked to be
    told of it keeps it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before not in (signal.default_int_handler, signal.SIG_DFL, None):
            signal.signal(signal.SIGINT, before)


def _close_connection(context: SparkContext | None) -> None:
    """This thread may have stopped reading in the middle of an answer of Java's, which must not be taken for the answer
    to its next question. Py4J does the same, for KeyboardInterrupt alone."""
    if context is None or context._gateway is None:
        return
    client = context._gateway._gateway_client
    # Without a connection for each thread, it is one of many, and nobody asks it again.
    connection = client.get_thread_connection() if hasattr(client, "get_thread_connection") else None
    if connection is not None:
        connection.close()


def _reactivate_session(spark: SparkSession, context: SparkContext | None) -> None:
    """A new connection is a new thread of Java's, which has no session: there Spark would know no data source of
    Python's any more, `format("lance")` for one."""
    if context is None:
        return
    try:
        spark.createDataFrame([], "none int")  # which PySpark does in the thread's own name
    except (PySparkException, Py4JError, OSError):  # Spark is gone
        return


def _interrupt_with_timeout(interrupt: Callable[[str], object], tag: str) -> bool:
    """From a thread of its own: this one's connection may be in use. Whether Spark took the word in time."""

    def tell() -> None:
        try:
            interrupt(tag)
        except (PySparkException, Py4JError, OSError):  # Spark is gone, and its work with it
            return

    telling = threading.Thread(target=tell, name="lance-interrupt", daemon=True)
    telling.start()
    telling.join(_INTERRUPT_TIMEOUT_S)
    return not telling.is_alive()
