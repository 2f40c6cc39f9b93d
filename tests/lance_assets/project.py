"""A Dagster project as a user deploys it, for tests in which processes of their own load it. Where its tables are
stands in the environment, as do the secrets that two of them need.

A file `kill.json` in its folder says where the process of a step is to die, once: `{"at": a point of crash_points.py,
"whom": "step" | "run"}`, which is that process alone, or the run's worker before it. Where there is a file `wait`,
Spark's work on `orders` waits until that is gone, and says in `waiting` which processes do it.
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
from tests.lance_assets.crash_points import Tape

ROOT, BUCKET, SECRET, ENDPOINT = "PROOFS_ROOT", "PROOFS_BUCKET", "PROOFS_SECRET", "PROOFS_ENDPOINT"
ROWS = 10


def rows(spark: SparkSession, ctx: WriteContext) -> DataFrame:
    order = Path(os.environ[ROOT], "kill.json")
    told = {"at": None, "whom": "step"}
    if ctx.table.uri == orders.uri and order.exists():
        told = json.loads(order.read_text())
        order.unlink()
    Tape(Path(os.environ[ROOT], "tape"), told["at"], (os.getppid(),) if told["whom"] == "run" else ()).run()
    frame = spark.range(0, ROWS, 1, 1)
    return waiting(frame) if ctx.table.uri == orders.uri and WAIT.exists() else frame


WAIT, WAITING = (Path(os.environ.get(ROOT, "."), name) for name in ("wait", "waiting"))


def waiting(frame: DataFrame) -> DataFrame:
    wait, said, step = WAIT, WAITING, os.getpid()

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        worker, starter = os.getpid(), os.getppid()
        java = int(Path(f"/proc/{starter}/stat").read_text().rpartition(")")[2].split()[1])
        fresh = said.with_suffix(".new")
        fresh.write_text(json.dumps([step, java, starter, worker]))
        fresh.rename(said)
        while wait.exists():
            time.sleep(0.05)
        yield from batches

    return frame.mapInArrow(work, frame.schema)


def on_s3(name: str, secret: str) -> LanceTable:
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
clicks = on_s3("clicks", f"env:{SECRET}")
views = on_s3("views", dg.EnvVar(SECRET))

load = dg.define_asset_job("load", [orders.write_key("orders_append")])
"""By the executor that a project has if nobody says anything: each step in a process of its own."""
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
