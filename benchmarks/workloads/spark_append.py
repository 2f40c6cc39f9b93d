"""Workload `spark_append`: appends a Spark DataFrame to a Lance table, compared with writing it to Parquet by Spark's
own writer.

Both systems read the same Parquet files in the same session and write the rows: business rows as wide as TPC-H's
lineitem, and vectors. The rows come from `benchmarks/inputs.py`.
"""

import shutil
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from benchmarks import inputs
from benchmarks.harness import Case, Entrant, Scale, Side, Stage
from benchmarks.report import Facts
from lance_assets.spark import SparkSettings, append, open_session
from lance_core import Table

_LINEITEMS: Mapping[Scale, int] = {Scale.SMOKE: 2_000, Scale.DEFAULT: 1_200_000, Scale.FULL: 6_000_000}
_VECTORS: Mapping[Scale, int] = {Scale.SMOKE: 1_000, Scale.DEFAULT: 200_000, Scale.FULL: 1_000_000}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 5, Scale.FULL: 5}
_QUIET: Mapping[str, bool] = {"spark.ui.showConsoleProgress": False}
_WARM_UPS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 2, Scale.FULL: 1}


class SparkAppend:
    name = "spark_append"
    summary = "bulk append of a DataFrame, against Spark's own Parquet writer"
    notes = (
        "each call reads the source from Parquet, so decoding it is part of every time",
        "ours appends to an existing empty table; Spark's writer creates its directory",
        "ours fsyncs its files; Spark's writer does not",
        "one Spark session of ours, local[*], default configuration",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {
            "lineitem_rows": _LINEITEMS[scale],
            "vector_rows": _VECTORS[scale],
            "dimensions": inputs.DIMENSIONS,
        }

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        stage.log("generating the rows, or reusing cached ones")
        rows, vectors = _LINEITEMS[stage.scale], _VECTORS[stage.scale]
        lineitem_files = inputs.lineitem_files(stage.input_cache, rows)
        vector_files = inputs.vector_files(stage.input_cache, vectors)
        stage.log("starting Spark")
        spark = open_session(SparkSettings(master="local[*]", conf=_QUIET, log_level="ERROR"))
        try:
            yield _build_case(f"lineitem, {rows} rows x 16", spark, lineitem_files, stage, _lineitem_facts)
            yield _build_case(
                f"vectors, {vectors} x {inputs.DIMENSIONS} floats", spark, vector_files, stage, _vector_facts
            )
        finally:
            spark.stop()


WORKLOAD = SparkAppend()


def _build_case(
    name: str,
    spark: SparkSession,
    source: Path,
    stage: Stage,
    facts: Callable[[Callable[[str], pa.ChunkedArray]], Facts],
) -> Case:
    frame = spark.read.parquet(str(source))
    schema = pq.read_schema(next(source.glob("*.parquet"))).remove_metadata()
    return Case(
        name,
        (
            Entrant("ours", Side.OURS, lambda: _Ours(stage.workspace / "table", frame, schema, facts)),
            Entrant("Spark Parquet", Side.PEER, lambda: _Parquet(stage.workspace / "parquet", frame, facts)),
        ),
        warm_ups=_WARM_UPS[stage.scale],
    )


@dataclass(frozen=True, slots=True)
class _Ours:
    directory: Path
    frame: DataFrame
    schema: pa.Schema
    facts_of: Callable[[Callable[[str], pa.ChunkedArray]], Facts]

    def before(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        Table.create(str(self.directory), self.schema)

    def call(self) -> None:
        append(self.frame, str(self.directory))

    def facts(self) -> Facts:
        table = Table.open(str(self.directory))
        return self.facts_of(lambda column: table.to_table(columns=[column])[column])


@dataclass(frozen=True, slots=True)
class _Parquet:
    directory: Path
    frame: DataFrame
    facts_of: Callable[[Callable[[str], pa.ChunkedArray]], Facts]

    def before(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def call(self) -> None:
        self.frame.write.mode("append").parquet(str(self.directory))

    def facts(self) -> Facts:
        return self.facts_of(lambda column: pq.read_table(self.directory, columns=[column])[column])


def _lineitem_facts(column: Callable[[str], pa.ChunkedArray]) -> Facts:
    prices = column("l_extendedprice")
    return {"rows": len(prices), "sum of prices": str(pc.sum(prices).as_py())}


def _vector_facts(column: Callable[[str], pa.ChunkedArray]) -> Facts:
    """Sum the bits of the floats as integers, which is exact in any order."""
    vectors = column("vector")
    bits = sum(
        int(chunk.flatten().to_numpy(zero_copy_only=True).view(np.uint32).sum(dtype=np.uint64))
        for chunk in vectors.chunks
    )
    return {"rows": len(vectors), "sum of bits": bits}
