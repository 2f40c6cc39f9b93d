"""Workload `ingest`: loads Parquet files into a table within Spark tasks, compared with Spark rewriting the same files
as Parquet.

The rows are as wide as TPC-H's lineitem and come from `benchmarks/inputs.py`. pylance writes the same files from a
pyarrow dataset in one process, which shows what is possible without Spark.
"""

import shutil
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

import lance
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks import inputs
from benchmarks.harness import Case, Entrant, Scale, Side, Stage
from benchmarks.report import Facts
from lance_assets.spark import SparkSettings, ingest, open_session
from lance_core import Table

_ROWS: Mapping[Scale, int] = {Scale.SMOKE: 2_000, Scale.DEFAULT: 1_200_000, Scale.FULL: 6_000_000}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 5, Scale.FULL: 5}
_QUIET: Mapping[str, bool] = {"spark.ui.showConsoleProgress": False}
_COLUMN = "l_extendedprice"


class Ingest:
    name = "ingest"
    summary = "Parquet files into a table, against Spark writing them as Parquet and pylance as a dataset"
    notes = (
        "ours ingests into an existing empty table, and records the ingested files",
        "ours fsyncs its files; Spark's writer and pylance do not",
        "one session, local[*], default configuration; pylance runs in the driver's process, with all cores",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"lineitem_rows": _ROWS[scale]}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        stage.log("generating the rows, or reusing cached ones")
        rows = _ROWS[stage.scale]
        files = inputs.lineitem_files(stage.input_cache, rows)
        stage.log("starting Spark")
        spark = open_session(SparkSettings(master="local[*]", conf=_QUIET, log_level="ERROR"))
        try:
            yield Case(
                f"lineitem, {rows} rows x 16",
                (
                    Entrant("ours", Side.OURS, lambda: _Ours(stage.workspace / "table", files, spark)),
                    Entrant("Spark Parquet", Side.PEER, lambda: _Parquet(stage.workspace / "parquet", files, spark)),
                    Entrant("pylance", Side.PEER, lambda: _Pylance(stage.workspace / "theirs", files)),
                ),
                warm_ups=1,
            )
        finally:
            spark.stop()


WORKLOAD = Ingest()


@dataclass(frozen=True, slots=True)
class _Ours:
    directory: Path
    files: Path
    spark: SparkSession

    def before(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        Table.create(str(self.directory), pq.read_schema(next(self.files.glob("*.parquet"))).remove_metadata())

    def call(self) -> None:
        ingest(self.spark, str(self.files), str(self.directory))

    def facts(self) -> Facts:
        prices = Table.open(str(self.directory)).to_table(columns=[_COLUMN])[_COLUMN]
        return {"rows": len(prices), "sum of prices": str(pc.sum(prices).as_py())}


@dataclass(frozen=True, slots=True)
class _Parquet:
    directory: Path
    files: Path
    spark: SparkSession

    def before(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def call(self) -> None:
        self.spark.read.parquet(str(self.files)).write.mode("append").parquet(str(self.directory))

    def facts(self) -> Facts:
        prices = pq.read_table(self.directory, columns=[_COLUMN])[_COLUMN]
        return {"rows": len(prices), "sum of prices": str(pc.sum(prices).as_py())}


@dataclass(frozen=True, slots=True)
class _Pylance:
    directory: Path
    files: Path

    def before(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def call(self) -> None:
        source = ds.dataset(str(self.files), format="parquet")
        lance.write_dataset(source.to_batches(), str(self.directory), schema=source.schema, data_storage_version="2.2")

    def facts(self) -> Facts:
        prices = lance.dataset(str(self.directory)).to_table(columns=[_COLUMN])[_COLUMN]
        return {"rows": len(prices), "sum of prices": str(pc.sum(prices).as_py())}
