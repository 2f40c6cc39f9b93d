"""The newest version is the last partition and the latest event, in whatever order recorders add them."""

import shutil
from collections.abc import Iterator
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
from lance_assets.ledger.key_order import plan_keys
from lance_assets.ledger.partition_keys import partition_key
from lance_assets.ledger.recording import EARLIER_MAX, record_in_run
from lance_assets.ledger.recording_claims import CLAIM_LIFETIME, TICK_CLAIM_LIFETIME
from lance_assets.ledger.recording_lock import RecordingLock
from lance_assets.ledger.version_metadata import committed_facts
from lance_core import Table
from tests.lance_assets.instances import events, metadata_values, partitions, tags, tick

ROW = pa.table({"id": [1]})


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as each:
        yield each


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    return lance_table("orders", uri=str(tmp_path / "orders.lance"), key_prefix="lake")


class Clock:
    """Clocks of a daemon: the wall clock, and the monotonic one, which no step of the first moves."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.ahead = timedelta(0)

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.seconds) + self.ahead

    def sensor(self, table: LanceTable, name: str = "s") -> dg.SensorDefinition:
        return discovery_sensor(name, [table.ledger], now=self.now, clock=lambda: self.seconds)


def run_of(instance: dg.DagsterInstance) -> dg.DagsterRun:
    return instance.add_run(dg.DagsterRun(job_name="job", run_id=str(uuid4()), status=dg.DagsterRunStatus.STARTED))


def context_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Any:
    log = SimpleNamespace(info=lambda _: None, warning=lambda _: None)
    return SimpleNamespace(instance=instance, run=run, log=log, log_event=instance.report_runless_asset_event)


def append(uri: str, run: dg.DagsterRun | None = None) -> Any:
    properties = {"dagster.run_id": run.run_id} if run else {}
    if Table.exists(uri):
        return Table.open(uri).append(ROW, properties=properties)
    Table.create(uri, ROW, properties=properties, durable=False)
    return None


def record(instance: dg.DagsterInstance, table: LanceTable, run: dg.DagsterRun, committed: Any) -> None:
    incarnation = incarnation_of(instance, table.ledger, committed.table.id)
    record_in_run(context_of(instance, run), table.ledger, committed_facts(committed, incarnation), committed.table)


def keys_of(instance: dg.DagsterInstance, table: LanceTable) -> list[str | None]:
    return [event.partition for _, event in events(instance, table.key)]


def in_order(*versions: int, incarnation: int = 1) -> list[str]:
    return [partition_key(version, incarnation) for version in versions]


def test_a_run_records_what_others_committed_before_it(table: LanceTable, instance: dg.DagsterInstance) -> None:
    append(table.uri)
    run = run_of(instance)
    record(instance, table, run, append(table.uri, run))
    append(table.uri)  # by another engine
    record(instance, table, run, append(table.uri, run))
    tick(Clock().sensor(table), instance)
    assert partitions(instance, table) == keys_of(instance, table) == in_order(1, 2, 3, 4)
    told = [tags(event)["lance/origin"] for _, event in events(instance, table.key)]
    assert told == ["external", "run", "external", "run"]


def test_a_run_waits_for_the_runs_before_it_and_then_records_for_them(
    table: LanceTable, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(table.uri)
    first, second, third = (run_of(instance) for _ in range(3))
    committed = [append(table.uri, run) for run in (first, second, third)]
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            record(instance, table, first, committed[0])

    monkeypatch.setattr("lance_assets.ledger.recording.sleep", sleep)
    monkeypatch.setattr("lance_assets.ledger.recording.ACTIVE_RUN_CHECKS_MAX", 3)
    record(instance, table, third, committed[2])
    assert len(waits) >= 2
    assert partitions(instance, table) == keys_of(instance, table) == in_order(1, 2, 3, 4)
    record(instance, table, second, committed[1])  # it is late, and finds its version recorded
    assert keys_of(instance, table) == in_order(1, 2, 3, 4)
    assert tags(events(instance, table.key)[2][1])["lance/run_id"] == second.run_id


def test_a_long_history_comes_first(
    table: LanceTable, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run records a part of it, and leaves the rest and its own version to the sensor."""
    assert EARLIER_MAX >= 100
    monkeypatch.setattr("lance_assets.ledger.recording.EARLIER_MAX", 2)
    for _ in range(4):
        append(table.uri)
    run = run_of(instance)
    record(instance, table, run, append(table.uri, run))
    assert partitions(instance, table) == keys_of(instance, table) == in_order(1, 2)
    instance.report_run_canceled(run)
    tick(Clock().sensor(table), instance)
    assert partitions(instance, table) == keys_of(instance, table) == in_order(1, 2, 3, 4, 5)


