"""Profile asset: runs of one version, of ranges with gaps, and of keys without a version."""

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_assets import LanceTable, Nulls, Profile, RowCount, lance_table
from lance_core import Table
from tests.lance_assets.instances import events, metadata_values, partitions, tags, tick

ROWS = pa.table({"id": [1, 2, None]})


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as each:
        yield each


def declare_profiled_table(folder: Path, **options: Any) -> LanceTable:
    return lance_table("orders", uri=str(folder / "orders.lance"), key_prefix="lake", **options)


def run_profile(
    table: LanceTable, instance: dg.DagsterInstance, first: str | None, last: str | None = None
) -> dg.ExecuteInProcessResult:
    """Run the profile as the UI or a backfill does."""
    defs = dg.Definitions.merge(table.defs, dg.Definitions(jobs=[dg.define_asset_job("job", [table.profile_key])]))
    ends = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
    return defs.resolve_job_def("job").execute_in_process(
        instance=instance,
        partition_key=None if last else first,
        tags={name: key for name, key in ends.items() if key} if last else None,
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        raise_on_error=False,
    )


def record_foreign_versions(table: LanceTable, instance: dg.DagsterInstance, versions: int) -> Table:
    """Let the sensor record foreign versions."""
    created = Table.create(table.uri, ROWS)
    for _ in range(versions - 1):
        created = created.append(ROWS).table
    (sensor,) = table.defs.sensors or ()
    tick(sensor, instance)
    return created


def profiles(instance: dg.DagsterInstance, table: LanceTable) -> dict[str | None, dict[str, Any]]:
    return {event.partition: metadata_values(event) for _, event in events(instance, table.profile_key)}


def failure_message(result: dg.ExecuteInProcessResult) -> str:
    (event,) = [event for event in result.all_events if event.is_step_failure]
    data = event.step_failure_data
    assert data.user_failure_data is not None
    return str(data.user_failure_data.description)


