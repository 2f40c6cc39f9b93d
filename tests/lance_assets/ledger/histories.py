"""Random histories of a ledger: commits, runs, daemons, clocks, lost events and replaced tables, in a drawn order.

`test_version_histories.py` runs and judges them.
"""

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import dagster as dg
import pyarrow as pa

from lance_assets import LanceTable, lance_table
from lance_assets.discovery.reconcile import AUDIT_INTERVAL_S
from lance_assets.discovery.sensor import discovery_sensor
from lance_assets.ledger.dynamic_partitions import incarnation_of
from lance_assets.ledger.partition_keys import is_version_key, partition_key
from lance_assets.ledger.recording import record_in_run
from lance_assets.ledger.version_metadata import committed_facts
from lance_core import Committed, Table
from tests.lance_assets.instances import events, metadata_values

ROW = pa.table({"id": [1]})
CLOCKS = [timedelta(0), *(sign * timedelta(minutes=minutes) for sign in (1, -1) for minutes in (5, 11, 60, 1440))]


@dataclass
class Daemon:
    """A daemon with its code server: clocks of its own, and ticks whose events it has not stored yet."""

    history: "History"
    name: str = "s"
    ahead: timedelta = timedelta(0)
    sensor: dg.SensorDefinition = field(init=False)
    held: Any = None

    def __post_init__(self) -> None:
        self.sensor = discovery_sensor(
            self.name,
            [self.history.table.ledger],
            versions_per_tick=self.history.draw.choice((2, 5, 100)),
            now=lambda: datetime.now(UTC) + timedelta(seconds=self.history.seconds) + self.ahead,
            clock=lambda: self.history.seconds,
        )

    def evaluate(self) -> None:
        """The first half of a tick. A tick that is held is lost."""
        cursor = self.history.cursors.get(self.name)
        self.held = self.sensor.evaluate_tick(dg.build_sensor_context(instance=self.history.instance, cursor=cursor))

    def store(self) -> None:
        """The second half, in the order of Dagster's daemon."""
        evaluated, self.held = self.held, None
        if evaluated is None:
            return
        instance = self.history.instance
        for event in evaluated.asset_events:
            instance.report_runless_asset_event(event)
        for request in evaluated.dynamic_partitions_requests or ():
            for key in request.partition_keys:
                instance.delete_dynamic_partition(request.partitions_def_name, key)
        self.history.cursors[self.name] = evaluated.cursor


