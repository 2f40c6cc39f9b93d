"""Workload `spark_vector`: joins frames with the nearest rows of a table, beside Spark's own nearest-by join and beside
a matrix product, and encodes vectors with two workers and with one.
"""

import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.harness import CallFigures, Case, Entrant, Scale, Side, Stage
from benchmarks.report import Facts
from lance_assets.spark import SparkSettings, nearest_join, open_session
from lance_assets.spark.jobs import SparkRunner
from lance_core import Table
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.indices.index_build import IndexRequest, build_index
from lance_core.tasks.partitioning import Task

_SIZE, _K, _SEED = 128, 10, 11
_PARTITIONS, _SUB_VECTORS = 256, 16
_PAIRS: Mapping[Scale, tuple[int, int]] = {
    Scale.SMOKE: (5, 500),
    Scale.DEFAULT: (300, 10_000),
    Scale.FULL: (300, 10_000),
}
_PRODUCT: Mapping[Scale, tuple[int, int]] = {
    Scale.SMOKE: (20, 5_000),
    Scale.DEFAULT: (1_000, 200_000),
    Scale.FULL: (1_000, 200_000),
}
_ENCODED: Mapping[Scale, int] = {Scale.SMOKE: 6_000, Scale.DEFAULT: 400_000, Scale.FULL: 1_000_000}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 3, Scale.FULL: 5}


class SparkVector:
    name = "spark_vector"
    summary = "nearest rows of a table for each row of a frame, and the encoding of vectors by Spark's workers"
    notes = (
        f"float32 vectors of {_SIZE} numbers, k = {_K}, exact on all sides: the table of the joins has no index",
        "matrix product: numpy with all cores, the selection of k rows included, and an empty job of Spark",
        "encoding: an existing IVF_PQ index is extended by the rows that it does not cover, so that nothing is trained",
        "one Spark session of ours, local[2]",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"pairs": int(np.prod(_PAIRS[scale])), "encoded": _ENCODED[scale]}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        spark = open_session(
            SparkSettings(master="local[2]", conf={"spark.ui.showConsoleProgress": False}, log_level="ERROR")
        )
        try:
            queries, rows = _PAIRS[stage.scale]
            pairs = _Join.prepare(spark, stage.workspace / "pairs", queries, rows)
            yield Case(
                f"{queries} rows joined with {rows:,}",
                (
                    Entrant("ours", Side.OURS, lambda: _Runner(pairs.ours)),
                    Entrant("Spark, nearestByJoin", Side.PEER, lambda: _Runner(pairs.by_spark)),
                ),
            )
            queries, rows = _PRODUCT[stage.scale]
            large = _Join.prepare(spark, stage.workspace / "large", queries, rows)
            yield Case(
                f"{queries:,} rows joined with {rows:,}",
                (
                    Entrant("ours", Side.OURS, lambda: _Runner(large.ours)),
                    Entrant("matrix product", Side.PEER, lambda: _Runner(large.by_product)),
                ),
            )
            place = _write_half_covered(stage.workspace / "encoded", _ENCODED[stage.scale])
            yield Case(
                f"encoding of {_ENCODED[stage.scale]:,} vectors",
                (
                    Entrant("ours, two workers", Side.OURS, lambda: _Encoding(place, _Workers(SparkRunner(spark), 2))),
                    Entrant("ours, one worker", Side.PEER, lambda: _Encoding(place, _Workers(SparkRunner(spark), 1))),
                ),
            )
        finally:
            spark.stop()


WORKLOAD = SparkVector()


def _vectors(count: int, seed: int) -> np.ndarray:
    centers = np.random.default_rng(_SEED).normal(size=(400, _SIZE))
    draw = np.random.default_rng(seed)
    return (centers[draw.integers(0, 400, count)] + draw.normal(size=(count, _SIZE)) * 0.7).astype(np.float32)


