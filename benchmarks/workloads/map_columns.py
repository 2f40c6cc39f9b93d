"""One more column, computed from another by a Python function: beside Spark rewriting its Parquet files to have it.

Spark computes it in SQL, without Python; but a Parquet file has no place for a column that comes later.
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
from benchmarks.harness import Case, Entrant, Scale, Side, Stage, Told
from benchmarks.report import Facts
from lance_assets.spark import SparkSettings, map_columns, open_session
from lance_core import Table

_ROWS: Mapping[Scale, int] = {Scale.SMOKE: 2_000, Scale.DEFAULT: 2_000_000, Scale.FULL: 10_000_000}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 3, Scale.FULL: 5}
_SCHEMA = pa.schema([pa.field("y", pa.float64())])


class MapColumns:
    name = "map_columns"
    summary = "a computed float column for a table that is there, against rewriting Parquet"
    notes = (
        "four columns, of which one is read; rows_per_fragment are those of our files",
        "ours runs a Python function over Arrow batches and fsyncs; Spark evaluates its own SQL and does not",
        "one session of ours, local[*], default configuration",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"rows": _ROWS[scale], "rows_per_fragment": _per_fragment(scale)}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        stage.log("making the rows, or finding them made")
        rows, source = _ROWS[stage.scale], inputs.events(stage.kept, _ROWS[stage.scale])
        stage.log("starting Spark")
        spark = open_session(
            SparkSettings(master="local[*]", conf={"spark.ui.showConsoleProgress": False}, log_level="ERROR")
        )
        try:
            yield Case(
                f"a float column for {rows} rows",
                (
                    Entrant("ours", Side.OURS, lambda: _ours(spark, source, stage)),
                    Entrant("Spark Parquet", Side.PEER, lambda: _Parquet(spark, source, stage.workspace / "parquet")),
                ),
            )
        finally:
            spark.stop()


WORKLOAD = MapColumns()


def _per_fragment(scale: Scale) -> int:
    return max(1, min(1_000_000, _ROWS[scale] // 4))


def _doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"y": pc.multiply(batch["x"], 2.0)})


def _ours(spark: SparkSession, source: Path, stage: Stage) -> "_Ours":
    uri = str(stage.workspace / "table")
    Table.create(uri, pq.read_table(source), max_rows_per_file=_per_fragment(stage.scale))
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
        self._written = map_columns(self.spark, self.uri, _doubled, read_columns=["x"], schema=_SCHEMA).bytes

    def told(self) -> Told:
        return Told(counts={"bytes written": self._written})

    def facts(self) -> Facts:
        values = Table.open(self.uri).to_table(columns=["y"])["y"]
        return {"rows": len(values), "sum": str(pc.sum(values).as_py())}


@dataclass
class _Parquet:
    spark: SparkSession
    source: Path
    place: Path

    def before(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)

    def call(self) -> None:
        rows = self.spark.read.parquet(str(self.source))
        rows.withColumn("y", F.col("x") * 2.0).write.parquet(str(self.place))

    def told(self) -> Told:
        return Told(counts={"bytes written": sum(file.stat().st_size for file in self.place.glob("*.parquet"))})

    def facts(self) -> Facts:
        values = pq.read_table(self.place, columns=["y"])["y"]
        return {"rows": len(values), "sum": str(pc.sum(values).as_py())}
