"""Discovery sensor: it records each version of other writers once, despite crashed daemons and concurrent runs."""

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
import lance
import pyarrow as pa
import pytest
from lance.file import LanceFileWriter

from lance_assets import LanceTable, lance_discovery, lance_table
from lance_assets.discovery.leader import elect_leader
from lance_assets.discovery.pending_versions import RUN_WAIT_MAX
from lance_assets.discovery.reconcile import OpenedTable
from lance_assets.discovery.sensor import Cursor, discovery_sensor
from lance_assets.ledger.dynamic_partitions import incarnation_of
from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.recording_lock import TICK_CLAIM_LIFETIME, ClaimObserver, RecordingLock
from lance_core import Corrupt, InvalidInput, Table
from tests.lance_assets.instances import events, kill_tick, metadata_values, partitions, tags, tick, version_claims

ROW = pa.table({"id": [1]})


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as each:
        yield each


def declared(folder: Path, name: str = "orders") -> LanceTable:
    return lance_table(name, uri=str(folder / f"{name}.lance"), key_prefix="lake")


def sensor_of(table: LanceTable) -> dg.SensorDefinition:
    (sensor,) = table.defs.sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    return sensor


def keys_of(instance: dg.DagsterInstance, table: LanceTable) -> list[str | None]:
    return [event.partition for _, event in events(instance, table.key)]


