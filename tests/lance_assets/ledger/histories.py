"""Random histories: plays commits, runs, daemons, clock changes, lost events and replacements in random order, on a
table and a branch that has a ledger of its own.

`test_version_histories.py` checks both ledgers after each step.
"""

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import dagster as dg
import pyarrow as pa
import pytest

from lance_assets import LanceTable, lance_table
from lance_assets.discovery.reconcile import AUDIT_INTERVAL_S
from lance_assets.discovery.sensor import discovery_sensor
from lance_assets.ledger.dynamic_partitions import incarnation_of
from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.partition_keys import is_version_key, partition_key
from lance_assets.ledger.recording import record_in_run
from lance_assets.ledger.version_metadata import committed_facts
from lance_core import Committed, Table
from tests.lance_assets.instances import events, kill_tick, metadata_values
from tests.lance_assets.ledger.event_databases import EventDatabase

BRANCH = "dev"
ROW = pa.table({"id": [1]})
CLOCK_OFFSETS = [
    timedelta(0),
    *(sign * timedelta(minutes=minutes) for sign in (1, -1) for minutes in (5, 11, 60, 1440)),
]


@dataclass
class Daemon:
    """Daemon with its code server, its own clock, and at most one tick whose cursor it has not stored yet."""

    history: "History"
    name: str = "s"
    clock_offset: timedelta = timedelta(0)
    sensor: dg.SensorDefinition = field(init=False)
    evaluation: Any = None

    def __post_init__(self) -> None:
        self.sensor = discovery_sensor(
            self.name,
            self.history.ledgers,
            versions_per_tick=self.history.generator.choice((2, 5, 100)),
            now=lambda: datetime.now(UTC) + timedelta(seconds=self.history.seconds) + self.clock_offset,
            clock=lambda: self.history.seconds,
        )

    def evaluate_tick(self) -> None:
        """Run the code of a tick. An earlier tick that is not stored is lost."""
        cursor = self.history.cursors.get(self.name)
        self.evaluation = self.sensor.evaluate_tick(
            dg.build_sensor_context(instance=self.history.instance, cursor=cursor)
        )

    def store_tick(self) -> None:
        """Store the cursor of the last tick, and delete the keys that it retires."""
        evaluated, self.evaluation = self.evaluation, None
        if evaluated is None:
            return
        instance = self.history.instance
        for request in evaluated.dynamic_partitions_requests or ():
            for key in request.partition_keys:
                instance.delete_dynamic_partition(request.partitions_def_name, key)
        self.history.cursors[self.name] = evaluated.cursor


