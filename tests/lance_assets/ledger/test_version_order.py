"""Version order: the newest version is the last partition and the latest event, whichever recorder adds it."""

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
from lance_assets.ledger.dynamic_partitions import incarnation_of, plan_keys
from lance_assets.ledger.partition_keys import partition_key
from lance_assets.ledger.recording import EARLIER_MAX, record_in_run
from lance_assets.ledger.recording_lock import CLAIM_LIFETIME, TICK_CLAIM_LIFETIME, RecordingLock
from lance_assets.ledger.version_metadata import committed_facts
from lance_core import Table
from tests.lance_assets.instances import events, kill_tick, metadata_values, partitions, tags, tick

ROW = pa.table({"id": [1]})


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as each:
        yield each


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    return lance_table("orders", uri=str(tmp_path / "orders.lance"), key_prefix="lake")


class DaemonClock:
    """Wall clock and monotonic clock of a daemon; an offset changes the wall clock only."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.offset = timedelta(0)

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.seconds) + self.offset

    def sensor(self, table: LanceTable, name: str = "s") -> dg.SensorDefinition:
        return discovery_sensor(name, [table.ledger], now=self.now, clock=lambda: self.seconds)


def add_run(instance: dg.DagsterInstance) -> dg.DagsterRun:
    return instance.add_run(dg.DagsterRun(job_name="job", run_id=str(uuid4()), status=dg.DagsterRunStatus.STARTED))


def make_context(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Any:
    log = SimpleNamespace(info=lambda _: None, warning=lambda _: None)
    return SimpleNamespace(instance=instance, run=run, log=log, log_event=instance.report_runless_asset_event)


def append_version(uri: str, run: dg.DagsterRun | None = None) -> Any:
    properties = {"dagster.run_id": run.run_id} if run else {}
    if Table.exists(uri):
        return Table.open(uri).append(ROW, properties=properties)
    Table.create(uri, ROW, properties=properties, durable=False)
    return None


def record_version(instance: dg.DagsterInstance, table: LanceTable, run: dg.DagsterRun, committed: Any) -> None:
    incarnation = incarnation_of(instance, table.ledger, committed.table.id)
    record_in_run(make_context(instance, run), table.ledger, committed_facts(committed, incarnation), committed.table)


def recorded_partitions(instance: dg.DagsterInstance, table: LanceTable) -> list[str | None]:
    return [event.partition for _, event in events(instance, table.key)]


def version_keys(*versions: int, incarnation: int = 1) -> list[str]:
    return [partition_key(version, incarnation) for version in versions]


def test_run_records_earlier_versions_of_other_writers(table: LanceTable, instance: dg.DagsterInstance) -> None:
    append_version(table.uri)
    run = add_run(instance)
    record_version(instance, table, run, append_version(table.uri, run))
    append_version(table.uri)  # by another engine
    record_version(instance, table, run, append_version(table.uri, run))
    tick(DaemonClock().sensor(table), instance)
    assert partitions(instance, table) == recorded_partitions(instance, table) == version_keys(1, 2, 3, 4)
    origins = [tags(event)["lance/origin"] for _, event in events(instance, table.key)]
    assert origins == ["external", "run", "external", "run"]


def test_run_waits_for_earlier_runs_and_then_records_for_them(
    table: LanceTable, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_version(table.uri)
    first, second, third = (add_run(instance) for _ in range(3))
    committed = [append_version(table.uri, run) for run in (first, second, third)]
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            record_version(instance, table, first, committed[0])

    monkeypatch.setattr("lance_assets.ledger.recording.sleep", sleep)
    monkeypatch.setattr("lance_assets.ledger.recording.ACTIVE_RUN_CHECKS_MAX", 3)
    record_version(instance, table, third, committed[2])
    assert len(waits) >= 2
    assert partitions(instance, table) == recorded_partitions(instance, table) == version_keys(1, 2, 3, 4)
    record_version(instance, table, second, committed[1])  # the late run finds its version recorded
    assert recorded_partitions(instance, table) == version_keys(1, 2, 3, 4)
    assert tags(events(instance, table.key)[2][1])["lance/run_id"] == second.run_id


def test_run_leaves_a_long_backlog_to_the_sensor(
    table: LanceTable, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run records a part of the backlog, and the sensor records the rest and the version of the run."""
    assert EARLIER_MAX >= 100
    monkeypatch.setattr("lance_assets.ledger.recording.EARLIER_MAX", 2)
    for _ in range(4):
        append_version(table.uri)
    run = add_run(instance)
    record_version(instance, table, run, append_version(table.uri, run))
    assert partitions(instance, table) == recorded_partitions(instance, table) == version_keys(1, 2)
    instance.report_run_canceled(run)
    tick(DaemonClock().sensor(table), instance)
    assert partitions(instance, table) == recorded_partitions(instance, table) == version_keys(1, 2, 3, 4, 5)