def test_the_profile_belongs_to_the_ledger(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", dg.BetaWarning)
        graph = declare_profiled_table(tmp_path).defs.resolve_asset_graph()
    profile, ledger = (dg.AssetKey(["lake", name]) for name in ("orders_profile", "orders"))
    node = graph.get(profile)
    assert (node.parent_keys, node.partitions_def) == ({ledger}, graph.get(ledger).partitions_def)
    assert node.backfill_policy == dg.BackfillPolicy.multi_run(25)
    assert node.automation_condition is None
    assert isinstance(node.partition_mappings.get(ledger, dg.IdentityPartitionMapping()), dg.IdentityPartitionMapping)
    assert not declare_profiled_table(tmp_path, profile=False).defs.resolve_asset_graph().has(profile)
    own = declare_profiled_table(
        tmp_path, profile=Profile(versions_per_run=3), automation="on_missing", branches=["dev/x"]
    )
    graph = own.defs.resolve_asset_graph()
    assert graph.get(profile).backfill_policy == dg.BackfillPolicy.multi_run(3)
    assert graph.get(profile).automation_condition == dg.AutomationCondition.on_missing()
    branch = graph.get(dg.AssetKey(["lake", "orders@dev.x_profile"]))
    assert branch.parent_keys == {dg.AssetKey(["lake", "orders@dev.x"])}


def test_each_version_of_a_range_has_its_own_profile(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declare_profiled_table(tmp_path)
    record_foreign_versions(table, instance, 4)
    before = events(instance, table.key)
    assert run_profile(table, instance, "v0000000002", "v0000000004").success
    profile_events = profiles(instance, table)
    assert {
        key: (each["lance/version"], each["lance/rows"], each["lance/nulls/id"]) for key, each in profile_events.items()
    } == {
        "v0000000002": (2, 6, 2),
        "v0000000003": (3, 9, 3),
        "v0000000004": (4, 12, 4),
    }
    assert run_profile(table, instance, "v0000000001").success
    assert profiles(instance, table)["v0000000001"]["lance/rows"] == 3
    assert len(events(instance, table.profile_key)) == 4
    assert all("dagster/code_version" in tags(event) for _, event in events(instance, table.profile_key))
    assert events(instance, table.key) == before


def test_range_with_gaps_profiles_existing_versions(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declare_profiled_table(tmp_path)
    latest = record_foreign_versions(table, instance, 5)
    for number in (2, 4):
        name = latest.at(number).manifest.path.rpartition("/")[2]
        (Path(table.uri) / "_versions" / name).unlink()
    instance.add_dynamic_partitions(table.ledger.partition_set, ["v0000000099", "tuesday", "w02.v0000000001"])
    message = failure_message(run_profile(table, instance, "v0000000001", "w02.v0000000001"))
    assert sorted(key or "" for key in profiles(instance, table)) == ["v0000000001", "v0000000003", "v0000000005"]
    assert profiles(instance, table)["v0000000003"]["lance/rows"] == 9
    assert "version gone: a cleanup removed the version that v0000000002 names" in message
    assert "has 3 versions, 1, 3, 5" in message
    assert "4 more partitions failed: v0000000004, v0000000099, tuesday, w02.v0000000001." in message
    assert "3 other versions of this run were profiled" in message


WRONG = (
    (
        "v0000000099",
        "v0000000099 names a version that does not exist: lake/orders at .* has 2 versions, 1-2. Delete the",
    ),
    ("tuesday", "'tuesday' names no version .* like v0000000042. .* has 2 versions, 1-2. Delete the key on the page"),
    (
        "w02.v0000000001",
        "version gone: w02.v0000000001 belongs to an earlier table .* look like v0000000002. Delete the key",
    ),
)


def test_keys_without_a_version_fail(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declare_profiled_table(tmp_path)
    record_foreign_versions(table, instance, 2)
    instance.add_dynamic_partitions(table.ledger.partition_set, [key for key, _ in WRONG])
    for key, message in WRONG:
        result = run_profile(table, instance, key)
        assert not result.success
        assert re.search(message, failure_message(result))
    assert profiles(instance, table) == {}
    assert sorted(partitions(instance, table))[:1] == ["tuesday"]


def test_missing_table_and_missing_partition(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declare_profiled_table(tmp_path)
    instance.add_dynamic_partitions(table.ledger.partition_set, ["v0000000001"])
    assert "a requested object does not exist" in failure_message(run_profile(table, instance, "v0000000001"))


def test_recreated_table_has_its_own_profiles(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declare_profiled_table(tmp_path)
    record_foreign_versions(table, instance, 1)
    (tmp_path / "orders.lance").rename(tmp_path / "before.lance")
    Table.create(table.uri, ROWS.slice(0, 1))
    (sensor,) = table.defs.sensors or ()
    tick(sensor, instance)
    assert run_profile(table, instance, "w02.v0000000001").success
    assert profiles(instance, table)["w02.v0000000001"]["lance/rows"] == 1
    instance.add_dynamic_partitions(table.ledger.partition_set, ["v0000000001"])
    message = failure_message(run_profile(table, instance, "v0000000001"))
    assert "version gone: v0000000001 belongs to an earlier table" in message
    assert "look like w02.v0000000001" in message


def test_checks_of_foreign_and_older_versions(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declare_profiled_table(tmp_path, checks=[RowCount(min=6), Nulls(columns=["id"])])
    record_foreign_versions(table, instance, 3)

    def told() -> list[tuple[str, str | None, bool]]:
        return [
            (record.key.name, record.partition, record.evaluation.passed)
            for name in ("row_count", "nulls")
            for record in instance.event_log_storage.get_asset_check_execution_history(
                dg.AssetCheckKey(table.key, name), limit=99
            )
            if record.evaluation
        ]

    by_sensor = [
        ("row_count", "v0000000003", True),
        ("row_count", "v0000000002", True),
        ("row_count", "v0000000001", False),
    ]
    assert told() == by_sensor
    assert run_profile(table, instance, "v0000000001", "v0000000003").success
    profile_events = profiles(instance, table)
    assert {key: each["lance/checks_failed"] for key, each in profile_events.items()} == {
        "v0000000001": 2,
        "v0000000002": 1,
        "v0000000003": 1,
    }
    assert told() == [("row_count", "v0000000003", True), *by_sensor, ("nulls", "v0000000003", False)]
