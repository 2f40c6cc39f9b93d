"""A streaming query from one table to another, in a driver that is killed when a batch has just landed.

Scenes for `driver.py`. The version is seen before Spark has written down that the batch was run.
"""

import os
import signal
import time
from threading import Event

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from lance_core import Table

ROWS_AT_ONCE = 25
_SECONDS_MAX = 300


def followed(spark: SparkSession, *, source: str, sink: str, checkpoint: str) -> int:
    """All that there is; how many versions the sink has then."""
    query = _query(spark, source, sink, checkpoint, at_once=True)
    assert query.awaitTermination(_SECONDS_MAX), "it goes on for ever"
    return int(Table.open(sink).version)


def followed_and_killed(spark: SparkSession, *, source: str, sink: str, checkpoint: str, after: int) -> None:
    """Does not come back: the JVM and this process are killed when the sink has so many versions."""
    context = spark.sparkContext
    assert context._jvm is not None
    jvm = int(context._jvm.java.lang.ProcessHandle.current().pid())
    query = _query(spark, source, sink, checkpoint, at_once=False)
    pause, until = Event(), time.monotonic() + _SECONDS_MAX
    while time.monotonic() < until and query.isActive:
        if Table.exists(sink) and Table.open(sink).version >= after:
            os.kill(jvm, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        pause.wait(0.001)
    raise AssertionError(f"the query ended, or had not written {after} versions in time: {query.exception()}")


def _query(spark: SparkSession, source: str, sink: str, checkpoint: str, *, at_once: bool) -> StreamingQuery:
    rows = spark.readStream.format("lance").option("maxRowsPerTrigger", ROWS_AT_ONCE).load(source)
    writer = rows.writeStream.format("lance").option("checkpointLocation", checkpoint)
    return (writer.trigger(availableNow=True) if at_once else writer.trigger(processingTime="0 seconds")).start(sink)
