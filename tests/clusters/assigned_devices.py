"""Assigned devices: fills a computed column on executors with two invented GPUs, and prints the devices of its tasks.

Run as a process of its own, with the folder of the table as its argument: `python -m tests.clusters.assigned_devices`.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from lance_assets.spark import ComputedColumn, SparkSettings, compute_columns, device_addresses, open_session
from lance_core import Table
from tests.clusters import deployments

DISCOVERY = """#!/bin/sh
echo '{"name": "gpu", "addresses": ["0", "1"]}'
"""


def load() -> Callable[[pa.RecordBatch], list[str]]:
    """Return the function of a model on the device of its task."""
    (device,) = device_addresses("gpu")
    return lambda batch: [device] * batch.num_rows


def main(folder: Path) -> None:
    script = folder / "discover.sh"
    script.write_text(DISCOVERY)
    script.chmod(0o755)
    with deployments.local_cluster() as address:
        conf = {
            **address.conf,
            "spark.worker.resource.gpu.amount": "2",
            "spark.worker.resource.gpu.discoveryScript": str(script),
            "spark.executor.resource.gpu.amount": "2",
        }
        spark = open_session(SparkSettings(master="local-cluster[1,2,1024]", conf=conf))
        uri = str(folder / "t.lance")
        Table.create(uri, {"a": range(8)}, max_rows_per_file=2, durable=False)
        column = ComputedColumn("device", pa.string(), setup=load, inputs=["a"], resources={"gpu": 1, "cpus": 1})
        compute_columns(spark, uri, column)
        print(json.dumps(Table.open(uri).to_table(["device"])["device"].to_pylist()))
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
