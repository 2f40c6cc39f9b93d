"""One run of the maintenance: what is compacted and cleaned is recorded, and what others need stays."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_assets import LanceTable, Maintenance, SparkSessionResource, lance_table
from lance_assets.ledger.recording import record_in_run
from lance_core import Table
from tests.lance_assets.instances import events, partitions, shown, tags, tick
from tests.lance_core.index.index_differential import check_answers, rows
from tests.lance_core.maintenance.test_cleanup import age

DAY = timedelta(days=1)
POLICY = Maintenance(
    compact_when_small_files=3, clean_when_versions=2, keep_versions=3, target_rows=100, pins={2: "the audit of 2025"}
)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as each:
        yield each


@pytest.fixture
def resource(spark: SparkSession) -> SparkSessionResource:
    return SparkSessionResource()


def maintained(
    table: LanceTable,
    instance: dg.DagsterInstance,
    resource: object,
    *,
    tags: dict[str, str] | None = None,
    raise_on_error: bool = True,
) -> tuple[dg.ExecuteInProcessResult, dict[str, object]]:
    jobs = [dg.define_asset_job("job", [table.maintenance_key])]
    declared = dg.Definitions.merge(table.defs, dg.Definitions(resources={"spark": resource}, jobs=jobs))
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    ran = declared.resolve_job_def("job").execute_in_process(
        instance=instance, run_config=quiet, tags=tags, raise_on_error=raise_on_error
    )
    told = [shown(event) for _, event in events(instance, table.maintenance_key)]
    return ran, told[-1] if told else {}


def sensors(table: LanceTable) -> dict[str, dg.SensorDefinition]:
    return {each.name: each for each in table.defs.sensors or ()}


def test_a_run_compacts_cleans_up_and_records(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    table = lance_table("orders", uri=str(tmp_path / "orders.lance"), maintenance=POLICY)
    made = Table.create(table.uri, pa.table({"id": range(10)}), durable=False)
    for first in range(10, 80, 10):
        made = made.append(pa.table({"id": range(first, first + 10)})).table
    made.tags.create("golden", 4)
    age(table.uri, 20 * DAY)
    # A downstream table was made of version 3, as its ledger says.
    inputs = {"lance_assets.inputs": json.dumps({made.uri: 3})}
    features = lance_table("features", uri=str(tmp_path / "features.lance"))
    Table.create(features.uri, pa.table({"id": [1]}), properties=inputs, durable=False)
    for each in (table, features):
        tick(sensors(each)[f"lance_discover__{each.ledger.table_slug}"], instance)
    assert len(partitions(instance, table)) == 8

    before = lance.dataset(table.uri).to_table()
    ran, told = maintained(table, instance, resource)
    head = Table.open(table.uri)
    assert head.version == 10
    assert head.to_table() == before
    assert lance.dataset(table.uri).to_table() == before
    assert len(head.fragments) == 1
    # Both versions of the compaction are on the ledger, by the run that made them.
    recorded = [(run_id, event) for run_id, event in events(instance, table.key) if run_id]
    assert [(run_id, event.partition) for run_id, event in recorded] == [
        (ran.run_id, "v0000000009"),
        (ran.run_id, "v0000000010"),
    ]
    assert [tags(event)["lance/op"] for _, event in recorded] == ["ReserveFragments", "Rewrite"]
    assert shown(recorded[-1][1])["lance/written_by"] == "orders_maintenance"
    # What is left is what somebody needs, and the newest; the partitions are those of what is left.
    assert head.version_numbers() == (2, 3, 4, 8, 9, 10)
    assert partitions(instance, table) == [f"v{number:010}" for number in head.version_numbers()]
    for version in head.version_numbers():
        assert head.at(version).to_table().num_rows == 10 * min(version, 8)
    assert told["lance/versions_kept"] == {
        "2": ["the audit of 2025"],
        "3": ["features 1 was made from it"],
        "4": ["tag golden"],
    }
    assert told["lance/due"] == (
        "- 8 fragments of fewer than 100 rows can be joined; the bound is 3\n"
        "- 2 versions (up to 5) can be removed: older than 14 days and not among the newest 3; the bound is 2"
    )
    figures = {"versions_removed": 4, "partitions_retired": 4, "fragments_before": 8, "fragments_after": 1}
    assert {name: told[f"lance/{name}"] for name in figures} == figures
    assert told["lance/version"] == 10
    assert isinstance(told["lance/bytes_removed"], int)
    assert told["lance/bytes_removed"] > 0
    assert head.fsck().is_sound

    # A run for nothing changes nothing, and the sensor launches none.
    evaluated = sensors(table)["lance_maintain__orders"].evaluate_tick(dg.build_sensor_context(instance=instance))
    assert not evaluated.run_requests
    assert "nothing is due" in str(evaluated.skip_message)
    _, told = maintained(table, instance, resource)
    assert Table.open(table.uri).version == 10
    assert told["lance/versions_removed"] == 0
    assert str(told["lance/due"]).startswith("version 10 has 80 rows in 1 fragment")


def test_a_run_that_goes_on_for_a_lost_one_records_its_compaction(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lance_table("orders", uri=str(tmp_path / "orders.lance"), maintenance=POLICY)
    lance.write_dataset(pa.table({"id": range(80)}), table.uri, max_rows_per_file=10)

    def lost(*_: object, **__: object) -> None:
        raise ConnectionError("the process is gone")

    with monkeypatch.context() as broken:
        broken.setattr("lance_assets.writes.write_step.record_in_run", lost)
        failed, _ = maintained(table, instance, resource, raise_on_error=False)
    assert not failed.success
    assert Table.open(table.uri).version == 3
    assert events(instance, table.key) == []
    family = {"dagster/parent_run_id": failed.run_id, "dagster/root_run_id": failed.run_id}
    ran, told = maintained(table, instance, resource, tags=family)
    assert Table.open(table.uri).version == 3
    assert told["lance/landed_before"] is True
    assert [(run_id, event.partition) for run_id, event in events(instance, table.key)] == [(ran.run_id, "v0000000003")]


def test_indices_follow_the_compaction_and_a_run_that_goes_on_records_both(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the rows are covered, and moved with what covers them; the others are when they are compacted."""
    policy = replace(POLICY, target_rows=40)
    table = lance_table("orders", uri=str(tmp_path / "orders.lance"), maintenance=policy)
    made = Table.create(table.uri, rows(0, 40), max_rows_per_file=10, durable=False).create_index("id", "BTREE").table
    made.append(rows(40, 40), max_rows_per_file=10).table.tags.create("golden", 1)
    age(table.uri, 20 * DAY)
    left = [None, None]

    def lost(*arguments: Any, **named: Any) -> Any:
        """When the compaction is recorded, and the index is not."""
        if Table.open(table.uri).version > 5:
            left.pop()
            raise ConnectionError("the process is gone")
        return record_in_run(*arguments, **named)

    with monkeypatch.context() as broken:
        broken.setattr("lance_assets.writes.write_step.record_in_run", lost)
        failed, _ = maintained(table, instance, resource, raise_on_error=False)
    assert (failed.success, len(left)) == (False, 1)
    head = Table.open(table.uri)
    assert [info.operation for info in head.versions(since=3)] == ["ReserveFragments", "Rewrite", "CreateIndex"]
    family = {"dagster/parent_run_id": failed.run_id, "dagster/root_run_id": failed.run_id}
    ran, told = maintained(table, instance, resource, tags=family)
    head = Table.open(table.uri)
    assert head.version == 6
    assert [each.coverage for each in head.index_statistics()] == [1.0]
    check_answers(head)
    recorded = [(run_id, event.partition) for run_id, event in events(instance, table.key)]
    assert recorded == [
        (failed.run_id, "v0000000004"),
        (failed.run_id, "v0000000005"),
        (ran.run_id, "v0000000006"),
    ]
    assert (told["lance/version"], told["lance/landed_before"]) == (6, True)
    # Cleanup comes last, and what others need stays with its index.
    assert head.version_numbers() == (1, 2, 4, 5, 6)
    assert told["lance/versions_kept"] == {"1": ["tag golden"], "2": ["the audit of 2025"]}
    named = {str(index.uuid) for version in head.version_numbers() for index in head.at(version).indices}
    assert {each.name for each in Path(table.uri, "_indices").iterdir()} == named

    # Only the index lags then.
    head.append(rows(80, 9))
    evaluated = sensors(table)["lance_maintain__orders"].evaluate_tick(dg.build_sensor_context(instance=instance))
    (request,) = evaluated.run_requests or ()
    assert str(request.run_key).startswith("v7-index-")
    _, told = maintained(table, instance, resource)
    lags = "- the index 'id_idx' on id leaves 9 rows of 89 uncovered (10%); the bound is 10%"
    assert told["lance/due"] == lags
    figures = {"index_rows_uncovered_before": 9, "index_rows_uncovered_after": 0, "index_segments_after": 1}
    assert {name: told[f"lance/{name}"] for name in figures} == figures
    assert (told["lance/version"], told["lance/operation"]) == (8, "CreateIndex")
    evaluated = sensors(table)["lance_maintain__orders"].evaluate_tick(dg.build_sensor_context(instance=instance))
    assert not evaluated.run_requests
    assert "its index 'id_idx' leaves 0 rows uncovered" in str(evaluated.skip_message)