def test_misplaced_keys_are_sorted(table: LanceTable, instance: dg.DagsterInstance) -> None:
    """Older releases left keys in this order, and users can add keys."""
    for _ in range(4):
        append_version(table.uri)
    instance.add_dynamic_partitions(table.ledger.partition_set, version_keys(1, 3, 2, 9))
    sensor = DaemonClock().sensor(table)
    tick(sensor, instance)
    assert partitions(instance, table) == recorded_partitions(instance, table) == version_keys(1, 2, 3, 4)
    instance.delete_dynamic_partition(table.ledger.partition_set, version_keys(2)[0])
    run = add_run(instance)
    record_version(instance, table, run, append_version(table.uri, run))
    assert partitions(instance, table) == version_keys(1, 2, 3, 4, 5)


def test_each_tick_moves_a_limited_number_of_keys(table: LanceTable, instance: dg.DagsterInstance) -> None:
    listed = list(range(10))[::-1]
    names = [f"v{number}" for number in listed]
    for _ in range(10):
        plan = plan_keys(names, sorted(names), moves_max=3)
        assert len(plan.moved) <= 3
        names = [name for name in names if name not in plan.moved] + list(plan.added)
    assert names == sorted(names)


def test_newest_version_becomes_the_latest_event_again(table: LanceTable, instance: dg.DagsterInstance) -> None:
    """The second version was recorded after the third, as older releases did."""
    for _ in range(3):
        append_version(table.uri)
    sensor = DaemonClock().sensor(table)
    cursor, _ = tick(sensor, instance)
    _, (_, second), _ = events(instance, table.key)
    instance.report_runless_asset_event(second)
    cursor, _ = tick(DaemonClock().sensor(table), instance, cursor)
    assert recorded_partitions(instance, table) == version_keys(1, 2, 3, 2, 3)
    assert "still the newest" in metadata_values(events(instance, table.key)[-1][1])["lance/recorded_again"]
    tick(DaemonClock().sensor(table), instance, cursor)
    assert len(recorded_partitions(instance, table)) == 5


def test_lost_events_are_stored_again(table: LanceTable, instance: dg.DagsterInstance) -> None:
    """The cursor of the sensor says that all versions are recorded."""
    for _ in range(5):
        append_version(table.uri)
    clock = DaemonClock()
    sensor = clock.sensor(table)
    cursor, _ = tick(sensor, instance)
    cursor, _ = tick(sensor, instance, cursor)
    instance.wipe_assets([table.key])
    cursor, skip_message = tick(sensor, instance, cursor)
    assert skip_message == "no new versions"  # the next audit is not due
    clock.seconds += AUDIT_INTERVAL_S
    cursor, _ = tick(sensor, instance, cursor)
    assert partitions(instance, table) == recorded_partitions(instance, table) == version_keys(1, 2, 3, 4, 5)
    # A restored database has also lost the keys of its last events.
    instance.wipe_assets([table.key])
    for key in version_keys(4, 5):
        instance.delete_dynamic_partition(table.ledger.partition_set, key)
    tick(clock.sensor(table), instance, cursor)
    assert partitions(instance, table) == recorded_partitions(instance, table) == version_keys(1, 2, 3, 4, 5)


