"""Spark application of the deployment examples: appends the orders of a day as a remote write of Dagster.

It runs wherever a Spark driver runs, and needs lance-assets with its extras `pipes` and `spark`. With the argument
`s3` it exchanges parameters and messages with Dagster through the bucket that Dagster chose.
"""

import sys
from typing import Any

from lance_assets.pipes import open_remote_write
from lance_assets.spark import append
from lance_core import Table

ORDERS = 1_000


def channels(kind: str) -> dict[str, Any]:
    """Return the channels of Dagster Pipes: files and the environment, or objects of a bucket."""
    if kind != "s3":
        return {}
    import boto3
    from dagster_pipes import PipesS3ContextLoader, PipesS3MessageWriter

    client = boto3.client("s3")
    return {"context_loader": PipesS3ContextLoader(client), "message_writer": PipesS3MessageWriter(client)}


def not_empty(table: Table, parent: Table | None) -> str | None:
    return None if table.count_rows() else "the table has no rows"


def main(kind: str = "files") -> None:
    with open_remote_write(**channels(kind)) as write:
        day = write.partition_key
        write.log.info(f"loading the orders of {day}")
        orders = write.spark.range(0, ORDERS, 1, 2).selectExpr("id AS order_id", f"DATE '{day}' AS day")
        committed = append(orders, write.uri, **write.options(audit={"not_empty": not_empty}))
        write.report(committed, {"spark": write.spark.version})


if __name__ == "__main__":
    main(*[each for each in sys.argv[1:2] if not each.startswith("-")])
