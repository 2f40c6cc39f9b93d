"""Spark jobs: runs the tasks of `lance_core.tasks` as one Spark task per partition and collects their results.

Rows never enter the JVM: a task receives partition numbers and returns bytes. Start with `SparkRunner`.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lance_assets.spark.release import collect_arrow, map_with_resources
from lance_assets.spark.session import classic_context
from lance_assets.spark.stage_progress import report_stages
from lance_assets.spark.worker_setup import WorkerTask
from lance_core import InvalidInput
from lance_core.tasks.partitioning import Task

PARTITION_RESULT_SCHEMA = "part bigint, result binary, refusal string"
FRAGMENT_RESULT_SCHEMA = "fragment binary, refusal string"
"""Spark schemas of task results: `RESULT` of `lance_core.tasks.partitioning` and of `lance_core.tasks.rows.write`."""
_SLOTS_IF_UNKNOWN = 8
_SLOTS_MAX = 1024
_EXECUTORS_IF_UNBOUNDED = 32
"""Assumed number of executors where dynamic allocation has no upper limit."""
_BIGINT_BYTES = 8
_ESTIMATE_BYTES_MAX = 128 * 1024**2
"""Far above the size up to which Spark broadcasts (10 MB); Spark generates as many numbers in a few milliseconds."""
_RESULT_TOO_LARGE = re.compile(r"\(([^()]+)\) is bigger than (spark\.driver\.maxResultSize \([^()]+\))")
_LOCAL_MASTER = re.compile(r"local\[(\d+)(?:,\s*\d+)?\]")
_THREADS_MASTER = re.compile(r"local(\[.*\])?")
"""Master whose tasks are threads of the driver, to which Spark cannot assign resources."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SparkRunner:
    """`Runner` that executes tasks on the workers of a Spark session."""

    spark: SparkSession
    resources: Mapping[str, float] = field(default_factory=dict)
    """Resources of each task, such as `{"gpu": 1, "cpus": 4}`."""

    @property
    def slots(self) -> int:
        return max(1, count_task_slots(self.spark) // int(self.resources.get("cpus", 1)))

    def run(self, task: Task, partitions: int) -> pa.Table:
        numbers = partition_numbers(self.spark, partitions)
        with report_stages(self.spark):
            tasks = map_with_resources(numbers, WorkerTask(task), PARTITION_RESULT_SCHEMA, self._assignable())
            return collect_arrow(tasks)

    def _assignable(self) -> Mapping[str, float]:
        """Return the resources, or none if the tasks are threads of the driver."""
        master = self.spark.conf.get("spark.master", None) or ""
        if self.resources and _THREADS_MASTER.fullmatch(master):
            _log.warning("the master %s assigns no resources to tasks, so %s is ignored", master, dict(self.resources))
            return {}
        return self.resources


@contextmanager
def limited_driver_result(subject: str, remedy: str) -> Iterator[None]:
    """Raise `InvalidInput` if the results of a job exceed what the driver accepts.

    Use it around jobs whose results grow with the data. Spark aborts such a job and names the limit inside a Java
    traceback only. `subject` begins the message, `remedy` is what the user can do.
    """
    try:
        yield
    except (Py4JError, PySparkException) as error:
        match = _RESULT_TOO_LARGE.search(str(error))
        if match is None:
            raise
        result_size, limit = match.groups()
        raise InvalidInput(
            f"{subject}: the workers returned {result_size}, more than {limit} allows the driver to collect. {remedy}, "
            "or raise that setting where the session is opened"
        ) from None


def partition_numbers(spark: SparkSession, partitions: int, memory_bytes: int = 0) -> DataFrame:
    """Return a DataFrame of the numbers below `partitions`, each in a Spark partition of its own.

    Spark estimates the output of a task by the size of its input, so it would join with a table of any size by
    broadcasting the table to every worker. To raise the estimate to `memory_bytes`, the plan contains a second range of
    numbers whose filter matches none of them.
    """
    numbers = spark.range(0, partitions, 1, partitions)
    extra_rows = min(memory_bytes, _ESTIMATE_BYTES_MAX) // _BIGINT_BYTES - partitions
    if extra_rows <= 0:
        return numbers
    no_rows = spark.range(0, extra_rows, 1, 1).where("id < 0")
    return numbers.union(no_rows).coalesce(partitions)


def count_task_slots(spark: SparkSession) -> int:
    """Return how many tasks can run concurrently, now or soon.

    The result considers the settings as well as the running executors, since executors join late: after the start of
    an application, and on demand with dynamic allocation. Spark Connect exposes the settings only.
    """
    context = classic_context(spark)
    configured = configured_slots(lambda key: spark.conf.get(key, None))
    return max(configured, int(context.defaultParallelism)) if context else configured or _SLOTS_IF_UNKNOWN


def configured_slots(setting: Callable[[str], str | None]) -> int:
    """Return the number of task slots that the settings imply; 0 if they imply none."""

    def number(key: str) -> int:
        value = setting(key) or ""
        return int(value) if value.isdigit() else 0

    local = _LOCAL_MASTER.fullmatch(setting("spark.master") or "")
    if local:
        return number("spark.default.parallelism") or int(local[1])
    executors = number("spark.executor.instances")
    if setting("spark.dynamicAllocation.enabled") == "true":
        executors = number("spark.dynamicAllocation.maxExecutors") or _EXECUTORS_IF_UNBOUNDED
    slots = executors * (number("spark.executor.cores") or 1)
    return min(_SLOTS_MAX, max(slots, number("spark.cores.max"), number("spark.default.parallelism")))
