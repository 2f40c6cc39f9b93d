"""Clicks arrive hour by hour, some of them late; users ask to be forgotten; many small files become few large ones.

One table, three writes, and its maintenance. `README.md` beside this file says how to run it. Start at `clicks`.
"""

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from lance_assets import Maintenance, SparkDelete, SparkSessionResource, WriteContext, lance_table, lance_write

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
    description="Every click, each once.",
    writes=[
        SparkDelete(
            "clicks_forget",
            predicate="user = :partition_key",
            partitions=forgotten,
            description="Deletes the clicks of a user who asks for it: each request is a partition.",
        ),
    ],
    # A sensor launches it when four small files can be joined, a schedule every night. Versions that nobody needs go
    # after a week, and with them the last of the clicks of those who were forgotten.
    maintenance=Maintenance(compact_when_small_files=4, keep_for=timedelta(days=7), every="0 3 * * *"),
)


def clicks_of(spark: "SparkSession", hour: str) -> "DataFrame":
    """Made up, and always the same for an hour; a project of yours would read them from a queue or a bucket."""
    first = hours.get_partition_keys().index(hour) * CLICKS_AN_HOUR
    return spark.range(first, first + CLICKS_AN_HOUR, 1, 2).selectExpr(
        "id AS click_id",
        "concat('user-', pmod(xxhash64(id, 'user'), 100)) AS user",
        "element_at(array('/', '/search', '/cart', '/help'), 1 + CAST(pmod(hash(id), 4) AS INT)) AS page",
        f"timestampadd(SECOND, CAST(pmod(id, 3600) AS INT), to_timestamp('{hour}', 'yyyy-MM-dd-HH:mm')) AS at",
    )


@lance_write(table=clicks, op="append", partitions=hours, once_per="partition")
def clicks_append(spark: "SparkSession", ctx: WriteContext) -> "DataFrame":
    """Appends the clicks of an hour that are there in time; an hour lands once."""
    return clicks_of(spark, str(ctx.partition_key)).where(f"click_id % {LATE_EVERY} <> 0")


@lance_write(table=clicks, op="upsert", on="click_id", matched="ignore", partitions=hours)
def clicks_late(spark: "SparkSession", ctx: WriteContext) -> "DataFrame":
    """Brings what came late for an hour. The delivery has clicks that are there already, and they stay as they are."""
    return clicks_of(spark, str(ctx.partition_key)).where(f"click_id % {LATE_EVERY} < 2")


@dg.asset(key_prefix="web", deps=[clicks.dep], kinds={"python", "lance"})
def pages() -> dg.MaterializeResult[None]:
    """How often each page is seen. Reading needs no Spark: one version, one column."""
    table = clicks.ledger.open()
    seen = table.to_table(columns=["page"])["page"].value_counts().to_pylist()
    counts = {each["values"]: each["counts"] for each in seen}
    return dg.MaterializeResult(metadata={"lance/version": table.version, "seen": dict(sorted(counts.items()))})


load_hour = dg.define_asset_job("load_hour", selection=[clicks.write_key("clicks_append")])

defs = dg.Definitions.merge(
    clicks.defs,  # below the functions: what is declared later would be missing
    dg.Definitions(
        assets=[pages],
        jobs=[load_hour],
        schedules=[dg.build_schedule_from_partitioned_job(load_hour)],
        resources={"spark": SparkSessionResource(app_name="clickstream")},
    ),
)
