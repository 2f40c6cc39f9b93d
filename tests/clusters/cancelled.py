"""A driver that is interrupted while Spark works for it: the work ends too, on the cluster as behind a server.

A scene for `driver.py`. That the work has ended is seen from outside of Spark: its worker process is gone.
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
_LOOK_AGAIN_S = 0.05


class Interrupted(BaseException):
    """As Dagster raises one in its handler when a run is to end."""


def cancelled(session: SparkSession, folder: str, uri: str) -> int:
    """Rows that a second append brings, in the same session."""
    began, go = Path(folder, "began"), Path(folder, "go")
    names = (str(began), str(go))

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mark, released = names
        Path(f"{mark}.new").write_text(str(os.getpid()))
        os.replace(f"{mark}.new", mark)
        while not Path(released).exists():
            time.sleep(_LOOK_AGAIN_S)
        yield from batches

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    rows = session.range(0, 10, 1, 1).mapInArrow(wait, "id long")
    before = signal.signal(signal.SIGTERM, interrupt)
    striking = threading.Thread(target=_strike, args=(began,))
    striking.start()
    try:
        with cancel_with_caller(session):
            append(rows, uri)
    except Interrupted:
        pass
    else:
        raise AssertionError("nobody interrupted it")
    finally:
        signal.signal(signal.SIGTERM, before)
        striking.join()
    worker = int(began.read_text())
    _until(lambda: not _lives(worker), "the worker ends")
    assert not go.exists()
    assert not Table.exists(uri)
    go.touch()
    added = append(rows, uri).rows_added
    session.range(10, 20).write.format("lance").mode("append").save(uri)  # the session still knows what that is
    assert Table.open(uri).count_rows() == 20
    return int(added or 0)


def _strike(began: Path) -> None:
    _until(began.exists, "the work begins")
    os.kill(os.getpid(), signal.SIGTERM)


def _lives(process: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False


def _until(holds: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + _SECONDS_MAX
    while not holds():
        assert time.monotonic() < ends, what
        time.sleep(_LOOK_AGAIN_S)
