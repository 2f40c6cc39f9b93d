"""Tasks of the core as Spark jobs: a Spark task for each part of a table, whose results come back to the driver.

No rows cross over to the JVM: a task is given a number, and gives back bytes.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lance_assets.spark.session import classic_context
from lance_assets.spark.worker_setup import WorkerTask
from lance_core import InvalidInput
from lance_core.tasks.partitioning import Task

PARTITION_RESULT_SCHEMA = "part bigint, result binary, refusal string"
FRAGMENT_RESULT_SCHEMA = "fragment binary, refusal string"
"""Spark schemas of task results: `RESULT` of `lance_core.tasks.partitioning` and of `lance_core.tasks.write`."""
_SLOTS_UNKNOWN = 8
_SLOTS_MAX = 1024
_EXECUTORS_IF_UNBOUNDED = 32
"""Where Spark may have as many as it wants."""
_BIGINT_BYTES = 8
_ESTIMATE_BYTES_MAX = 128 * 1024**2
"""Far above what Spark sends to every worker (10 MB), and counted in a few milliseconds."""
_RESULT_TOO_LARGE = re.compile(r"\(([^()]+)\) is bigger than (spark\.driver\.maxResultSize \([^()]+\))")
_LOCAL_MASTER = re.compile(r"local\[(\d+)(?:,\s*\d+)?\]")


@dataclass(frozen=True, slots=True)
class SparkRunner:
    spark: SparkSession

    @property
    def slots(self) -> int:
        return count_task_slots(self.spark)

    def run(self, task: Task, parts: int) -> pa.Table:
        return partition_numbers(self.spark, parts).mapInArrow(WorkerTask(task), PARTITION_RESULT_SCHEMA).toArrow()


@contextmanager
def limited_driver_result(subject: str, remedy: str) -> Iterator[None]:
    """Where what comes back grows with the data. Spark ends a job that gives its driver too much, and says so somewhere
    in a traceback of Java."""
    try:
        yield
    except (Py4JError, PySparkException) as error:
        found = _RESULT_TOO_LARGE.search(str(error))
        if found is None:
            raise
        came, bound = found.groups()
        raise InvalidInput(
            f"{subject}: {came} came back from the workers, more than {bound} lets the driver take. {remedy}, or set it "
            "higher where the session is opened"
        ) from None


def partition_numbers(spark: SparkSession, parts: int, memory_bytes: int = 0) -> DataFrame:
    """A number for each part, in a partition of its own.

    To Spark, what a task makes of them is as big as they are: it would join with a table of any size by sending all of
    it to every worker. So it is told of as many rows more as take `memory_bytes`, none of which is ever there.
    """
    each = spark.range(0, parts, 1, parts)
    told = min(memory_bytes, _ESTIMATE_BYTES_MAX) // _BIGINT_BYTES - parts
    if told <= 0:
        return each
    none = spark.range(0, told, 1, 1).where("id < 0")
    return each.union(none).coalesce(parts)


def count_task_slots(spark: SparkSession) -> int:
    """How many tasks run at once, or soon will: executors come late to an application that has just begun, and to one
    that asks for them as it needs them. Spark Connect does not say how many there are, but how it was configured."""
    context = classic_context(spark)
    told = configured_slots(lambda key: spark.conf.get(key, None))
    return max(told, int(context.defaultParallelism)) if context else told or _SLOTS_UNKNOWN


def configured_slots(setting: Callable[[str], str | None]) -> int:
    """0 where the settings do not say."""

    def number(key: str) -> int:
        value = setting(key) or ""
        return int(value) if value.isdigit() else 0

    local = _LOCAL_MASTER.fullmatch(setting("spark.master") or "")
    if local:
        return number("spark.default.parallelism") or int(local[1])
    executors = number("spark.executor.instances")
    if setting("spark.dynamicAllocation.enabled") == "true":
        executors = number("spark.dynamicAllocation.maxExecutors") or _EXECUTORS_IF_UNBOUNDED
    told = executors * (number("spark.executor.cores") or 1)
    return min(_SLOTS_MAX, max(told, number("spark.cores.max"), number("spark.default.parallelism")))
