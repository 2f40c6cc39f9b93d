"""Runs at the same time, with no pool to keep them apart: every version, each with its own run."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dagster as dg
import lance
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lance_assets import SparkAppend, SparkDelete, SparkSessionResource, WriteContext, lance_table
from lance_assets.discovery import discovery_sensor
from lance_core import Table
from tests.lance_assets.instances import events, instance_in, partitions, run, shown, tags, tick

DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-06")


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """On disk, which several may use at once."""
    with instance_in(tmp_path) as each:
        yield each


def of_the_day(spark: SparkSession, ctx: WriteContext) -> DataFrame:
    return spark.range(0, 10, 1, 1).selectExpr("id", f"'{ctx.partition_key}' AS day")


def test_backfills_that_overlap_write_each_partition_once(
    tmp_path: Path, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    append = SparkAppend("days", of_the_day, partitions=DAYS, once_per="partition")
    table = lance_table("t", uri=str(tmp_path / "t.lance"), writes=[append])
    resource = SparkSessionResource()
    first, second = (["2026-01-01", "2026-01-02", "2026-01-03"], ["2026-01-03", "2026-01-02", "2026-01-04"])

    def backfill(name: str, days: list[str]) -> list[str]:
        return [
            run(table, "days", instance, resource, partition=day, tags={"dagster/backfill": name}).run_id
            for day in days
        ]

    with ThreadPoolExecutor(2) as pool:
        ran = {each for of_one in pool.map(backfill, ("one", "two"), (first, second)) for each in of_one}
    head = Table.open(table.uri)
    assert Counter(head.to_table()["day"].to_pylist()) == dict.fromkeys({*first, *second}, 10)
    assert head.version == 4
    recorded = events(instance, table.key)
    assert sorted(str(event.partition) for _, event in recorded) == [f"v{number:010}" for number in range(1, 5)]
    assert sorted(partitions(instance, table)) == sorted(str(event.partition) for _, event in recorded)
    makers = {int(info.version): info.properties["dagster.run_id"] for info in head.versions()}
    for _, event in recorded:
        assert tags(event)["lance/run_id"] == makers[int(str(event.partition)[1:])]
        assert tags(event)["lance/run_id"] in ran
    assert instance.get_materialized_partitions(table.write_key("days")) == {*first, *second}
    # A deliberate new run of the same is another matter where a write is once for a run.
    again = lance_table("t", uri=table.uri, writes=[SparkAppend("days", of_the_day, partitions=DAYS)])
    run(again, "days", instance, resource, partition="2026-01-02")
    assert Table.open(table.uri).version == 5


def test_two_writers_at_once_are_each_recorded_for_their_run(
    tmp_path: Path, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    writes = [
        SparkAppend("left", lambda session, ctx: session.range(0, 5, 1, 1)),
        SparkAppend("right", lambda session, ctx: session.range(5, 10, 1, 1)),
        SparkDelete("purge", "id = 100"),
    ]
    table = lance_table("t", uri=str(tmp_path / "t.lance"), writes=writes)
    Table.create(table.uri, pa.table({"id": [100, 101]}))
    with ThreadPoolExecutor(3) as pool:
        ran = dict(
            zip(
                ("left", "right", "purge"),
                pool.map(
                    lambda name: run(table, name, instance, SparkSessionResource()).run_id, ("left", "right", "purge")
                ),
                strict=True,
            )
        )
    tick(discovery_sensor("s", [table.ledger]), instance)
    recorded = {event.partition: (run_id, event) for run_id, event in events(instance, table.key)}
    assert len(events(instance, table.key)) == len(recorded) == 4
    for info in Table.open(table.uri).versions(since=1):
        run_id, event = recorded[f"v{info.version:010}"]
        name = str(shown(event)["lance/written_by"])
        assert run_id == ran[name] == info.properties["dagster.run_id"]
        # What it says of itself is of the version that it made, not of the newest.
        assert shown(event)["dagster/row_count"] == info.rows
    assert sorted(lance.dataset(table.uri).to_table()["id"].to_pylist()) == [*range(10), 101]


def test_who_reads_the_newest_version_does_not_go_by_the_order_of_keys(
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
    assert list(shown(event)["lance/inputs"].values()) == [3]
    assert sorted(Table.open(table.uri).to_table()["id"].to_pylist()) == [1, 2, 3]
