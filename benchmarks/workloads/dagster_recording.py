"""Workload `dagster_recording`: time of recording a version in the ledger, compared with the time in which Dagster
stores the partition key and the event alone."""

from collections.abc import Generator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import dagster as dg

from benchmarks.appending import make_row
from benchmarks.harness import Case, Entrant, Scale, Side, Stage
from benchmarks.report import Facts
from lance_assets import lance_table
from lance_assets.ledger.dynamic_partitions import incarnation_of
from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.recording import build_materialization, record_in_run
from lance_assets.ledger.version_metadata import committed_facts
from lance_core import Committed, Table

_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 5, Scale.FULL: 9}
_CALLS: Mapping[Scale, int] = {Scale.SMOKE: 2, Scale.DEFAULT: 20, Scale.FULL: 20}


class DagsterRecording:
    name = "dagster_recording"
    summary = "recording a version in the ledger, against the event log alone"
    notes = (
        "ours: incarnation of the table, a check, the partition key, a claim, a check, the event, the tag of the run",
        "event log alone: Dagster stores the key and the event; the difference is what recording adds",
        "SQLite on the measured disk, one table and one run",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"versions": _CALLS[scale] * _REPETITIONS[scale]}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        with ExitStack() as stack:
            home = stage.workspace / "dagster"
            home.mkdir()
            instance = stack.enter_context(dg.DagsterInstance.local_temp(str(home)))
            run = instance.add_run(dg.DagsterRun(job_name="bench", status=dg.DagsterRunStatus.STARTED))
            entrants = tuple(
                Entrant(
                    name, side, partial(_RecordRunner, instance, run, stage.workspace / word, is_ours=side is Side.OURS)
                )
                for name, word, side in (("ours", "ours", Side.OURS), ("event log alone", "log", Side.PEER))
            )
            yield Case("record one version", entrants, calls=_CALLS[stage.scale])


WORKLOAD = DagsterRecording()


class _Context:
    """The attributes of a step context that recording uses."""

    def __init__(self, instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
        self.instance, self.run = instance, run
        self.log = dg.get_dagster_logger()

    def log_event(self, event: dg.AssetMaterialization) -> None:
        self.instance.report_runless_asset_event(event)


@dataclass
class _RecordRunner:
    instance: dg.DagsterInstance
    run: dg.DagsterRun
    directory: Path
    is_ours: bool
    committed: Committed | None = None

    @property
    def ledger(self) -> Ledger:
        return lance_table(self.directory.name, uri=str(self.directory)).ledger

    def before(self) -> None:
        if not Table.exists(str(self.directory)):
            Table.create(str(self.directory), make_row(1), durable=False)
        self.committed = Table.open(str(self.directory)).append(
            make_row(1), properties={"dagster.run_id": self.run.run_id}
        )

    def call(self) -> None:
        assert self.committed is not None
        if not self.is_ours:
            event = build_materialization(self.instance, self.ledger, committed_facts(self.committed, 1))
            self.instance.add_dynamic_partitions(self.ledger.partition_set, [str(event.partition)])
            self.instance.report_runless_asset_event(event)
            return
        epoch = incarnation_of(self.instance, self.ledger, self.committed.table.id)
        facts = committed_facts(self.committed, epoch)
        record_in_run(_Context(self.instance, self.run), self.ledger, facts, self.committed.table)  # type: ignore[arg-type]

    def facts(self) -> Facts:
        return {
            "partitions": len(self.instance.get_dynamic_partitions(self.ledger.partition_set)),
            "recorded": len(self.instance.get_materialized_partitions(self.ledger.key)),
        }