def test_keys_that_are_out_of_order_are_put_in_order(table: LanceTable, instance: dg.DagsterInstance) -> None:
    """As releases before this one left them, and as people add them."""
    for _ in range(4):
        append(table.uri)
    instance.add_dynamic_partitions(table.ledger.partition_set, in_order(1, 3, 2, 9))
    sensor = Clock().sensor(table)
    tick(sensor, instance)
    assert partitions(instance, table) == keys_of(instance, table) == in_order(1, 2, 3, 4)
    instance.delete_dynamic_partition(table.ledger.partition_set, in_order(2)[0])
    run = run_of(instance)
    record(instance, table, run, append(table.uri, run))
    assert partitions(instance, table) == in_order(1, 2, 3, 4, 5)


def test_of_many_keys_that_are_out_of_order_some_are_moved_in_each_tick(
    table: LanceTable, instance: dg.DagsterInstance
) -> None:
    listed = list(range(10))[::-1]
    names = [f"v{number}" for number in listed]
    for _ in range(10):
        plan = plan_keys(names, sorted(names), moves_max=3)
        assert len(plan.moved) <= 3
        names = [name for name in names if name not in plan.moved] + list(plan.added)
    assert names == sorted(names)


def test_the_newest_is_the_latest_event_again(table: LanceTable, instance: dg.DagsterInstance) -> None:
    """As releases before this one left it: the second version was recorded after the third."""
    for _ in range(3):
        append(table.uri)
    sensor = Clock().sensor(table)
    cursor, _ = tick(sensor, instance)
    _, (_, second), _ = events(instance, table.key)
    instance.report_runless_asset_event(second)
    cursor, _ = tick(Clock().sensor(table), instance, cursor)
    assert keys_of(instance, table) == in_order(1, 2, 3, 2, 3)
    assert "still the newest" in metadata_values(events(instance, table.key)[-1][1])["lance/recorded_again"]
    tick(Clock().sensor(table), instance, cursor)
    assert len(keys_of(instance, table)) == 5


def test_lost_events_are_stored_again(table: LanceTable, instance: dg.DagsterInstance) -> None:
    """The sensor still has its cursor, which says that everything is recorded."""
    for _ in range(5):
        append(table.uri)
    clock = Clock()
    sensor = clock.sensor(table)
    cursor, _ = tick(sensor, instance)
    cursor, _ = tick(sensor, instance, cursor)
    instance.wipe_assets([table.key])
    cursor, said = tick(sensor, instance, cursor)
    assert said == "no new versions"  # it looks from time to time
    clock.seconds += AUDIT_INTERVAL_S
    cursor, _ = tick(sensor, instance, cursor)
    assert partitions(instance, table) == keys_of(instance, table) == in_order(1, 2, 3, 4, 5)
    # A database that was put back has lost the keys of its last events as well.
    instance.wipe_assets([table.key])
    for key in in_order(4, 5):
        instance.delete_dynamic_partition(table.ledger.partition_set, key)
    sensor = clock.sensor(table)
    cursor, said = tick(sensor, instance, cursor)
    # The claim of the last tick names a partition whose event is lost, so it looks like that of a tick in progress.
    assert "is being recorded" in str(said)
    clock.seconds += TICK_CLAIM_LIFETIME.total_seconds()
    tick(sensor, instance, cursor)
    assert partitions(instance, table) == keys_of(instance, table) == in_order(1, 2, 3, 4, 5)