def _table_of(vectors: np.ndarray) -> pa.Table:
    return pa.table({"id": np.arange(len(vectors)), "v": pa.FixedSizeListArray.from_arrays(vectors.ravel(), _SIZE)})


def _write_half_covered(place: Path, count: int) -> Path:
    """Write a table whose index covers the first fragment alone."""
    table = Table.create(str(place), _table_of(_vectors(max(count // 8, 2_000), 3)), durable=False)
    table = table.create_index("v", "IVF_PQ", num_partitions=_PARTITIONS, num_sub_vectors=_SUB_VECTORS).table
    for number in range(4):
        table = table.append(_table_of(_vectors(count // 4, 4 + number))).table
    return place


@dataclass(frozen=True)
class _Join:
    """Frame and table that are joined in several ways."""

    spark: SparkSession
    uri: str
    queries: np.ndarray
    vectors: np.ndarray
    left: DataFrame
    right: DataFrame

    @classmethod
    def prepare(cls, spark: SparkSession, place: Path, queries: int, rows: int) -> "_Join":
        vectors, asked = _vectors(rows, 1), _vectors(queries, 2)
        Table.create(str(place), _table_of(vectors), durable=False)

        def frame(table: pa.Table, names: list[str]) -> DataFrame:
            lists = table.set_column(1, "v", table["v"].cast(pa.list_(pa.float32()))).rename_columns(names)
            cached = spark.createDataFrame(lists).repartition(2).cache()
            cached.count()
            return cached

        left = frame(_table_of(asked), ["key", "q"])
        return cls(spark, str(place), asked, vectors, left, frame(_table_of(vectors), ["id", "v"]))

    def ours(self) -> int:
        joined = nearest_join(self.left, self.uri, column="v", vector="q", k=_K, columns=["id"])
        return int(joined.select("key", "id", "_distance").toArrow().num_rows)

    def by_spark(self) -> int:
        apart = F.zip_with(self.left["q"], self.right["v"], lambda one, other: (one - other) * (one - other))
        distance = F.aggregate(apart, F.lit(0.0).cast("float"), lambda total, part: total + part)
        joined = self.left.nearestByJoin(self.right, distance, _K, "exact", "distance")
        return int(joined.select("key", "id").toArrow().num_rows)

    def by_product(self) -> int:
        estimates = (self.vectors * self.vectors).sum(axis=1)[None] - 2 * self.queries @ self.vectors.T
        nearest = np.argpartition(estimates, _K, axis=1)[:, :_K]
        self.spark.range(0, 2, 1, 2).mapInArrow(_pass_through, "id bigint").toArrow()
        return int(nearest.size)


@dataclass
class _Runner:
    join: Callable[[], int]
    _row_count: int = 0

    def before(self) -> None:
        """Nothing to prepare: the frames are cached."""

    def call(self) -> None:
        self._row_count = self.join()

    def facts(self) -> Facts:
        return {"rows": self._row_count}


@dataclass(frozen=True)
class _Workers:
    """Some of the workers of a session."""

    runner: SparkRunner
    slots: int

    def run(self, task: Task, partitions: int) -> pa.Table:
        return self.runner.run(task, partitions)


@dataclass
class _Encoding:
    source: Path
    workers: _Workers
    _covered: float = field(default=0.0)

    def before(self) -> None:
        shutil.rmtree(self._uri, ignore_errors=True)
        shutil.copytree(self.source, self._uri)

    def call(self) -> None:
        request = IndexRequest("v", "IVF_PQ")
        table = TableRef(str(self._uri), durable=False)
        built = build_index(table, request, "uncovered", options=WriteOptions(), runner=self.workers).table
        self._covered = built.index_statistics()[0].live_coverage

    def call_figures(self) -> CallFigures:
        return CallFigures(seconds={})

    def facts(self) -> Facts:
        return {"coverage": f"{self._covered:.2f}"}

    @property
    def _uri(self) -> Path:
        return self.source.with_name("extended")


def _pass_through(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
