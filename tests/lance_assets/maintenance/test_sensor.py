"""Maintenance sensor and schedule, without Spark: the runs that they launch or skip, and the reasons."""

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
from tests.lance_core.maintenance.test_cleanup import set_age

DAY = timedelta(days=1)
ROW = pa.table({"id": [1]})
FEW = Maintenance(compact_when_small_files=3, clean_when_versions=2, keep_versions=1, every="0 3 * * *")


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """Instance on disk: schedules receive an instance reference, which an instance in memory lacks."""
    with instance_in(tmp_path) as each:
        yield each


def declare_table(folder: Path, policy: Maintenance = FEW, name: str = "orders") -> LanceTable:
    append = SparkAppend(f"{name}_append", lambda spark, ctx: spark.range(3))
    return lance_table(
        name, uri=str(folder / f"{name}.lance"), key_prefix="lake", writes=[append], maintenance=policy, discover=False
    )


def create_filled_table(table: LanceTable, versions: int) -> Table:
    created = Table.create(table.uri, ROW, durable=False)
    for _ in range(versions - 1):
        created = created.append(ROW).table
    return created


def run_requests(
    table: LanceTable, instance: dg.DagsterInstance, *, after: timedelta = timedelta(0)
) -> dg.RunRequest | str:
    """Return the run requests of a tick of the sensor, or its skip message."""
    policy = table.maintenance
    assert policy is not None
    writes = [table.write_key(write.name) for write in table.writes]
    sensor = maintenance_sensor(table.ledger, policy, writes, now=lambda: datetime.now(UTC) + after)
    evaluated = sensor.evaluate_tick(dg.build_sensor_context(instance=instance))
    return evaluated.run_requests[0] if evaluated.run_requests else str(evaluated.skip_message)


def launch(
    instance: dg.DagsterInstance,
    request: dg.RunRequest,
    table: LanceTable,
    status: dg.DagsterRunStatus = dg.DagsterRunStatus.STARTED,
) -> dg.DagsterRun:
    return start_run(instance, table.maintenance_key, status=status, tags=dict(request.tags))


