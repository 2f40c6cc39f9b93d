"""Spark application of the deployment examples: appends the orders of a day as a remote write of Dagster.

It runs wherever a Spark driver runs, and needs lance-assets with its extras `pipes` and `spark`. It exchanges
parameters and messages with Dagster through files, or, with an argument, through the bucket (`s3`, `gcs`) or the volume
of Unity Catalog (`volumes`) that Dagster chose.
"""

import sys
from typing import Any

from lance_assets.pipes import open_remote_write
from lance_assets.spark import append
from lance_core import Table

ORDERS = 1_000


def channels(kind: str) -> dict[str, Any]:
    """Return the channels of Dagster Pipes: files and the environment, objects of a bucket, or files of a volume."""
    if kind == "s3":
        import boto3
        from dagster_pipes import PipesS3ContextLoader, PipesS3MessageWriter

        s3 = boto3.client("s3")
        return {"context_loader": PipesS3ContextLoader(s3), "message_writer": PipesS3MessageWriter(s3)}
    if kind == "gcs":
        from dagster_pipes import PipesGCSContextLoader, PipesGCSMessageWriter
        from google.cloud import storage

        gcs = storage.Client()
        return {"context_loader": PipesGCSContextLoader(gcs), "message_writer": PipesGCSMessageWriter(gcs)}
    if kind == "volumes":
        from dagster_pipes import PipesUnityCatalogVolumesContextLoader, PipesUnityCatalogVolumesMessageWriter

        return {
            "context_loader": PipesUnityCatalogVolumesContextLoader(),
            "message_writer": PipesUnityCatalogVolumesMessageWriter(),
        }
    return {}


def not_empty(table: Table, parent: Table | None) -> str | None:
    return None if table.count_rows() else "the table has no rows"


def main(kind: str = "files") -> None:
    with open_remote_write(**channels(kind)) as write:
        day = write.partition_key
        write.log.info(f"loading the orders of {day}")
        orders = write.spark.range(0, ORDERS, 1, 2).selectExpr("id AS order_id", f"DATE '{day}' AS day")
        committed = append(orders, write.uri, **write.creation, **write.options(audit={"not_empty": not_empty}))
        write.report(committed, {"spark": write.spark.version})


if __name__ == "__main__":
    main(*[each for each in sys.argv[1:2] if not each.startswith("-")])
