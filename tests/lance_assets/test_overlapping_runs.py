"""Overlapping runs, which no pool serializes: every version is recorded with its own run."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import lance
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lance_assets import SparkAppend, SparkDelete, SparkSessionResource, WriteContext, lance_table
from lance_assets.discovery.sensor import discovery_sensor
from lance_core import Table
from lance_core.table.base import WriteOptions
from lance_core.tasks.rows.write import PlannedWrite, StageFunction, WriteTask
from tests.lance_assets.instances import events, instance_in, metadata_values, partitions, run, tags, tick

DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-06")


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """Instance on disk, which concurrent runs can share."""
    with instance_in(tmp_path) as each:
        yield each


def of_the_day(spark: SparkSession, ctx: WriteContext) -> DataFrame:
    return spark.range(0, 10, 1, 1).selectExpr("id", f"'{ctx.partition_key}' AS day")


def run_before_commit(monkeypatch: pytest.MonkeyPatch, *others: Callable[[], object]) -> None:
    """Let each following write be overtaken by a competitor after its files are written and before it commits."""
    left, run_planned = list(others), PlannedWrite.run

    def run_after_competitor(planned: PlannedWrite, stage: StageFunction, options: WriteOptions) -> object:
        def staged(task: WriteTask) -> pa.Table:
            results = stage(task)
            if left:
                left.pop(0)()
            return results

        return run_planned(planned, staged, options)

    monkeypatch.setattr(PlannedWrite, "run", run_after_competitor)


def test_overlapping_backfills_write_each_partition_once(
    tmp_path: Path, instance: dg.DagsterInstance, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = SparkAppend("days", of_the_day, partitions=DAYS, once_per="partition")
    table = lance_table("t", uri=str(tmp_path / "t.lance"), writes=[append])
    Table.create(table.uri, pa.table({"id": [0], "day": ["before"]}))
    resource = SparkSessionResource()
    ran: dict[str, list[str]] = {"one": [], "two": []}

    def backfill(name: str, day: str) -> None:
        ran[name].append(run(table, "days", instance, resource, partition=day, tags={"dagster/backfill": name}).run_id)

    # The same partition concurrently, another one in between, and one that the other backfill has completed.
    run_before_commit(
        monkeypatch, lambda: backfill("two", "2026-01-02"), lambda: None, lambda: backfill("two", "2026-01-04")
    )
    for day in ("2026-01-02", "2026-01-03", "2026-01-04"):
        backfill("one", day)
    backfill("two", "2026-01-03")
    head = Table.open(table.uri)
    days = Counter(head.to_table()["day"].to_pylist())
    assert days == {"before": 1, "2026-01-02": 10, "2026-01-03": 10, "2026-01-04": 10}
    assert head.version == 4
    tick(discovery_sensor("s", [table.ledger]), instance)
    recorded = {event.partition: event for _, event in events(instance, table.key)}
    assert len(events(instance, table.key)) == len(recorded) == len(partitions(instance, table)) == 4
    for info in head.versions(since=1):
        event = recorded[f"v{info.version:010}"]
        assert tags(event)["lance/run_id"] == info.properties["dagster.run_id"]
        assert metadata_values(event)["lance/written_partition"] == info.properties["dagster.partition"]
    assert instance.get_materialized_partitions(table.write_key("days")) == days.keys() - {"before"}
    # A deliberate new run writes again if the write commits once per run.
    again = lance_table("t", uri=table.uri, writes=[SparkAppend("days", of_the_day, partitions=DAYS)])
    run(again, "days", instance, resource, partition="2026-01-02")
    assert Table.open(table.uri).version == 5


def test_concurrent_writes_are_recorded_for_their_runs(
    tmp_path: Path, instance: dg.DagsterInstance, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = [
        SparkAppend("left", lambda session, ctx: session.range(0, 5, 1, 1)),
        SparkAppend("right", lambda session, ctx: session.range(5, 8, 1, 1)),
        SparkDelete("purge", "id = 100"),
    ]
    table = lance_table("t", uri=str(tmp_path / "t.lance"), writes=writes)
    Table.create(table.uri, pa.table({"id": [100, 101]}))
    ran: dict[str, str] = {}

    def begun(name: str) -> None:
        ran[name] = run(table, name, instance, SparkSessionResource()).run_id

    run_before_commit(monkeypatch, lambda: begun("right"), lambda: begun("purge"))
    begun("left")
    tick(discovery_sensor("s", [table.ledger]), instance)
    recorded = {event.partition: (run_id, event) for run_id, event in events(instance, table.key)}
    assert len(events(instance, table.key)) == len(recorded) == 4
    by = {}
    for info in Table.open(table.uri).versions(since=1):
        run_id, event = recorded[f"v{info.version:010}"]
        by[str(metadata_values(event)["lance/written_by"])] = event
        assert run_id == ran[str(metadata_values(event)["lance/written_by"])] == info.properties["dagster.run_id"]
        # Its metadata describes the version that it made, not the newest one.
        assert metadata_values(event)["dagster/row_count"] == info.rows
    assert metadata_values(by["left"])["lance/rebased_over"] == [2, 3]
    assert metadata_values(by["right"])["lance/rebased_over"] == [2]
    assert sorted(lance.dataset(table.uri).to_table()["id"].to_pylist()) == [*range(8), 101]


def test_newest_version_is_not_selected_by_key_order(
    tmp_path: Path, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    source = lance_table("source", uri=str(tmp_path / "source.lance"), discover=False)
    at = Table.create(source.uri, pa.table({"id": [1]})).append(pa.table({"id": [2]})).table
    at.append(pa.table({"id": [3]}))
    instance.add_dynamic_partitions(source.ledger.partition_set, ["v0000000003", "v0000000001", "v0000000002"])
    copy = SparkAppend("copy_append", lambda session, ctx: ctx.read(source), deps=[source.dep])
    table = lance_table("copy", uri=str(tmp_path / "copy.lance"), writes=[copy])
    resources = dg.Definitions(assets=[source.spec], resources={"spark": SparkSessionResource()})
    job = dg.define_asset_job("job", [table.write_key("copy_append")])
    resolved = dg.Definitions.merge(table.defs, resources, dg.Definitions(jobs=[job])).resolve_job_def("job")
    assert resolved.execute_in_process(instance=instance).success
    ((_, event),) = events(instance, table.key)
    assert list(metadata_values(event)["lance/inputs"].values()) == [3]
    assert sorted(Table.open(table.uri).to_table()["id"].to_pylist()) == [1, 2, 3]
