"""Dagster project of the compose file: a table that two writes fill, one with its Spark driver in the run, one with
its driver in a process of spark-submit.

Environment variables hold the locations and the secrets; `compose.yaml` sets them.
"""

import os
from typing import TYPE_CHECKING

import dagster as dg

from lance_assets import (
    LanceResource,
    RemoteWrite,
    RowCount,
    SparkAppend,
    SparkSessionResource,
    WriteContext,
    lance_table,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER = os.environ["SPARK_MASTER"]
DRIVER = os.environ["SPARK_DRIVER_HOST"]
APPLICATION = os.environ.get("LOAD_ORDERS", "/opt/app/load_orders.py")
days = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-02-01")

lake = LanceResource(
    root=os.environ["LAKE"],
    storage_options={
        "aws_endpoint": os.environ["AWS_ENDPOINT_URL"],
        "aws_region": "us-east-1",
        "allow_http": "true",
        "aws_access_key_id": dg.EnvVar("AWS_ACCESS_KEY_ID"),
        "aws_secret_access_key": dg.EnvVar("AWS_SECRET_ACCESS_KEY"),
    },
)


def returned_orders(spark: "SparkSession", ctx: WriteContext) -> "DataFrame":
    return spark.range(0, 10).selectExpr("id AS order_id", f"DATE '{ctx.partition_key}' AS day")


orders = lance_table(
    "orders",
    uri="orders.lance",
    storage=lake,
    checks=[RowCount(min=1)],
    writes=[
        RemoteWrite(
            "orders_load",
            launch={
                "command": [
                    "spark-submit",
                    f"--master={MASTER}",
                    f"--conf=spark.driver.host={DRIVER}",
                    "--conf=spark.cores.max=1",
                    APPLICATION,
                ]
            },
            partitions=days,
            remote_checks=["not_empty"],
        ),
        SparkAppend("orders_returned", fn=returned_orders, partitions=days),
    ],
)

spark_settings = {"spark.driver.host": DRIVER, "spark.cores.max": "1", "spark.executor.memory": "1g"}
jobs = [
    dg.define_asset_job("load_day", [orders.write_key("orders_load")]),
    dg.define_asset_job("return_day", [orders.write_key("orders_returned")]),
]
defs = dg.Definitions.merge(
    orders.defs,
    dg.Definitions(
        jobs=jobs,
        resources={
            "spark": SparkSessionResource(master=MASTER, conf=spark_settings),
            "pipes": dg.PipesSubprocessClient(),
        },
    ),
)
