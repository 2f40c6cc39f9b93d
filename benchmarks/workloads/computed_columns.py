"""Workload `computed_columns`: fills a computed vector column for the 1 % of rows that are new, compared with computing
all rows again, with Spark rewriting Parquet files, and with a merge of delta-rs.

Every system has a table whose column is complete except for the new rows, and calls the same function for those alone;
`ours, all rows` calls it for all.
"""

import shutil
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.harness import Case, Entrant, Runner, Scale, Side, Stage
from benchmarks.report import Facts
from lance_assets.spark import ComputedColumn, SparkSettings, compute_columns, open_session
from lance_core import Table

_ROWS: Mapping[Scale, int] = {Scale.SMOKE: 2_000, Scale.DEFAULT: 1_000_000, Scale.FULL: 10_000_000}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 3, Scale.FULL: 1}
_DIMENSION = 128
_VECTOR = pa.list_(pa.float32(), _DIMENSION)
_COLUMN = "embedding"


class ComputedColumns:
    name = "computed_columns"
    summary = "a computed vector column for 1 % new rows, against all rows, Parquet and delta"
    notes = (
        f"an int64 id and {_DIMENSION} float32 values a row; the new rows were appended in one piece",
        "x 'ours, all rows': the share of a complete computation that an incremental one takes",
        "Spark reads all Parquet files and writes new ones; delta-rs reads the ids and merges by id, without Spark",
        "one Spark session of ours, local[*], default configuration; ours fsyncs, the others do not",
        "full scale: without Spark Parquet and deltalake; the first fill of the table is the only warm-up",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"rows": _ROWS[scale], "new rows": _new_rows(scale), "rows_per_fragment": _rows_per_file(scale)}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        stage.log("starting Spark")
        spark = open_session(
            SparkSettings(master="local[*]", conf={"spark.ui.showConsoleProgress": False}, log_level="ERROR")
        )
        rows, new = _ROWS[stage.scale], _new_rows(stage.scale)
        try:
            ours = (
                Entrant("ours", Side.OURS, lambda: _enter_lance(spark, stage)),
                Entrant("ours, all rows", Side.PEER, lambda: _enter_copy(spark, stage)),
            )
            peers = (
                Entrant("Spark Parquet", Side.PEER, lambda: _enter_parquet(spark, stage)),
                Entrant("deltalake", Side.PEER, lambda: _enter_delta(stage), needs=("deltalake",)),
            )
            is_full = stage.scale is Scale.FULL
            name = f"fill {new} new of {rows} rows"
            # The first fill of the table warms Spark up; another warm-up would write all vectors once more.
            yield Case(name, ours if is_full else (*ours, *peers), warm_ups=0 if is_full else 1)
        finally:
            spark.stop()


WORKLOAD = ComputedColumns()


def _new_rows(scale: Scale) -> int:
    return _ROWS[scale] // 100


