"""Worker memory: the resident memory of a process like a Python worker of Spark, after it has written and read."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
RESIDENT_MB_MAX = 320
PROGRAM = """
import json
import sys

import pyspark.worker
import numpy as np
import pyarrow as pa

from lance_assets.spark.worker_memory import resident_bytes
from lance_assets.spark.worker_setup import WorkerTask, prepare_and_read
from lance_core import Table
from lance_core.tasks.rows.write import FileLimits, WriteTask, begin_append

uri, rows, dimension = sys.argv[1], 8192, 256
vectors = pa.FixedSizeListArray.from_arrays(np.zeros(rows * dimension, dtype="f4"), dimension)
batch = pa.record_batch({"id": np.arange(rows), "vector": vectors})
Table.create(uri, batch.schema)
planned = begin_append(uri, batch.schema, create=False, intent=None, limits=FileLimits())
parts = [part for _ in range(2) for part in WorkerTask(WriteTask(planned.plan))(iter([batch] * 12))]
table = planned.finish(pa.Table.from_batches(parts)).table
resident = {"written": resident_bytes()}
rows_read = sum(read.num_rows for read in prepare_and_read(table.to_batches()))
resident["read"] = resident_bytes()
assert rows_read == table.count_rows() == 24 * rows
print(json.dumps({"resident": resident, "has_sql": "datafusion" in sys.modules}))
"""


def test_a_worker_without_sql_stays_small(tmp_path: Path) -> None:
    """192 MB are written in two tasks, and read by as many threads as the machine has cores."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "table")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert not result["has_sql"]
    megabytes = {what: size // 1024**2 for what, size in result["resident"].items()}
    assert all(100 < size <= RESIDENT_MB_MAX for size in megabytes.values()), megabytes