@pytest.mark.parametrize("offset", [timedelta(hours=1), timedelta(days=1), -timedelta(days=1)])
@pytest.mark.parametrize("name", ["s", "renamed"])
def test_dead_daemon_with_a_wrong_clock_blocks_others_only_briefly(
    table: LanceTable, instance: dg.DagsterInstance, offset: timedelta, name: str
) -> None:
    append_version(table.uri)
    wrong_clock = DaemonClock()
    wrong_clock.offset = offset
    kill_tick(wrong_clock.sensor(table), instance)
    clock = DaemonClock()
    sensor = clock.sensor(table, name)
    tick(sensor, instance)
    clock.seconds += max(CLAIM_LIFETIME if name == "renamed" else TICK_CLAIM_LIFETIME, timedelta(0)).total_seconds()
    tick(sensor, instance)
    clock.seconds += TICK_CLAIM_LIFETIME.total_seconds()  # the sensor observes the claims of the tick once it leads
    tick(sensor, instance)
    assert recorded_partitions(instance, table) == version_keys(1)


@pytest.mark.parametrize("minutes", [9, 11, 40])
def test_tick_between_claim_and_event_adds_no_second_event(
    table: LanceTable, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    """The clock of the tick is ahead. If it is far ahead, the tick ends the claim of the run, which the run notices."""
    append_version(table.uri)
    clock = DaemonClock()
    tick(clock.sensor(table), instance)
    run = add_run(instance)
    committed = append_version(table.uri, run)
    clock.offset = timedelta(minutes=minutes)
    is_held = RecordingLock.is_held

    def check_after_tick(lock: RecordingLock) -> bool:
        tick(clock.sensor(table), instance)
        return is_held(lock)

    monkeypatch.setattr(RecordingLock, "is_held", check_after_tick)
    record_version(instance, table, run, committed)
    tick(clock.sensor(table), instance)
    assert recorded_partitions(instance, table) == version_keys(1, 2)


def test_version_of_a_writer_with_a_fast_clock_waits_ten_minutes(
    table: LanceTable, instance: dg.DagsterInstance
) -> None:
    append_version(table.uri, add_run(instance))
    clock = DaemonClock()
    clock.offset = -timedelta(days=1)
    sensor = clock.sensor(table)
    assert "left to its run" in str(tick(sensor, instance)[1])
    clock.seconds += timedelta(minutes=10).total_seconds()
    tick(sensor, instance)
    assert recorded_partitions(instance, table) == version_keys(1)


def test_table_restored_from_a_backup_is_recorded_again(
    tmp_path: Path, table: LanceTable, instance: dg.DagsterInstance
) -> None:
    for _ in range(2):
        append_version(table.uri)
    shutil.copytree(table.uri, tmp_path / "backup")
    for _ in range(2):
        append_version(table.uri)
    sensor = DaemonClock().sensor(table)
    cursor, _ = tick(sensor, instance)
    shutil.rmtree(table.uri)
    shutil.copytree(tmp_path / "backup", table.uri)
    for _ in range(3):
        append_version(table.uri)
    cursor, _ = tick(DaemonClock().sensor(table), instance, cursor)
    assert partitions(instance, table) == version_keys(1, 2, 3, 4, 5)
    evaluated = DaemonClock().sensor(table).evaluate_tick(dg.build_sensor_context(instance=instance))
    assert "record_again() of the LanceTable 'orders'" in str(evaluated.skip_message)
    assert table.record_again(instance) == "w02"
    for _ in range(2):
        cursor, _ = tick(sensor, instance, cursor)
    assert partitions(instance, table) == version_keys(1, 2, 3, 4, 5, incarnation=2)
    assert recorded_partitions(instance, table)[-5:] == version_keys(1, 2, 3, 4, 5, incarnation=2)
    assert table.record_again(instance) == "w03"
