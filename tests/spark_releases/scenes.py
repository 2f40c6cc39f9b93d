"""Scenes of the Spark matrix, which run in the driver process of `tests/clusters/driver.py`."""

from pyspark.sql import SparkSession

from lance_core import Table
from tests.clusters import life


def create_tables(spark: SparkSession, uri: str, reference_uri: str) -> None:
    for each in (uri, reference_uri):
        Table.create(each, life.rows(0, 1000), max_rows_per_file=100, durable=False)


def run_step(spark: SparkSession, uri: str, reference_uri: str, name: str) -> None:
    """Run a step by Spark and by one process, and compare the tables."""
    step = next(each for each in life.STEPS if each.__name__ == name)
    life.run_step(life.Stage(spark, uri, reference_uri, None), step)
