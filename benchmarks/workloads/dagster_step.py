"""A write asset, warm, against its Spark op alone: what a step costs around the Spark work."""

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import dagster as dg
from pyspark.sql import DataFrame, SparkSession

from benchmarks.harness import Case, Entrant, Scale, Side, Stage
from benchmarks.report import Facts
from lance_assets import SparkAppend, SparkSessionResource, WriteContext, lance_table
from lance_assets.spark import SparkSettings, append, open_session
from lance_core import Table

_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 5, Scale.FULL: 9}
_CALLS = 5
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


class DagsterStep:
    name = "dagster_step"
    summary = "a write asset in a run, against its Spark op alone"
    notes = (
        "a run of one step in this process, on SQLite: Dagster's own run is part of it, starting Java is not",
        "both append a thousand rows that Spark makes; the difference is what a step costs around them",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"runs": _CALLS * _REPETITIONS[scale]}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        with ExitStack() as stack:
            home = stage.workspace / "dagster"
            home.mkdir()
            instance = stack.enter_context(dg.DagsterInstance.local_temp(str(home)))
            stage.log("starting Spark")
            conf = {"spark.ui.showConsoleProgress": False}
            spark = open_session(SparkSettings(master="local[2]", conf=conf, log_level="ERROR"))
            stack.callback(spark.stop)
            step = partial(_appending, stage.workspace / "step", lambda uri: _run(instance, uri))
            op = partial(_appending, stage.workspace / "op", lambda uri: append(_rows(spark), uri))
            entrants = (Entrant("ours", Side.OURS, step), Entrant("the op alone", Side.PEER, op))
            yield Case("append a thousand rows", entrants, calls=_CALLS, warm_ups=2)


WORKLOAD = DagsterStep()


def _rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, 1000, 1, 2).selectExpr("id", "uuid() AS name")


def _written(spark: SparkSession, ctx: WriteContext) -> DataFrame:
    return _rows(spark)


def _run(instance: dg.DagsterInstance, uri: str) -> None:
    table = lance_table("orders", uri=uri, writes=[SparkAppend("orders_append", _written)])
    job = dg.define_asset_job("job", [table.write_key("orders_append")])
    more = dg.Definitions(jobs=[job], resources={"spark": SparkSessionResource()})
    resolved = dg.Definitions.merge(table.defs, more).resolve_job_def("job")
    assert resolved.execute_in_process(instance=instance, run_config=_QUIET).success


@dataclass(frozen=True, slots=True)
class _Appending:
    uri: str
    work: Callable[[str], object]

    def before(self) -> None:
        """Each appends to what the last one left."""

    def call(self) -> None:
        self.work(self.uri)

    def facts(self) -> Facts:
        return {"rows": Table.open(self.uri).count_rows()}


def _appending(place: Path, work: Callable[[str], object]) -> _Appending:
    return _Appending(str(place), work)
