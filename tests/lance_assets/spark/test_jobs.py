"""Jobs: the number of tasks for a table."""

import pytest
from pyspark.sql import SparkSession

from lance_assets.spark.jobs import configured_slots, count_task_slots


def test_slots_of_the_running_application(spark: SparkSession) -> None:
    assert count_task_slots(spark) == 2


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 0),
        ({"spark.master": "local[*]"}, 0),
        ({"spark.master": "local[3,4]"}, 3),
        ({"spark.master": "local[3]", "spark.default.parallelism": "5"}, 5),
        ({"spark.master": "local-cluster[2,1,1024]"}, 0),
        ({"spark.master": "spark://host:7077", "spark.cores.max": "24"}, 24),
        ({"spark.master": "yarn", "spark.executor.instances": "10", "spark.executor.cores": "4"}, 40),
        ({"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "50"}, 50),
        ({"spark.dynamicAllocation.enabled": "true", "spark.executor.cores": "4"}, 128),
        ({"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "99999"}, 1024),
    ],
)
def test_expected_executors_are_counted(settings: dict[str, str], expected: int) -> None:
    assert configured_slots(settings.get) == expected
