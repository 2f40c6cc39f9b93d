"""Clickstream: hourly clicks, some of them late, are appended and upserted; users are deleted on request; files are
compacted.

One table with three writes, an index and its maintenance. The `README.md` in this folder says how to run it. Start at
`clicks`.
"""

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from lance_assets import (
    IndexCoverage,
    Maintenance,
    SparkBuildIndex,
    SparkDelete,
    SparkSessionResource,
    WriteContext,
    lance_table,
    lance_write,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CLICKS_AN_HOUR = 2_000
LATE_EVERY = 10
TABLES = os.environ.get("CLICKSTREAM_TABLES", str(Path(__file__).parent / ".tables"))

hours = dg.HourlyPartitionsDefinition(start_date="2026-01-01-00:00", end_date="2026-01-02-00:00")
forgotten = dg.DynamicPartitionsDefinition(name="users_to_forget")

clicks = lance_table(
    "clicks",
    uri=f"{TABLES}/clicks.lance",
    key_prefix="web",
    description="All clicks, without duplicates.",
    writes=[
        SparkDelete(
            "clicks_forget",
            predicate="user = :partition_key",
            partitions=forgotten,
            description="Deletes the clicks of a user on request. Each request is a partition.",
        ),
        # web/clicks_index_user: queries find the clicks of a user without reading those of other users.
        SparkBuildIndex("user", "BITMAP"),
    ],
    checks=[IndexCoverage(at_least=0.5)],
    # A sensor launches it when four small files can be joined or the index leaves a fifth of the rows uncovered, a
    # schedule every night. Unneeded versions are removed after a week, and with them the clicks of deleted users.
    maintenance=Maintenance(
        compact_when_small_files=4, index_when_uncovered=0.2, keep_for=timedelta(days=7), every="0 3 * * *"
    ),
)


def clicks_of(spark: "SparkSession", hour: str) -> "DataFrame":
    """Generate the same clicks for an hour each time. A real project would read them from a queue or a bucket."""
    first = hours.get_partition_keys().index(hour) * CLICKS_AN_HOUR
    return spark.range(first, first + CLICKS_AN_HOUR, 1, 2).selectExpr(
        "id AS click_id",
        "concat('user-', pmod(xxhash64(id, 'user'), 100)) AS user",
        "element_at(array('/', '/search', '/cart', '/help'), 1 + CAST(pmod(hash(id), 4) AS INT)) AS page",
        f"timestampadd(SECOND, CAST(pmod(id, 3600) AS INT), to_timestamp('{hour}', 'yyyy-MM-dd-HH:mm')) AS at",
    )


@lance_write(table=clicks, op="append", partitions=hours, once_per="partition")
def clicks_append(spark: "SparkSession", ctx: WriteContext) -> "DataFrame":
    """Appends the clicks of an hour that arrive in time. Each hour is appended once."""
    return clicks_of(spark, str(ctx.partition_key)).where(f"click_id % {LATE_EVERY} <> 0")


@lance_write(table=clicks, op="upsert", on="click_id", matched="ignore", partitions=hours)
def clicks_late(spark: "SparkSession", ctx: WriteContext) -> "DataFrame":
    """Upserts the clicks of an hour that arrive late. Clicks that already exist stay unchanged."""
    return clicks_of(spark, str(ctx.partition_key)).where(f"click_id % {LATE_EVERY} < 2")


@dg.asset(key_prefix="web", deps=[clicks.dep], kinds={"python", "lance"})
def pages() -> dg.MaterializeResult[None]:
    """Count how often each page is seen. Reading one column of one version needs no Spark."""
    table = clicks.ledger.open()
    seen = table.to_table(columns=["page"])["page"].value_counts().to_pylist()
    counts = {each["values"]: each["counts"] for each in seen}
    return dg.MaterializeResult(metadata={"lance/version": table.version, "seen": dict(sorted(counts.items()))})


load_hour = dg.define_asset_job("load_hour", selection=[clicks.write_key("clicks_append")])

defs = dg.Definitions.merge(
    clicks.defs,  # below the functions, since it would lack writes that are declared later
    dg.Definitions(
        assets=[pages],
        jobs=[load_hour],
        schedules=[dg.build_schedule_from_partitioned_job(load_hour)],
        resources={"spark": SparkSessionResource(app_name="clickstream")},
    ),
)
