"""Spark application of a remote write, as users submit it: `spark-submit remote_job.py SCENE [S3 ENDPOINT]`.

commit                 append rows, evaluate an audit, report
before the version     the driver is killed when it is about to commit
after the version      the driver is killed after the commit, before the report
"""

import functools
import itertools
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import boto3
import pyarrow as pa
from dagster_pipes import PipesS3ContextLoader, PipesS3MessageWriter

from lance_assets.pipes import open_remote_write
from lance_assets.spark import append, map_columns
from lance_core import Table
from lance_core.storage.local import LocalStore

ROWS = 1000


def kill_at(point: str) -> None:
    create = LocalStore.create_after

    @functools.wraps(create)
    def create_or_die(store: LocalStore, path: str, data: bytes, unsynced: Sequence[str]) -> object:
        if not path.startswith("_versions/"):
            return create(store, path, data, unsynced)
        if point == "after the version":
            create(store, path, data, unsynced)
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    LocalStore.create_after = create_or_die  # type: ignore[assignment, method-assign]


def channels(endpoint: str | None) -> dict[str, Any]:
    """Return the channels of Pipes: those of S3, or the defaults."""
    if endpoint is None:
        return {}
    keys = {"aws_access_key_id": "not-a-key-id", "aws_secret_access_key": "not-a-secret-but-looked-for"}
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
    return {"context_loader": PipesS3ContextLoader(client), "message_writer": PipesS3MessageWriter(client, interval=1)}


def double(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"twice": pa.array([2 * each for each in batch["id"].to_pylist()], pa.int64())})


def enough(table: Table, parent: Table | None) -> str | None:
    return None if table.count_rows() >= ROWS else "too few rows"


def main(scene: str, endpoint: str | None = None) -> None:
    with open_remote_write(**channels(endpoint)) as write:
        write.log.info("the Spark driver runs")
        rows = write.spark.range(0, ROWS, 1, 2).selectExpr("id", f"'{write.partition_key}' as day")
        if scene == "map":
            schema = pa.schema([("twice", pa.int64())])
            options = {name: value for name, value in write.options().items() if name != "audit"}
            mapped = map_columns(
                write.spark,
                write.uri,
                double,
                read_columns=["id"],
                schema=schema,
                resume_key=write.intent,
                progress=write.progress,
                **options,  # type: ignore[arg-type]
            )
            write.report(mapped)
            return
        if scene != "commit":
            kill_at(scene)
        # The detached version of an audit would be the first version that the killed driver puts.
        audit = {"enough": enough} if scene == "commit" else None
        committed = append(rows, write.uri, **write.creation, **write.options(audit=audit))
        write.report(committed, {"application": write.spark.sparkContext.applicationId})


if __name__ == "__main__":
    main(*itertools.takewhile(lambda each: not each.startswith("--dagster"), sys.argv[1:]))
