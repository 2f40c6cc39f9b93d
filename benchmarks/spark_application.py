"""Spark application: a separate process whose tasks return their input, either in a session of ours or in bare
PySpark.

    python -m benchmarks.spark_application ours      numbers of tasks on stdin, one per line; seconds on stdout

The settings of an application belong to its Java process, so two applications need two processes. Start reading with
`SparkApplication`, the client of this process.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from lance_assets.spark import SparkSettings, open_session
from lance_assets.spark.java import ensure_java
from lance_assets.spark.worker_setup import WorkerTask

_ROOT = Path(__file__).parents[1]
OURS, BARE = "ours", "bare"


@dataclass(frozen=True, slots=True)
class SparkApplication:
    process: "subprocess.Popen[str]"

    def time_job(self, tasks: int) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{tasks}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the application ended with exit code {self.process.wait()}; its output is above")
        return float(answer)


@contextmanager
def start_application(flavour: str) -> Iterator[SparkApplication]:
    command = [sys.executable, "-m", "benchmarks.spark_application", flavour]
    process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield SparkApplication(process)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait()
        process.stdout.close()


def _pass_through(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _open_session(flavour: str) -> SparkSession:
    if flavour == OURS:
        quiet: dict[str, str | int | float | bool] = {"spark.ui.showConsoleProgress": False}
        return open_session(SparkSettings(master="local[*]", conf=quiet, log_level="ERROR"))
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session: SparkSession = (
        SparkSession.builder.master("local[*]").config("spark.ui.showConsoleProgress", "false").getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def main() -> None:
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    flavour = sys.argv[1]
    spark = _open_session(flavour)
    task = WorkerTask(_pass_through) if flavour == OURS else _pass_through
    for line in sys.stdin:
        tasks = int(line)
        start = time.perf_counter()
        rows = spark.range(0, tasks, 1, tasks).mapInArrow(task, "id bigint").toArrow().num_rows
        responses.write(f"{time.perf_counter() - start if rows == tasks else 'missing rows'}\n")
        responses.flush()
    spark.stop()


if __name__ == "__main__":
    main()
