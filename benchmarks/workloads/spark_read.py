"""Rows out of a Lance table into Spark, against Spark reading the same rows from Parquet: all of them, one in a
hundred, and aggregated. And what a table of many small fragments costs, of which none needs a task of its own.

The table is written by pylance, the Parquet files by Spark: as many rows in each of their files.
"""

import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass

import lance
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks import inputs
from benchmarks.harness import Case, Entrant, Scale, Side, Stage
from benchmarks.report import Facts
from lance_assets.spark import SparkSettings, aggregate, open_session, read

_ROWS: Mapping[Scale, int] = {Scale.SMOKE: 4_000, Scale.DEFAULT: 1_200_000, Scale.FULL: 6_000_000}
_TASKS: Mapping[Scale, int] = {Scale.SMOKE: 4, Scale.DEFAULT: 64, Scale.FULL: 200}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 5, Scale.FULL: 5}
_FILES = 8
_QUIET: Mapping[str, bool] = {"spark.ui.showConsoleProgress": False}
_MATCHING = "l_suppkey % 100 = 7"
_GROUPS = ("l_returnflag", "l_linestatus")
_QUERY = (
    "select l_returnflag, l_linestatus, count(*) as rows, sum(l_quantity) as quantity, min(l_shipdate) as first, "
    "max(l_shipdate) as last, avg(l_orderkey) as mean from dataset group by l_returnflag, l_linestatus"
)


class SparkRead:
    name = "spark_read"
    summary = "a table scanned, filtered and aggregated in Spark, against Spark on Parquet"
    notes = (
        "a scan and a filter bring all 16 columns into Spark, which throws the rows away (format noop)",
        "the filter of ours is evaluated by the workers, that of Parquet by Spark",
        "ours aggregates within its tasks, Parquet's rows are aggregated by Spark",
        "fragments of a row: those of ours share tasks; bare is a task each that gives back what it got",
        "one session of ours, local[*], default configuration",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"lineitem_rows": _ROWS[scale], "tasks": _TASKS[scale]}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        stage.log("making the rows, or finding them made")
        rows = _ROWS[stage.scale]
        source = ds.dataset(inputs.lineitem(stage.kept, rows))
        stage.log("starting Spark")
        spark = open_session(SparkSettings(master="local[*]", conf=_QUIET, log_level="ERROR"))
        try:
            uri, parquet = str(stage.workspace / "table"), str(stage.workspace / "parquet")
            shutil.rmtree(uri, ignore_errors=True)
            lance.write_dataset(source.scanner(), uri, schema=source.schema, max_rows_per_file=rows // _FILES)
            ds.write_dataset(
                source, parquet, format="parquet", max_rows_per_file=rows // _FILES, max_rows_per_group=rows // _FILES
            )
            files = spark.read.parquet(parquet)
            yield _case(
                f"scan {rows} rows x 16",
                ours=lambda: _thrown_away(read(spark, uri)),
                theirs=lambda: _thrown_away(files),
                facts=(lambda: _looked_at(read(spark, uri)), lambda: _looked_at(files)),
            )
            some = files.where(_MATCHING)
            yield _case(
                f"1 % of {rows} rows x 16",
                ours=lambda: _thrown_away(read(spark, uri, filter=_MATCHING)),
                theirs=lambda: _thrown_away(some),
                facts=(lambda: _looked_at(read(spark, uri, filter=_MATCHING)), lambda: _looked_at(some)),
            )
            yield _case(
                f"group {rows} rows by two columns",
                ours=lambda: aggregate(spark, uri, _QUERY),
                theirs=lambda: _grouped(files),
                facts=(lambda: _groups(aggregate(spark, uri, _QUERY)), lambda: _groups(_grouped(files))),
            )
            yield self._tasks(stage, spark)
        finally:
            spark.stop()

    def _tasks(self, stage: Stage, spark: SparkSession) -> Case:
        uri, tasks = str(stage.workspace / "rows"), _TASKS[stage.scale]
        shutil.rmtree(uri, ignore_errors=True)
        lance.write_dataset(pa.table({"id": range(tasks)}), uri, max_rows_per_file=1)
        bare = spark.range(0, tasks, 1, tasks).mapInArrow(_as_it_came, "id bigint")
        return _case(
            f"{tasks} fragments of a row",
            ours=lambda: _thrown_away(read(spark, uri)),
            theirs=lambda: _thrown_away(bare),
            facts=(lambda: {"rows": read(spark, uri).count()}, lambda: {"rows": bare.count()}),
            name="bare mapInArrow",
        )


WORKLOAD = SparkRead()


def _case(
    what: str,
    *,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    facts: tuple[Callable[[], Facts], Callable[[], Facts]],
    name: str = "Spark Parquet",
) -> Case:
    return Case(
        what,
        (
            Entrant("ours", Side.OURS, lambda: _Reads(ours, facts[0])),
            Entrant(name, Side.PEER, lambda: _Reads(theirs, facts[1])),
        ),
        warm_ups=2,
    )


@dataclass(frozen=True, slots=True)
class _Reads:
    reads: Callable[[], object]
    looks: Callable[[], Facts]

    def before(self) -> None: ...

    def call(self) -> None:
        self.reads()

    def facts(self) -> Facts:
        return self.looks()


def _thrown_away(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _grouped(files: DataFrame) -> pa.Table:
    """Anew each time: a DataFrame keeps what it has shuffled, and would not read again."""
    grouped = files.groupBy(*_GROUPS).agg(
        F.count("*").alias("rows"),
        F.sum("l_quantity").alias("quantity"),
        F.min("l_shipdate").alias("first"),
        F.max("l_shipdate").alias("last"),
        F.avg("l_orderkey").alias("mean"),
    )
    return grouped.toArrow()


def _as_it_came(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _looked_at(frame: DataFrame) -> Facts:
    found = frame.agg(F.count("*"), F.sum("l_extendedprice"), F.sum(F.length("l_comment"))).toArrow()
    rows, prices, letters = (column[0].as_py() for column in found.columns)
    return {"rows": rows, "sum of prices": str(prices), "letters of comments": letters}


def _groups(found: pa.Table) -> Facts:
    rows = sorted(found.to_pylist(), key=lambda row: [row[name] for name in _GROUPS])
    return {
        "groups": len(rows),
        "rows": sum(row["rows"] for row in rows),
        "quantities": str([str(row["quantity"]) for row in rows[:2]]),
        "first and last": f"{min(row['first'] for row in rows)} {max(row['last'] for row in rows)}",
        "means": str([round(row["mean"], 3) for row in rows[:2]]),
    }