def test_beside_a_writer_both_are_done(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who is no run of ours writes while the compaction's job is under way, and deletes what it moves."""
    table = lance_table("orders", uri=str(tmp_path / "orders.lance"), maintenance=POLICY)
    lance.write_dataset(pa.table({"id": range(80)}), table.uri, max_rows_per_file=10)
    from lance_assets.spark.jobs import SparkRunner

    run, left = SparkRunner.run, [2]

    def meeting(self: SparkRunner, task: object, parts: int) -> pa.Table:
        answers = run(self, task, parts)  # type: ignore[arg-type]
        if left and left.pop():
            Table.open(table.uri).delete("id in (5, 25)")
            Table.open(table.uri).append(pa.table({"id": range(80, 85)}))
        return answers

    monkeypatch.setattr(SparkRunner, "run", meeting)
    maintained(table, instance, resource)
    head = Table.open(table.uri)
    assert sorted(head.to_table()["id"].to_pylist()) == [n for n in range(85) if n not in (5, 25)]
    assert len(head.fragments) == 2
    assert head.fsck().is_sound
    assert lance.dataset(table.uri).count_rows() == 83


def test_a_table_that_is_not_there_is_told_and_a_damaged_one_fails(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    table = lance_table("orders", uri=str(tmp_path / "orders.lance"), maintenance=POLICY)
    _, told = maintained(table, instance, resource)
    assert str(told["lance/found"]).startswith("there is no Lance table at")
    Table.create(table.uri, pa.table({"id": [1]}), durable=False)
    for path in Path(table.uri, "_versions").glob("*.manifest"):
        path.write_bytes(b"nothing")
    failed, _ = maintained(table, instance, resource, raise_on_error=False)
    assert not failed.success
    failure = failed.get_failed_step_keys()
    assert failure == {"orders_maintenance"}
    (event,) = [each for each in failed.all_events if each.is_step_failure]
    data = event.step_failure_data
    assert data.user_failure_data is not None
    assert "the table is damaged" in str(data.user_failure_data.description)
