"""Maintenance step: a run records what it compacts and cleans up, and retains the versions that others need."""

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
from tests.lance_assets.instances import events, metadata_values, partitions, tags, tick
from tests.lance_core.index.index_differential import check_answers, rows
from tests.lance_core.maintenance.test_cleanup import set_age

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


def run_maintenance(
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
    metadata = [metadata_values(event) for _, event in events(instance, table.maintenance_key)]
    return ran, metadata[-1] if metadata else {}


def sensors(table: LanceTable) -> dict[str, dg.SensorDefinition]:
    return {each.name: each for each in table.defs.sensors or ()}


def test_run_compacts_cleans_up_and_records(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    table = lance_table("orders", uri=str(tmp_path / "orders.lance"), maintenance=POLICY)
    created = Table.create(table.uri, pa.table({"id": range(10)}), durable=False)
    for first in range(10, 80, 10):
        created = created.append(pa.table({"id": range(first, first + 10)})).table
    created.tags.create("golden", 4)
    set_age(table.uri, 20 * DAY)
    # The ledger of a downstream table records version 3 as its input.
    inputs = {"lance_assets.inputs": json.dumps({created.uri: 3})}
    features = lance_table("features", uri=str(tmp_path / "features.lance"))
    Table.create(features.uri, pa.table({"id": [1]}), properties=inputs, durable=False)
    for each in (table, features):
        tick(sensors(each)[f"lance_discover__{each.ledger.table_slug}"], instance)
    assert len(partitions(instance, table)) == 8

    before = lance.dataset(table.uri).to_table()
    ran, metadata = run_maintenance(table, instance, resource)
    head = Table.open(table.uri)
    assert head.version == 10
    assert head.to_table() == before
    assert lance.dataset(table.uri).to_table() == before
    assert len(head.fragments) == 1
    # Both versions of the compaction are on the ledger, recorded by their run.
    recorded = [(run_id, event) for run_id, event in events(instance, table.key) if run_id]
    assert [(run_id, event.partition) for run_id, event in recorded] == [
        (ran.run_id, "v0000000009"),
        (ran.run_id, "v0000000010"),
    ]
    assert [tags(event)["lance/op"] for _, event in recorded] == ["ReserveFragments", "Rewrite"]
    assert metadata_values(recorded[-1][1])["lance/written_by"] == "orders_maintenance"
    # The needed and the newest versions remain, and so do exactly their partitions.
    assert head.version_numbers() == (2, 3, 4, 8, 9, 10)
    assert partitions(instance, table) == [f"v{number:010}" for number in head.version_numbers()]
    for version in head.version_numbers():
        assert head.at(version).to_table().num_rows == 10 * min(version, 8)
    assert metadata["lance/versions_kept"] == {
        "2": ["the audit of 2025"],
        "3": ["features 1 was made from it"],
        "4": ["tag golden"],
    }
    assert metadata["lance/due"] == (
        "- 8 fragments of fewer than 100 rows can be joined; the bound is 3\n"
        "- 2 versions (up to 5) can be removed: older than 14 days and not among the newest 3; the bound is 2"
    )
    figures = {"versions_removed": 4, "partitions_retired": 4, "fragments_before": 8, "fragments_after": 1}
    assert {name: metadata[f"lance/{name}"] for name in figures} == figures
    assert metadata["lance/version"] == 10
    assert isinstance(metadata["lance/bytes_removed"], int)
    assert metadata["lance/bytes_removed"] > 0
    assert head.fsck().is_sound

    # A run without work changes nothing, and the sensor launches none.
    evaluated = sensors(table)["lance_maintain__orders"].evaluate_tick(dg.build_sensor_context(instance=instance))
    assert not evaluated.run_requests
    assert "nothing is due" in str(evaluated.skip_message)
    _, metadata = run_maintenance(table, instance, resource)
    assert Table.open(table.uri).version == 10
    assert metadata["lance/versions_removed"] == 0
    assert str(metadata["lance/due"]).startswith("version 10 has 80 rows in 1 fragment")


def test_rerun_records_the_compaction_of_a_lost_run(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lance_table("orders", uri=str(tmp_path / "orders.lance"), maintenance=POLICY)
    lance.write_dataset(pa.table({"id": range(80)}), table.uri, max_rows_per_file=10)

    def fail_recording(*_: object, **__: object) -> None:
        raise ConnectionError("the process is gone")

    with monkeypatch.context() as broken:
        broken.setattr("lance_assets.writes.write_step.record_in_run", fail_recording)
        failed, _ = run_maintenance(table, instance, resource, raise_on_error=False)
    assert not failed.success
    assert Table.open(table.uri).version == 3
    assert events(instance, table.key) == []
    family = {"dagster/parent_run_id": failed.run_id, "dagster/root_run_id": failed.run_id}
    ran, metadata = run_maintenance(table, instance, resource, tags=family)
    assert Table.open(table.uri).version == 3
    assert metadata["lance/landed_before"] is True
    recorded = [(run_id, event.partition) for run_id, event in events(instance, table.key)]
    assert recorded == [("", "v0000000001"), ("", "v0000000002"), (ran.run_id, "v0000000003")]


def test_rerun_updates_indices_and_records_both(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index covers half of the rows before the compaction, which moves them, and all rows afterwards."""
    policy = replace(POLICY, target_rows=40)
    table = lance_table("orders", uri=str(tmp_path / "orders.lance"), maintenance=policy)
    created = (
        Table.create(table.uri, rows(0, 40), max_rows_per_file=10, durable=False).create_index("id", "BTREE").table
    )
    created.append(rows(40, 40), max_rows_per_file=10).table.tags.create("golden", 1)
    set_age(table.uri, 20 * DAY)
    left = [None, None]

    def fail_recording(*arguments: Any, **named: Any) -> Any:
        """Fail after the compaction is recorded and before the index is."""
        if Table.open(table.uri).version > 5:
            left.pop()
            raise ConnectionError("the process is gone")
        return record_in_run(*arguments, **named)

    with monkeypatch.context() as broken:
        broken.setattr("lance_assets.writes.write_step.record_in_run", fail_recording)
        failed, _ = run_maintenance(table, instance, resource, raise_on_error=False)
    assert (failed.success, len(left)) == (False, 1)
    head = Table.open(table.uri)
    assert [info.operation for info in head.versions(since=3)] == ["ReserveFragments", "Rewrite", "CreateIndex"]
    family = {"dagster/parent_run_id": failed.run_id, "dagster/root_run_id": failed.run_id}
    ran, metadata = run_maintenance(table, instance, resource, tags=family)
    head = Table.open(table.uri)
    assert head.version == 6
    assert [each.coverage for each in head.index_statistics()] == [1.0]
    check_answers(head)
    recorded = [(run_id, event.partition) for run_id, event in events(instance, table.key)]
    assert recorded == [
        *(("", f"v000000000{number}") for number in (1, 2, 3)),
        (failed.run_id, "v0000000004"),
        (failed.run_id, "v0000000005"),
        (ran.run_id, "v0000000006"),
    ]
    assert (metadata["lance/version"], metadata["lance/landed_before"]) == (6, True)
    # Cleanup comes last and retains needed versions with their indices.
    assert head.version_numbers() == (1, 2, 4, 5, 6)
    assert metadata["lance/versions_kept"] == {"1": ["tag golden"], "2": ["the audit of 2025"]}
    named = {str(index.uuid) for version in head.version_numbers() for index in head.at(version).indices}
    assert {each.name for each in Path(table.uri, "_indices").iterdir()} == named

    # Now only the index lags behind.
    head.append(rows(80, 9))
    evaluated = sensors(table)["lance_maintain__orders"].evaluate_tick(dg.build_sensor_context(instance=instance))
    (request,) = evaluated.run_requests or ()
    assert str(request.run_key).startswith("v7-index-")
    _, metadata = run_maintenance(table, instance, resource)
    lags = "- the index 'id_idx' on id leaves 9 rows of 89 uncovered (10%); the bound is 10%"
    assert metadata["lance/due"] == lags
    figures = {"index_rows_uncovered_before": 9, "index_rows_uncovered_after": 0, "index_segments_after": 1}
    assert {name: metadata[f"lance/{name}"] for name in figures} == figures
    assert (metadata["lance/version"], metadata["lance/operation"]) == (8, "CreateIndex")
    evaluated = sensors(table)["lance_maintain__orders"].evaluate_tick(dg.build_sensor_context(instance=instance))
    assert not evaluated.run_requests
    assert "its index 'id_idx' leaves 0 rows uncovered" in str(evaluated.skip_message)


def test_maintenance_with_a_concurrent_writer(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer deletes rows that the compaction moves, while the job of the compaction runs."""
    table = lance_table("orders", uri=str(tmp_path / "orders.lance"), maintenance=POLICY)
    lance.write_dataset(pa.table({"id": range(80)}), table.uri, max_rows_per_file=10)
    from lance_assets.spark.jobs import SparkRunner

    run, left = SparkRunner.run, [2]

    def run_with_concurrent_write(self: SparkRunner, task: object, parts: int) -> pa.Table:
        answers = run(self, task, parts)  # type: ignore[arg-type]
        if left and left.pop():
            Table.open(table.uri).delete("id in (5, 25)")
            Table.open(table.uri).append(pa.table({"id": range(80, 85)}))
        return answers

    monkeypatch.setattr(SparkRunner, "run", run_with_concurrent_write)
    run_maintenance(table, instance, resource)
    head = Table.open(table.uri)
    assert sorted(head.to_table()["id"].to_pylist()) == [n for n in range(85) if n not in (5, 25)]
    assert len(head.fragments) == 2
    assert head.fsck().is_sound
    assert lance.dataset(table.uri).count_rows() == 83


def test_missing_table_is_reported_and_damaged_table_fails(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    table = lance_table("orders", uri=str(tmp_path / "orders.lance"), maintenance=POLICY)
    _, metadata = run_maintenance(table, instance, resource)
    assert str(metadata["lance/found"]).startswith("there is no Lance table at")
    Table.create(table.uri, pa.table({"id": [1]}), durable=False)
    for path in Path(table.uri, "_versions").glob("*.manifest"):
        path.write_bytes(b"nothing")
    failed, _ = run_maintenance(table, instance, resource, raise_on_error=False)
    assert not failed.success
    failure = failed.get_failed_step_keys()
    assert failure == {"orders_maintenance"}
    (event,) = [each for each in failed.all_events if each.is_step_failure]
    data = event.step_failure_data
    assert data.user_failure_data is not None
    assert "the table is damaged" in str(data.user_failure_data.description)
