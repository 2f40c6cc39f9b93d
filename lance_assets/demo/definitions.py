"""The demo's Dagster project, as anyone would write one: a table, what writes to it, a job, a Spark session.

`workspace.yaml` at the top of the project loads this module.
"""

from typing import TYPE_CHECKING

import dagster as dg

from lance_assets import SparkAppend, SparkSessionResource, WriteContext, lance_table
from lance_assets.demo.place import place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCATION = "lance_assets_demo"
ORDERS_A_DAY = 100_000

days = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-04")


def orders_of_the_day(spark: "SparkSession", ctx: WriteContext) -> "DataFrame":
    """Made up, and always the same for a day; a project of yours would read them from somewhere."""
    day = str(ctx.partition_key)
    first = days.get_partition_keys().index(day) * ORDERS_A_DAY
    return spark.range(first, first + ORDERS_A_DAY, 1, 2).selectExpr(
        "id AS order_id",
        f"to_timestamp('{day}') + make_dt_interval(0, 0, 0, id % 86400) AS ordered_at",
        "pmod(xxhash64(id, 'customer'), 20000) AS customer_id",
        "element_at(array('Lima', 'Oslo', 'Pune', 'Rome', 'Kobe'), 1 + CAST(pmod(hash(id, 'city'), 5) AS INT)) AS city",
        "CAST(pmod(xxhash64(id, 'amount'), 25000) / 100 AS DECIMAL(10, 2)) AS amount",
    )


orders = lance_table(
    "orders",
    uri=str(place().table),
    description="Orders of a shop, one version a day.",
    writes=[
        SparkAppend(
            "orders_append",
            fn=orders_of_the_day,
            partitions=days,
            once_per="partition",
            description="Appends the orders of one day; a day lands once, however often this is run.",
        )
    ],
)

spark = SparkSessionResource(app_name="lance-assets demo")

load_orders = dg.define_asset_job(
    "load_orders", selection=[orders.write_key("orders_append")], description="Appends one day of orders."
)

defs = dg.Definitions.merge(orders.defs, dg.Definitions(jobs=[load_orders], resources={"spark": spark}))
