"""A run that is cancelled takes its Spark work along: its own, and nobody else's."""

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


def until(holds: Callable[[], object], what: str, seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, what
        time.sleep(_LOOK_AGAIN_S)


def waiting(df: DataFrame, began: Path, go: Path) -> DataFrame:
    """The same rows, once somebody says so."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began.touch()
        while not go.exists():
            time.sleep(_LOOK_AGAIN_S)
        yield from batches

    return df.mapInArrow(wait, df.schema)


@pytest.mark.timeout(300)
def test_a_run_that_is_told_to_end_ends_its_spark_work(tmp_path: Path, spark: SparkSession) -> None:
    """By the signal that orchestrators send; with PROOFS=all also by the one that Dagster sends itself."""
    began, go, others_began, others_go = (tmp_path / name for name in ("began", "go", "others_began", "others_go"))

    def slow(session: SparkSession, ctx: WriteContext) -> DataFrame:
        return waiting(session.range(0, 10, 1, 1), began, go)

    table = lance_table("t", uri=str(tmp_path / "t.lance"), writes=[SparkAppend("t_append", slow)])
    counted: list[int] = []
    other = threading.Thread(
        target=lambda: counted.append(waiting(spark.range(0, 7, 1, 1), others_began, others_go).count())
    )
    other.start()
    until(others_began.exists, "the other job begins")
    context = classic_context(spark)
    assert context is not None
    tracker = context.statusTracker()
    with dg.DagsterInstance.ephemeral() as instance:
        for sent in (signal.SIGTERM, signal.SIGINT) if os.environ.get("PROOFS") == "all" else (signal.SIGTERM,):
            striking = threading.Thread(target=strike, args=(began, sent))
            striking.start()
            ran = run(table, "t_append", instance, SparkSessionResource(), raise_on_error=False)
            striking.join()
            assert not ran.success
            assert "DagsterExecutionInterruptedError" in str([event.event_specific_data for event in ran.all_events])
            until(lambda: len(tracker.getActiveJobsIds()) == 1, "its job ends, and the other one does not")
            assert not Table.exists(table.uri)
            began.unlink()
        others_go.touch()
        other.join()
        assert counted == [7]
        # The session is as good as before, for whoever goes on in this process.
        go.touch()
        again = run(table, "t_append", instance, SparkSessionResource())
        assert [run_id for run_id, _ in events(instance, table.key)] == [again.run_id]
    assert Table.open(table.uri).count_rows() == 10


def strike(began: Path, sent: signal.Signals) -> None:
    until(began.exists, "the job begins")
    os.kill(os.getpid(), sent)


def test_spark_does_not_take_the_signal_of_whoever_had_asked_for_it(spark: SparkSession) -> None:
    """PySpark does, whenever it starts an application from the main thread."""

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
