"""Spark resources of Dagster on a Spark Connect server: a project of two writes with each of them, in its own process.

python -m tests.clusters.dagster_resources ADDRESS FOLDER
"""

import json
import sys

import dagster as dg
from dagster_pyspark import LazyPySparkResource, PySparkResource
from pyspark.sql import DataFrame, SparkSession

from lance_assets import SparkAppend, SparkDelete, SparkSessionResource, WriteContext, lance_table
from lance_core import Table

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def five_rows(spark: SparkSession, ctx: WriteContext) -> DataFrame:
    return spark.range(5)


def main(remote: str, folder: str) -> None:
    counts = {}
    for kind in (SparkSessionResource, LazyPySparkResource, PySparkResource):
        name = kind.__name__
        append, delete = SparkAppend(f"{name}_append", five_rows), SparkDelete(f"{name}_delete", "id = 1")
        table = lance_table(name, uri=f"{folder}/{name}.lance", writes=[append, delete], discover=False)
        settings = {"spark.remote": remote, "spark.sql.shuffle.partitions": "2"}
        jobs = [dg.define_asset_job(f"run_{each.name}", [table.write_key(each.name)]) for each in table.writes]
        resources = {"spark": kind(spark_config=settings)}
        defs = dg.Definitions.merge(table.defs, dg.Definitions(resources=resources, jobs=jobs))
        with dg.DagsterInstance.ephemeral() as instance:
            for job in jobs:
                assert defs.resolve_job_def(job.name).execute_in_process(instance=instance, run_config=QUIET).success
        counts[name] = Table.open(table.uri).count_rows()
    print(json.dumps(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
