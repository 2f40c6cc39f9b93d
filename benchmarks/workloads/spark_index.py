"""Workload `spark_index`: builds a BTREE with Spark's workers, compared with one process of ours and with pylance, and
looks up rows by key in a Spark session.

Such a build takes three Spark jobs; the time of three empty jobs is reported next to ours.
"""

import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.harness import CallFigures, Case, Entrant, Scale, Side, Stage
from benchmarks.report import Facts
from lance_assets.spark import SparkSettings, build_index, count_rows, open_session, read
from lance_core import Table
from lance_core.tasks.indices import index_build

_ROWS: Mapping[Scale, int] = {Scale.SMOKE: 20_000, Scale.DEFAULT: 2_000_000, Scale.FULL: 10_000_000}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 3, Scale.FULL: 5}
_WARM_UPS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 3, Scale.FULL: 3}
_JOBS = 3
_SEED = 11


class SparkIndex:
    name = "spark_index"
    summary = (
        "a BTREE of shuffled whole numbers by Spark's workers, against pylance in one process; and a row by its key"
    )
    notes = (
        "whole numbers in files of a million rows; only ours flushes its files to disk",
        "in pieces: built like a table that is too large for one worker, whatever the size of this one",
        "a row by its key: Spark plans and reads again each time, from a table with an index and from Parquet",
        "one Spark session of ours, local[*], default configuration",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"rows": _ROWS[scale], "jobs": _JOBS}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        rows = _ROWS[stage.scale]
        stage.log(f"writing {rows} rows")
        values = pa.table({"id": np.random.default_rng(_SEED).permutation(rows), "n": np.arange(rows)})
        place, parquet = stage.workspace / "table", stage.workspace / "table.parquet"
        Table.create(str(place), values, max_rows_per_file=max(1, rows // 10), durable=False)
        pq.write_table(values, parquet)
        stage.log("starting Spark")
        spark = open_session(
            SparkSettings(master="local[*]", conf={"spark.ui.showConsoleProgress": False}, log_level="ERROR")
        )
        warm_ups = _WARM_UPS[stage.scale]
        try:
            yield Case(
                f"BTREE of {rows} shuffled whole numbers",
                (
                    Entrant(
                        "ours",
                        Side.OURS,
                        lambda: _BuildRunner(spark, place, _spark_builder(spark, index_build.SINGLE_WORKER_ROWS_MAX)),
                    ),
                    Entrant("ours, in pieces", Side.OURS, lambda: _BuildRunner(spark, place, _spark_builder(spark, 0))),
                    Entrant("ours, without Spark", Side.OURS, lambda: _BuildRunner(spark, place, _build_in_process)),
                    Entrant("pylance", Side.PEER, lambda: _BuildRunner(spark, place, _build_by_pylance), ("pylance",)),
                ),
                warm_ups=warm_ups,
            )
            indexed = stage.workspace / "indexed"
            shutil.copytree(place, indexed)
            _build_in_process(str(indexed))
            uri, key = str(indexed), rows // 2
            yield Case(
                "a row by its key",
                (
                    Entrant(
                        "ours",
                        Side.OURS,
                        lambda: _QueryRunner(lambda: _count_collected(read(spark, uri, filter=f"id = {key}"))),
                    ),
                    Entrant(
                        "ours, as Arrow",
                        Side.OURS,
                        lambda: _QueryRunner(lambda: Table.open(uri).to_table(filter=f"id = {key}").num_rows),
                    ),
                    Entrant(
                        "ours, counted", Side.OURS, lambda: _QueryRunner(lambda: count_rows(spark, uri, f"id = {key}"))
                    ),
                    Entrant(
                        "Parquet",
                        Side.PEER,
                        lambda: _QueryRunner(
                            lambda: _count_collected(spark.read.parquet(str(parquet)).where(f"id = {key}"))
                        ),
                    ),
                ),
                warm_ups=warm_ups,
            )
        finally:
            spark.stop()


WORKLOAD = SparkIndex()


def _count_collected(frame: object) -> int:
    return len(frame.collect())  # type: ignore[attr-defined]


def _spark_builder(spark: SparkSession, single_worker_rows_max: int) -> Callable[[str], object]:
    def build(uri: str) -> None:
        original, index_build.SINGLE_WORKER_ROWS_MAX = index_build.SINGLE_WORKER_ROWS_MAX, single_worker_rows_max
        try:
            build_index(spark, uri, "id", "BTREE")
        finally:
            index_build.SINGLE_WORKER_ROWS_MAX = original

    return build


def _build_in_process(uri: str) -> object:
    return Table.open(uri).create_index("id", "BTREE")


def _build_by_pylance(uri: str) -> None:
    import lance

    lance.dataset(uri).create_scalar_index("id", "BTREE")


@dataclass
class _BuildRunner:
    spark: SparkSession
    source: Path
    build: Callable[[str], object]
    _empty: float = field(default=0.0)

    @property
    def uri(self) -> Path:
        return self.source.with_name("built")

    def before(self) -> None:
        shutil.rmtree(self.uri, ignore_errors=True)
        shutil.copytree(self.source, self.uri)
        start = time.perf_counter()
        partitions = self.spark.sparkContext.defaultParallelism
        for _ in range(_JOBS):
            self.spark.range(0, partitions, 1, partitions).mapInArrow(_pass_through, "id bigint").toArrow()
        self._empty = time.perf_counter() - start

    def call(self) -> None:
        self.build(str(self.uri))

    def call_figures(self) -> CallFigures:
        return CallFigures(seconds={f"{_JOBS} empty jobs of Spark": self._empty})

    def facts(self) -> Facts:
        import lance

        scanner = lance.dataset(str(self.uri)).scanner(columns=["n"], filter="id = 4711")
        return {"through an index": "ScalarIndexQuery" in scanner.explain_plan(), "rows": scanner.to_table().num_rows}


@dataclass
class _QueryRunner:
    query: Callable[[], int]
    _row_count: int = 0

    def before(self) -> None:
        """Nothing to prepare: only the caches of Spark and of the libraries persist between calls."""

    def call(self) -> None:
        self._row_count = self.query()

    def facts(self) -> Facts:
        return {"rows found": self._row_count}


def _pass_through(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