def start_run(
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


def test_due_maintenance_is_launched_once(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declare_table(tmp_path)
    assert run_requests(table, instance) == f"lake/orders: there is no table at {table.uri} yet"
    create_filled_table(table, 2)
    assert run_requests(table, instance) == (
        "lake/orders: nothing is due; version 2 has 2 rows in 2 fragments, of which 2 could be joined; "
        "0 versions could be removed"
    )
    Table.open(table.uri).append(ROW)
    request = run_requests(table, instance)
    assert isinstance(request, dg.RunRequest)
    assert request.run_key is not None
    assert request.run_key.startswith("v3-compact-")
    run = launch(instance, request, table)
    why = f"lake/orders: the run {run.run_id} is maintaining it and is not finished. Due: 3 fragments"
    assert str(run_requests(table, instance)).startswith(why)
    instance.report_run_failed(run)
    assert "did not succeed; the next run waits until an hour" in str(run_requests(table, instance))
    again = run_requests(table, instance, after=timedelta(minutes=61))
    assert isinstance(again, dg.RunRequest)
    assert again.run_key == request.run_key.removesuffix("-1") + "-2"  # Dagster launches no run key twice
    launch(instance, again, table, dg.DagsterRunStatus.SUCCESS)
    assert "did the same, and the table has not changed" in str(run_requests(table, instance, after=DAY))
    Table.open(table.uri).append(ROW)
    assert isinstance(run_requests(table, instance, after=DAY), dg.RunRequest)


def test_recreated_table_is_a_different_one(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declare_table(tmp_path)
    create_filled_table(table, 3)
    request = run_requests(table, instance)
    assert isinstance(request, dg.RunRequest)
    launch(instance, request, table, dg.DagsterRunStatus.SUCCESS)
    assert isinstance(run_requests(table, instance), str)
    Path(table.uri).rename(tmp_path / "gone")
    create_filled_table(table, 3)
    assert isinstance(run_requests(table, instance), dg.RunRequest)


def with_options(table: LanceTable, **options: object) -> LanceTable:
    """Return the declaration with other options. mypy knows no dataclass with a named tuple as its base."""
    return replace(table, **options)  # type: ignore[type-var]


def test_nothing_is_launched_during_a_write(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table, other = declare_table(tmp_path), declare_table(tmp_path, name="features")
    beside = with_options(table, maintenance=Maintenance(compact_when_small_files=3, beside_writes=True))
    create_filled_table(table, 3)
    start_run(instance, other.write_key("features_append"))
    start_run(instance, table.write_key("orders_append"), status=dg.DagsterRunStatus.SUCCESS)
    assert isinstance(run_requests(table, instance), dg.RunRequest)
    for status in (dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING):
        run = start_run(instance, table.write_key("orders_append"), status=status)
        why = f"lake/orders: the run {run.run_id} is writing it (lake/orders_append) and is not finished"
        assert str(run_requests(table, instance)).startswith(why)
        assert isinstance(run_requests(beside, instance), dg.RunRequest)
        assert scheduled(table, instance) == why
        instance.report_run_canceled(run)
    assert isinstance(run_requests(table, instance), dg.RunRequest)
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


def test_run_of_a_whole_job_is_detected_by_its_log(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declare_table(tmp_path)
    create_filled_table(table, 3)
    defs = dg.Definitions.merge(
        table.defs,
        dg.Definitions(
            jobs=[dg.define_asset_job("nightly", [table.write_key("orders_append")])], resources={"spark": object()}
        ),
    )
    run = instance.create_run_for_job(defs.resolve_job_def("nightly"), status=dg.DagsterRunStatus.STARTED)
    assert run.asset_selection is None
    assert f"the run {run.run_id} is writing it" in str(run_requests(table, instance))


def test_needed_versions_are_no_reason_for_cleanup(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    policy = Maintenance(clean_when_versions=2, keep_versions=1, compact_when_small_files=None)
    table = declare_table(tmp_path, policy)
    create_filled_table(table, 4)
    set_age(table.uri, 20 * DAY)
    assert isinstance(run_requests(table, instance), dg.RunRequest)
    pinned = with_options(table, maintenance=replace(policy, pins=[1, 2]))
    assert "nothing is due" in str(run_requests(pinned, instance))
    # A version on the ledger of another table has two of them as inputs.
    other = declare_table(tmp_path, name="features")
    source = Table.open(table.uri).uri
    for number in (1, 2):
        properties = {"lance_assets.inputs": json.dumps({source: number})}
        ready = Table.open(other.uri) if number > 1 else None
        _ = ready.append(ROW, properties=properties) if ready else Table.create(other.uri, ROW, properties=properties)
    (sensor,) = lance_table("features", uri=other.uri, key_prefix="lake").defs.sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    assert isinstance(run_requests(table, instance), dg.RunRequest)  # the ledger does not list them yet
    tick(sensor, instance)
    assert isinstance(run_requests(table, instance), dg.RunRequest)  # the cache is valid for a minute
    assert "nothing is due" in str(run_requests(table, instance, after=timedelta(minutes=1)))
    instance.delete_dynamic_partition("lance/lake/features", "v0000000001")  # its version is removed
    assert isinstance(run_requests(table, instance, after=timedelta(minutes=2)), dg.RunRequest)
    # Without a ledger, the table itself records the inputs.
    with_downstream = with_options(table, maintenance=replace(policy, downstream=[other]))
    assert "nothing is due" in str(run_requests(with_downstream, instance))
    lost = with_options(table, maintenance=replace(policy, downstream=[str(tmp_path / "nowhere")]))
    assert "nowhere cannot be read, so the versions that it needs are unknown and no version is removed" in str(
        run_requests(lost, instance)
    )


def test_damaged_table_is_reported_and_skipped(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declare_table(tmp_path)
    create_filled_table(table, 3)
    for path in Path(table.uri, "_versions").glob("*.manifest"):
        path.write_bytes(b"nothing")
    assert "lake/orders is not maintained: " in str(run_requests(table, instance))
    assert "the newest version 3 of this table is damaged" in str(run_requests(table, instance))


def test_declaration(tmp_path: Path) -> None:
    table = declare_table(tmp_path)
    defs = table.defs
    assert [sensor.name for sensor in defs.sensors or ()] == ["lance_maintain__lake_orders"]
    assert [schedule.name for schedule in defs.schedules or ()] == ["lance_maintain_on_schedule__lake_orders"]
    assert table.maintenance_key == dg.AssetKey(["lake", "orders_maintenance"])
    assert table.maintenance_key in {dep.asset_key for dep in table.spec.deps}
    quiet = declare_table(tmp_path, Maintenance(interval_s=None)).defs
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
def test_ledgers_are_read_once_per_tick(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    tables = [declare_table(tmp_path, name=f"orders_{number}") for number in range(count)]
    for table in tables:
        create_filled_table(table, 4)
        set_age(table.uri, 20 * DAY)
        tick(lance_discovery(table.ledger.name, [table]), instance)
    read: list[dg.AssetKey] = []
    fetch = dg.DagsterInstance.fetch_materializations

    def counted(self: dg.DagsterInstance, records_filter: Any, *args: Any, **options: Any) -> Any:
        read.append(getattr(records_filter, "asset_key", records_filter))
        return fetch(self, records_filter, *args, **options)

    monkeypatch.setattr(dg.DagsterInstance, "fetch_materializations", counted)
    for _ in range(2):
        for table in tables:
            assert isinstance(run_requests(table, instance), dg.RunRequest)
    assert sorted(read) == sorted(table.key for table in tables)
    run_requests(tables[0], instance, after=timedelta(minutes=2))
    assert len(read) == 2 * count


def test_needs_of_ledgers_are_cached_per_instance(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declare_table(
        tmp_path, Maintenance(clean_when_versions=3, keep_versions=1, compact_when_small_files=None, every=None)
    )
    create_filled_table(table, 4)
    set_age(table.uri, 20 * DAY)
    made_of_it = dg.MetadataValue.json({table.uri: 2})
    instance.report_runless_asset_event(dg.AssetMaterialization("else", metadata={"lance/inputs": made_of_it}))
    assert "nothing is due" in str(run_requests(table, instance))
    with dg.DagsterInstance.ephemeral() as other:
        request = run_requests(table, other)
    assert isinstance(request, dg.RunRequest)
    assert "clean3" in str(request.run_key)
