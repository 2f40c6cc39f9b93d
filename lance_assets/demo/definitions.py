"""Dagster project of the demo, as a user would write it: two tables, their writes and checks, a job, a Spark session.

`workspace.yaml` in the repository root loads this module.
"""

from typing import TYPE_CHECKING

import dagster as dg

from lance_assets import (
    KeysUnique,
    RowChange,
    RowCount,
    SchemaStable,
    SparkAppend,
    SparkOverwrite,
    SparkSessionResource,
    SqlCheck,
    WriteContext,
    lance_table,
)
from lance_assets.demo.workspace import demo_workspace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCATION = "lance_assets_demo"
ORDERS_A_DAY = 100_000

days = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-04")


def orders_of_the_day(spark: "SparkSession", ctx: WriteContext) -> "DataFrame":
    """Generate the same orders for a day each time. A real project would read them from a source."""
    day = str(ctx.partition_key)
    first = days.get_partition_keys().index(day) * ORDERS_A_DAY
    return spark.range(first, first + ORDERS_A_DAY, 1, 2).selectExpr(
        "id AS order_id",
        f"to_timestamp('{day}') + make_dt_interval(0, 0, 0, id % 86400) AS ordered_at",
        "pmod(xxhash64(id, 'customer'), 20000) AS customer_id",
        "element_at(array('Lima', 'Oslo', 'Pune', 'Rome', 'Kobe'), 1 + CAST(pmod(hash(id, 'city'), 5) AS INT)) AS city",
        "CAST(pmod(xxhash64(id, 'amount'), 25000) / 100 AS DECIMAL(10, 2)) AS amount",
    )


def invalid_orders(spark: "SparkSession", ctx: WriteContext) -> "DataFrame":
    """Return a delivery that must not be published: some of its amounts are negative."""
    return (
        ctx.read()
        .limit(1000)
        .selectExpr(
            "order_id + 1000000 AS order_id",
            "ordered_at",
            "customer_id",
            "city",
            "CAST(IF(order_id % 100 = 0, -amount, amount) AS DECIMAL(10, 2)) AS amount",
        )
    )


def orders_by_city(spark: "SparkSession", ctx: WriteContext) -> "DataFrame":
    """Count the orders by city. `ctx.read` records the version that was counted, and the page of the new version
    shows it."""
    counted = ctx.read(orders, columns=["city", "amount"]).groupBy("city").agg({"city": "count", "amount": "sum"})
    return counted.selectExpr("city", "`count(city)` AS orders", "`sum(amount)` AS amount")


orders = lance_table(
    "orders",
    uri=str(demo_workspace().table),
    description="Orders of a shop, one version per day.",
    writes=[
        SparkAppend(
            "orders_append",
            fn=orders_of_the_day,
            partitions=days,
            once_per="partition",
            description="Appends the orders of one day. Each day is appended once, however often this runs.",
        ),
        SparkAppend(
            "orders_delivery",
            fn=invalid_orders,
            audit=[SqlCheck("amounts", "select order_id, amount from dataset where amount < 0")],
            description="Appends a delivery that its audit refuses. The failed run shows the reason.",
        ),
    ],
    checks=[SchemaStable(), RowCount(min=1), RowChange(max_loss_share=0.1), KeysUnique(columns=["order_id"])],
)

cities = lance_table(
    "cities",
    uri=str(demo_workspace().cities),
    description="Orders by city, recounted by each run.",
    writes=[SparkOverwrite("cities_counted", fn=orders_by_city, deps=[orders.dep])],
    checks=[SchemaStable(), RowCount(min=1, max=100)],
)

spark = SparkSessionResource(app_name="lance-assets demo")

load_orders = dg.define_asset_job(
    "load_orders", selection=[orders.write_key("orders_append")], description="Appends one day of orders."
)

defs = dg.Definitions.merge(orders.defs, cities.defs, dg.Definitions(jobs=[load_orders], resources={"spark": spark}))
