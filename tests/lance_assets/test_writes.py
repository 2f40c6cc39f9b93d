"""Writes: from the materialization to the ledger with real Spark and Dagster, and the effect of repeated parts."""

import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import dagster as dg
import lance
import pyarrow as pa
import pytest
from dagster_pyspark import LazyPySparkResource, PySparkResource
from pyspark.sql import DataFrame, SparkSession

from lance_assets import LanceTable, SparkAppend, SparkSessionResource, WriteContext, lance_table
from lance_assets.discovery.sensor import discovery_sensor
from lance_assets.ledger import recording
from lance_assets.ledger.ledger import recorded_data_versions
from lance_core import Table
from lance_core.package_version import LIBRARY_VERSION
from tests.lance_assets.instances import events, instance_in, metadata_values, partitions, run, tags, tick

MODULES_OF_AN_APPEND_MAX = 70
"""Number of our modules that an append may pass through: each is one more file to read for someone who follows it."""
CANARY = "canary-81c4"
DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-04")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as each:
        yield each


@pytest.fixture
def instance_on_disk(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """Instance on disk, like that of a project."""
    with instance_in(tmp_path) as each:
        yield each


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_WRITES_KEY", CANARY)


@pytest.fixture
def resource(spark: SparkSession) -> SparkSessionResource:
    """Spark resource on the shared application of the tests."""
    return SparkSessionResource()


def ten_rows(spark: SparkSession, ctx: WriteContext) -> DataFrame:
    return spark.range(0, 10, 1, 1).selectExpr("id", f"'{ctx.partition_key}' AS day")


def orders(folder: Path, **options: object) -> LanceTable:
    write = SparkAppend("orders_append", **{"fn": ten_rows, **options})  # type: ignore[arg-type]
    return lance_table(
        "orders",
        uri=str(folder / "orders.lance"),
        key_prefix="lake",
        storage_options={"secret_access_key": dg.EnvVar("TEST_WRITES_KEY")},
        writes=[write],
    )


def fail_recording_once(monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance) -> None:
    """Make Dagster's storage fail once, between the commit and its recording."""
    add, failures = instance.add_dynamic_partitions, iter([OSError("the database is gone")])

    def failing(*args: object, **kwargs: object) -> None:
        for failure in failures:
            raise failure
        add(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(instance, "add_dynamic_partitions", failing)


def test_write_becomes_a_partition_linked_to_its_run(
    tmp_path: Path, instance_on_disk: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    instance = instance_on_disk
    table = orders(tmp_path, partitions=DAYS)
    first = run(table, "orders_append", instance, resource, partition="2026-01-02")
    second = run(
        table, "orders_append", instance, resource, partition="2026-01-01", tags={"dagster/code_location": "here"}
    )

    assert partitions(instance, table) == ["v0000000001", "v0000000002"]
    (run_1, _), (run_2, event_2) = events(instance, table.key)
    assert [run_1, run_2] == [first.run_id, second.run_id]
    theirs = lance.dataset(table.uri).read_transaction(2)
    assert theirs is not None
    assert theirs.transaction_properties is not None
    assert event_2.partition == "v0000000002"
    assert event_2.tags == {
        "dagster/data_version": f"2-{theirs.uuid[:8]}",
        "lance/op": "Append",
        "lance/parent": "1",
        "lance/origin": "run",
        "lance/run_id": second.run_id,
    }
    metadata = metadata_values(event_2)
    columns = metadata.pop("dagster/column_schema").columns
    assert [(column.name, column.type) for column in columns] == [("id", "int64"), ("day", "string")]
    assert datetime.now(UTC).timestamp() - metadata.pop("lance/committed_at") < timedelta(minutes=1).total_seconds()
    assert metadata.pop("lance/bytes_written") == sum(file.stat().st_size for file in newest_files(table))
    assert metadata == {
        "lance/version": 2,
        "lance/action": "append",
        "lance/engine": f"lance-assets {LIBRARY_VERSION}",
        "lance/operation": "Append",
        "lance/parent": 1,
        "lance/planned_on": 1,
        "lance/rows_added": 10,
        "lance/rows_removed": 0,
        "lance/fragments": 2,
        "lance/files_written": 1,
        "lance/transaction": theirs.uuid,
        "lance/attempts": 1,
        "lance/written_by": "lake/orders_append",
        "lance/written_partition": "2026-01-01",
        "lance/code_location": "here",
        "lance/run": second.run_id,
        "dagster/row_count": 20,
        "dagster/uri": table.uri,
    }
    # From the table to the run, and from the run to the version.
    assert theirs.transaction_properties["dagster.run_id"] == second.run_id
    assert instance.get_run_by_id(second.run_id).tags["lance/lake.orders"] == "v0000000002"  # type: ignore[union-attr]
    # The materialization of the write is on its own partition, and there is no other event.
    (_, written), (_, again) = events(instance, table.write_key("orders_append"))
    assert (written.partition, again.partition) == ("2026-01-02", "2026-01-01")
    assert metadata_values(again)["lance/partition"] == "v0000000002"
    assert tick(discovery_sensor("s", [table.ledger]), instance)[1] == "no new versions"
    # The storage options are neither in the files of Dagster nor in those of the table.
    file_contents = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert any(b"orders_append" in content for content in file_contents)
    assert not any(CANARY.encode() in content for content in file_contents)


@contextmanager
def called_modules() -> Iterator[set[str]]:
    """Collect the names of our modules of which a function is called in this process."""
    modules: set[str] = set()

    def collect(frame: FrameType, event: str, _argument: object) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith(("lance_core", "lance_assets")) and frame.f_code.co_name != "<module>":
            modules.add(name)

    threading.setprofile(collect)
    sys.setprofile(collect)
    try:
        yield modules
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def test_append_passes_through_few_modules(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    write = SparkAppend("orders_append", lambda spark, ctx: spark.range(0, 10, 1, 1))
    table = lance_table("orders", uri=str(tmp_path / "orders.lance"), writes=[write])
    assets, key = list(table.defs.assets or ()), table.write_key("orders_append")

    def materialize() -> None:
        assert dg.materialize(assets, selection=[key], instance=instance, resources={"spark": resource}).success  # type: ignore[arg-type]

    materialize()
    with called_modules() as modules:
        materialize()
    assert {"lance_assets.spark.writer", "lance_assets.ledger.recording", "lance_core.commit.loop"} <= modules
    assert len(modules) <= MODULES_OF_AN_APPEND_MAX, sorted(modules)


def test_retried_step_makes_one_version_and_one_event(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = orders(tmp_path, retry_policy=dg.RetryPolicy(max_retries=1))
    fail_recording_once(monkeypatch, instance)
    result = run(table, "orders_append", instance, resource)
    assert result.retry_attempts_for_node("lake__orders_append") == 1
    assert (Table.open(table.uri).version, Table.open(table.uri).count_rows()) == (1, 10)
    assert [(run_id, event.partition) for run_id, event in events(instance, table.key)] == [
        (result.run_id, "v0000000001")
    ]


def failed_then_whole() -> dg.JobDefinition:
    """Build the job, which Dagster does for each execution; the environment holds the location of its table."""
    table = orders(Path(os.environ["TEST_FOLDER"]))
    job = dg.define_asset_job("job", [table.write_key("orders_append")], executor_def=dg.in_process_executor)
    resources = dg.Definitions(resources={"spark": SparkSessionResource()}, jobs=[job])
    return dg.Definitions.merge(table.defs, resources).resolve_job_def("job")


def test_reexecution_of_a_failed_run_does_not_append_again(
    tmp_path: Path, instance_on_disk: dg.DagsterInstance, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance, table = instance_on_disk, orders(tmp_path)
    monkeypatch.setenv("TEST_FOLDER", str(tmp_path))
    job = dg.reconstructable(failed_then_whole)
    fail_recording_once(monkeypatch, instance)
    failed = dg.execute_job(job, instance=instance)
    assert not failed.success
    from_failure = dg.ReexecutionOptions.from_failure(failed.run_id, instance)
    again = dg.execute_job(job, instance=instance, reexecution_options=from_failure, raise_on_error=True)
    assert Table.open(table.uri).version == 1
    ((run_id, event),) = events(instance, table.key)
    assert run_id == again.run_id
    assert tags(event)["lance/run_id"] == failed.run_id  # the run that committed it
    ((_, written),) = events(instance, table.write_key("orders_append"))
    assert metadata_values(written)["lance/landed_before"] is True

    deliberate = dg.ReexecutionOptions(parent_run_id=again.run_id)
    dg.execute_job(job, instance=instance, reexecution_options=deliberate, raise_on_error=True)
    assert Table.open(table.uri).count_rows() == 20


def test_sensor_records_a_failed_run_and_its_retry_adds_nothing(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = orders(tmp_path)
    fail_recording_once(monkeypatch, instance)
    failed = run(table, "orders_append", instance, resource, raise_on_error=False)
    tick(discovery_sensor("s", [table.ledger]), instance)
    family = {"dagster/parent_run_id": failed.run_id, "dagster/root_run_id": failed.run_id}
    run(table, "orders_append", instance, resource, tags=family)
    ((_, event),) = events(instance, table.key)
    assert (tags(event)["lance/run_id"], tags(event)["lance/origin"]) == (failed.run_id, "run")


def test_deliberate_second_run_appends_again(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    table = orders(tmp_path)
    first = run(table, "orders_append", instance, resource)
    family = {"dagster/parent_run_id": first.run_id, "dagster/root_run_id": first.run_id}
    run(table, "orders_append", instance, resource, tags=family)
    assert (Table.open(table.uri).version, Table.open(table.uri).count_rows()) == (2, 20)
    assert len(events(instance, table.key)) == 2


def test_once_per_partition_commits_once(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    table = orders(tmp_path, partitions=DAYS, once_per="partition")
    for day in ("2026-01-01", "2026-01-02", "2026-01-01"):
        run(table, "orders_append", instance, resource, partition=day)
    assert (Table.open(table.uri).version, Table.open(table.uri).count_rows()) == (2, 20)
    assert len(events(instance, table.key)) == 2
    *_, (_, last) = events(instance, table.write_key("orders_append"))
    assert (last.partition, metadata_values(last)["lance/version"]) == ("2026-01-01", 1)


def test_partition_without_rows_can_be_written_later(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    arrived = iter([0, 5])
    table = orders(
        tmp_path,
        partitions=DAYS,
        once_per="partition",
        fn=lambda spark, ctx: ten_rows(spark, ctx).limit(next(arrived)),
    )
    Table.create(table.uri, pa.table({"id": [0], "day": ["x"]}))
    for _ in range(2):
        run(table, "orders_append", instance, resource, partition="2026-01-01")
    assert Table.open(table.uri).count_rows() == 6
    assert [event.partition for _, event in events(instance, table.key)] == ["v0000000001", "v0000000002"]


def test_missed_versions_are_recorded_first(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    table = orders(tmp_path)
    lance.write_dataset(pa.table({"id": [0], "day": ["x"]}), table.uri)
    run(table, "orders_append", instance, resource)  # version 1 is not recorded yet
    tick(discovery_sensor("s", [table.ledger]), instance)
    assert partitions(instance, table) == ["v0000000001", "v0000000002"]
    assert [event.partition for _, event in events(instance, table.key)] == ["v0000000001", "v0000000002"]


def test_inputs_are_pinned_and_recorded(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    source = str(tmp_path / "source.lance")
    Table.create(source, pa.table({"id": [1, 2]}))

    def copied(spark: SparkSession, ctx: WriteContext) -> DataFrame:
        before = ctx.read(source)
        Table.open(source).append(pa.table({"id": [3]}))  # a concurrent writer commits first
        return before.union(ctx.read(source))

    table = orders(tmp_path, fn=copied)
    run(table, "orders_append", instance, resource)
    assert Table.open(table.uri).to_table()["id"].to_pylist() == [1, 2, 1, 2]
    ((_, event),) = events(instance, table.key)
    assert metadata_values(event)["lance/inputs"] == {source: 1}
    properties = Table.open(table.uri).versions()[0].properties
    assert json.loads(properties["lance_assets.inputs"]) == {source: 1}


def test_write_without_rows_makes_no_version(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    table = orders(tmp_path, fn=lambda spark, ctx: ten_rows(spark, ctx).where("id < 0"))
    Table.create(table.uri, pa.table({"id": [0], "day": ["x"]}))
    run(table, "orders_append", instance, resource)
    assert Table.open(table.uri).version == 1
    assert events(instance, table.key) == []


def test_recreated_table_gets_its_own_partitions(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    table = orders(tmp_path)
    old = run(table, "orders_append", instance, resource)
    Path(table.uri).rename(tmp_path / "gone")
    new = run(table, "orders_append", instance, resource)
    Table.open(table.uri).append(pa.table({"id": [0], "day": ["x"]}))
    tick(discovery_sensor("s", [table.ledger]), instance)
    recorded_by = [(run_id, event.partition) for run_id, event in events(instance, table.key)]
    assert recorded_by == [(old.run_id, "v0000000001"), (new.run_id, "w02.v0000000001"), ("", "w02.v0000000002")]
    *_, (_, written) = events(instance, table.write_key("orders_append"))
    assert metadata_values(written)["lance/partition"] == "w02.v0000000001"
    assert instance.get_run_by_id(new.run_id).tags["lance/lake.orders"] == "w02.v0000000001"  # type: ignore[union-attr]


def test_restored_table_reuses_no_partition_of_another_version(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    table = orders(tmp_path)
    Table.create(table.uri, pa.table({"id": [0], "day": ["x"]}))
    shutil.copytree(table.uri, tmp_path / "backup")
    first = run(table, "orders_append", instance, resource)
    shutil.rmtree(table.uri)
    (tmp_path / "backup").rename(table.uri)
    run(table, "orders_append", instance, resource)
    _, (run_id, event) = events(instance, table.key)
    assert (run_id, event.partition) == (first.run_id, "v0000000002")
    *_, (_, written) = events(instance, table.write_key("orders_append"))
    assert "lance/partition" not in written.metadata


@pytest.mark.parametrize("window", [1, 2, 3])
def test_two_runs_record_one_version_once(
    tmp_path: Path,
    instance: dg.DagsterInstance,
    resource: SparkSessionResource,
    monkeypatch: pytest.MonkeyPatch,
    window: int,
) -> None:
    """The second run executes completely after the first has read the ledger: before its claim, or before its event."""
    table = orders(tmp_path, partitions=DAYS, once_per="partition")
    looks = 0

    def read_after_competitor(*args: Any) -> Mapping[str, str]:
        nonlocal looks
        recorded = recording_recorded(*args)
        looks += 1
        if looks == window:
            run(table, "orders_append", instance, resource, partition="2026-01-01")
        return recorded

    recording_recorded = recorded_data_versions
    monkeypatch.setattr(recording, "recorded_data_versions", read_after_competitor)
    monkeypatch.setattr("lance_assets.ledger.recording_lock.RUN_CHECKS_MAX", 2)
    run(table, "orders_append", instance, resource, partition="2026-01-01")
    assert looks >= window
    assert Table.open(table.uri).version == 1
    ((_, event),) = events(instance, table.key)
    assert tags(event)["lance/origin"] == "run"
    assert instance.get_dynamic_partitions(table.ledger.claim_set) == []


@pytest.mark.parametrize("kind", [PySparkResource, LazyPySparkResource])
def test_resource_of_dagster_pyspark_is_accepted(
    tmp_path: Path,
    instance: dg.DagsterInstance,
    spark: SparkSession,
    kind: Callable[..., PySparkResource | LazyPySparkResource],
) -> None:
    table = orders(tmp_path)
    run(table, "orders_append", instance, kind(spark_config={}))
    assert Table.open(table.uri).count_rows() == 10


def write_wrong_type(spark: SparkSession, ctx: WriteContext) -> DataFrame:
    return ten_rows(spark, ctx).selectExpr("id", "array(day) AS day")


def not_a_frame(spark: SparkSession, ctx: WriteContext) -> DataFrame:
    return [1, 2]  # type: ignore[return-value]


FAILURES = [
    (ten_rows, object(), "without .spark_session"),
    (not_a_frame, None, "must return a Spark DataFrame, not list"),
    (write_wrong_type, None, "day"),
    (lambda spark, ctx: ctx.read("nowhere.lance"), None, "no Lance table"),
]


@pytest.mark.parametrize(("fn", "other_resource", "message"), FAILURES)
def test_permanent_errors_are_not_retried(
    tmp_path: Path,
    instance: dg.DagsterInstance,
    resource: SparkSessionResource,
    fn: Callable[[SparkSession, WriteContext], DataFrame],
    other_resource: object,
    message: str,
) -> None:
    table = orders(tmp_path, fn=fn, retry_policy=dg.RetryPolicy(max_retries=3))
    Table.create(table.uri, pa.table({"id": [0], "day": ["x"]}))
    result = run(table, "orders_append", instance, other_resource or resource, raise_on_error=False)
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    data = failure.step_failure_data.user_failure_data
    assert data is not None
    assert data.description is not None
    assert message in data.description
    assert data.description.startswith("lake/orders: ")
    assert Table.open(table.uri).version == 1


def test_range_of_partitions_in_one_run_is_refused(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    table = orders(tmp_path, partitions=DAYS)
    ends = {"dagster/asset_partition_range_start": "2026-01-01", "dagster/asset_partition_range_end": "2026-01-02"}
    result = run(table, "orders_append", instance, resource, tags=ends, raise_on_error=False)
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert "one partition" in str(failure.step_failure_data.user_failure_data)
    assert not Table.exists(table.uri)


def newest_files(table: LanceTable) -> list[Path]:
    fragment = lance.dataset(table.uri).get_fragments()[-1]
    return [Path(table.uri) / "data" / file.path for file in fragment.data_files()]
