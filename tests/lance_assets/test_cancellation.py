"""Cancellation: a cancelled run cancels its own Spark jobs and no others."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lance_assets import SparkAppend, SparkSessionResource, WriteContext, lance_table
from lance_assets.resources.spark import session_of
from lance_assets.spark.session import classic_context
from lance_core import Table
from tests.lance_assets.instances import events, run

_LOOK_AGAIN_S = 0.05


def wait_until(holds: Callable[[], object], message: str, seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, message
        time.sleep(_LOOK_AGAIN_S)


def with_waiting_tasks(df: DataFrame, began: Path, go: Path) -> DataFrame:
    """Return the same rows from tasks that wait for a file."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began.touch()
        while not go.exists():
            time.sleep(_LOOK_AGAIN_S)
        yield from batches

    return df.mapInArrow(wait, df.schema)


@pytest.mark.timeout(300)
def test_cancelled_run_cancels_its_spark_work(tmp_path: Path, spark: SparkSession) -> None:
    """The signal is that of orchestrators; with PROOFS=all also the one that Dagster sends."""
    began, go, others_began, others_go = (tmp_path / name for name in ("began", "go", "others_began", "others_go"))

    def slow(session: SparkSession, ctx: WriteContext) -> DataFrame:
        return with_waiting_tasks(session.range(0, 10, 1, 1), began, go)

    table = lance_table("t", uri=str(tmp_path / "t.lance"), writes=[SparkAppend("t_append", slow)])
    counted: list[int] = []
    other = threading.Thread(
        target=lambda: counted.append(with_waiting_tasks(spark.range(0, 7, 1, 1), others_began, others_go).count())
    )
    other.start()
    wait_until(others_began.exists, "the other job begins")
    context = classic_context(spark)
    assert context is not None
    tracker = context.statusTracker()
    with dg.DagsterInstance.ephemeral() as instance:
        for sent in (signal.SIGTERM, signal.SIGINT) if os.environ.get("PROOFS") == "all" else (signal.SIGTERM,):
            striking = threading.Thread(target=send_signal, args=(began, sent))
            striking.start()
            ran = run(table, "t_append", instance, SparkSessionResource(), raise_on_error=False)
            striking.join()
            assert not ran.success
            assert "DagsterExecutionInterruptedError" in str([event.event_specific_data for event in ran.all_events])
            wait_until(lambda: len(tracker.getActiveJobsIds()) == 1, "its job ends, and the other one does not")
            assert not Table.exists(table.uri)
            began.unlink()
        others_go.touch()
        other.join()
        assert counted == [7]
        # The session remains usable in this process.
        go.touch()
        again = run(table, "t_append", instance, SparkSessionResource())
        assert [run_id for run_id, _ in events(instance, table.key)] == [again.run_id]
    assert Table.open(table.uri).count_rows() == 10


def send_signal(began: Path, sent: signal.Signals) -> None:
    wait_until(began.exists, "the job begins")
    os.kill(os.getpid(), sent)


def test_start_of_spark_preserves_signal_handlers(spark: SparkSession) -> None:
    """PySpark replaces the handler when it starts an application in the main thread."""

    class Starting:
        @property
        def spark_session(self) -> SparkSession:
            signal.signal(signal.SIGINT, lambda *_: None)
            return spark

    def ours(*_: object) -> None: ...

    before = signal.signal(signal.SIGINT, ours)
    try:
        assert session_of(Starting()) is spark
        assert signal.getsignal(signal.SIGINT) is ours
    finally:
        signal.signal(signal.SIGINT, before)
