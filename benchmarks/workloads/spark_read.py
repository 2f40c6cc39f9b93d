"""Workload `spark_read`: reads a Lance table into Spark, compared with Spark reading the same rows from Parquet: all
rows, one in a hundred, and aggregated. It also reads a table of many small fragments, which must not take one task
each.

pylance writes the table and pyarrow the Parquet files, with the same number of rows per file.
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
        "a scan and a filter bring all 16 columns into Spark, which discards the rows (format noop)",
        "the workers evaluate our filter, Spark evaluates that of Parquet",
        "ours aggregates within its tasks, Spark aggregates the rows of Parquet",
        "fragments of a row: ours share tasks; bare is one task per fragment that returns its input",
        "one Spark session of ours, local[*], default configuration",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"lineitem_rows": _ROWS[scale], "tasks": _TASKS[scale]}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        stage.log("generating the rows, or reusing cached ones")
        rows = _ROWS[stage.scale]
        source = ds.dataset(inputs.lineitem_files(stage.input_cache, rows))
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
            yield _build_case(
                f"scan {rows} rows x 16",
                ours=lambda: _discard_rows(read(spark, uri)),
                theirs=lambda: _discard_rows(files),
                facts=(lambda: _frame_facts(read(spark, uri)), lambda: _frame_facts(files)),
            )
            filtered = files.where(_MATCHING)
            yield _build_case(
                f"1 % of {rows} rows x 16",
                ours=lambda: _discard_rows(read(spark, uri, filter=_MATCHING)),
                theirs=lambda: _discard_rows(filtered),
                facts=(lambda: _frame_facts(read(spark, uri, filter=_MATCHING)), lambda: _frame_facts(filtered)),
            )
            yield _build_case(
                f"group {rows} rows by two columns",
                ours=lambda: aggregate(spark, uri, _QUERY),
                theirs=lambda: _group_by_spark(files),
                facts=(
                    lambda: _group_facts(aggregate(spark, uri, _QUERY)),
                    lambda: _group_facts(_group_by_spark(files)),
                ),
            )
            yield self._tasks(stage, spark)
        finally:
            spark.stop()

    def _tasks(self, stage: Stage, spark: SparkSession) -> Case:
        uri, tasks = str(stage.workspace / "rows"), _TASKS[stage.scale]
        shutil.rmtree(uri, ignore_errors=True)
        lance.write_dataset(pa.table({"id": range(tasks)}), uri, max_rows_per_file=1)
        bare = spark.range(0, tasks, 1, tasks).mapInArrow(_pass_through, "id bigint")
        return _build_case(
            f"{tasks} fragments of a row",
            ours=lambda: _discard_rows(read(spark, uri)),
            theirs=lambda: _discard_rows(bare),
            facts=(lambda: {"rows": read(spark, uri).count()}, lambda: {"rows": bare.count()}),
            peer="bare mapInArrow",
        )


WORKLOAD = SparkRead()


def _build_case(
    title: str,
    *,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    facts: tuple[Callable[[], Facts], Callable[[], Facts]],
    peer: str = "Spark Parquet",
) -> Case:
    return Case(
        title,
        (
            Entrant("ours", Side.OURS, lambda: _ReadRunner(ours, facts[0])),
            Entrant(peer, Side.PEER, lambda: _ReadRunner(theirs, facts[1])),
        ),
        warm_ups=2,
    )


@dataclass(frozen=True, slots=True)
class _ReadRunner:
    work: Callable[[], object]
    read_facts: Callable[[], Facts]

    def before(self) -> None: ...

    def call(self) -> None:
        self.work()

    def facts(self) -> Facts:
        return self.read_facts()


def _discard_rows(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _group_by_spark(files: DataFrame) -> pa.Table:
    """Group the rows in a new DataFrame, because a DataFrame retains its shuffle output and would not read again."""
    grouped = files.groupBy(*_GROUPS).agg(
        F.count("*").alias("rows"),
        F.sum("l_quantity").alias("quantity"),
        F.min("l_shipdate").alias("first"),
        F.max("l_shipdate").alias("last"),
        F.avg("l_orderkey").alias("mean"),
    )
    return grouped.toArrow()


def _pass_through(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _frame_facts(frame: DataFrame) -> Facts:
    totals = frame.agg(F.count("*"), F.sum("l_extendedprice"), F.sum(F.length("l_comment"))).toArrow()
    rows, prices, letters = (column[0].as_py() for column in totals.columns)
    return {"rows": rows, "sum of prices": str(prices), "letters of comments": letters}


def _group_facts(groups: pa.Table) -> Facts:
    rows = sorted(groups.to_pylist(), key=lambda row: [row[name] for name in _GROUPS])
    return {
        "groups": len(rows),
        "rows": sum(row["rows"] for row in rows),
        "quantities": str([str(row["quantity"]) for row in rows[:2]]),
        "first and last": f"{min(row['first'] for row in rows)} {max(row['last'] for row in rows)}",
        "means": str([round(row["mean"], 3) for row in rows[:2]]),
    }
