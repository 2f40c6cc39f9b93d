"""Recorded checks: Dagster evaluates them in the run that made a version, in the sensor, and by hand."""

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


def broken(context: CheckContext) -> bool:
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


def evaluations_of(instance: dg.DagsterInstance, table: LanceTable, name: str) -> list[tuple[str, str | None, bool]]:
    """Return run, partition and result of each evaluation of the check, newest first."""
    return [
        (record.run_id, record.partition, record.evaluation.passed)
        for record in records(instance, table, name)
        if record.evaluation
    ]


def records(instance: dg.DagsterInstance, table: LanceTable, name: str) -> Any:
    key = dg.AssetCheckKey(table.key, name)
    return instance.event_log_storage.get_asset_check_execution_history(key, limit=99)


def run_by_hand(table: LanceTable, instance: dg.DagsterInstance, *names: str) -> dg.ExecuteInProcessResult:
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


def test_run_evaluates_checks_on_its_own_version(
    tmp_path: Path, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    table, first, second = declared(tmp_path), "v0000000001", "v0000000002"
    one = run(table, "daily", instance, SparkSessionResource(), partition="a").run_id
    two = run(table, "append", instance, SparkSessionResource()).run_id
    # Failed and broken checks are results; they do not fail the runs that made the versions.
    assert evaluations_of(instance, table, "row_count") == [(two, second, False), (one, first, True)]
    assert evaluations_of(instance, table, "schema_stable") == [(two, second, True), (one, first, True)]
    assert evaluations_of(instance, table, "keys_unique") == [(two, second, False), (one, first, True)]
    assert evaluations_of(instance, table, "foreign_writers") == [(two, second, True), (one, first, True)]
    assert evaluations_of(instance, table, "broken") == [(two, second, False), (one, first, False)]
    newest = records(instance, table, "keys_unique")[0].evaluation
    assert newest.severity is dg.AssetCheckSeverity.WARN
    assert newest.description == "2 keys occur more than once in 4 rows: id=0; id=1"
    assert (newest.metadata["lance/version"].value, newest.metadata["lance/partition"].value) == (2, second)
    broken_one = records(instance, table, "broken")[0].evaluation
    assert 'could not be evaluated: KeyError: "a project\'s own mistake"' in str(broken_one.description)
    assert [event.partition for _, event in events(instance, table.key)] == [first, second]

    # A version that is reported again while another one is the newest gets no new evaluation.
    again = run(table, "daily", instance, SparkSessionResource(), partition="a")
    assert again.success
    assert len(evaluations_of(instance, table, "row_count")) == 2

    # A run by hand evaluates only the selected checks, on the newest version.
    result = run_by_hand(table, instance, "row_count", "broken")
    assert result.success
    assert evaluations_of(instance, table, "row_count")[0] == (result.run_id, None, False)
    assert len(evaluations_of(instance, table, "schema_stable")) == 2
    evaluation = records(instance, table, "row_count")[0].evaluation
    assert (evaluation.metadata["lance/version"].value, evaluation.description) == (
        2,
        "4 rows, more than the allowed 3",
    )


def test_sensor_evaluates_manifest_checks(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    lance.write_dataset(ROWS, table.uri)
    lance.write_dataset(ROWS, table.uri, mode="append")
    (sensor,) = table.defs.sensors or ()
    cursor, _ = tick(sensor, instance)
    newest_first = ["v0000000002", "v0000000001"]
    assert evaluations_of(instance, table, "row_count") == [("", newest_first[0], False), ("", newest_first[1], True)]
    assert evaluations_of(instance, table, "foreign_writers") == [("", each, False) for each in newest_first]
    assert "written by lance" in str(records(instance, table, "foreign_writers")[0].evaluation.description)
    assert evaluations_of(instance, table, "keys_unique") == evaluations_of(instance, table, "broken") == []
    tick(sensor, instance, cursor)
    tick(sensor, instance, None)
    assert len(evaluations_of(instance, table, "row_count")) == 2


def test_damaged_parent_does_not_prevent_recording(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    created = Table.create(table.uri, ROWS)
    created.append(ROWS)
    name = created.manifest.path.rpartition("/")[2]
    (Path(table.uri) / "_versions" / name).write_bytes(b"nonsense")
    (sensor,) = table.defs.sensors or ()
    tick(sensor, instance)
    assert [event.partition for _, event in events(instance, table.key)] == ["v0000000002"]
    assert evaluations_of(instance, table, "schema_stable") == [("", "v0000000002", True)]


def test_run_by_hand_without_a_table(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    result = run_by_hand(table, instance, "row_count")
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    data = failed.step_failure_data
    assert data.user_failure_data is not None
    assert "lake/orders: a requested object does not exist" in str(data.user_failure_data.description)


def test_branches_have_the_checks_of_their_table(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path, branches=["dev/x"])
    Table.create(table.uri, ROWS).branches.create("dev/x")
    Table.open(table.uri, branch="dev/x").append(ROWS)
    (sensor,) = table.defs.sensors or ()
    tick(sensor, instance)
    dev = table.branch("dev/x")
    assert [passed for _, _, passed in evaluations_of(instance, dev, "row_count")] == [False, True]
    assert [passed for _, _, passed in evaluations_of(instance, table, "row_count")] == [True]


def test_check_metadata_in_dagster(tmp_path: Path) -> None:
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
