"""Dagster project as a user deploys it, for tests whose processes load it.

Environment variables hold the location of its tables and the secrets that two of them need.

A file `kill.json` in its folder kills the process of a step once: `{"at": crash point, "process": "step" | "run"}`
kills that process alone, or the run worker before it (`crash_points.py`). While a file `wait` exists, the Spark tasks
of `orders` wait, and `waiting` lists their processes.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lance_assets import LanceTable, SparkAppend, SparkSessionResource, WriteContext, lance_discovery, lance_table
from tests.lance_assets.crash_points import CrashPointRecorder

ROOT, BUCKET, SECRET, ENDPOINT = "PROOFS_ROOT", "PROOFS_BUCKET", "PROOFS_SECRET", "PROOFS_ENDPOINT"
ROWS = 10


def rows(spark: SparkSession, ctx: WriteContext) -> DataFrame:
    request_file = Path(os.environ[ROOT], "kill.json")
    request = {"at": None, "process": "step"}
    if ctx.table.uri == orders.uri and request_file.exists():
        request = json.loads(request_file.read_text())
        request_file.unlink()
    killed_first = (os.getppid(),) if request["process"] == "run" else ()
    CrashPointRecorder(Path(os.environ[ROOT], "crash_points"), request["at"], killed_first).install()
    frame = spark.range(0, ROWS, 1, 1)
    return with_waiting_tasks(frame) if ctx.table.uri == orders.uri and WAIT.exists() else frame


WAIT, WAITING = (Path(os.environ.get(ROOT, "."), name) for name in ("wait", "waiting"))


def with_waiting_tasks(frame: DataFrame) -> DataFrame:
    wait, waiting, step = WAIT, WAITING, os.getpid()

    def wait_and_copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        worker, daemon = os.getpid(), os.getppid()
        java = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
        incomplete = waiting.with_suffix(".new")
        incomplete.write_text(json.dumps([step, java, daemon, worker]))
        incomplete.rename(waiting)
        while wait.exists():
            time.sleep(0.05)
        yield from batches

    return frame.mapInArrow(wait_and_copy, frame.schema)


def declare_on_s3(name: str, secret: str) -> LanceTable:
    options = {
        "aws_access_key_id": "not-a-key-id",
        "aws_secret_access_key": secret,
        "aws_endpoint": os.environ.get(ENDPOINT, "http://127.0.0.1:1"),
        "aws_region": "us-east-1",
        "allow_http": "true",
    }
    uri = f"{os.environ.get(BUCKET, 's3://nowhere')}/{name}.lance"
    append = SparkAppend(f"{name}_append", rows)
    return lance_table(name, uri=uri, storage_options=options, writes=[append], discover=False)


orders = lance_table(
    "orders",
    uri=str(Path(os.environ.get(ROOT, "."), "orders.lance")),
    key_prefix="lake",
    writes=[SparkAppend("orders_append", rows)],
    discover=False,
)
clicks = declare_on_s3("clicks", f"env:{SECRET}")
views = declare_on_s3("views", dg.EnvVar(SECRET))

load = dg.define_asset_job("load", [orders.write_key("orders_append")])
"""Job with the default executor, which runs each step in its own process."""
load_s3 = dg.define_asset_job(
    "load_s3",
    [clicks.write_key("clicks_append"), views.write_key("views_append")],
    executor_def=dg.in_process_executor,
)
conf = {"spark.ui.enabled": "false", "spark.hadoop.fs.s3a.secret.key": dg.EnvVar(SECRET)}
resources = {"spark": SparkSessionResource(master="local[1]", conf=conf)}
defs = dg.Definitions.merge(
    orders.defs,
    clicks.defs,
    views.defs,
    dg.Definitions(
        jobs=[load, load_s3],
        sensors=[lance_discovery("lake", [orders, clicks, views], interval_s=1)],
        resources=resources,
    ),
)


def load_job() -> dg.JobDefinition:
    return defs.resolve_job_def("load")
