"""Workload `dagster_discovery`: time of a tick of the discovery sensor, over tables with many new versions and without
any."""

import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import dagster as dg

from benchmarks.appending import make_row
from benchmarks.harness import CallFigures, Case, Entrant, Scale, Side, Stage
from benchmarks.report import Facts
from lance_assets import LanceTable, lance_discovery, lance_table
from lance_core import Table

_BUSY: Mapping[Scale, tuple[int, int]] = {Scale.SMOKE: (5, 4), Scale.DEFAULT: (100, 20), Scale.FULL: (100, 20)}
_IDLE: Mapping[Scale, int] = {Scale.SMOKE: 10, Scale.DEFAULT: 1_000, Scale.FULL: 1_000}


class DagsterDiscovery:
    name = "dagster_discovery"
    summary = "ticks of the discovery sensor over many tables"
    notes = (
        "a tick runs the sensor's code; Dagster stores its events afterwards, store_ms is that time",
        "idle: every table was scanned before and has no new version",
        "tables and SQLite are on the measured disk",
    )

    def repetitions(self, scale: Scale) -> int:
        return 1 if scale is Scale.SMOKE else 3

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        tables, versions = _BUSY[scale]
        return {"tables": tables, "new_versions_each": versions, "idle_tables": _IDLE[scale]}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        tables, versions = _BUSY[stage.scale]
        for name, number, new in (("busy", tables, versions), ("idle", _IDLE[stage.scale], 0)):
            with ExitStack() as stack:
                home = stage.workspace / f"dagster-{name}"
                home.mkdir()
                instance = stack.enter_context(dg.DagsterInstance.local_temp(str(home)))
                stage.log(f"creating {number} tables")
                ticking = partial(_SensorRunner, instance, stage.workspace / name, number, new)
                title = f"{name} tick, {number} tables" + (f" x {new} versions" if new else "")
                yield Case(title, (Entrant("ours", Side.OURS, ticking),), warm_ups=1)


WORKLOAD = DagsterDiscovery()


@dataclass
class _SensorRunner:
    instance: dg.DagsterInstance
    directory: Path
    table_count: int
    new_versions: int
    cursor: str | None = None
    event_count: int = 0
    tables: list[LanceTable] = field(default_factory=list)
    events: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        uris = {f"t{number}": str(self.directory / f"t{number}") for number in range(self.table_count)}
        self.tables = [lance_table(name, uri=uri, discover=False) for name, uri in uris.items()]
        self.sensor = lance_discovery("lake", self.tables)
        for table in self.tables:
            Table.create(table.uri, make_row(1), durable=False)
        while self._evaluate_tick():
            self._store_events()

    def before(self) -> None:
        self._store_events()
        for table in self.tables if self.new_versions else ():
            current = Table.open(table.uri, durable=False)
            for _ in range(self.new_versions):
                current = current.append(make_row(1)).table

    def call(self) -> None:
        self.event_count = self._evaluate_tick()

    def call_figures(self) -> CallFigures:
        start = time.perf_counter()
        self._store_events()
        return CallFigures(counts={"events": self.event_count, "store_ms": round((time.perf_counter() - start) * 1000)})

    def facts(self) -> Facts:
        return {"found": self.event_count}

    def _evaluate_tick(self) -> int:
        context = dg.build_sensor_context(instance=self.instance, cursor=self.cursor)
        evaluated = self.sensor.evaluate_tick(context)
        self.cursor, self.events = evaluated.cursor, list(evaluated.asset_events)
        return len(self.events)

    def _store_events(self) -> None:
        for event in self.events:
            assert isinstance(event, dg.AssetMaterialization)
            self.instance.report_runless_asset_event(event)
        self.events = []
