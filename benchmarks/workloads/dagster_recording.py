"""What it costs to put a version on the ledger, beyond what Dagster takes to store the key and the event alone."""

from collections.abc import Generator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import dagster as dg

from benchmarks.appending import row
from benchmarks.harness import Case, Entrant, Scale, Side, Stage
from benchmarks.report import Facts
from lance_assets import lance_table
from lance_assets.ledger.incarnations import incarnation_of
from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.recording import build_materialization, record_in_run
from lance_assets.ledger.version_metadata import committed_facts
from lance_core import Committed, Table

_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 5, Scale.FULL: 9}
_CALLS: Mapping[Scale, int] = {Scale.SMOKE: 2, Scale.DEFAULT: 20, Scale.FULL: 20}


class DagsterRecording:
    name = "dagster_recording"
    summary = "put a version on the ledger, against the event log alone"
    notes = (
        "ours: which table it is, a look, the partition's key, a claim, a look, the event, the run's tag",
        "event log alone: the key and the event, as Dagster stores them; the difference is what recording adds",
        "SQLite on the disk that is measured, one table and one run",
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
                    name, side, partial(_Recording, instance, run, stage.workspace / word, is_ours=side is Side.OURS)
                )
                for name, word, side in (("ours", "ours", Side.OURS), ("event log alone", "log", Side.PEER))
            )
            yield Case("record one version", entrants, calls=_CALLS[stage.scale])


WORKLOAD = DagsterRecording()


class _Context:
    """As much of a step as recording asks for."""

    def __init__(self, instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
        self.instance, self.run = instance, run
        self.log = dg.get_dagster_logger()

    def log_event(self, event: dg.AssetMaterialization) -> None:
        self.instance.report_runless_asset_event(event)


@dataclass
class _Recording:
    instance: dg.DagsterInstance
    run: dg.DagsterRun
    place: Path
    is_ours: bool
    committed: Committed | None = None

    @property
    def ledger(self) -> Ledger:
        return lance_table(self.place.name, uri=str(self.place)).ledger

    def before(self) -> None:
        if not Table.exists(str(self.place)):
            Table.create(str(self.place), row(1), durable=False)
        self.committed = Table.open(str(self.place)).append(row(1), properties={"dagster.run_id": self.run.run_id})

    def call(self) -> None:
        assert self.committed is not None
        if not self.is_ours:
            event = build_materialization(self.instance, self.ledger, committed_facts(self.committed, 1))
            self.instance.add_dynamic_partitions(self.ledger.partition_set, [str(event.partition)])
            self.instance.report_runless_asset_event(event)
            return
        epoch = incarnation_of(self.instance, self.ledger, self.committed.table.id)
        facts = committed_facts(self.committed, epoch)
        record_in_run(_Context(self.instance, self.run), self.ledger, facts)  # type: ignore[arg-type]

    def facts(self) -> Facts:
        return {
            "partitions": len(self.instance.get_dynamic_partitions(self.ledger.partition_set)),
            "recorded": len(self.instance.get_materialized_partitions(self.ledger.key)),
        }
