"""Tasks of the core as Spark jobs: a Spark task for each part of a table, whose results come back to the driver.

No rows cross over to the JVM: a task is given a number, and gives back bytes.
"""

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from lance_core.tasks.parts import PartTask

PART_RESULTS = "part bigint, result binary, refusal string"
FRAGMENTS = "fragment binary, refusal string"
"""What tasks give back, as Spark is told: `RESULT` of `lance_core.tasks.parts` and of `lance_core.tasks.write`."""
_SLOTS_UNKNOWN = 8


@dataclass(frozen=True, slots=True)
class SparkRunner:
    spark: SparkSession

    @property
    def slots(self) -> int:
        return slots(self.spark)

    def run(self, task: PartTask, parts: int) -> pa.Table:
        return self.spark.range(0, parts, 1, parts).mapInArrow(task, PART_RESULTS).toArrow()


def slots(spark: SparkSession) -> int:
    """How many tasks run at once; where the session does not say (Spark Connect), what a small cluster has."""
    context = getattr(spark, "sparkContext", None)
    return int(context.defaultParallelism) if context is not None else _SLOTS_UNKNOWN
