"""Partitioned assets from run to table: a run replaces and loads the rows of its partition, and none of others."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
import pyarrow as pa
import pytest

from lance_assets import LanceIOManager, LanceResource
from lance_core import Table

HOURS = dg.HourlyPartitionsDefinition("2025-11-02-00:00", end_date="2025-11-02-06:00", timezone="America/New_York")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as each:
        yield each


def materialize(
    root: Path,
    instance: dg.DagsterInstance,
    assets: list[dg.AssetsDefinition],
    partition: str | None = None,
    **options: Any,
) -> str:
    """Materialize the assets, and return the reason of the failure, if there is one."""
    result = dg.materialize(
        assets,
        resources={"io_manager": LanceIOManager(storage=LanceResource(root=str(root)))},
        instance=instance,
        partition_key=partition,
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        raise_on_error=False,
        **options,
    )
    failures = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    return "; ".join(
        (failure.user_failure_data.description if failure.user_failure_data else None) or failure.error_display_string
        for failure in failures
    )


@pytest.mark.parametrize(
    ("size", "zone", "column_zone"),
    [
        ("day", "America/New_York", "America/New_York"),
        ("day", "America/New_York", "UTC"),
        ("day", "Asia/Tokyo", "Asia/Tokyo"),
        ("day", "Europe/Berlin", "Europe/Berlin"),
        ("hour", "America/New_York", "America/New_York"),
    ],
)
def test_time_windows_in_the_zone_of_the_column(
    tmp_path: Path, instance: dg.DagsterInstance, size: str, zone: str, column_zone: str
) -> None:
    """Another writer has filled three partitions. A run replaces the rows of the one in the middle, and loads them."""
    partitions: dg.TimeWindowPartitionsDefinition
    if size == "day":
        partitions = dg.DailyPartitionsDefinition("2025-11-01", end_date="2025-11-04", timezone=zone)
    else:
        partitions = dg.HourlyPartitionsDefinition("2025-11-02-00:00", end_date="2025-11-02-03:00", timezone=zone)
    keys = partitions.get_partition_keys()[:3]
    windows = [partitions.time_window_for_partition_key(key) for key in keys]
    step = timedelta(minutes=30)
    rows = [
        (key, window.start.astimezone(UTC) + n * step)
        for key, window in zip(keys, windows, strict=True)
        for n in range(int((window.end.timestamp() - window.start.timestamp()) // step.total_seconds()))
    ]
    schema = pa.schema({"key": pa.string(), "at": pa.timestamp("us", column_zone), "by": pa.string()})

    def frame(written: list[tuple[str, datetime]], by: str) -> pa.Table:
        columns = [[key for key, _ in written], [at for _, at in written], [by] * len(written)]
        return pa.table(dict(zip(schema.names, columns, strict=True)), schema)

    Table.create(tmp_path / "events.lance", frame(rows, "another writer"))
    loaded: list[Any] = []

    @dg.asset(partitions_def=partitions, metadata={"partition_expr": "at"})
    def events(context: dg.AssetExecutionContext) -> pa.Table:
        return frame([row for row in rows if row[0] == context.partition_key], "the run")

    @dg.asset(partitions_def=partitions, metadata={"mode": "append"})
    def copied(events: pa.Table) -> pa.Table:
        loaded.extend(events["at"].to_pylist())
        return events

    assert materialize(tmp_path, instance, [events, copied], keys[1]) == ""
    own = [at for key, at in rows if key == keys[1]]
    assert sorted(at.astimezone(UTC) for at in loaded) == own
    stored = [
        (row["at"].astimezone(UTC), row["by"]) for row in Table.open(tmp_path / "events.lance").to_table().to_pylist()
    ]
    assert sorted(at for at, _ in stored) == [at for _, at in rows]
    assert {at for at, by in stored if by == "the run"} == set(own)


def test_the_hour_that_occurs_twice_is_stored_as_its_first_occurrence(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    @dg.asset(partitions_def=HOURS, metadata={"partition_expr": "at"}, backfill_policy=dg.BackfillPolicy.single_run())
    def events(context: dg.AssetExecutionContext) -> pa.Table:
        windows = [HOURS.time_window_for_partition_key(key) for key in context.partition_keys]
        shown = [window.start.astimezone(ZoneInfo("America/New_York")).replace(tzinfo=None) for window in windows]
        return pa.table({"at": pa.array([at + timedelta(minutes=30) for at in shown], pa.timestamp("us"))})

    for key in ("2025-11-02-00:00", "2025-11-02-01:00", "2025-11-02-02:00"):
        assert materialize(tmp_path, instance, [events], key) == ""
    table = Table.open(tmp_path / "events.lance")
    assert [at.hour for at in table.to_table()["at"].to_pylist()] == [0, 1, 2]
    reason = materialize(tmp_path, instance, [events], "2025-11-02-01:00-0500")
    assert "no row can be in the partition 2025-11-02-01:00-0500" in reason
    assert "a column of timestamps with a zone" in reason


def test_hours_that_dagster_confuses_are_not_replaced(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """Dagster caches keys by the local times of windows: those of two hours are then those of the first one."""

    @dg.asset(partitions_def=HOURS, metadata={"partition_expr": "at"}, backfill_policy=dg.BackfillPolicy.single_run())
    def events(context: dg.AssetExecutionContext) -> pa.Table:
        starts = [HOURS.time_window_for_partition_key(key).start for key in context.partition_keys]
        return pa.table({"at": pa.array(starts, pa.timestamp("us", "America/New_York"))})

    @dg.asset(partitions_def=HOURS, metadata={"mode": "append"})
    def copied(events: pa.Table) -> pa.Table:
        return events

    keys = ["2025-11-02-00:00", "2025-11-02-01:00"]
    of_two = {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[1]}
    for tags in (of_two, {**of_two, "dagster/asset_partition_range_end": keys[0]}):
        HOURS.get_partition_keys_in_time_window.cache_clear()
        assert materialize(tmp_path, instance, [events], tags=tags) == ""
    HOURS.get_partition_keys_in_time_window.cache_clear()
    assert list(HOURS.get_partition_keys_in_range(dg.PartitionKeyRange(*keys))) == keys
    assert list(HOURS.get_partition_keys_in_range(dg.PartitionKeyRange(keys[0], keys[0]))) == keys
    one = {**of_two, "dagster/asset_partition_range_end": keys[0]}
    assert f"Dagster returned the partitions {keys[0]}, {keys[1]} instead of {keys[0]}" in materialize(
        tmp_path, instance, [events], tags=one
    )
    reason = materialize(tmp_path, instance, [events, copied], keys[0], selection=[copied])
    assert f"Dagster returned the partitions {keys[0]}, {keys[1]} instead of {keys[0]}" in reason
    table = Table.open(tmp_path / "events.lance")
    assert (table.version, table.count_rows()) == (2, 2)


def test_a_cell_of_two_dimensions(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    daily = dg.DailyPartitionsDefinition("2025-11-01", end_date="2025-11-04", timezone="America/New_York")
    instance.add_dynamic_partitions("shops", ["7", "8"])
    cells = dg.MultiPartitionsDefinition({"day": daily, "shop": dg.DynamicPartitionsDefinition(name="shops")})
    moments = [daily.time_window_for_partition_key(day).start.astimezone(UTC) for day in daily.get_partition_keys()]
    schema = pa.schema({"at": pa.timestamp("ms", "America/New_York"), "shop": pa.int8(), "new": pa.bool_()})
    rows = [{"at": at, "shop": shop, "new": False} for at in moments for shop in (7, 8)]
    Table.create(tmp_path / "orders.lance", pa.Table.from_pylist(rows, schema))
    loaded: list[Any] = []

    @dg.asset(partitions_def=cells, metadata={"partition_expr": {"day": "at", "shop": "shop"}})
    def orders() -> pa.Table:
        return pa.Table.from_pylist([{"at": moments[1], "shop": 8, "new": True}], schema)

    @dg.asset(partitions_def=cells, metadata={"mode": "append"})
    def copied(orders: pa.Table) -> pa.Table:
        loaded.extend(orders.to_pylist())
        return orders

    assert materialize(tmp_path, instance, [orders, copied], "2025-11-02|8") == ""
    stored = Table.open(tmp_path / "orders.lance").to_table().to_pylist()
    assert [(row["at"].astimezone(UTC), row["shop"]) for row in stored if row["new"]] == [(moments[1], 8)]
    assert len(stored) == len(rows)
    assert [row["new"] for row in loaded] == [True]


@pytest.mark.parametrize("are_dynamic", [False, True], ids=["static", "dynamic"])
def test_keys_that_are_one_value_do_not_replace_each_other(
    tmp_path: Path, instance: dg.DagsterInstance, are_dynamic: bool
) -> None:
    partitions: dg.PartitionsDefinition[str] = dg.StaticPartitionsDefinition(["1", "01", "2"])
    if are_dynamic:
        partitions = dg.DynamicPartitionsDefinition(name="shops")
        instance.add_dynamic_partitions("shops", ["1", "01", "2"])

    @dg.asset(partitions_def=partitions, metadata={"partition_expr": "shop"})
    def orders(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"shop": [int(context.partition_key)]})

    assert materialize(tmp_path, instance, [orders], "2") == ""
    reason = materialize(tmp_path, instance, [orders], "1")
    assert "the partitions '1' and '01' are the same value of the column 'shop', which is int64" in reason
    assert Table.open(tmp_path / "orders.lance").version == 1
    if are_dynamic:
        instance.delete_dynamic_partition("shops", "01")
        assert materialize(tmp_path, instance, [orders], "1") == ""
        assert sorted(Table.open(tmp_path / "orders.lance").to_table()["shop"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("key", [None, ""])
@pytest.mark.parametrize("mode", ["overwrite", "append"])
def test_a_run_without_a_partition_does_not_replace_all_partitions(
    tmp_path: Path, instance: dg.DagsterInstance, key: str | None, mode: str
) -> None:
    """Dagster accepts such a run, and takes the empty key for no key."""

    @dg.asset(
        partitions_def=dg.StaticPartitionsDefinition(["", "Oslo"]), metadata={"partition_expr": "city", "mode": mode}
    )
    def orders(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"city": [context.run.tags.get("dagster/partition", "")]})

    assert materialize(tmp_path, instance, [orders], "Oslo") == ""
    assert "the asset orders has partitions, but this run names none" in materialize(tmp_path, instance, [orders], key)
    assert Table.open(tmp_path / "orders.lance").to_table()["city"].to_pylist() == ["Oslo"]
