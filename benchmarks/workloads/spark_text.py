"""Workload `spark_text`: full-text index builds by two workers of Spark and by one, with their processor time and
memory.
"""

import heapq
import json
import os
import shutil
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.harness import CallFigures, Case, Entrant, Scale, Side, Stage
from benchmarks.report import Facts
from benchmarks.texts import draw_texts
from benchmarks.workloads.index import link_table
from lance_assets.spark import SparkSettings, open_session
from lance_assets.spark.jobs import PARTITION_RESULT_SCHEMA, partition_numbers
from lance_assets.spark.release import collect_arrow, map_with_resources
from lance_assets.spark.worker_setup import WorkerTask
from lance_core import Table
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.indices.index_build import IndexRequest, build_index
from lance_core.tasks.partitioning import Task

_SHORT: Mapping[Scale, int] = {Scale.SMOKE: 140_000, Scale.DEFAULT: 1_000_000, Scale.FULL: 4_000_000}
_LONG: Mapping[Scale, int] = {Scale.SMOKE: 0, Scale.DEFAULT: 140_000, Scale.FULL: 600_000}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 3, Scale.FULL: 1}
_FRAGMENTS = 16


class SparkText:
    name = "spark_text"
    summary = "full-text index builds by two workers of Spark and by one"
    notes = (
        "English, with stemming and stop words; short: 6 to 14 words, long: 60 to 140 words, with positions",
        "processor time: of the tasks of the busier worker, added over all jobs; it does not depend on other load",
        "worker MB: largest memory of a Python worker, libraries included",
        "one Spark session, local[2]; one worker runs all tasks one after the other",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"short_texts": _SHORT[scale], "long_texts": _LONG[scale]}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        conf: dict[str, str | int | float | bool] = {"spark.ui.showConsoleProgress": False}
        spark = open_session(SparkSettings(master="local[2]", conf=conf, log_level="ERROR"))
        corpora = (("short texts", _SHORT, (6, 14), False), ("long texts, positions", _LONG, (60, 140), True))
        try:
            for name, counts, (shortest, longest), with_position in corpora:
                place, count = stage.workspace / "table", counts[stage.scale]
                if not count:
                    continue
                _write_texts(place, count, shortest, longest)
                entrants = [
                    Entrant(label, side, partial(_Build, place, _Workers(spark, slots), with_position))
                    for label, side, slots in (("two workers", Side.OURS, 2), ("one worker", Side.PEER, 1))
                ]
                yield Case(f"build, {count:,} {name}", tuple(entrants), warm_ups=0)
                shutil.rmtree(place)
        finally:
            spark.stop()


WORKLOAD = SparkText()


def _write_texts(place: Path, count: int, shortest: int, longest: int) -> None:
    each = -(-count // _FRAGMENTS)
    table = Table.create(place, pa.table({"body": draw_texts(each, shortest, longest)}), durable=False)
    for number in range(1, _FRAGMENTS):
        table = table.append(pa.table({"body": draw_texts(each, shortest, longest, seed=number)})).table


@dataclass(frozen=True)
class _Workers:
    """Runner with some of the workers of a session, which records what its tasks use."""

    spark: SparkSession
    slots: int
    figures: list[list[Mapping[str, float]]] = field(default_factory=list)
    """Processor seconds and largest megabytes of each task, by job."""

    def run(self, task: Task, partitions: int) -> pa.Table:
        with tempfile.TemporaryDirectory() as directory:
            numbers = partition_numbers(self.spark, partitions)
            numbers = numbers.coalesce(1) if self.slots == 1 else numbers
            measured = WorkerTask(_MeasuredTask(task, directory))
            rows = collect_arrow(map_with_resources(numbers, measured, PARTITION_RESULT_SCHEMA, {}))
            self.figures.append([json.loads(file.read_text()) for file in sorted(Path(directory).iterdir())])
            return rows


@dataclass(frozen=True)
class _MeasuredTask:
    """Task that writes a file with what each of its partitions used."""

    task: Task
    directory: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in range(batch.num_rows):
                begin = time.process_time()
                yield from self.task([batch.slice(row, 1)])
                used = {"seconds": time.process_time() - begin, "megabytes": _peak_megabytes()}
                Path(self.directory, f"{os.getpid()}-{time.monotonic_ns()}").write_text(json.dumps(used))


def _peak_megabytes() -> float:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


@dataclass
class _Build:
    source: Path
    workers: _Workers
    with_position: bool
    _partitions: int = 0

    @property
    def _uri(self) -> Path:
        return self.source.with_name("built")

    def before(self) -> None:
        shutil.rmtree(self._uri, ignore_errors=True)
        link_table(self.source, self._uri)
        self.workers.figures.clear()

    def call(self) -> None:
        request = IndexRequest("body", "INVERTED", params={"with_position": self.with_position})
        table = TableRef(str(self._uri), durable=False)
        build_index(table, request, "all", options=WriteOptions(), runner=self.workers)

    def call_figures(self) -> CallFigures:
        tasks = [task for job in self.workers.figures for task in job]
        seconds = sum(_busiest([task["seconds"] for task in job], self.workers.slots) for job in self.workers.figures)
        return CallFigures({"processor time": seconds}, peaks={"worker MB": int(max(t["megabytes"] for t in tasks))})

    def facts(self) -> Facts:
        (index,) = Table.open(str(self._uri)).index_statistics()
        return {"covered rows": index.covered_rows}


def _busiest(seconds: Iterable[float], workers: int) -> float:
    """Return the time of the busier worker, if each takes the longest task that is left."""
    loads = [0.0] * workers
    for each in sorted(seconds, reverse=True):
        heapq.heapreplace(loads, loads[0] + each)
    return max(loads)