def _rows_per_file(scale: Scale) -> int:
    return max(1, min(1_000_000, _ROWS[scale] // 4))


def _vectors_of(ids: pa.Array) -> pa.Array:
    """Return a vector for each id: the function that every system calls."""
    factors = np.arange(1, _DIMENSION + 1, dtype=np.int64)
    values = (ids.to_numpy(zero_copy_only=False)[:, None] * factors) % 97
    return pa.FixedSizeListArray.from_arrays(pa.array(values.astype(np.float32).ravel() / np.float32(97)), _DIMENSION)


def _embed(batch: pa.RecordBatch) -> pa.Array:
    return _vectors_of(batch.column("id"))


_COMPUTED = ComputedColumn(_COLUMN, _VECTOR, fn=_embed, inputs=["id"], code_version="1")


def _fill_missing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches with the vectors of rows that have none."""
    for batch in batches:
        ids, vectors = batch.column("id"), batch.column(_COLUMN)
        if vectors.null_count:
            missing = pc.is_null(vectors)
            filled = _vectors_of(ids.filter(missing)).cast(vectors.type)
            positions = np.arange(len(ids))
            positions[missing.to_numpy(zero_copy_only=False)] = len(ids) + np.arange(len(filled))
            vectors = pa.concat_arrays([vectors, filled]).take(pa.array(positions))
        yield pa.record_batch({"id": ids, _COLUMN: vectors})


def _complete_rows(scale: Scale) -> Iterator[pa.Table]:
    """Yield the rows that have a vector, a file at a time."""
    for start, stop in _ranges(scale):
        ids = pa.array(np.arange(start, stop))
        yield pa.table({"id": ids, _COLUMN: _vectors_of(ids)})


def _ranges(scale: Scale) -> Iterator[tuple[int, int]]:
    """Yield the first id and the end of the ids of each file of rows that have a vector."""
    complete, rows = _ROWS[scale] - _new_rows(scale), _rows_per_file(scale)
    for start in range(0, complete, rows):
        yield start, min(start + rows, complete)


def _new_ids(scale: Scale) -> pa.Array:
    return pa.array(np.arange(_ROWS[scale] - _new_rows(scale), _ROWS[scale]))


def _facts_of(batches: Iterable[pa.RecordBatch]) -> Facts:
    """Return the number of rows, of vectors, and of rows whose vector is not that of the id."""
    rows = vectors = wrong = 0
    for batch in batches:
        found = batch.column(_COLUMN)
        rows += batch.num_rows
        vectors += batch.num_rows - found.null_count
        if batch.num_rows and not found.null_count:
            flat = found.flatten().to_numpy().reshape(-1, _DIMENSION)
            expected = _vectors_of(batch.column("id")).flatten().to_numpy().reshape(-1, _DIMENSION)
            wrong += int((flat != expected).any(axis=1).sum())
    return {"rows": rows, "vectors": vectors, "wrong": wrong}


def _enter_lance(spark: SparkSession, stage: Stage) -> Runner:
    uri = str(stage.workspace / "incremental")
    table = Table.create(uri, pa.schema([("id", pa.int64())]), stable_row_ids=True)
    for start, stop in _ranges(stage.scale):
        ids = pa.table({"id": np.arange(start, stop)})
        table = table.append(ids, max_rows_per_file=_rows_per_file(stage.scale)).table
    stage.log("computing the vectors of all rows")
    compute_columns(spark, uri, _COMPUTED)
    return _Lance(spark, uri, False, _new_ids(stage.scale), Table.open(uri).version)


def _enter_copy(spark: SparkSession, stage: Stage) -> Runner:
    """Copy the table that `_enter_lance` has created, before a call changes it."""
    uri = str(stage.workspace / "complete")
    shutil.copytree(stage.workspace / "incremental", uri)
    return _Lance(spark, uri, True, _new_ids(stage.scale), Table.open(uri).version)


@dataclass(frozen=True, slots=True)
class _Lance:
    spark: SparkSession
    uri: str
    recompute: bool
    new_ids: pa.Array
    complete_version: int

    def before(self) -> None:
        table = Table.open(self.uri)
        if table.version != self.complete_version:
            table = table.restore(self.complete_version).table
        table.append(pa.table({"id": self.new_ids}))

    def call(self) -> None:
        compute_columns(self.spark, self.uri, _COMPUTED, recompute=self.recompute)

    def facts(self) -> Facts:
        return _facts_of(Table.open(self.uri).to_batches(columns=["id", _COLUMN]))


def _enter_parquet(spark: SparkSession, stage: Stage) -> "_Parquet":
    source = stage.workspace / "parquet"
    source.mkdir()
    for number, rows in enumerate(_complete_rows(stage.scale)):
        pq.write_table(rows.cast(_PARQUET_SCHEMA), source / f"{number:05}.parquet", compression="none")
    missing = pa.table({"id": _new_ids(stage.scale), _COLUMN: pa.nulls(_new_rows(stage.scale), pa.list_(pa.float32()))})
    pq.write_table(missing, source / "new.parquet", compression="none")
    return _Parquet(spark, source, stage.workspace / "parquet-filled")


_PARQUET_SCHEMA = pa.schema([("id", pa.int64()), (_COLUMN, pa.list_(pa.float32()))])


@dataclass(frozen=True, slots=True)
class _Parquet:
    spark: SparkSession
    source: Path
    filled: Path

    def before(self) -> None:
        shutil.rmtree(self.filled, ignore_errors=True)

    def call(self) -> None:
        rows = self.spark.read.parquet(str(self.source))
        filled = rows.mapInArrow(_fill_missing, f"id bigint, {_COLUMN} array<float>")
        filled.write.option("compression", "none").parquet(str(self.filled))

    def facts(self) -> Facts:
        return _facts_of(ds.dataset(self.filled, format="parquet").to_batches())


def _enter_delta(stage: Stage) -> "_Delta":
    from deltalake import DeltaTable, write_deltalake

    uri = str(stage.workspace / "delta")
    for rows in _complete_rows(stage.scale):
        write_deltalake(uri, rows.cast(_PARQUET_SCHEMA), mode="append")
    return _Delta(uri, _new_ids(stage.scale), DeltaTable(uri).version())


@dataclass
class _Delta:
    uri: str
    new_ids: pa.Array
    complete_version: int
    _table: Any = field(default=None)

    def before(self) -> None:
        from deltalake import DeltaTable, write_deltalake

        table = DeltaTable(self.uri)
        if table.version() != self.complete_version:
            table.restore(self.complete_version)
        missing = pa.nulls(len(self.new_ids), pa.list_(pa.float32()))
        write_deltalake(self.uri, pa.table({"id": self.new_ids, _COLUMN: missing}), mode="append")

    def call(self) -> None:
        from deltalake import DeltaTable

        table = DeltaTable(self.uri)
        stale = table.to_pyarrow_dataset().to_table(columns=["id"], filter=ds.field(_COLUMN).is_null())["id"]
        ids = stale.combine_chunks()
        source = pa.table({"id": ids, _COLUMN: _vectors_of(ids).cast(pa.list_(pa.float32()))})
        table.merge(source, predicate="t.id = s.id", source_alias="s", target_alias="t").when_matched_update(
            {_COLUMN: f"s.{_COLUMN}"}
        ).execute()

    def facts(self) -> Facts:
        from deltalake import DeltaTable

        return _facts_of(DeltaTable(self.uri).to_pyarrow_dataset().to_batches(columns=["id", _COLUMN]))