@dataclass
class History:
    """One table with its ledger, and everything that happens to them."""

    instance: dg.DagsterInstance
    folder: Path
    draw: random.Random
    database: Path | None = None
    """File of the instance's keys and events, if it is SQLite's."""
    seconds: float = 0.0
    cursors: dict[str, str | None] = field(default_factory=dict)
    waiting: list[tuple[dg.DagsterRun, Committed]] = field(default_factory=list)
    """Runs that have committed, and not recorded yet."""
    daemons: list[Daemon] = field(default_factory=list)
    is_restored: bool = False
    """True after the directory was put back from a backup, until it is recorded again."""
    table: LanceTable = field(init=False)
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.table = lance_table("orders", uri=str(self.folder / "orders.lance"))
        self.daemons = [Daemon(self), Daemon(self)]
        self._create()

    @property
    def steps(self) -> dict[Callable[[], None], int]:
        """Steps of a history with their relative frequencies."""
        return {
            self.commit: 5, self.commit_in_a_run: 5, self.record: 6, self.fail_a_run: 1, self.tick: 6, self.evaluate: 2,
            self.store: 3, self.kill_a_daemon: 1, self.rename: 1, self.lose_the_cursor: 1, self.turn_a_clock: 1,
            self.pass_time: 2, self.restore: 1, self.replace: 1, self.put_another_back: 1, self.back_up: 1,
            self.put_the_backup_back: 1, self.lose_events: 1, self.lose_keys: 1,
            self.back_up_the_database: 1, self.put_the_database_back: 1,
        }  # fmt: skip

    def step(self) -> None:
        """Do one thing."""
        steps = self.steps
        (chosen,) = self.draw.choices(list(steps), list(steps.values()))
        self.told.append(chosen.__name__)
        chosen()

    def commit(self) -> None:
        Table.open(self.table.uri).append(ROW)

    def commit_in_a_run(self) -> None:
        run = dg.DagsterRun(job_name="job", run_id=str(uuid4()), status=dg.DagsterRunStatus.STARTED)
        self.instance.add_run(run)
        committed = Table.open(self.table.uri).append(ROW, properties={"dagster.run_id": run.run_id})
        self.waiting.append((run, committed))

    def record(self) -> None:
        if not self.waiting:
            return
        run, committed = self.waiting.pop(self.draw.randrange(len(self.waiting)))
        log = SimpleNamespace(info=lambda _: None, warning=lambda _: None)
        context: Any = SimpleNamespace(
            instance=self.instance, run=run, log=log, log_event=self.instance.report_runless_asset_event
        )
        ledger = self.table.ledger
        # A run whose table is gone fails; what it has recorded until then stays.
        with suppress(*(() if self._is_current(committed) else (Exception,))):
            incarnation = incarnation_of(self.instance, ledger, committed.table.id)
            record_in_run(context, ledger, committed_facts(committed, incarnation), committed.table)
        self.instance.report_run_canceled(run)

    def fail_a_run(self) -> None:
        if self.waiting:
            self.instance.report_run_failed(self.waiting.pop()[0])

    def tick(self) -> None:
        daemon = self.draw.choice(self.daemons)
        daemon.evaluate()
        daemon.store()

    def evaluate(self) -> None:
        self.draw.choice(self.daemons).evaluate()

    def store(self) -> None:
        self.draw.choice(self.daemons).store()

    def kill_a_daemon(self) -> None:
        number = self.draw.randrange(2)
        self.daemons[number] = Daemon(self, self.daemons[number].name)

    def rename(self) -> None:
        self.daemons = [Daemon(self, f"s{self.draw.randrange(3)}") for _ in range(2)]

    def lose_the_cursor(self) -> None:
        self.cursors.clear()

    def turn_a_clock(self) -> None:
        self.draw.choice(self.daemons).ahead = self.draw.choice(CLOCKS)

    def pass_time(self) -> None:
        """No longer than a daemon may take to store what it has found."""
        seconds = self.draw.choice((30, 200, AUDIT_INTERVAL_S))
        if seconds > 30:
            for daemon in self.daemons:
                daemon.store()
        self.seconds += seconds

    def restore(self) -> None:
        table = Table.open(self.table.uri)
        table.restore(self.draw.choice(table.version_numbers()))

    def replace(self) -> None:
        """The table gives its place to a new one, and may come back."""
        Path(self.table.uri).rename(self.folder / f"aside-{len(self._aside())}")
        self._create()

    def put_another_back(self) -> None:
        if aside := self._aside():
            chosen = self.draw.choice(aside)
            Path(self.table.uri).rename(self.folder / "moving")
            chosen.rename(self.table.uri)
            (self.folder / "moving").rename(chosen)

    def back_up(self) -> None:
        shutil.rmtree(self.folder / "backup", ignore_errors=True)
        shutil.copytree(self.table.uri, self.folder / "backup")

    def put_the_backup_back(self) -> None:
        if (self.folder / "backup").exists():
            shutil.rmtree(self.table.uri)
            shutil.copytree(self.folder / "backup", self.table.uri)
            self.is_restored = True

    def lose_events(self) -> None:
        for daemon in self.daemons:
            daemon.store()
        self.instance.wipe_assets([self.table.key])

    def lose_keys(self) -> None:
        """As where a database is put back whose events are stored elsewhere."""
        keys = self.instance.get_dynamic_partitions(self.table.ledger.partition_set)
        for key in keys[self.draw.randrange(len(keys) + 1) :]:
            self.instance.delete_dynamic_partition(self.table.ledger.partition_set, key)

    def back_up_the_database(self) -> None:
        if self.database:
            with closing(sqlite3.connect(self.database)) as source, closing(self._copy()) as copy:
                source.backup(copy)

    def put_the_database_back(self) -> None:
        """Keys, events and claims, but neither runs nor cursors."""
        if self.database and (self.folder / "database").exists():
            for daemon in self.daemons:
                daemon.store()
            with closing(sqlite3.connect(self.database)) as target, closing(self._copy()) as copy:
                copy.backup(target)

    def settle(self) -> None:
        """Nothing more happens to the table, and a daemon goes on for an hour."""
        for run, _ in self.waiting:
            self.instance.report_run_canceled(run)
        for daemon in self.daemons:
            daemon.store()
        if self.is_restored:
            self.table.record_again(self.instance)
        daemon = Daemon(self, "last")
        daemon.ahead = self.draw.choice(CLOCKS)
        for _ in range(12):
            for _ in range(3):
                daemon.evaluate()
                daemon.store()
            self.seconds += 300

    def current_keys(self) -> list[str]:
        """The keys of the versions that the table has."""
        table = Table.open(self.table.uri)
        incarnation = incarnation_of(self.instance, self.table.ledger, table.id)
        return [partition_key(version, incarnation) for version in table.version_numbers()]

    def listed(self) -> list[str]:
        keys = self.instance.get_dynamic_partitions(self.table.ledger.partition_set)
        return [key for key in keys if is_version_key(key)]

    def recorded(self) -> list[str | None]:
        """The partitions of the events, oldest first, without those that were stored again to be the latest."""
        stored = [event for _, event in events(self.instance, self.table.key)]
        return [event.partition for event in stored if "lance/recorded_again" not in metadata_values(event)]

    def _create(self) -> None:
        Table.create(self.table.uri, ROW, durable=False)

    def _copy(self) -> sqlite3.Connection:
        return sqlite3.connect(self.folder / "database")

    def _aside(self) -> list[Path]:
        return sorted(self.folder.glob("aside-*"))

    def _is_current(self, committed: Committed) -> bool:
        return Table.open(self.table.uri).id == committed.table.id and not self.is_restored
