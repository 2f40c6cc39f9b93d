"""Daily orders: orders arrive day by day, and a second table counts them by city.

Two Lance tables with one write each, a schedule, and a plain asset that reads the newest version. The `README.md` in
this folder says how to run it. Start at `orders`.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from lance_assets import SparkAppend, SparkSessionResource, WriteContext, lance_table
from lance_core import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS_A_DAY = 1_000
TABLES = os.environ.get("DAILY_ORDERS_TABLES", str(Path(__file__).parent / ".tables"))

days = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-08")


def orders_of_the_day(spark: "SparkSession", ctx: WriteContext) -> "DataFrame":
    """Generate the orders of a day. A real project would read them from a queue, a bucket or a database."""
    day = str(ctx.partition_key)
    first = days.get_partition_keys().index(day) * ORDERS_A_DAY
    return spark.range(first, first + ORDERS_A_DAY, 1, 2).selectExpr(
        "id AS order_id",
        f"DATE '{day}' AS day",
        "element_at(array('Lima', 'Oslo', 'Pune'), 1 + CAST(pmod(id, 3) AS INT)) AS city",
    )


def orders_by_city(spark: "SparkSession", ctx: WriteContext) -> "DataFrame":
    """Count the orders by city. `ctx.read` records the version that was counted, and the page of the new version
    shows it."""
    return ctx.read(orders, columns=["city"]).groupBy("city").count()


orders = lance_table(
    "orders",
    uri=f"{TABLES}/orders.lance",
    key_prefix="shop",
    description="All orders, one version per day.",
    writes=[SparkAppend("orders_append", fn=orders_of_the_day, partitions=days, once_per="partition")],
)

city_counts = lance_table(
    "city_counts",
    uri=f"{TABLES}/city_counts.lance",
    key_prefix="shop",
    description="Orders by city, counted by each run.",
    writes=[SparkAppend("city_counts_append", fn=orders_by_city, deps=[orders.dep])],
)


@dg.asset(key_prefix="shop", deps=[orders.dep], kinds={"python", "lance"})
def order_days() -> dg.MaterializeResult[None]:
    """List the days that have arrived. Reading a table needs no Spark."""
    table = Table.open(orders.uri)
    arrived = sorted({str(day) for day in table.to_table(columns=["day"])["day"].to_pylist()})
    return dg.MaterializeResult(metadata={"lance/version": table.version, "days": arrived})


load_day = dg.define_asset_job("load_day", selection=[orders.write_key("orders_append")])

defs = dg.Definitions.merge(
    orders.defs,
    city_counts.defs,
    dg.Definitions(
        assets=[order_days],
        jobs=[load_day],
        schedules=[dg.build_schedule_from_partitioned_job(load_day)],
        resources={"spark": SparkSessionResource(app_name="daily orders")},
    ),
)
