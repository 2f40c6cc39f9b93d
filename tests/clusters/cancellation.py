"""Cancellation: a driver is interrupted while Spark works for it, and the Spark work ends too, on a cluster and behind
a Spark Connect server.

`driver.py` calls this function. The end of the work is observed outside of Spark: its worker process is gone.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pyarrow as pa
from pyspark.sql import SparkSession

from lance_assets.spark import append
from lance_assets.spark.cancellation import cancel_with_caller
from lance_core import Table

_SECONDS_MAX = 60
_POLL_INTERVAL_S = 0.05


class Interrupted(BaseException):
    """Error of the signal handler; Dagster raises one in its handler when it terminates a run."""


def interrupt_append(session: SparkSession, folder: str, uri: str) -> int:
    """Interrupt an append, check that its work ended, and return the number of rows that a second append in the same
    session adds."""
    started, go = Path(folder, "started"), Path(folder, "go")
    names = (str(started), str(go))

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mark, released = names
        Path(f"{mark}.new").write_text(str(os.getpid()))
        os.replace(f"{mark}.new", mark)
        while not Path(released).exists():
            time.sleep(_POLL_INTERVAL_S)
        yield from batches

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    rows = session.range(0, 10, 1, 1).mapInArrow(wait, "id long")
    before = signal.signal(signal.SIGTERM, interrupt)
    interrupter = threading.Thread(target=_interrupt_when_started, args=(started,))
    interrupter.start()
    try:
        with cancel_with_caller(session):
            append(rows, uri)
    except Interrupted:
        pass
    else:
        raise AssertionError("the append was not interrupted")
    finally:
        signal.signal(signal.SIGTERM, before)
        interrupter.join()
    worker = int(started.read_text())
    _wait_until(lambda: not _is_running(worker), "the worker ends")
    assert not go.exists()
    assert not Table.exists(uri)
    go.touch()
    added = append(rows, uri).rows_added
    session.range(10, 20).write.format("lance").mode("append").save(uri)  # the session still knows the data source
    assert Table.open(uri).count_rows() == 20
    return int(added or 0)


def _interrupt_when_started(started: Path) -> None:
    _wait_until(started.exists, "the work begins")
    os.kill(os.getpid(), signal.SIGTERM)


def _is_running(process: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + _SECONDS_MAX
    while not condition():
        assert time.monotonic() < ends, what
        time.sleep(_POLL_INTERVAL_S)
