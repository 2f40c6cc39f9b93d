"""Workload `map_columns`: adds a column computed by a Python function, compared with Spark rewriting its Parquet files
with that column.

Spark computes the column in SQL, without Python; but a Parquet file cannot take a column later.
"""

import shutil
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks import inputs
from benchmarks.harness import CallFigures, Case, Entrant, Scale, Side, Stage
from benchmarks.report import Facts
from lance_assets.spark import SparkSettings, map_columns, open_session
from lance_core import Table

_ROWS: Mapping[Scale, int] = {Scale.SMOKE: 2_000, Scale.DEFAULT: 2_000_000, Scale.FULL: 10_000_000}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 3, Scale.FULL: 5}
_SCHEMA = pa.schema([pa.field("y", pa.float64())])


class MapColumns:
    name = "map_columns"
    summary = "a computed float column for an existing table, against rewriting Parquet"
    notes = (
        "four columns, one of which is read; rows_per_fragment applies to our files",
        "ours runs a Python function over Arrow batches and fsyncs; Spark evaluates its own SQL and does not",
        "one Spark session of ours, local[*], default configuration",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"rows": _ROWS[scale], "rows_per_fragment": _rows_per_fragment(scale)}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        stage.log("generating the rows, or reusing cached ones")
        rows, source = _ROWS[stage.scale], inputs.event_files(stage.input_cache, _ROWS[stage.scale])
        stage.log("starting Spark")
        spark = open_session(
            SparkSettings(master="local[*]", conf={"spark.ui.showConsoleProgress": False}, log_level="ERROR")
        )
        try:
            yield Case(
                f"a float column for {rows} rows",
                (
                    Entrant("ours", Side.OURS, lambda: _enter_ours(spark, source, stage)),
                    Entrant("Spark Parquet", Side.PEER, lambda: _Parquet(spark, source, stage.workspace / "parquet")),
                ),
            )
        finally:
            spark.stop()


WORKLOAD = MapColumns()


def _rows_per_fragment(scale: Scale) -> int:
    return max(1, min(1_000_000, _ROWS[scale] // 4))


def _double(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"y": pc.multiply(batch["x"], 2.0)})


def _enter_ours(spark: SparkSession, source: Path, stage: Stage) -> "_Ours":
    uri = str(stage.workspace / "table")
    Table.create(uri, pq.read_table(source), max_rows_per_file=_rows_per_fragment(stage.scale))
    return _Ours(spark, uri)


@dataclass
class _Ours:
    spark: SparkSession
    uri: str
    _written: int = field(default=0)

    def before(self) -> None:
        table = Table.open(self.uri)
        if "y" in table.schema.names:
            table.drop_columns(["y"])

    def call(self) -> None:
        self._written = map_columns(self.spark, self.uri, _double, read_columns=["x"], schema=_SCHEMA).bytes

    def call_figures(self) -> CallFigures:
        return CallFigures(counts={"bytes written": self._written})

    def facts(self) -> Facts:
        values = Table.open(self.uri).to_table(columns=["y"])["y"]
        return {"rows": len(values), "sum": str(pc.sum(values).as_py())}


@dataclass
class _Parquet:
    spark: SparkSession
    source: Path
    directory: Path

    def before(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def call(self) -> None:
        rows = self.spark.read.parquet(str(self.source))
        rows.withColumn("y", F.col("x") * 2.0).write.parquet(str(self.directory))

    def call_figures(self) -> CallFigures:
        return CallFigures(
            counts={"bytes written": sum(file.stat().st_size for file in self.directory.glob("*.parquet"))}
        )

    def facts(self) -> Facts:
        values = pq.read_table(self.directory, columns=["y"])["y"]
        return {"rows": len(values), "sum": str(pc.sum(values).as_py())}
