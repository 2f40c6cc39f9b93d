"""The profile as Dagster runs it: one version, ranges with gaps, keys that name nothing."""

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
from tests.lance_assets.instances import events, partitions, shown, tags, tick

ROWS = pa.table({"id": [1, 2, None]})


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as each:
        yield each


def declared(folder: Path, **options: Any) -> LanceTable:
    return lance_table("orders", uri=str(folder / "orders.lance"), key_prefix="lake", **options)


def profiled(
    table: LanceTable, instance: dg.DagsterInstance, first: str | None, last: str | None = None
) -> dg.ExecuteInProcessResult:
    """As a run that the UI, or a backfill, starts."""
    defs = dg.Definitions.merge(table.defs, dg.Definitions(jobs=[dg.define_asset_job("job", [table.profile_key])]))
    ends = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
    return defs.resolve_job_def("job").execute_in_process(
        instance=instance,
        partition_key=None if last else first,
        tags={name: key for name, key in ends.items() if key} if last else None,
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        raise_on_error=False,
    )


def recorded(table: LanceTable, instance: dg.DagsterInstance, versions: int) -> Table:
    """Foreign versions, found by the sensor."""
    made = Table.create(table.uri, ROWS)
    for _ in range(versions - 1):
        made = made.append(ROWS).table
    (sensor,) = table.defs.sensors or ()
    tick(sensor, instance)
    return made


def profiles(instance: dg.DagsterInstance, table: LanceTable) -> dict[str | None, dict[str, Any]]:
    return {event.partition: shown(event) for _, event in events(instance, table.profile_key)}


def failed_with(result: dg.ExecuteInProcessResult) -> str:
    (event,) = [event for event in result.all_events if event.is_step_failure]
    data = event.step_failure_data
    assert data.user_failure_data is not None
    return str(data.user_failure_data.description)


def test_the_profile_belongs_to_the_ledger(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", dg.BetaWarning)
        graph = declared(tmp_path).defs.resolve_asset_graph()
    profile, ledger = (dg.AssetKey(["lake", name]) for name in ("orders_profile", "orders"))
    node = graph.get(profile)
    assert (node.parent_keys, node.partitions_def) == ({ledger}, graph.get(ledger).partitions_def)
    assert node.backfill_policy == dg.BackfillPolicy.multi_run(25)
    assert node.automation_condition is None
    assert isinstance(node.partition_mappings.get(ledger, dg.IdentityPartitionMapping()), dg.IdentityPartitionMapping)
    assert not declared(tmp_path, profile=False).defs.resolve_asset_graph().has(profile)
    own = declared(tmp_path, profile=Profile(versions_per_run=3), automation="on_missing", branches=["dev/x"])
    graph = own.defs.resolve_asset_graph()
    assert graph.get(profile).backfill_policy == dg.BackfillPolicy.multi_run(3)
    assert graph.get(profile).automation_condition == dg.AutomationCondition.on_missing()
    branch = graph.get(dg.AssetKey(["lake", "orders@dev.x_profile"]))
    assert branch.parent_keys == {dg.AssetKey(["lake", "orders@dev.x"])}


def test_each_version_of_a_range_has_its_own_figures(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    recorded(table, instance, 4)
    before = events(instance, table.key)
    assert profiled(table, instance, "v0000000002", "v0000000004").success
    found = profiles(instance, table)
    assert {
        key: (each["lance/version"], each["lance/rows"], each["lance/nulls/id"]) for key, each in found.items()
    } == {
        "v0000000002": (2, 6, 2),
        "v0000000003": (3, 9, 3),
        "v0000000004": (4, 12, 4),
    }
    assert profiled(table, instance, "v0000000001").success
    assert profiles(instance, table)["v0000000001"]["lance/rows"] == 3
    assert len(events(instance, table.profile_key)) == 4
    assert all("dagster/code_version" in tags(event) for _, event in events(instance, table.profile_key))
    assert events(instance, table.key) == before


def test_a_range_with_gaps_profiles_what_there_is(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    made = recorded(table, instance, 5)
    for number in (2, 4):
        name = made.at(number).manifest.path.rpartition("/")[2]
        (Path(table.uri) / "_versions" / name).unlink()
    instance.add_dynamic_partitions(table.ledger.partition_set, ["v0000000099", "tuesday", "w02.v0000000001"])
    said = failed_with(profiled(table, instance, "v0000000001", "w02.v0000000001"))
    assert sorted(key or "" for key in profiles(instance, table)) == ["v0000000001", "v0000000003", "v0000000005"]
    assert profiles(instance, table)["v0000000003"]["lance/rows"] == 9
    assert "version gone: a cleanup removed the version that v0000000002 names" in said
    assert "has 3 versions, 1, 3, 5" in said
    assert "4 more partitions failed: v0000000004, v0000000099, tuesday, w02.v0000000001." in said
    assert "3 other versions of this run were profiled" in said


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


def test_a_key_that_names_nothing_says_so(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    recorded(table, instance, 2)
    instance.add_dynamic_partitions(table.ledger.partition_set, [key for key, _ in WRONG])
    for key, said in WRONG:
        result = profiled(table, instance, key)
        assert not result.success
        assert re.search(said, failed_with(result))
    assert profiles(instance, table) == {}
    assert sorted(partitions(instance, table))[:1] == ["tuesday"]


def test_no_table_and_no_partition(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    instance.add_dynamic_partitions(table.ledger.partition_set, ["v0000000001"])
    assert "a requested object does not exist" in failed_with(profiled(table, instance, "v0000000001"))


def test_a_table_created_anew_has_profiles_of_its_own(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declared(tmp_path)
    recorded(table, instance, 1)
    (tmp_path / "orders.lance").rename(tmp_path / "before.lance")
    Table.create(table.uri, ROWS.slice(0, 1))
    (sensor,) = table.defs.sensors or ()
    tick(sensor, instance)
    assert profiled(table, instance, "w02.v0000000001").success
    assert profiles(instance, table)["w02.v0000000001"]["lance/rows"] == 1
    instance.add_dynamic_partitions(table.ledger.partition_set, ["v0000000001"])
    said = failed_with(profiled(table, instance, "v0000000001"))
    assert "version gone: v0000000001 belongs to an earlier table" in said
    assert "look like w02.v0000000001" in said


def test_foreign_versions_are_judged_and_an_old_one_does_not_speak_for_the_table(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    table = declared(tmp_path, checks=[RowCount(min=6), Nulls(columns=["id"])])
    recorded(table, instance, 3)

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
    assert profiled(table, instance, "v0000000001", "v0000000003").success
    found = profiles(instance, table)
    assert {key: each["lance/checks_failed"] for key, each in found.items()} == {
        "v0000000001": 2,
        "v0000000002": 1,
        "v0000000003": 1,
    }
    assert told() == [("row_count", "v0000000003", True), *by_sensor, ("nulls", "v0000000003", False)]
