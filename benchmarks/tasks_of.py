"""A Spark application whose tasks give back what they got, in a process of its own: one of ours, or a bare one.

    python -m benchmarks.tasks_of ours      numbers of tasks on stdin, a line each; on stdout the seconds that they took

An application's settings are those of its Java process, so two of them need two processes. Start with `Tasks`, which is
the other end.
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
class Tasks:
    process: "subprocess.Popen[str]"

    def took(self, tasks: int) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{tasks}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the application ended with {self.process.wait()}; what it said is above")
        return float(answer)


@contextmanager
def application(whose: str) -> Iterator[Tasks]:
    command = [sys.executable, "-m", "benchmarks.tasks_of", whose]
    process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Tasks(process)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait()
        process.stdout.close()


def _as_it_came(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _session(whose: str) -> SparkSession:
    if whose == OURS:
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
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    whose = sys.argv[1]
    spark = _session(whose)
    task = WorkerTask(_as_it_came) if whose == OURS else _as_it_came
    for line in sys.stdin:
        tasks = int(line)
        start = time.perf_counter()
        rows = spark.range(0, tasks, 1, tasks).mapInArrow(task, "id bigint").toArrow().num_rows
        answers.write(f"{time.perf_counter() - start if rows == tasks else 'rows are missing'}\n")
        answers.flush()
    spark.stop()


if __name__ == "__main__":
    main()
