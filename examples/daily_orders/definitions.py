"""A small project: orders arrive day by day, and a second table counts them by city.

Two Lance tables, one write each, a schedule, and a plain asset that reads the newest version. Nothing else is needed to
run it; `README.md` beside this file says how. Start at `orders`.
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
    """A project of yours would read these from a queue, a bucket or a database."""
    day = str(ctx.partition_key)
    first = days.get_partition_keys().index(day) * ORDERS_A_DAY
    return spark.range(first, first + ORDERS_A_DAY, 1, 2).selectExpr(
        "id AS order_id",
        f"DATE '{day}' AS day",
        "element_at(array('Lima', 'Oslo', 'Pune'), 1 + CAST(pmod(id, 3) AS INT)) AS city",
    )


def counted_by_city(spark: "SparkSession", ctx: WriteContext) -> "DataFrame":
    """`ctx.read` notes which version was counted; it is on the page of the version that this makes."""
    return ctx.read(orders, columns=["city"]).groupBy("city").count()


orders = lance_table(
    "orders",
    uri=f"{TABLES}/orders.lance",
    key_prefix="shop",
    description="Every order, one version a day.",
    writes=[SparkAppend("orders_append", fn=orders_of_the_day, partitions=days, once_per="partition")],
)

city_counts = lance_table(
    "city_counts",
    uri=f"{TABLES}/city_counts.lance",
    key_prefix="shop",
    description="Orders by city, counted anew each time.",
    writes=[SparkAppend("city_counts_append", fn=counted_by_city, deps=[orders.dep])],
)


@dg.asset(key_prefix="shop", deps=[orders.dep], kinds={"python", "lance"})
def order_days() -> dg.MaterializeResult[None]:
    """Which days have arrived; reading a table needs no Spark."""
    table = Table.open(orders.uri)
    found = sorted({str(day) for day in table.to_table(columns=["day"])["day"].to_pylist()})
    return dg.MaterializeResult(metadata={"lance/version": table.version, "days": found})


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
