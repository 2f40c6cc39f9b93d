"""Functions of the Spark matrix that run in the driver process of `tests/clusters/driver.py`."""

from pyspark.sql import SparkSession

from lance_core import Table
from tests.clusters import lifecycle
from tests.spark_releases import table_steps


def create_tables(spark: SparkSession, uri: str, reference_uri: str) -> None:
    for each in (uri, reference_uri):
        Table.create(each, lifecycle.rows(0, 1000), max_rows_per_file=100, durable=False)


def run_step(spark: SparkSession, uri: str, reference_uri: str, name: str) -> None:
    """Run a step by Spark and by one process, and compare the tables."""
    step = table_steps.STEPS.get(name) or next(each for each in lifecycle.STEPS if each.__name__ == name)
    lifecycle.run_step(lifecycle.TablePair(spark, uri, reference_uri, None), step)


def measure(spark: SparkSession, uri: str, reference_uri: str, name: str) -> float:
    """Return the rows per second of an operation."""
    return table_steps.SPEEDS[name](lifecycle.TablePair(spark, uri, reference_uri, None))