@dataclass
class History:
    """History of one table with a branch, and their ledgers."""

    instance: dg.DagsterInstance
    folder: Path
    generator: random.Random
    database: EventDatabase | None = None
    """Database of the keys and events; `None` for an instance in memory."""
    seconds: float = 0.0
    cursors: dict[str, str | None] = field(default_factory=dict)
    unrecorded_runs: list[tuple[dg.DagsterRun, Ledger, Committed]] = field(default_factory=list)
    """Runs that have committed a version and not recorded it yet."""
    identities: dict[int, str | None] = field(default_factory=dict)
    """Identities of the tables and branches to which they committed, by the `id` of the commit."""
    daemons: list[Daemon] = field(default_factory=list)
    is_restored: bool = False
    """True if the directory was restored from a backup and `record_again` has not been called."""
    table: LanceTable = field(init=False)
    branch: LanceTable = field(init=False)
    step_names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.table = lance_table("orders", uri=str(self.folder / "orders.lance"), branches=[BRANCH])
        self.branch = self.table.branch(BRANCH)
        self.daemons = [Daemon(self), Daemon(self)]
        self._create_table()

    @property
    def ledgers(self) -> list[Ledger]:
        return [self.table.ledger, self.branch.ledger]

    @property
    def step_weights(self) -> dict[Callable[[], None], int]:
        """Steps of a history with their relative frequencies."""
        return {
            self.commit_version: 5, self.commit_in_run: 5, self.record_run: 6, self.fail_run: 1, self.run_tick: 6,
            self.evaluate_tick: 2, self.store_tick: 3, self.kill_daemon: 1, self.rename_sensor: 1,
            self.kill_tick: 2, self.interrupt_tick: 4,
            self.lose_cursors: 1, self.set_clock: 1, self.pass_time: 2, self.restore_version: 1,
            self.replace_table: 1, self.swap_table_back: 1, self.back_up_table: 1, self.restore_backup: 1,
            self.lose_events: 1, self.lose_keys: 1, self.replace_branch: 1,
            self.back_up_database: 2 if self.database else 0, self.restore_database: 2 if self.database else 0,
        }  # fmt: skip

    def play_step(self) -> None:
        """Play one random step."""
        steps = self.step_weights
        (step,) = self.generator.choices(list(steps), list(steps.values()))
        self.step_names.append(step.__name__)
        step()

    def commit_version(self) -> None:
        self._choose_ledger().open().append(ROW)

    def commit_in_run(self) -> None:
        run = dg.DagsterRun(job_name="job", run_id=str(uuid4()), status=dg.DagsterRunStatus.STARTED)
        self.instance.add_run(run)
        ledger = self._choose_ledger()
        committed = ledger.open().append(ROW, properties={"dagster.run_id": run.run_id})
        self.identities[id(committed)] = ledger.identity_of(committed.table)
        self.unrecorded_runs.append((run, ledger, committed))

    def record_run(self) -> None:
        if not self.unrecorded_runs:
            return
        run, ledger, committed = self.unrecorded_runs.pop(self.generator.randrange(len(self.unrecorded_runs)))
        log = SimpleNamespace(info=lambda _: None, warning=lambda _: None)
        context: Any = SimpleNamespace(
            instance=self.instance, run=run, log=log, log_event=self.instance.report_runless_asset_event
        )
        # A run whose table or branch was replaced may fail; its events until then stay.
        with suppress(*(() if self._is_current(ledger, committed) else (Exception,))):
            incarnation = incarnation_of(self.instance, ledger, ledger.identity_of(committed.table))
            record_in_run(context, ledger, committed_facts(committed, incarnation), committed.table)
        self.instance.report_run_canceled(run)

    def fail_run(self) -> None:
        if self.unrecorded_runs:
            self.instance.report_run_failed(self.unrecorded_runs.pop()[0])

    def run_tick(self) -> None:
        daemon = self.generator.choice(self.daemons)
        daemon.evaluate_tick()
        daemon.store_tick()

    def evaluate_tick(self) -> None:
        self.generator.choice(self.daemons).evaluate_tick()

    def store_tick(self) -> None:
        self.generator.choice(self.daemons).store_tick()

    def kill_tick(self) -> None:
        kill_tick(self.generator.choice(self.daemons).sensor, self.instance, events=self.generator.randrange(3))

    def interrupt_tick(self) -> None:
        """Run a tick that is suspended before one of its events while other steps are played."""
        remaining, store = self.generator.randrange(3), self.instance.report_runless_asset_event

        def store_event(event: Any) -> None:
            nonlocal remaining
            remaining -= 1
            if remaining == -1:
                patch.undo()
                for _ in range(3):
                    step = self.generator.choice((self.commit_version, self.record_run, self.run_tick, self.kill_tick))
                    self.step_names.append(f"during a tick: {step.__name__}")
                    step()
            store(event)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.instance, "report_runless_asset_event", store_event)
            self.run_tick()

    def kill_daemon(self) -> None:
        number = self.generator.randrange(2)
        self.daemons[number] = Daemon(self, self.daemons[number].name)

    def rename_sensor(self) -> None:
        self.daemons = [Daemon(self, f"s{self.generator.randrange(3)}") for _ in range(2)]

    def lose_cursors(self) -> None:
        self.cursors.clear()

    def set_clock(self) -> None:
        self.generator.choice(self.daemons).clock_offset = self.generator.choice(CLOCK_OFFSETS)

    def pass_time(self) -> None:
        """Advance the clocks. Daemons store their cursors before a long interval."""
        seconds = self.generator.choice((30, 200, AUDIT_INTERVAL_S))
        if seconds > 30:
            for daemon in self.daemons:
                daemon.store_tick()
        self.seconds += seconds

    def restore_version(self) -> None:
        table = self._choose_ledger().open()
        table.restore(self.generator.choice(table.version_numbers()))

    def replace_branch(self) -> None:
        """Delete the branch and create another one with its name at the newest version of the table."""
        table = Table.open(self.table.uri)
        table.branches.delete(BRANCH)
        table.branches.create(BRANCH)

    def replace_table(self) -> None:
        """Move the table aside and create another one at its location."""
        Path(self.table.uri).rename(self.folder / f"replaced-{len(self._replaced_tables())}")
        self._create_table()

    def swap_table_back(self) -> None:
        if replaced := self._replaced_tables():
            chosen = self.generator.choice(replaced)
            Path(self.table.uri).rename(self.folder / "moving")
            chosen.rename(self.table.uri)
            (self.folder / "moving").rename(chosen)

    def back_up_table(self) -> None:
        shutil.rmtree(self.folder / "backup", ignore_errors=True)
        shutil.copytree(self.table.uri, self.folder / "backup")

    def restore_backup(self) -> None:
        if (self.folder / "backup").exists():
            shutil.rmtree(self.table.uri)
            shutil.copytree(self.folder / "backup", self.table.uri)
            self.is_restored = True

    def lose_events(self) -> None:
        for daemon in self.daemons:
            daemon.store_tick()
        self.instance.wipe_assets([self._choose_ledger().key])

    def lose_keys(self) -> None:
        """Delete the newest keys, as the restore of a database does whose events are stored elsewhere."""
        partition_set = self._choose_ledger().partition_set
        keys = self.instance.get_dynamic_partitions(partition_set)
        for key in keys[self.generator.randrange(len(keys) + 1) :]:
            self.instance.delete_dynamic_partition(partition_set, key)

    def back_up_database(self) -> None:
        if self.database:
            self.database.back_up(self.folder)

    def restore_database(self) -> None:
        """Restore keys, events and claims, and neither runs nor cursors."""
        if self.database:
            for daemon in self.daemons:
                daemon.store_tick()
            self.database.restore(self.folder)

    def settle_ledgers(self) -> None:
        """End all runs, and let one daemon run for an hour while the table stays unchanged."""
        for run, _, _ in self.unrecorded_runs:
            self.instance.report_run_canceled(run)
        for daemon in self.daemons:
            daemon.store_tick()
        if self.is_restored:
            self.table.record_again(self.instance)
            self.branch.record_again(self.instance)
        daemon = Daemon(self, "last")
        daemon.clock_offset = self.generator.choice(CLOCK_OFFSETS)
        for _ in range(12):
            for _ in range(3):
                daemon.evaluate_tick()
                daemon.store_tick()
            self.seconds += 300

    def keys_of_versions(self, ledger: Ledger) -> list[str]:
        """Return the partition keys of the versions of the table or branch."""
        table = ledger.open()
        incarnation = incarnation_of(self.instance, ledger, ledger.identity_of(table))
        return [partition_key(version, incarnation) for version in table.version_numbers()]

    def listed_keys(self, ledger: Ledger) -> list[str]:
        return [key for key in self.instance.get_dynamic_partitions(ledger.partition_set) if is_version_key(key)]

    def recorded_partitions(self, ledger: Ledger) -> list[str | None]:
        """Return the partitions of the events, oldest first, without events that were stored again to be the latest."""
        stored = [event for _, event in events(self.instance, ledger.key)]
        return [event.partition for event in stored if "lance/recorded_again" not in metadata_values(event)]

    def _choose_ledger(self) -> Ledger:
        return self.generator.choice((*self.ledgers, self.table.ledger))

    def _create_table(self) -> None:
        Table.create(self.table.uri, ROW, durable=False).branches.create(BRANCH)

    def _replaced_tables(self) -> list[Path]:
        return sorted(self.folder.glob("replaced-*"))

    def _is_current(self, ledger: Ledger, committed: Committed) -> bool:
        is_same = ledger.identity_of(ledger.open()) == self.identities[id(committed)]
        return is_same and not self.is_restored
