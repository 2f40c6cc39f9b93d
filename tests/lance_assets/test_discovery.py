"""Versions of other writers get onto the ledger once, whatever the daemon, the runs and the writers do meanwhile."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import dagster as dg
import lance
import pyarrow as pa
import pytest

from lance_assets import LanceTable, lance_discovery, lance_table
from lance_assets.discovery import WAIT_MAX, discovery_sensor
from lance_core import InvalidInput, Table
from tests.lance_assets.instances import events, partitions, shown, tags, tick

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


def test_foreign_commits_are_found_once_however_often_it_looks(tmp_path: Path, instance: dg.DagsterInstance) -> None:
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
    assert shown(second)["dagster/row_count"] == 3
    assert shown(second)["lance/rows_added"] == 2
    assert [column.name for column in shown(second)["dagster/column_schema"].columns] == ["id"]

    cursor, said = tick(sensor_of(table), instance, cursor)
    assert said == "no new versions"
    tick(sensor_of(table), instance, cursor=None)  # a renamed sensor starts without a cursor
    tick(sensor_of(table), instance, cursor="{ not ours")
    assert keys_of(instance, table) == ["v0000000001", "v0000000002"]

    lance.dataset(table.uri).delete("id = 2")
    tick(sensor_of(table), instance, cursor)
    *_, (_, last) = events(instance, table.key)
    assert last.partition == "v0000000003"
    assert shown(last)["lance/rows_removed"] == 1


def test_a_tick_that_died_between_key_and_event_is_made_good(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    lance.write_dataset(ROW, table.uri)
    sensor_of(table).evaluate_tick(dg.build_sensor_context(instance=instance))  # and its events are never stored
    assert partitions(instance, table) == ["v0000000001"]
    assert keys_of(instance, table) == []
    tick(sensor_of(table), instance)
    assert keys_of(instance, table) == ["v0000000001"]


def test_a_version_is_left_to_its_run_until_that_ends(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    working = add_run(instance, dg.DagsterRunStatus.STARTED)
    Table.create(table.uri, ROW, properties={"dagster.run_id": working.run_id})
    cursor, said = tick(sensor_of(table), instance)
    assert said is not None
    assert "left to its run" in said
    assert partitions(instance, table) == []

    lance.write_dataset(ROW, table.uri, mode="append")  # what comes after it does not have to wait
    cursor, _ = tick(sensor_of(table), instance, cursor)
    assert keys_of(instance, table) == ["v0000000002"]

    instance.report_run_failed(working)
    retry = add_run(instance, dg.DagsterRunStatus.STARTING, root=working)
    cursor, said = tick(sensor_of(table), instance, cursor)
    assert said is not None
    assert "left to its run" in said  # the retry will find the version and record it
    instance.report_run_canceled(retry)

    tick(sensor_of(table), instance, cursor)
    assert keys_of(instance, table) == ["v0000000002", "v0000000001"]
    assert partitions(instance, table) == ["v0000000002", "v0000000001"]
    *_, (_, event) = events(instance, table.key)
    assert (tags(event)["lance/origin"], tags(event)["lance/run_id"]) == ("run", working.run_id)
    assert event.metadata["lance/run"] == dg.MetadataValue.dagster_run(working.run_id)


def test_it_waits_ten_minutes_at_most(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    stuck = add_run(instance, dg.DagsterRunStatus.STARTED)
    Table.create(table.uri, ROW, properties={"dagster.run_id": stuck.run_id})
    later = discovery_sensor("later", [table.ledger], now=lambda: datetime.now(UTC) + WAIT_MAX + timedelta(seconds=1))
    tick(later, instance)
    assert keys_of(instance, table) == ["v0000000001"]


def test_a_run_of_another_instance_is_not_waited_for(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    Table.create(table.uri, ROW, properties={"dagster.run_id": "from elsewhere, and not even an id"})
    table_of_others = Table.open(table.uri).append(ROW, properties={"dagster.run_id": (theirs := str(uuid4()))})
    assert table_of_others.version == 2
    tick(sensor_of(table), instance)
    (_, first), (_, second) = events(instance, table.key)
    assert "lance/run_id" not in tags(first)
    assert (tags(second)["lance/origin"], tags(second)["lance/run_id"]) == ("external", theirs)
    assert second.metadata["lance/run"] == dg.MetadataValue.text(theirs)


def test_versions_beyond_the_bound_come_with_the_next_ticks(tmp_path: Path, instance: dg.DagsterInstance) -> None:
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


def test_a_table_created_anew_is_not_taken_for_the_old_one(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    Table.create(table.uri, ROW).append(ROW)
    cursor, _ = tick(sensor_of(table), instance)
    before = [event.tags for _, event in events(instance, table.key)]
    shutil.rmtree(table.uri)
    at = Table.create(table.uri, ROW)
    for _ in range(3):
        at = at.append(ROW).table
    cursor, said = tick(sensor_of(table), instance, cursor)
    assert said is not None
    assert "another created in its place" in said
    assert "reset the cursor" in said
    _, said = tick(sensor_of(table), instance, cursor)
    assert said is not None
    assert "another created in its place" in said
    # Even without a cursor what the partitions say of the old table stays as it is.
    tick(sensor_of(table), instance, cursor=None)
    assert [event.tags for _, event in events(instance, table.key)][:2] == before
    assert keys_of(instance, table) == [f"v000000000{version}" for version in range(1, 5)]


def test_no_table_yet_and_damaged_tables_do_not_hide_the_others(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    coming, damaged, good = (declared(tmp_path, name) for name in ("coming", "damaged", "good"))
    for table in (damaged, good):
        Table.create(table.uri, ROW)
    (manifest,) = (Path(damaged.uri) / "_versions").iterdir()
    manifest.write_bytes(b"not a manifest")
    group = [
        lance_table(each.ledger.name, uri=each.uri, key_prefix="lake", discover=False)
        for each in (coming, damaged, good)
    ]
    cursor, _ = tick(lance_discovery("lake", group), instance)
    assert keys_of(instance, good) == ["v0000000001"]
    _, said = tick(lance_discovery("lake", group), instance, cursor)
    assert said is not None
    assert "there is no table" in said
    assert "damaged" in said


def test_a_shared_sensor_refuses_tables_that_have_their_own(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="discover=False"):
        lance_discovery("lake", [declared(tmp_path)])


def add_run(
    instance: dg.DagsterInstance, status: dg.DagsterRunStatus, *, root: dg.DagsterRun | None = None
) -> dg.DagsterRun:
    family = {"dagster/root_run_id": root.run_id, "dagster/parent_run_id": root.run_id} if root else {}
    return instance.add_run(dg.DagsterRun(job_name="job", run_id=str(uuid4()), status=status, tags=family))
