"""Workload `merge_columns`: merges a column from other rows into a table by key and by row address, compared with
pylance's merge in memory.

Both systems read the same Parquet files, whose rows are in a different order than those of the table.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks import inputs
from benchmarks.harness import Case, Entrant, Runner, Scale, Side, Stage
from benchmarks.report import Facts
from lance_assets.spark import SparkSettings, merge_columns, open_session
from lance_core import Table

_ROWS: Mapping[Scale, int] = {Scale.SMOKE: 2_000, Scale.DEFAULT: 2_000_000, Scale.FULL: 10_000_000}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 3, Scale.FULL: 5}


class MergeColumns:
    name = "merge_columns"
    summary = "a column merged by key and by row address, against pylance's merge"
    notes = (
        "each call reads its data from Parquet: as many rows as the table, in a different order",
        "ours shuffles and spills, and holds no rows on the driver; pylance holds the data in memory",
        "one Spark session of ours, local[*], default configuration",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"rows": _ROWS[scale], "rows_per_fragment": _rows_per_fragment(scale)}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        stage.log("generating the rows, or reusing cached ones")
        rows = _ROWS[stage.scale]
        events = inputs.event_files(stage.input_cache, rows)
        scores = inputs.score_files(stage.input_cache, rows, _rows_per_fragment(stage.scale))
        stage.log("starting Spark")
        spark = open_session(
            SparkSettings(master="local[*]", conf={"spark.ui.showConsoleProgress": False}, log_level="ERROR")
        )
        try:
            for on in ("_rowaddr", "id"):
                yield Case(
                    f"{'by address' if on == '_rowaddr' else 'by key'}, {rows} rows",
                    (
                        Entrant("ours", Side.OURS, _runner_factory(stage, events, scores, on, spark)),
                        Entrant(
                            "pylance", Side.PEER, _runner_factory(stage, events, scores, on, None), needs=("pylance",)
                        ),
                    ),
                )
        finally:
            spark.stop()


WORKLOAD = MergeColumns()


def _rows_per_fragment(scale: Scale) -> int:
    return max(1, min(1_000_000, _ROWS[scale] // 4))


def _runner_factory(
    stage: Stage, events: Path, scores: Path, on: str, spark: SparkSession | None
) -> Callable[[], Runner]:
    def enter() -> Runner:
        uri = str(stage.workspace / f"{'pylance' if spark is None else 'ours'}-{on}")
        Table.create(uri, pq.read_table(events), max_rows_per_file=_rows_per_fragment(stage.scale))
        return _Pylance(uri, scores, on) if spark is None else _Ours(uri, scores, on, spark)

    return enter


@dataclass
class _MergeRunner:
    uri: str
    scores: Path
    on: str

    def before(self) -> None:
        table = Table.open(self.uri)
        if "score" in table.schema.names:
            table.drop_columns(["score"])

    def facts(self) -> Facts:
        columns = Table.open(self.uri).to_table(columns=["id", "score"])
        wrong = pc.not_equal(
            pc.cast(columns["score"], pa.int64()), pc.subtract(columns["id"], _round_down_to_thousands(columns["id"]))
        )
        return {
            "rows": columns.num_rows,
            "wrong": int(pc.sum(wrong).as_py() or 0),
            "nulls": columns["score"].null_count,
        }


@dataclass
class _Ours(_MergeRunner):
    spark: SparkSession

    def call(self) -> None:
        merge_columns(self.spark.read.parquet(str(self.scores)).select(self.on, "score"), self.uri, on=self.on)


@dataclass
class _Pylance(_MergeRunner):
    def call(self) -> None:
        import lance

        data = pq.read_table(self.scores, columns=[self.on, "score"])
        if self.on == "_rowaddr":
            data = data.set_column(0, "_rowaddr", data["_rowaddr"].cast(pa.uint64()))
        lance.dataset(self.uri).merge(data, left_on=self.on)


def _round_down_to_thousands(ids: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.multiply(pc.divide(ids, 1000), 1000)
