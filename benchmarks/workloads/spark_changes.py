"""Workload `spark_changes`: delete, upsert and compaction of a large table by Spark's workers, compared with pylance
in one process, and with delta-rs where it is installed.

The time of an empty Spark job with as many tasks is reported next to ours. Every call starts from the same version.
"""

import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks import inputs
from benchmarks.harness import CallFigures, Case, Entrant, Runner, Scale, Side, Stage
from benchmarks.report import Facts
from lance_assets.spark import SparkSettings, compact, delete, open_session, upsert
from lance_core import Table

if TYPE_CHECKING:
    import lance
    from deltalake import DeltaTable

_ROWS: Mapping[Scale, int] = {Scale.SMOKE: 2_000, Scale.DEFAULT: 2_000_000, Scale.FULL: 10_000_000}
_SMALL_FILES: Mapping[Scale, int] = {Scale.SMOKE: 10, Scale.DEFAULT: 200, Scale.FULL: 1_000}
_ROWS_PER_SMALL_FILE = 1_000
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 3, Scale.FULL: 5}
_WARM_UPS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 5, Scale.FULL: 5}
"""Warm-up calls. While Java compiles, Spark's own part of such short work becomes faster from call to call."""
_DELETE_CONDITION = "id % 100 = 7"


class SparkChanges:
    name = "spark_changes"
    summary = "delete, upsert and compaction by Spark's workers, against pylance in one process"
    notes = (
        "four columns; 1 % of the rows are deleted, all over the table; as many are upserted, half of them new",
        "pylance and delta-rs run without Spark; the time of an empty Spark job is listed with ours",
        "ours fsyncs its files; the others do not",
        "one Spark session of ours, local[*], default configuration",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"rows": _ROWS[scale], "small_files": _SMALL_FILES[scale], "rows_brought": _ROWS[scale] // 100}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        stage.log("generating the rows, or reusing cached ones")
        rows, files = _ROWS[stage.scale], _SMALL_FILES[stage.scale]
        source = pq.read_table(inputs.event_files(stage.input_cache, rows))
        upserted = source.slice(0, rows // 100)
        ids = pa.array(range(0, rows * 2, 200), pa.int64()).slice(0, upserted.num_rows)
        upserted = upserted.set_column(upserted.schema.get_field_index("id"), "id", ids)
        parquet = stage.workspace / "upserted.parquet"
        pq.write_table(upserted, parquet)
        small = source.slice(0, files * _ROWS_PER_SMALL_FILE)
        stage.log("starting Spark")
        spark = open_session(
            SparkSettings(master="local[*]", conf={"spark.ui.showConsoleProgress": False}, log_level="ERROR")
        )
        frame = spark.read.parquet(str(parquet))
        try:
            yield _build_case(
                f"delete 1 % of {rows} rows",
                stage,
                spark,
                source,
                rows // 4,
                ours=lambda uri: delete(spark, uri, _DELETE_CONDITION),
                theirs=lambda dataset: dataset.delete(_DELETE_CONDITION),
                delta=lambda table: table.delete(_DELETE_CONDITION),
            )
            yield _build_case(
                f"upsert {upserted.num_rows} rows into {rows}",
                stage,
                spark,
                source,
                rows // 4,
                ours=lambda uri: upsert(frame, uri, "id"),
                theirs=lambda dataset: (
                    dataset.merge_insert("id")
                    .when_matched_update_all()
                    .when_not_matched_insert_all()
                    .execute(pq.read_table(parquet))
                ),
                delta=lambda table: (
                    table.merge(pq.read_table(parquet), "t.id = s.id", source_alias="s", target_alias="t")
                    .when_matched_update_all()
                    .when_not_matched_insert_all()
                    .execute()
                ),
            )
            yield _build_case(
                f"compact {files} files of {_ROWS_PER_SMALL_FILE} rows",
                stage,
                spark,
                small,
                _ROWS_PER_SMALL_FILE,
                ours=lambda uri: compact(spark, uri),
                theirs=lambda dataset: dataset.optimize.compact_files(),
                delta=None,
            )
        finally:
            spark.stop()


WORKLOAD = SparkChanges()


def _build_case(
    name: str,
    stage: Stage,
    spark: SparkSession,
    rows: pa.Table,
    rows_per_file: int,
    *,
    ours: Callable[[str], object],
    theirs: Callable[["lance.LanceDataset"], object],
    delta: Callable[["DeltaTable"], object] | None,
) -> Case:
    def create_table(system: str) -> str:
        import lance

        uri = str(stage.workspace / system)
        shutil.rmtree(uri, ignore_errors=True)
        lance.write_dataset(rows, uri, max_rows_per_file=max(1, rows_per_file))
        return uri

    def enter_delta() -> Runner:
        from deltalake import write_deltalake

        assert delta is not None
        place = stage.workspace / "delta"
        shutil.rmtree(place, ignore_errors=True)
        write_deltalake(str(place), rows)
        return _Delta(place, delta)

    entrants = [
        Entrant("ours", Side.OURS, lambda: _Ours(spark, create_table("ours"), ours)),
        Entrant("pylance", Side.PEER, lambda: _Pylance(create_table("pylance"), theirs)),
    ]
    if delta is not None:
        entrants.append(Entrant("delta-rs", Side.PEER, enter_delta, needs=("deltalake",)))
    return Case(name, tuple(entrants), warm_ups=_WARM_UPS[stage.scale])


@dataclass
class _Ours:
    spark: SparkSession
    uri: str
    change: Callable[[str], object]
    _empty: float = field(default=0.0)

    def before(self) -> None:
        table = Table.open(self.uri)
        if table.version > 1:
            table.restore(1)
        start = time.perf_counter()
        partitions = self.spark.sparkContext.defaultParallelism * 4
        self.spark.range(0, partitions, 1, partitions).mapInArrow(_pass_through, "id bigint").toArrow()
        self._empty = time.perf_counter() - start

    def call(self) -> None:
        self.change(self.uri)

    def call_figures(self) -> CallFigures:
        return CallFigures(seconds={"an empty job of Spark": self._empty})

    def facts(self) -> Facts:
        return _table_facts(Table.open(self.uri).to_table(columns=["id", "k"]))


def _pass_through(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


@dataclass
class _Pylance:
    uri: str
    change: Callable[["lance.LanceDataset"], object]

    def before(self) -> None:
        if self._open().version > 1:
            self._open(1).restore()  # type: ignore[no-untyped-call]

    def call(self) -> None:
        self.change(self._open())

    def facts(self) -> Facts:
        return _table_facts(self._open().to_table(columns=["id", "k"]))

    def _open(self, version: int | None = None) -> "lance.LanceDataset":
        import lance

        return lance.dataset(self.uri, version=version)


@dataclass
class _Delta:
    directory: Path
    change: Callable[["DeltaTable"], object]

    def before(self) -> None:
        table = self._open()
        if table.version():
            table.restore(0)

    def call(self) -> None:
        self.change(self._open())

    def facts(self) -> Facts:
        return _table_facts(self._open().to_pyarrow_table(columns=["id", "k"]))

    def _open(self) -> "DeltaTable":
        from deltalake import DeltaTable

        return DeltaTable(str(self.directory))


def _table_facts(rows: pa.Table) -> Facts:
    sums = {f"sum of {name}": str(pc.sum(rows[name]).as_py()) for name in rows.column_names}
    return {"rows": len(rows)} | sums