def test_foreign_commits_are_recorded_once(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    lance.write_dataset(ROW, table.uri)
    lance.write_dataset(pa.table({"id": [2, 3]}), table.uri, mode="append")
    cursor, _ = tick(sensor_of(table), instance)
    (_, first), (run_id, second) = events(instance, table.key)
    assert (first.partition, second.partition, run_id) == ("v0000000001", "v0000000002", "")
    assert partitions(instance, table) == ["v0000000001", "v0000000002"]
    made_by = Table.open(table.uri).transaction()
    assert made_by is not None
    assert tags(second)["lance/origin"] == "external"
    assert tags(second)["lance/parent"] == "1"
    assert tags(second)["dagster/data_version"] == f"2-{made_by.uuid[:8]}"
    assert metadata_values(second)["dagster/row_count"] == 3
    assert metadata_values(second)["lance/rows_added"] == 2
    assert [column.name for column in metadata_values(second)["dagster/column_schema"].columns] == ["id"]

    cursor, skip_message = tick(sensor_of(table), instance, cursor)
    assert skip_message == "no new versions"
    tick(sensor_of(table), instance, cursor=None)  # a renamed sensor starts without a cursor
    tick(sensor_of(table), instance, cursor="{ not ours")
    assert keys_of(instance, table) == ["v0000000001", "v0000000002"]

    lance.dataset(table.uri).delete("id = 2")
    tick(sensor_of(table), instance, cursor)
    *_, (_, last) = events(instance, table.key)
    assert last.partition == "v0000000003"
    assert metadata_values(last)["lance/rows_removed"] == 1


def test_tick_that_crashed_between_key_and_event_is_repaired(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    lance.write_dataset(ROW, table.uri)
    clock = [0.0]
    sensor = discovery_sensor("s", [table.ledger], clock=lambda: clock[0])
    kill_tick(sensor, instance)
    assert partitions(instance, table) == ["v0000000001"]
    assert keys_of(instance, table) == []
    # The tick looks like one that stores its events now.
    _, skip_message = tick(sensor, instance)
    assert "being recorded by a run or by another tick" in str(skip_message)
    clock[0] += TICK_CLAIM_LIFETIME.total_seconds()
    tick(sensor, instance)
    assert keys_of(instance, table) == ["v0000000001"]


def test_version_is_left_to_its_run_until_the_run_ends(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    working = add_run(instance, dg.DagsterRunStatus.STARTED)
    Table.create(table.uri, ROW, properties={"dagster.run_id": working.run_id})
    cursor, skip_message = tick(sensor_of(table), instance)
    assert skip_message is not None
    assert "left to its run" in skip_message
    assert partitions(instance, table) == []

    lance.write_dataset(ROW, table.uri, mode="append")  # later versions wait for it
    cursor, _ = tick(sensor_of(table), instance, cursor)
    assert keys_of(instance, table) == []

    instance.report_run_failed(working)
    retry = add_run(instance, dg.DagsterRunStatus.STARTING, root=working)
    cursor, skip_message = tick(sensor_of(table), instance, cursor)
    assert skip_message is not None
    assert "left to its run" in skip_message  # the retry finds the version and records it
    instance.report_run_canceled(retry)

    tick(sensor_of(table), instance, cursor)
    assert keys_of(instance, table) == ["v0000000001", "v0000000002"]
    assert partitions(instance, table) == ["v0000000001", "v0000000002"]
    (_, event), _ = events(instance, table.key)
    assert (tags(event)["lance/origin"], tags(event)["lance/run_id"]) == ("run", working.run_id)
    assert event.metadata["lance/run"] == dg.MetadataValue.dagster_run(working.run_id)


def test_sensor_waits_for_a_run_at_most_ten_minutes(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    stuck = add_run(instance, dg.DagsterRunStatus.STARTED)
    Table.create(table.uri, ROW, properties={"dagster.run_id": stuck.run_id})
    later = discovery_sensor(
        "later", [table.ledger], now=lambda: datetime.now(UTC) + RUN_WAIT_MAX + timedelta(seconds=1)
    )
    tick(later, instance)
    assert keys_of(instance, table) == ["v0000000001"]


def test_sensor_does_not_wait_for_runs_of_other_instances(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    Table.create(table.uri, ROW, properties={"dagster.run_id": "from elsewhere, and not even an id"})
    table_of_others = Table.open(table.uri).append(ROW, properties={"dagster.run_id": (theirs := str(uuid4()))})
    assert table_of_others.version == 2
    tick(sensor_of(table), instance)
    (_, first), (_, second) = events(instance, table.key)
    assert "lance/run_id" not in tags(first)
    assert (tags(second)["lance/origin"], tags(second)["lance/run_id"]) == ("external", theirs)
    assert second.metadata["lance/run"] == dg.MetadataValue.text(theirs)


def test_versions_beyond_the_limit_follow_in_later_ticks(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    busy, calm = declared(tmp_path, "busy"), declared(tmp_path, "calm")
    for table, versions in ((busy, 5), (calm, 1)):
        at = Table.create(table.uri, ROW)
        for _ in range(versions - 1):
            at = at.append(ROW).table
    sensor = discovery_sensor("both", [calm.ledger, busy.ledger], versions_per_tick=3)
    cursor, _ = tick(sensor, instance)
    assert (len(keys_of(instance, busy)), len(keys_of(instance, calm))) == (2, 1)
    cursor, _ = tick(sensor, instance, cursor)
    assert keys_of(instance, busy) == [f"v000000000{version}" for version in range(1, 6)]
    assert tick(sensor, instance, cursor)[1] == "no new versions"


@pytest.mark.parametrize("versions", [1, 2, 4])
def test_recreated_table_gets_its_own_partitions(tmp_path: Path, instance: dg.DagsterInstance, versions: int) -> None:
    """The new table has fewer versions than the old one, as many, or more."""
    table = declared(tmp_path)
    Table.create(table.uri, ROW).append(ROW)
    cursor, _ = tick(sensor_of(table), instance)
    shutil.rmtree(table.uri)
    at = Table.create(table.uri, ROW)
    for _ in range(versions - 1):
        at = at.append(ROW).table
    cursor, _ = tick(sensor_of(table), instance, cursor)
    new = [f"w02.v000000000{version}" for version in range(1, versions + 1)]
    assert keys_of(instance, table) == ["v0000000001", "v0000000002", *new]
    assert partitions(instance, table) == new  # partitions of removed versions are retired
    # Without a cursor it is still the second table at this location.
    cursor, skip_message = tick(sensor_of(table), instance, cursor=None)
    assert skip_message == "no new versions"
    assert len(keys_of(instance, table)) == 2 + versions
    assert tick(sensor_of(table), instance, cursor)[1] == "no new versions"


def test_restored_table_is_recognized(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    Table.create(table.uri, ROW)
    cursor, _ = tick(sensor_of(table), instance)
    Path(table.uri).rename(tmp_path / "aside")
    lance.write_dataset(ROW, table.uri)  # a table of another library is identified by its first transaction
    cursor, _ = tick(sensor_of(table), instance, cursor)
    assert partitions(instance, table) == ["w02.v0000000001"]
    shutil.rmtree(table.uri)
    Path(tmp_path / "aside").rename(table.uri)
    cursor, _ = tick(sensor_of(table), instance, cursor)
    assert partitions(instance, table) == ["v0000000001"]
    assert keys_of(instance, table) == ["v0000000001", "w02.v0000000001"]


def test_table_that_loses_its_id_stays_the_same(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    lance.write_dataset(ROW, table.uri)
    cursor, _ = tick(sensor_of(table), instance)
    lance.write_dataset(ROW, table.uri, mode="append")
    lance.dataset(table.uri).cleanup_old_versions(older_than=timedelta(0))
    assert Table.open(table.uri).id is None
    tick(sensor_of(table), instance, cursor)
    assert keys_of(instance, table) == ["v0000000001", "v0000000002"]
    assert partitions(instance, table) == ["v0000000002"]


@pytest.mark.parametrize("name", ["unknown", "a b" * 500, "\n"])
def test_table_ids_may_be_any_text(tmp_path: Path, instance: dg.DagsterInstance, name: str) -> None:
    ledger = declared(tmp_path).ledger
    assert [incarnation_of(instance, ledger, each) for each in (None, name, "other", name, None)] == [1, 2, 3, 2, 3]


def test_partitions_of_removed_versions_are_retired(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    at = Table.create(table.uri, ROW)
    for _ in range(5):
        at = at.append(ROW).table
    sensor = discovery_sensor("s", [table.ledger], versions_per_tick=3)
    cursor = None
    for _ in range(2):
        cursor, _ = tick(sensor, instance, cursor)
    instance.add_dynamic_partitions(table.ledger.partition_set, ["typed by hand"])
    lance.dataset(table.uri).cleanup_old_versions(older_than=timedelta(0))  # and there is no new version
    cursor, _ = tick(sensor, instance, cursor)
    assert len(partitions(instance, table)) == 4  # no more than the limit of one tick
    cursor, _ = tick(sensor, instance, cursor)
    assert partitions(instance, table) == ["v0000000006", "typed by hand"]
    assert len(keys_of(instance, table)) == 6  # the events stay on record
    assert tick(sensor, instance, cursor)[1] == "no new versions"


def test_damaged_old_version_does_not_stop_the_sensor(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    at = Table.create(table.uri, ROW).append(ROW).table
    manifest = Path(table.uri) / at.manifest.path
    at.delete("id = 1").table.append(ROW)
    manifest.write_bytes(b"not a manifest")
    cursor, _ = tick(sensor_of(table), instance)
    assert keys_of(instance, table) == ["v0000000001", "v0000000003", "v0000000004"]
    (_, third) = events(instance, table.key)[1]
    assert "lance/rows_removed" not in third.metadata  # unknown, since the manifest is unreadable
    Table.open(table.uri).append(ROW)
    tick(sensor_of(table), instance, cursor)
    assert keys_of(instance, table)[-1] == "v0000000005"
    with pytest.raises(Corrupt, match="manifest"):
        Table.open(table.uri).versions()
    assert [info.version for info in Table.open(table.uri).versions(since=3)] == [4, 5]


def test_damaged_version_is_recorded_after_its_repair(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    at = Table.create(table.uri, ROW).append(ROW).table
    at.append(ROW).table.append(ROW)
    manifests = [Path(table.uri) / Table.open(table.uri, version=number).manifest.path for number in (2, 3)]
    intact_bytes = [each.read_bytes() for each in manifests]
    for each in manifests:
        each.write_bytes(b"not a manifest")
    cursor, _ = tick(sensor_of(table), instance)
    assert keys_of(instance, table) == ["v0000000001", "v0000000004"]
    cursor, skip_message = tick(sensor_of(table), instance, cursor)
    assert skip_message == "no new versions"  # the warning is logged once
    manifests[1].write_bytes(intact_bytes[1])
    cursor, _ = tick(sensor_of(table), instance, cursor)
    assert keys_of(instance, table)[2:] == ["v0000000003"]
    # Its key was always in its place, and the newest version becomes the latest event again.
    assert partitions(instance, table) == [f"v{number:010}" for number in range(1, 5)]
    cursor, _ = tick(sensor_of(table), instance, cursor)
    assert keys_of(instance, table)[3:] == ["v0000000004"]
    manifests[0].unlink()  # and the other one is lost permanently
    cursor, skip_message = tick(sensor_of(table), instance, cursor)
    cursor, skip_message = tick(sensor_of(table), instance, cursor)
    assert skip_message == "no new versions"
    assert cursor is not None
    assert Cursor.parse(cursor).tables[table.ledger.label].unreadable == ()


def test_newest_of_many_damaged_versions_are_retried(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lance_assets.discovery.reconcile.UNREADABLE_MAX", 2)
    table = declared(tmp_path)
    at = Table.create(table.uri, ROW)
    damaged = []
    for _ in range(3):
        at = at.append(ROW).table
        damaged.append(Path(table.uri) / at.manifest.path)
    at.append(ROW)
    for each in damaged:
        each.write_bytes(b"not a manifest")
    evaluated = sensor_of(table).evaluate_tick(dg.build_sensor_context(instance=instance))
    assert "3 versions are damaged, and only the newest 2 are checked again" in str(evaluated.skip_message)
    assert Cursor.parse(evaluated.cursor).tables[table.ledger.label].unreadable == (3, 4)


def test_cursor_of_an_older_release_is_read(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    assert Cursor.parse('{"tables": {"lake/orders": [1, 7, 7]}, "first": ""}').tables["lake/orders"].version == 7


def test_an_idle_table_is_listed_and_not_opened(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new version, a removed one, and a table that was created again with as many versions are noticed."""
    table = declared(tmp_path)
    sensor, opened, real_open = sensor_of(table), list[str](), OpenedTable.open

    def open_and_count(ledger: Ledger) -> OpenedTable:
        opened.append(ledger.label)
        return real_open(ledger)

    monkeypatch.setattr(OpenedTable, "open", open_and_count)
    Table.create(table.uri, ROW).append(ROW)
    cursor = None

    def ticks_until_idle() -> int:
        nonlocal cursor
        for count in range(1, 9):
            opened.clear()
            cursor, _ = tick(sensor, instance, cursor)
            if not opened:
                return count
        raise AssertionError("the table is opened by every tick")

    assert ticks_until_idle() > 1
    assert ticks_until_idle() == 1
    newest = Table.open(table.uri).append(ROW).table
    assert ticks_until_idle() > 1
    assert keys_of(instance, table) == ["v0000000001", "v0000000002", "v0000000003"]
    (Path(table.uri) / newest.at(1).manifest.path).unlink()
    assert ticks_until_idle() > 1
    shutil.rmtree(table.uri)
    Table.create(table.uri, ROW).append(ROW).table.append(ROW)
    (Path(table.uri) / newest.at(1).manifest.path).unlink()
    assert ticks_until_idle() > 1
    assert keys_of(instance, table)[-1] == "w02.v0000000003"


@pytest.mark.parametrize("by", ["us", "others"])
def test_table_replaced_during_a_tick_is_left_to_the_next_tick(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Otherwise its versions would get the partitions of the replaced table."""
    table = declared(tmp_path)
    Table.create(table.uri, ROW)
    cursor, _ = tick(sensor_of(table), instance)
    Table.open(table.uri).append(ROW)
    opened = OpenedTable.open

    def open_and_replace(ledger: Ledger) -> OpenedTable:
        opened_table = opened(ledger)
        shutil.rmtree(table.uri)
        lance.write_dataset(ROW, table.uri) if by == "others" else Table.create(table.uri, ROW)
        lance.write_dataset(ROW, table.uri, mode="append")
        return opened_table

    with monkeypatch.context() as patch:
        patch.setattr(OpenedTable, "open", open_and_replace)
        cursor, skip_message = tick(sensor_of(table), instance, cursor)
    assert "was replaced during this tick" in str(skip_message)
    assert keys_of(instance, table) == ["v0000000001"]
    tick(sensor_of(table), instance, cursor)
    assert keys_of(instance, table) == ["v0000000001", "w02.v0000000001", "w02.v0000000002"]


def test_version_removed_during_a_tick_does_not_stop_the_sensor(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = declared(tmp_path)
    at = Table.create(table.uri, ROW).append(ROW).table
    at.append(ROW)
    listed = at.version_numbers()
    (Path(table.uri) / at.manifest.path).unlink()
    monkeypatch.setattr(Table, "version_numbers", lambda _: listed)  # the list as it was before cleanup
    tick(sensor_of(table), instance)
    assert keys_of(instance, table) == ["v0000000001", "v0000000003"]
    assert [info.version for info in Table.open(table.uri).versions()] == [1, 3]


def test_table_with_out_of_range_numbers_does_not_hide_others(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = [lance_table(name, uri=str(tmp_path / name), discover=False) for name in ("odd", "good")]
    for each in group:
        Table.create(each.uri, ROW)
    real = Table.open

    def open_or_fail(uri: str, **options: Any) -> Table:
        if uri.endswith("odd"):
            raise OverflowError("date value out of range")
        return real(uri, **options)

    monkeypatch.setattr(Table, "open", open_or_fail)
    evaluated = lance_discovery("lake", group).evaluate_tick(dg.build_sensor_context(instance=instance))
    assert [keys_of(instance, each) for each in group] == [[], ["v0000000001"]]
    assert "odd: OverflowError: date value out of range" in (evaluated.skip_message or "")


def test_run_outwaits_a_killed_tick(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a sensor, nothing else would record the versions of the tick."""
    table = declared(tmp_path)
    Table.create(table.uri, ROW).append(ROW)
    kill_tick(sensor_of(table), instance, events=1)
    assert keys_of(instance, table) == ["v0000000001"]
    seconds = [0.0]
    monkeypatch.setattr("lance_assets.ledger.recording_lock.sleep", lambda wait: seconds.append(seconds[-1] + wait))
    run = add_run(instance, dg.DagsterRunStatus.STARTED)
    lock = RecordingLock(instance, table.ledger, f"{run.run_id}:v3", ClaimObserver(lambda: seconds[-1]))
    assert lock.acquire("v0000000003")
    assert seconds[-1] == pytest.approx(TICK_CLAIM_LIFETIME.total_seconds(), abs=1)


def test_tick_without_time_leaves_events_to_the_next(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each event takes four seconds. A tick that has lost its claim stores none."""
    table = declared(tmp_path)
    at = Table.create(table.uri, ROW)
    for _ in range(3):
        at = at.append(ROW).table
    clock, store = [0.0], instance.report_runless_asset_event

    def store_slowly(event: dg.AssetMaterialization) -> None:
        clock[0] += 4
        store(event)

    monkeypatch.setattr(instance, "report_runless_asset_event", store_slowly)
    sensor = discovery_sensor("s", [table.ledger], clock=lambda: clock[0])
    with monkeypatch.context() as patch:
        patch.setattr(RecordingLock, "is_held", lambda _: False)
        cursor, message = tick(sensor, instance)
        assert keys_of(instance, table) == []
    cursor, message = tick(sensor, instance, cursor)
    assert message == "recorded 3 versions; more follows with the next tick"
    assert keys_of(instance, table) == ["v0000000001", "v0000000002", "v0000000003"]
    tick(sensor, instance, cursor)
    assert keys_of(instance, table)[3:] == ["v0000000004"]


def test_sensor_respects_the_claim_of_a_recording_run(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    dead, other = (add_run(instance, status) for status in (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.STARTED))
    Table.create(table.uri, ROW, properties={"dagster.run_id": dead.run_id})
    assert RecordingLock(instance, table.ledger, f"{other.run_id}:v0000000001").acquire("v0000000001")
    cursor, skip_message = tick(sensor_of(table), instance)
    assert skip_message is not None
    assert "is being recorded by a run" in skip_message
    instance.report_run_failed(other)  # it crashed without releasing its claim
    cursor, _ = tick(sensor_of(table), instance, cursor)
    assert keys_of(instance, table) == ["v0000000001"]
    tick(sensor_of(table), instance, cursor)
    assert version_claims(instance, table) == []


def test_missing_and_damaged_tables_do_not_hide_others(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    coming, damaged, good = (declared(tmp_path, name) for name in ("coming", "damaged", "good"))
    for table in (damaged, good):
        Table.create(table.uri, ROW)
    (manifest,) = (Path(damaged.uri) / "_versions").glob("*.manifest")
    manifest.write_bytes(b"not a manifest")
    group = [
        lance_table(each.ledger.name, uri=each.uri, key_prefix="lake", discover=False)
        for each in (coming, damaged, good)
    ]
    cursor, _ = tick(lance_discovery("lake", group), instance)
    assert keys_of(instance, good) == ["v0000000001"]
    _, skip_message = tick(lance_discovery("lake", group), instance, cursor)
    assert skip_message is not None
    assert "there is no table" in skip_message
    assert "damaged" in skip_message


def test_shared_sensor_refuses_tables_with_their_own_sensor(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="discover=False"):
        lance_discovery("lake", [declared(tmp_path)])


def add_run(
    instance: dg.DagsterInstance, status: dg.DagsterRunStatus, *, root: dg.DagsterRun | None = None
) -> dg.DagsterRun:
    family = {"dagster/root_run_id": root.run_id, "dagster/parent_run_id": root.run_id} if root else {}
    return instance.add_run(dg.DagsterRun(job_name="job", run_id=str(uuid4()), status=status, tags=family))


def test_two_sensors_of_one_table_record_each_version_once(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """Two code locations declare the same table, and their ticks overlap."""
    table = declared(tmp_path)
    Table.create(table.uri, ROW).append(ROW)
    clock = [datetime.now(UTC)]
    first, second = (
        discovery_sensor(name, [table.ledger], now=lambda: clock[0], clock=lambda: clock[0].timestamp())
        for name in ("first", "second")
    )
    messages = [tick(each, instance)[1] for each in (first, second)]
    assert messages[0] == "recorded 2 versions"
    assert "the versions of other writers are recorded by sensor:first" in str(messages[1])
    assert keys_of(instance, table) == ["v0000000001", "v0000000002"]
    # The first is switched off: the other one takes over and reports nothing twice.
    Table.open(table.uri).append(ROW)
    clock[0] += timedelta(minutes=10, seconds=1)
    tick(second, instance)
    tick(first, instance)
    assert keys_of(instance, table) == ["v0000000001", "v0000000002", "v0000000003"]


def test_two_daemons_of_one_sensor_record_each_version_once(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second evaluates the sensor before the first has stored its events; one version is of a run that crashed."""
    table = declared(tmp_path)
    dead = add_run(instance, dg.DagsterRunStatus.FAILURE)
    Table.create(table.uri, ROW).append(ROW, properties={"dagster.run_id": dead.run_id})
    sensor = sensor_of(table)
    store, twin = instance.report_runless_asset_event, list[tuple[str | None, str | None]]()

    def store_after_twin(event: dg.AssetMaterialization) -> None:
        if not twin:
            twin.append((None, None))
            twin[0] = tick(sensor, instance)
        store(event)

    with monkeypatch.context() as patch:
        patch.setattr(instance, "report_runless_asset_event", store_after_twin)
        assert tick(sensor, instance)[1] == "recorded 2 versions"
    assert "being recorded by a run or by another tick" in str(twin[0][1])
    cursor, _ = tick(sensor, instance, twin[0][0])  # the cursor of the other daemon is stored last
    assert keys_of(instance, table) == ["v0000000001", "v0000000002"]
    Table.open(table.uri).append(ROW)
    tick(sensor, instance, cursor)  # immediately: stored events block no claim
    assert keys_of(instance, table) == ["v0000000001", "v0000000002", "v0000000003"]


def test_one_of_two_concurrently_started_sensors_leads(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim of the second becomes visible first, although it was added later; then both are visible."""
    table = declared(tmp_path)
    Table.create(table.uri, ROW)
    first, second = (discovery_sensor(name, [table.ledger]) for name in ("first", "second"))
    all_partitions = instance.get_dynamic_partitions
    elect_leader(instance, table.ledger, "sensor:first", datetime.now(UTC), ClaimObserver())
    hidden = [key for key in all_partitions(table.ledger.claim_set) if "first" in key]
    with monkeypatch.context() as patch:
        patch.setattr(
            instance, "get_dynamic_partitions", lambda name: [key for key in all_partitions(name) if key not in hidden]
        )
        tick(second, instance)
    assert keys_of(instance, table) == ["v0000000001"]
    Table.open(table.uri).append(ROW)
    cursor, skip_message = tick(first, instance)
    assert "recorded by sensor:second" in str(skip_message)
    tick(second, instance)
    assert keys_of(instance, table) == ["v0000000001"]
    tick(first, instance, cursor)
    tick(second, instance)
    assert keys_of(instance, table) == ["v0000000001", "v0000000002"]


def test_busy_table_does_not_delay_others(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    tables = [declared(tmp_path, name) for name in ("busy", "second", "third")]
    for table, versions in zip(tables, (12, 2, 2), strict=True):
        at = Table.create(table.uri, ROW)
        for _ in range(versions - 1):
            at = at.append(ROW).table
    sensor = discovery_sensor("s", [table.ledger for table in tables], versions_per_tick=4)
    cursor = None
    recorded_counts = []
    for _ in range(4):
        cursor, _ = tick(sensor, instance, cursor)
        recorded_counts.append([len(keys_of(instance, table)) for table in tables])
    assert recorded_counts == [[4, 0, 0], [4, 2, 2], [8, 2, 2], [12, 2, 2]]
    # A table with pending versions comes last in the next tick.
    sensor = discovery_sensor("s", [table.ledger for table in reversed(tables)], versions_per_tick=4)
    for _ in range(8):
        Table.open(tables[0].uri).append(ROW)
    cursor, _ = tick(sensor, instance, cursor)
    Table.open(tables[1].uri).append(ROW)
    tick(sensor, instance, cursor)
    assert [len(keys_of(instance, table)) for table in tables] == [19, 3, 2]


def files_of(table: LanceTable) -> dict[Path, int]:
    paths = [*Path(table.uri, "data").rglob("*"), *Path(table.uri, "_deletions").rglob("*")]
    return {path: path.stat().st_size for path in paths if path.is_file()}


def test_metadata_lists_the_files_of_foreign_operations(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """The expected files are those that pylance wrote, for every operation of pylance."""
    table = declared(tmp_path)
    rows = pa.table({"id": range(100), "n": range(100)})
    ids = pa.table({"id": range(90, 110), "n": range(20)})

    def replaced() -> None:
        dataset: Any = lance.dataset(table.uri)
        first = min(each.fragment_id for each in dataset.get_fragments())
        path = f"{uuid4()}.lance"
        version = dataset.data_storage_version
        with LanceFileWriter(
            str(Path(table.uri, "data", path)), pa.schema([("twice", pa.int64())]), version=version
        ) as writer:
            writer.write_batch(pa.table({"twice": range(dataset.get_fragment(first).physical_rows)}))
        field = dataset.lance_schema.field("twice").id()
        major, minor = map(int, version.split("."))
        size = Path(table.uri, "data", path).stat().st_size
        file = lance.fragment.DataFile(path, [field], [0], major, minor, size)
        replacement = lance.LanceOperation.DataReplacementGroup(first, file)
        lance.LanceDataset.commit(
            table.uri, lance.LanceOperation.DataReplacement([replacement]), read_version=dataset.version
        )

    steps: dict[str, Callable[[], object]] = {
        "Overwrite": lambda: lance.write_dataset(rows, table.uri, max_rows_per_file=30),
        "Append": lambda: lance.write_dataset(rows, table.uri, mode="append"),
        "Delete": lambda: lance.dataset(table.uri).delete("id % 10 = 3"),
        "Update": lambda: lance.dataset(table.uri).update({"n": "0"}, where="id = 5"),
        "Update (upsert)": lambda: (
            lance.dataset(table.uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        ).execute(ids.slice(15)),
        "Merge": lambda: lance.dataset(table.uri).add_columns({"twice": "n * 2"}),
        "DataReplacement": replaced,
        "Project": lambda: lance.dataset(table.uri).drop_columns(["n"]),
        "Rewrite": lambda: lance.dataset(table.uri).optimize.compact_files(),
    }
    wrote: dict[str, list[tuple[Path, int]]] = {}
    for name, step in steps.items():
        before = files_of(table)
        step()
        wrote[name] = [(path, size) for path, size in files_of(table).items() if path not in before]
    tick(sensor_of(table), instance)
    metadata_by_operation = {
        tags(event)["lance/op"]: metadata_values(event) for _, event in events(instance, table.key)
    }
    assert {name.partition(" ")[0] for name in steps} <= set(metadata_by_operation)
    descriptions = [
        metadata_values(event)
        for _, event in events(instance, table.key)
        if tags(event)["lance/op"] != "ReserveFragments"
    ]
    for (name, files), figures in zip(wrote.items(), descriptions, strict=True):
        data = [size for path, size in files if path.parent.name == "data"]
        assert figures["lance/files_written"] == len(data), name
        assert figures["lance/bytes_written"] == sum(data), name
        assert figures.get("lance/deletion_files_written", 0) == len(files) - len(data), name
