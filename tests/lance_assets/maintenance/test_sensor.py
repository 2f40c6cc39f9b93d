"""The ticks of the sensor and the schedule, without Spark: what they launch, and what they leave alone and why."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
import pyarrow as pa
import pytest

from lance_assets import LanceTable, Maintenance, SparkAppend, lance_discovery, lance_table
from lance_assets.maintenance import maintenance_sensor
from lance_core import InvalidInput, Table
from tests.lance_assets.instances import instance_in, tick
from tests.lance_core.maintenance.test_cleanup import age

DAY = timedelta(days=1)
ROW = pa.table({"id": [1]})
FEW = Maintenance(compact_when_small_files=3, clean_when_versions=2, keep_versions=1, every="0 3 * * *")


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """Schedules are handed a reference, which one that is only in memory does not have."""
    with instance_in(tmp_path) as each:
        yield each


def declared(folder: Path, policy: Maintenance = FEW, name: str = "orders") -> LanceTable:
    append = SparkAppend(f"{name}_append", lambda spark, ctx: spark.range(3))
    return lance_table(
        name, uri=str(folder / f"{name}.lance"), key_prefix="lake", writes=[append], maintenance=policy, discover=False
    )


def filled(table: LanceTable, versions: int) -> Table:
    made = Table.create(table.uri, ROW, durable=False)
    for _ in range(versions - 1):
        made = made.append(ROW).table
    return made


def asked(table: LanceTable, instance: dg.DagsterInstance, *, after: timedelta = timedelta(0)) -> dg.RunRequest | str:
    """What a tick of the sensor asks for, or why not."""
    policy = table.maintenance
    assert policy is not None
    writes = [table.write_key(write.name) for write in table.writes]
    sensor = maintenance_sensor(table.ledger, policy, writes, now=lambda: datetime.now(UTC) + after)
    evaluated = sensor.evaluate_tick(dg.build_sensor_context(instance=instance))
    return evaluated.run_requests[0] if evaluated.run_requests else str(evaluated.skip_message)


def launched(
    instance: dg.DagsterInstance,
    request: dg.RunRequest,
    table: LanceTable,
    status: dg.DagsterRunStatus = dg.DagsterRunStatus.STARTED,
) -> dg.DagsterRun:
    return begun(instance, table.maintenance_key, status=status, tags=dict(request.tags))


def begun(
    instance: dg.DagsterInstance,
    key: dg.AssetKey,
    *,
    status: dg.DagsterRunStatus = dg.DagsterRunStatus.STARTED,
    tags: dict[str, str] | None = None,
) -> dg.DagsterRun:
    run = dg.DagsterRun(
        job_name="__ASSET_JOB", run_id=str(uuid4()), asset_selection=frozenset([key]), status=status, tags=tags or {}
    )
    return instance.add_run(run)


def test_what_is_due_is_launched_once(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    assert asked(table, instance) == f"lake/orders: there is no table at {table.uri} yet"
    filled(table, 2)
    assert asked(table, instance) == (
        "lake/orders: nothing is due; version 2 has 2 rows in 2 fragments, of which 2 could be joined; "
        "0 versions could be removed"
    )
    Table.open(table.uri).append(ROW)
    request = asked(table, instance)
    assert isinstance(request, dg.RunRequest)
    assert request.run_key is not None
    assert request.run_key.startswith("v3-compact-")
    run = launched(instance, request, table)
    why = f"lake/orders: the run {run.run_id} is maintaining it and is not finished. Due: 3 fragments"
    assert str(asked(table, instance)).startswith(why)
    instance.report_run_failed(run)
    assert "did not succeed; the next run waits until an hour" in str(asked(table, instance))
    again = asked(table, instance, after=timedelta(minutes=61))
    assert isinstance(again, dg.RunRequest)
    assert again.run_key == request.run_key.removesuffix("-1") + "-2"  # Dagster launches no run key twice
    launched(instance, again, table, dg.DagsterRunStatus.SUCCESS)
    assert "did the same, and the table has not changed" in str(asked(table, instance, after=DAY))
    Table.open(table.uri).append(ROW)
    assert isinstance(asked(table, instance, after=DAY), dg.RunRequest)


def test_a_table_made_anew_is_another_one(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    filled(table, 3)
    request = asked(table, instance)
    assert isinstance(request, dg.RunRequest)
    launched(instance, request, table, dg.DagsterRunStatus.SUCCESS)
    assert isinstance(asked(table, instance), str)
    Path(table.uri).rename(tmp_path / "gone")
    filled(table, 3)
    assert isinstance(asked(table, instance), dg.RunRequest)


def test_nothing_is_launched_beside_a_write(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table, other = declared(tmp_path), declared(tmp_path, name="features")
    beside = replace(table, maintenance=Maintenance(compact_when_small_files=3, beside_writes=True))
    filled(table, 3)
    begun(instance, other.write_key("features_append"))
    begun(instance, table.write_key("orders_append"), status=dg.DagsterRunStatus.SUCCESS)
    assert isinstance(asked(table, instance), dg.RunRequest)
    for status in (dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING):
        run = begun(instance, table.write_key("orders_append"), status=status)
        why = f"lake/orders: the run {run.run_id} is writing it (lake/orders_append) and is not finished"
        assert str(asked(table, instance)).startswith(why)
        assert isinstance(asked(beside, instance), dg.RunRequest)
        assert scheduled(table, instance) == why
        instance.report_run_canceled(run)
    assert isinstance(asked(table, instance), dg.RunRequest)
    request = scheduled(table, instance)
    assert isinstance(request, dg.RunRequest)
    assert request.tags["lance/maintenance_of"] == "lake.orders"


def scheduled(table: LanceTable, instance: dg.DagsterInstance) -> dg.RunRequest | str:
    (schedule,) = table.defs.schedules or ()
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert schedule.cron_schedule == "0 3 * * *"
    at = datetime(2026, 1, 1, 3, tzinfo=UTC)
    evaluated = schedule.evaluate_tick(dg.build_schedule_context(instance=instance, scheduled_execution_time=at))
    return evaluated.run_requests[0] if evaluated.run_requests else str(evaluated.skip_message)


def test_a_run_of_a_whole_job_is_known_by_its_log(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    filled(table, 3)
    defs = dg.Definitions.merge(
        table.defs,
        dg.Definitions(
            jobs=[dg.define_asset_job("nightly", [table.write_key("orders_append")])], resources={"spark": object()}
        ),
    )
    run = instance.create_run_for_job(defs.resolve_job_def("nightly"), status=dg.DagsterRunStatus.STARTED)
    assert run.asset_selection is None
    assert f"the run {run.run_id} is writing it" in str(asked(table, instance))


def test_versions_that_others_need_are_no_reason(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    policy = Maintenance(clean_when_versions=2, keep_versions=1, compact_when_small_files=None)
    table = declared(tmp_path, policy)
    filled(table, 4)
    age(table.uri, 20 * DAY)
    assert isinstance(asked(table, instance), dg.RunRequest)
    pinned = replace(table, maintenance=replace(policy, pins=[1, 2]))
    assert "nothing is due" in str(asked(pinned, instance))
    # A version of another table, on its ledger, was made of two of them.
    other = declared(tmp_path, name="features")
    source = Table.open(table.uri).uri
    for number in (1, 2):
        properties = {"lance_assets.inputs": json.dumps({source: number})}
        ready = Table.open(other.uri) if number > 1 else None
        _ = ready.append(ROW, properties=properties) if ready else Table.create(other.uri, ROW, properties=properties)
    (sensor,) = lance_table("features", uri=other.uri, key_prefix="lake").defs.sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    assert isinstance(asked(table, instance), dg.RunRequest)  # nobody knows of them yet
    tick(sensor, instance)
    assert isinstance(asked(table, instance), dg.RunRequest)  # what was read is good for a minute
    assert "nothing is due" in str(asked(table, instance, after=timedelta(minutes=1)))
    instance.delete_dynamic_partition("lance/lake/features", "v0000000001")  # its version is gone
    assert isinstance(asked(table, instance, after=timedelta(minutes=2)), dg.RunRequest)
    # Without a ledger, by the table itself.
    told = replace(table, maintenance=replace(policy, downstream=[other]))
    assert "nothing is due" in str(asked(told, instance))
    lost = replace(table, maintenance=replace(policy, downstream=[str(tmp_path / "nowhere")]))
    assert "nowhere cannot be read, so the versions that it needs are unknown and no version is removed" in str(
        asked(lost, instance)
    )


def test_a_damaged_table_is_told_and_left_alone(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    filled(table, 3)
    for path in Path(table.uri, "_versions").glob("*.manifest"):
        path.write_bytes(b"nothing")
    assert "lake/orders is not maintained: " in str(asked(table, instance))
    assert "the newest version 3 of this table is damaged" in str(asked(table, instance))


def test_what_is_declared(tmp_path: Path) -> None:
    table = declared(tmp_path)
    defs = table.defs
    assert [sensor.name for sensor in defs.sensors or ()] == ["lance_maintain__lake_orders"]
    assert [schedule.name for schedule in defs.schedules or ()] == ["lance_maintain_on_schedule__lake_orders"]
    assert table.maintenance_key == dg.AssetKey(["lake", "orders_maintenance"])
    assert table.maintenance_key in {dep.asset_key for dep in table.spec.deps}
    quiet = declared(tmp_path, Maintenance(interval_s=None)).defs
    assert not quiet.sensors
    assert not quiet.schedules
    with pytest.raises(InvalidInput, match="its maintenance and a write are called 'orders_maintenance'"):
        lance_table(
            "orders",
            uri="t",
            writes=[SparkAppend("orders_maintenance", lambda spark, ctx: spark.range(1))],
            maintenance=FEW,
        )
    with pytest.raises(InvalidInput, match="has no maintenance"):
        _ = lance_table("orders", uri="t").maintenance_key
    dg.Definitions.validate_loadable(dg.Definitions.merge(defs, dg.Definitions(resources={"spark": object()})))


@pytest.mark.parametrize("count", [2, 6])
def test_the_ledgers_are_read_once_for_all_the_tables_of_a_tick(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    tables = [declared(tmp_path, name=f"orders_{number}") for number in range(count)]
    for table in tables:
        filled(table, 4)
        age(table.uri, 20 * DAY)
        tick(lance_discovery(table.ledger.name, [table]), instance)
    read: list[dg.AssetKey] = []
    fetch = dg.DagsterInstance.fetch_materializations

    def counted(self: dg.DagsterInstance, records_filter: Any, *args: Any, **options: Any) -> Any:
        read.append(getattr(records_filter, "asset_key", records_filter))
        return fetch(self, records_filter, *args, **options)

    monkeypatch.setattr(dg.DagsterInstance, "fetch_materializations", counted)
    for _ in range(2):
        for table in tables:
            assert isinstance(asked(table, instance), dg.RunRequest)
    assert sorted(read) == sorted(table.key for table in tables)
    asked(tables[0], instance, after=timedelta(minutes=2))
    assert len(read) == 2 * count


def test_what_ledgers_need_is_not_told_of_another_dagster(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(
        tmp_path, Maintenance(clean_when_versions=3, keep_versions=1, compact_when_small_files=None, every=None)
    )
    filled(table, 4)
    age(table.uri, 20 * DAY)
    made_of_it = dg.MetadataValue.json({table.uri: 2})
    instance.report_runless_asset_event(dg.AssetMaterialization("else", metadata={"lance/inputs": made_of_it}))
    assert "nothing is due" in str(asked(table, instance))
    with dg.DagsterInstance.ephemeral() as other:
        request = asked(table, other)
    assert isinstance(request, dg.RunRequest)
    assert "clean3" in str(request.run_key)
