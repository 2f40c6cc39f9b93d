"""A BTREE built by Spark's workers, beside one process of ours and pylance; and rows by their key from a session.

What Spark itself costs, three empty jobs, which is how many such an index takes, is told beside ours.
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

from benchmarks.harness import Case, Entrant, Scale, Side, Stage, Told
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
        "whole numbers in files of a million rows; nothing is flushed to the disk but by ours",
        "in pieces: as a table that is too large for one worker is built, whatever size this one has",
        "a row by its key: Spark plans and reads anew each time, of a table that has an index, and of Parquet",
        "one session of ours, local[*], default configuration",
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
                        lambda: _Building(spark, place, _by_spark(spark, index_build.SINGLE_WORKER_ROWS_MAX)),
                    ),
                    Entrant("ours, in pieces", Side.OURS, lambda: _Building(spark, place, _by_spark(spark, 0))),
                    Entrant("ours, without Spark", Side.OURS, lambda: _Building(spark, place, _alone)),
                    Entrant("pylance", Side.PEER, lambda: _Building(spark, place, _by_pylance), ("pylance",)),
                ),
                warm_ups=warm_ups,
            )
            indexed = stage.workspace / "indexed"
            shutil.copytree(place, indexed)
            _alone(str(indexed))
            uri, key = str(indexed), rows // 2
            yield Case(
                "a row by its key",
                (
                    Entrant(
                        "ours", Side.OURS, lambda: _Asking(lambda: _rows_of(read(spark, uri, filter=f"id = {key}")))
                    ),
                    Entrant(
                        "ours, as Arrow",
                        Side.OURS,
                        lambda: _Asking(lambda: Table.open(uri).to_table(filter=f"id = {key}").num_rows),
                    ),
                    Entrant("ours, counted", Side.OURS, lambda: _Asking(lambda: count_rows(spark, uri, f"id = {key}"))),
                    Entrant(
                        "Parquet",
                        Side.PEER,
                        lambda: _Asking(lambda: _rows_of(spark.read.parquet(str(parquet)).where(f"id = {key}"))),
                    ),
                ),
                warm_ups=warm_ups,
            )
        finally:
            spark.stop()


WORKLOAD = SparkIndex()


def _rows_of(frame: object) -> int:
    return len(frame.collect())  # type: ignore[attr-defined]


def _by_spark(spark: SparkSession, alone_rows: int) -> Callable[[str], object]:
    def build(uri: str) -> None:
        before, index_build.SINGLE_WORKER_ROWS_MAX = index_build.SINGLE_WORKER_ROWS_MAX, alone_rows
        try:
            build_index(spark, uri, "id", "BTREE")
        finally:
            index_build.SINGLE_WORKER_ROWS_MAX = before

    return build


def _alone(uri: str) -> object:
    return Table.open(uri).create_index("id", "BTREE")


def _by_pylance(uri: str) -> None:
    import lance

    lance.dataset(uri).create_scalar_index("id", "BTREE")


@dataclass
class _Building:
    spark: SparkSession
    place: Path
    build: Callable[[str], object]
    _empty: float = field(default=0.0)

    @property
    def uri(self) -> Path:
        return self.place.with_name("built")

    def before(self) -> None:
        shutil.rmtree(self.uri, ignore_errors=True)
        shutil.copytree(self.place, self.uri)
        start = time.perf_counter()
        parts = self.spark.sparkContext.defaultParallelism
        for _ in range(_JOBS):
            self.spark.range(0, parts, 1, parts).mapInArrow(_nothing, "id bigint").toArrow()
        self._empty = time.perf_counter() - start

    def call(self) -> None:
        self.build(str(self.uri))

    def told(self) -> Told:
        return Told(seconds={f"{_JOBS} empty jobs of Spark": self._empty})

    def facts(self) -> Facts:
        import lance

        scanner = lance.dataset(str(self.uri)).scanner(columns=["n"], filter="id = 4711")
        return {"through an index": "ScalarIndexQuery" in scanner.explain_plan(), "rows": scanner.to_table().num_rows}


@dataclass
class _Asking:
    ask: Callable[[], int]
    _found: int = 0

    def before(self) -> None:
        """Nothing is kept from call to call but what Spark and the libraries keep."""

    def call(self) -> None:
        self._found = self.ask()

    def facts(self) -> Facts:
        return {"rows found": self._found}


def _nothing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
