"""Spark driver with little memory: a separate process that reports how much memory each operation takes.

    python -m benchmarks.spark_driver 512m      requests on stdin, one line of JSON each, and as many responses

Its Java process, which includes the tasks of the executors, has only the given heap. The figure of the driver's Python
process is its peak since the operation started. Start reading with `Driver`, the client of this process.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from lance_assets.spark import (
    SparkSettings,
    aggregate,
    append,
    count_rows,
    delete,
    map_columns,
    open_session,
    read,
)
from lance_core import Table
from lance_core.operations import Append, DataFile, Fragment

_ROOT = Path(__file__).parents[1]
_SELF = Path("/proc/self")
_RESET_PEAK = "5"
_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Memory:
    python_mib: int
    heap_mib: int
    """Heap in use after a garbage collection."""
    heap_mib_max: int
    """Upper limit of the heap."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Driver:
    process: "subprocess.Popen[str]"

    def run_op(self, name: str, uri: str) -> Memory:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"op": name, "uri": uri}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the driver ended with exit code {self.process.wait()}; its output is above")
        return Memory(**json.loads(answer))


@contextmanager
def start_driver(heap: str) -> Iterator[Driver]:
    command = [sys.executable, "-m", "benchmarks.spark_driver", heap]
    process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Driver(process)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait()
        process.stdout.close()


def build_table(path: Path, fragments: int, rows_per_fragment: int) -> str:
    """Create a table of many fragments that are all hard links to one file, and return its URI."""
    ids = pa.array(range(rows_per_fragment), pa.int64())
    rows = pa.table({"id": ids, "k": pc.cast(pc.bit_wise_and(ids, 7), pa.int32())})
    table = Table.create(str(path), rows, durable=False)
    (file,) = table.fragments[0].files
    linked_fragments = []
    for number in range(1, fragments):
        name = f"{number:08}.lance"
        os.link(path / "data" / file.path, path / "data" / name)
        linked = DataFile.of(
            path=name,
            field_ids=file.field_ids,
            column_indices=file.column_indices,
            version=file.version,
            size=file.size or 0,
        )
        linked_fragments.append(Fragment.of(files=[linked], physical_rows=rows_per_fragment))
    if linked_fragments:
        table.commit(Append(tuple(linked_fragments)), read_version=1)
    return str(path)


def _add_one(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"next": pc.add(batch["id"], 1)})


def _append_rows(spark: SparkSession, uri: str) -> object:
    return append(spark.range(0, 1000, 1, 2).selectExpr("id", "cast(id % 8 as int) as k"), uri)


def _map_next_column(spark: SparkSession, uri: str) -> object:
    return map_columns(spark, uri, _add_one, read_columns=["id"], schema=pa.schema([pa.field("next", pa.int64())]))


OPS: Mapping[str, Callable[[SparkSession, str], object]] = {
    "plan a read": lambda spark, uri: read(spark, uri).schema,
    "count rows": lambda spark, uri: count_rows(spark, uri, "k = 3 and id > 10"),
    "aggregate": lambda spark, uri: aggregate(spark, uri, "select k, count(*) as n from dataset group by k"),
    "append": _append_rows,
    "delete": lambda spark, uri: delete(spark, uri, "id = 77"),
    "map_columns": _map_next_column,
}


def _measure_op(spark: SparkSession, op: str, uri: str) -> dict[str, float]:
    (_SELF / "clear_refs").write_text(_RESET_PEAK)
    start = time.perf_counter()
    OPS[op](spark, uri)
    seconds = time.perf_counter() - start
    peak = re.search(r"VmHWM:\s*(\d+) kB", (_SELF / "status").read_text())
    assert peak is not None
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    runtime = jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    heap = (runtime.totalMemory() - runtime.freeMemory()) // _MIB
    return {
        "python_mib": int(peak[1]) // 1024,
        "heap_mib": int(heap),
        "heap_mib_max": int(runtime.maxMemory()) // _MIB,
        "seconds": seconds,
    }


def main() -> None:
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    conf: dict[str, str | int | float | bool] = {
        "spark.driver.memory": sys.argv[1],
        "spark.ui.showConsoleProgress": False,
    }
    spark = open_session(SparkSettings(master="local[2]", conf=conf, log_level="ERROR"))
    for line in sys.stdin:
        request = json.loads(line)
        responses.write(json.dumps(_measure_op(spark, request["op"], request["uri"])) + "\n")
        responses.flush()
    spark.stop()


if __name__ == "__main__":
    main()
