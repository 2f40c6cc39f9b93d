"""Streaming query from one table to another, in a driver that is killed directly after the commit of a batch.

`driver.py` calls these functions. The new version is visible before Spark records that the batch was run.
"""

import os
import signal
import time
from threading import Event

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from lance_core import Table

ROWS_PER_TRIGGER = 25
_SECONDS_MAX = 300


def follow_source(spark: SparkSession, *, source: str, sink: str, checkpoint: str) -> int:
    """Process all available rows, and return the version of the sink."""
    query = _start_query(spark, source, sink, checkpoint, available_now=True)
    assert query.awaitTermination(_SECONDS_MAX), "the query did not end in time"
    return int(Table.open(sink).version)


def follow_until_killed(spark: SparkSession, *, source: str, sink: str, checkpoint: str, after: int) -> None:
    """Kill the JVM and this process when the sink has `after` versions. Does not return."""
    context = spark.sparkContext
    assert context._jvm is not None
    jvm = int(context._jvm.java.lang.ProcessHandle.current().pid())
    query = _start_query(spark, source, sink, checkpoint, available_now=False)
    pause, until = Event(), time.monotonic() + _SECONDS_MAX
    while time.monotonic() < until and query.isActive:
        if Table.exists(sink) and Table.open(sink).version >= after:
            os.kill(jvm, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        pause.wait(0.001)
    raise AssertionError(f"the query ended, or had not written {after} versions in time: {query.exception()}")


def _start_query(
    spark: SparkSession, source: str, sink: str, checkpoint: str, *, available_now: bool
) -> StreamingQuery:
    rows = spark.readStream.format("lance").option("maxRowsPerTrigger", ROWS_PER_TRIGGER).load(source)
    writer = rows.writeStream.format("lance").option("checkpointLocation", checkpoint)
    return (writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")).start(
        sink
    )