@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(days=1), -timedelta(days=1)])
@pytest.mark.parametrize("name", ["s", "renamed"])
def test_a_daemon_that_died_with_its_clock_ahead_stops_nothing_for_long(
    table: LanceTable, instance: dg.DagsterInstance, ahead: timedelta, name: str
) -> None:
    append(table.uri)
    wrong = Clock()
    wrong.ahead = ahead
    wrong.sensor(table).evaluate_tick(dg.build_sensor_context(instance=instance))  # and dies
    clock = Clock()
    sensor = clock.sensor(table, name)
    tick(sensor, instance)
    clock.seconds += max(CLAIM_LIFETIME if name == "renamed" else TICK_CLAIM_LIFETIME, timedelta(0)).total_seconds()
    tick(sensor, instance)
    clock.seconds += TICK_CLAIM_LIFETIME.total_seconds()  # it sees the claims of the tick once it leads
    tick(sensor, instance)
    assert keys_of(instance, table) == in_order(1)


@pytest.mark.parametrize("minutes", [9, 11, 40])
def test_a_tick_between_a_claim_and_its_event_makes_no_second_event(
    table: LanceTable, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    """The clock of the machine is ahead. If it is far ahead, the run notices that its claim was ended."""
    append(table.uri)
    clock = Clock()
    tick(clock.sensor(table), instance)
    run = run_of(instance)
    committed = append(table.uri, run)
    clock.ahead = timedelta(minutes=minutes)
    is_held = RecordingLock.is_held

    def after_a_tick(lock: RecordingLock) -> bool:
        tick(clock.sensor(table), instance)
        return is_held(lock)

    monkeypatch.setattr(RecordingLock, "is_held", after_a_tick)
    record(instance, table, run, committed)
    tick(clock.sensor(table), instance)
    assert keys_of(instance, table) == in_order(1, 2)


def test_a_writer_whose_clock_is_ahead_is_waited_for_ten_minutes(
    table: LanceTable, instance: dg.DagsterInstance
) -> None:
    append(table.uri, run_of(instance))
    clock = Clock()
    clock.ahead = -timedelta(days=1)
    sensor = clock.sensor(table)
    assert "left to its run" in str(tick(sensor, instance)[1])
    clock.seconds += timedelta(minutes=10).total_seconds()
    tick(sensor, instance)
    assert keys_of(instance, table) == in_order(1)


def test_a_table_that_was_restored_from_a_backup_is_recorded_again(
    tmp_path: Path, table: LanceTable, instance: dg.DagsterInstance
) -> None:
    for _ in range(2):
        append(table.uri)
    shutil.copytree(table.uri, tmp_path / "backup")
    for _ in range(2):
        append(table.uri)
    sensor = Clock().sensor(table)
    cursor, _ = tick(sensor, instance)
    shutil.rmtree(table.uri)
    shutil.copytree(tmp_path / "backup", table.uri)
    for _ in range(3):
        append(table.uri)
    cursor, _ = tick(Clock().sensor(table), instance, cursor)
    assert partitions(instance, table) == in_order(1, 2, 3, 4, 5)
    evaluated = Clock().sensor(table).evaluate_tick(dg.build_sensor_context(instance=instance))
    assert "record_again() of the LanceTable 'orders'" in str(evaluated.skip_message)
    assert table.record_again(instance) == "w02"
    for _ in range(2):
        cursor, _ = tick(sensor, instance, cursor)
    assert partitions(instance, table) == in_order(1, 2, 3, 4, 5, incarnation=2)
    assert keys_of(instance, table)[-5:] == in_order(1, 2, 3, 4, 5, incarnation=2)
    assert table.record_again(instance) == "w03"
