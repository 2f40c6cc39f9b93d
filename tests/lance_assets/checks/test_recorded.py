"""Checks as Dagster knows them: asked by the run that made a version, by the sensor, and by hand."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import lance
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lance_assets import (
    CheckContext,
    ForeignWriters,
    Fresh,
    FunctionCheck,
    KeysUnique,
    LanceTable,
    RowCount,
    SchemaStable,
    Severity,
    SparkAppend,
    SparkSessionResource,
    WriteContext,
    lance_table,
)
from lance_core import Table
from tests.lance_assets.instances import events, run, tick

DAYS = dg.StaticPartitionsDefinition(["a", "b"])
ROWS = pa.table({"id": [1, 2]})


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as each:
        yield each


def same_rows(spark: SparkSession, ctx: WriteContext) -> DataFrame:
    return spark.range(0, 2, 1, 1)


def broken(seen: CheckContext) -> bool:
    raise KeyError("a project's own mistake")


def declared(folder: Path, **options: Any) -> LanceTable:
    checks = [
        RowCount(max=3),
        SchemaStable(),
        KeysUnique(columns=["id"], severity=Severity.WARN),
        ForeignWriters(),
        FunctionCheck("broken", broken),
    ]
    return lance_table(
        "orders",
        uri=str(folder / "orders.lance"),
        key_prefix="lake",
        writes=[
            SparkAppend("append", same_rows),
            SparkAppend("daily", same_rows, partitions=DAYS, once_per="partition"),
        ],
        checks=checks,
        **options,
    )


def told(instance: dg.DagsterInstance, table: LanceTable, name: str) -> list[tuple[str, str | None, bool]]:
    """Run, partition and result of each time that the check was asked; newest first."""
    return [
        (record.run_id, record.partition, record.evaluation.passed)
        for record in records(instance, table, name)
        if record.evaluation
    ]


def records(instance: dg.DagsterInstance, table: LanceTable, name: str) -> Any:
    key = dg.AssetCheckKey(table.key, name)
    return instance.event_log_storage.get_asset_check_execution_history(key, limit=99)


def by_hand(table: LanceTable, instance: dg.DagsterInstance, *names: str) -> dg.ExecuteInProcessResult:
    chosen = dg.AssetSelection.checks(*(dg.AssetCheckKey(table.key, name) for name in names))
    jobs = dg.Definitions(jobs=[dg.define_asset_job("job", chosen)], resources={"spark": SparkSessionResource()})
    return (
        dg.Definitions.merge(table.defs, jobs)
        .resolve_job_def("job")
        .execute_in_process(
            instance=instance,
            raise_on_error=False,
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        )
    )


def test_a_run_asks_about_the_version_that_it_made(
    tmp_path: Path, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    table, first, second = declared(tmp_path), "v0000000001", "v0000000002"
    one = run(table, "daily", instance, SparkSessionResource(), partition="a").run_id
    two = run(table, "append", instance, SparkSessionResource()).run_id
    # Failed checks and a broken one are results, and no failures of the runs that made the versions.
    assert told(instance, table, "row_count") == [(two, second, False), (one, first, True)]
    assert told(instance, table, "schema_stable") == [(two, second, True), (one, first, True)]
    assert told(instance, table, "keys_unique") == [(two, second, False), (one, first, True)]
    assert told(instance, table, "foreign_writers") == [(two, second, True), (one, first, True)]
    assert told(instance, table, "broken") == [(two, second, False), (one, first, False)]
    newest = records(instance, table, "keys_unique")[0].evaluation
    assert newest.severity is dg.AssetCheckSeverity.WARN
    assert newest.description == "2 keys occur more than once in 4 rows: id=0; id=1"
    assert (newest.metadata["lance/version"].value, newest.metadata["lance/partition"].value) == (2, second)
    broken_one = records(instance, table, "broken")[0].evaluation
    assert 'could not be evaluated: KeyError: "a project\'s own mistake"' in str(broken_one.description)
    assert [event.partition for _, event in events(instance, table.key)] == [first, second]

    # Told of again, when another version is the newest: nothing new is said of it.
    again = run(table, "daily", instance, SparkSessionResource(), partition="a")
    assert again.success
    assert len(told(instance, table, "row_count")) == 2

    # By hand: the newest version, and those checks alone that were chosen.
    asked = by_hand(table, instance, "row_count", "broken")
    assert asked.success
    assert told(instance, table, "row_count")[0] == (asked.run_id, None, False)
    assert len(told(instance, table, "schema_stable")) == 2
    said = records(instance, table, "row_count")[0].evaluation
    assert (said.metadata["lance/version"].value, said.description) == (2, "4 rows, more than the allowed 3")


def test_the_sensor_asks_what_a_manifest_answers(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    lance.write_dataset(ROWS, table.uri)
    lance.write_dataset(ROWS, table.uri, mode="append")
    (sensor,) = table.defs.sensors or ()
    cursor, _ = tick(sensor, instance)
    both = ["v0000000002", "v0000000001"]
    assert told(instance, table, "row_count") == [("", both[0], False), ("", both[1], True)]
    assert told(instance, table, "foreign_writers") == [("", each, False) for each in both]
    assert "written by lance" in str(records(instance, table, "foreign_writers")[0].evaluation.description)
    assert told(instance, table, "keys_unique") == told(instance, table, "broken") == []
    tick(sensor, instance, cursor)
    tick(sensor, instance, None)
    assert len(told(instance, table, "row_count")) == 2


def test_a_damaged_parent_keeps_nothing_from_being_recorded(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    made = Table.create(table.uri, ROWS)
    made.append(ROWS)
    name = made.manifest.path.rpartition("/")[2]
    (Path(table.uri) / "_versions" / name).write_bytes(b"nonsense")
    (sensor,) = table.defs.sensors or ()
    tick(sensor, instance)
    assert [event.partition for _, event in events(instance, table.key)] == ["v0000000002"]
    assert told(instance, table, "schema_stable") == [("", "v0000000002", True)]


def test_by_hand_before_there_is_a_table(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    result = by_hand(table, instance, "row_count")
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    data = failed.step_failure_data
    assert data.user_failure_data is not None
    assert "lake/orders: a requested object does not exist" in str(data.user_failure_data.description)


def test_a_branch_has_the_checks_of_its_table(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path, branches=["dev/x"])
    Table.create(table.uri, ROWS).branches.create("dev/x")
    Table.open(table.uri, branch="dev/x").append(ROWS)
    (sensor,) = table.defs.sensors or ()
    tick(sensor, instance)
    dev = table.branch("dev/x")
    assert [passed for _, _, passed in told(instance, dev, "row_count")] == [False, True]
    assert [passed for _, _, passed in told(instance, table, "row_count")] == [True]


def test_what_dagster_shows_of_a_check(tmp_path: Path) -> None:
    policy = dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=24))
    table = lance_table(
        "t", uri=str(tmp_path), checks=[Fresh(within=timedelta(hours=24)), KeysUnique(columns=["id"])],
        freshness=timedelta(hours=24), branches=["dev"],
    )  # fmt: skip
    graph = table.defs.resolve_asset_graph()
    assert graph.get(table.key).freshness_policy == policy
    assert graph.get(table.branch("dev").key).freshness_policy is None
    specs = {key.name: graph.get_check_spec(key) for key in graph.asset_check_keys if key.asset_key == table.key}
    assert {name: spec.description for name, spec in specs.items()} == {
        "fresh": "The newest version is at most 1 day old.",
        "keys_unique": "No two rows have the same id.",
    }
    assert specs["keys_unique"].metadata["lance/reads_data"] == dg.MetadataValue.bool(True)
