"""A Spark driver of little memory, in a process of its own, that says how much of it each op takes.

    python -m benchmarks.spark_driver 512m      orders on stdin, one line of JSON each, and as many answers

Its Java process has no more heap than it is told, the executors' tasks included; what the driver's Python takes is its
peak since the op began. Start with `Driver`, which is the other end.
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
    """In use after a collection."""
    heap_mib_max: int
    """More it cannot have."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Driver:
    process: "subprocess.Popen[str]"

    def op(self, name: str, uri: str) -> Memory:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"op": name, "uri": uri}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the driver ended with {self.process.wait()}; what it said is above")
        return Memory(**json.loads(answer))


@contextmanager
def driver(heap: str) -> Iterator[Driver]:
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


def built(path: Path, fragments: int, rows_per_fragment: int) -> str:
    """A table of many fragments, of which each is a link to one file."""
    ids = pa.array(range(rows_per_fragment), pa.int64())
    rows = pa.table({"id": ids, "k": pc.cast(pc.bit_wise_and(ids, 7), pa.int32())})
    table = Table.create(str(path), rows, durable=False)
    (file,) = table.fragments[0].files
    same = []
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
        same.append(Fragment.of(files=[linked], physical_rows=rows_per_fragment))
    if same:
        table.commit(Append(tuple(same)), read_version=1)
    return str(path)


def _next(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"next": pc.add(batch["id"], 1)})


def _more(spark: SparkSession, uri: str) -> object:
    return append(spark.range(0, 1000, 1, 2).selectExpr("id", "cast(id % 8 as int) as k"), uri)


def _computed(spark: SparkSession, uri: str) -> object:
    return map_columns(spark, uri, _next, read_columns=["id"], schema=pa.schema([pa.field("next", pa.int64())]))


OPS: Mapping[str, Callable[[SparkSession, str], object]] = {
    "plan a read": lambda spark, uri: read(spark, uri).schema,
    "count rows": lambda spark, uri: count_rows(spark, uri, "k = 3 and id > 10"),
    "aggregate": lambda spark, uri: aggregate(spark, uri, "select k, count(*) as n from dataset group by k"),
    "append": _more,
    "delete": lambda spark, uri: delete(spark, uri, "id = 77"),
    "map_columns": _computed,
}


def _measured(spark: SparkSession, op: str, uri: str) -> dict[str, float]:
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
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    conf: dict[str, str | int | float | bool] = {
        "spark.driver.memory": sys.argv[1],
        "spark.ui.showConsoleProgress": False,
    }
    spark = open_session(SparkSettings(master="local[2]", conf=conf, log_level="ERROR"))
    for line in sys.stdin:
        order = json.loads(line)
        answers.write(json.dumps(_measured(spark, order["op"], order["uri"])) + "\n")
        answers.flush()
    spark.stop()


if __name__ == "__main__":
    main()
