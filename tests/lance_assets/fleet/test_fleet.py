"""Fleet maintenance: many tables in one Spark job, with damaged tables among them, and after a crash."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import dagster as dg
import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lance_assets import Maintenance, SparkAppend, SparkSessionResource, lance_fleet, lance_table
from lance_assets.common.text import escape_markdown
from lance_core import Committed, Corrupt, InvalidInput, Table
from lance_core.tasks.driver import TableRef
from lance_core.tasks.indices.index_build import optimize_indices
from lance_core.tasks.partitioning import LocalRunner, Task
from tests.lance_assets.instances import events, instance_in, metadata_values, partitions, tick
from tests.lance_assets.maintenance.fleet_harness import (
    POLICY,
    RUN_ID,
    create_small_table,
    create_tables,
    declare_fleet,
    run,
    without_spark,
)
from tests.lance_assets.maintenance.test_sensor import start_run

TABLES = 24
SECONDS_FOR_300 = 15


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as each:
        yield each


def last_report(instance: dg.DagsterInstance, key: dg.AssetKey) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the metadata of the last run, and its report by table name."""
    *_, (_, event) = events(instance, key)
    metadata = metadata_values(event)
    return metadata, {Path(each["uri"]).name: each for each in metadata["lance/report_json"]["tables"]}


def test_all_tables_are_maintained_in_one_job(
    tmp_path: Path, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    lake = tmp_path / "lake"
    paths = create_tables(lake / "raw", TABLES)
    create_small_table(lake / "in shape", 2)
    (lake / "in shape" / "data" / "left.lance").write_bytes(b"of a write that was given up, a moment ago")
    create_small_table(lake / "excluded")
    create_small_table(lake / "own")
    for name in ("no data", "no head", "cut"):
        shutil.copytree(paths[0], lake / name)
    shutil.rmtree(lake / "no data" / "data")
    for path in (lake / "no head" / "_versions").glob("*.manifest"):
        path.write_bytes(b"nothing")
    first = Table.open(lake / "cut").fragments[1].files[0]
    (lake / "cut" / "data" / first.path).write_bytes(b"cut")
    (lake / "never" / "_versions").mkdir(parents=True)
    (lake / "delta" / "_delta_log").mkdir(parents=True)

    append = SparkAppend("busy_append", lambda spark, ctx: spark.range(1))
    recorded, busy = (
        lance_table("recorded", uri=str(paths[1])),
        lance_table("busy", uri=str(paths[2]), writes=[append]),
    )
    own = lance_table("own", uri=str(lake / "own"), maintenance=Maintenance(keep_versions=2))
    (sensor,) = recorded.defs.sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    tick(sensor, instance)
    working = start_run(instance, busy.write_key("busy_append"))
    fleet = lance_fleet(
        "lake",
        prefix=str(lake),
        policy=Maintenance(clean_when_versions=2, keep_versions=2),
        policies={"raw/*": POLICY, "cut": POLICY, "no data": POLICY},
        tables=[recorded, busy, own],
        exclude=["excluded"],
    )
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    ran = run(fleet, instance, SparkSessionResource())
    assert len(set(tracker.getJobIdsForGroup(None)) - before) == 1

    metadata, tables = last_report(instance, fleet.key)
    assert metadata["lance/spark_jobs"] == 1
    counts = {name: metadata[f"lance/tables_{name}"] for name in ("maintained", "in_shape", "deferred", "failed")}
    assert counts == {"maintained": TABLES - 1 + 1, "in_shape": 1, "deferred": 1, "failed": 2}
    assert {name for name, each in tables.items() if each["fate"] == "skipped"} == {"no head", "never", "delta"}
    assert "is damaged" in tables["no head"]["message"]
    assert "there is no Lance table" in tables["never"]["message"]
    assert "Delta Lake" in tables["delta"]["message"]
    assert "no data" in tables["no data"]["message"]
    assert tables["t002"]["message"].startswith(f"the run {working.run_id} is writing")
    assert "excluded" not in tables
    assert not tables["own"].get("compacted")  # its own policy applies
    assert tables["own"]["versions_removed"] == 2
    one = tables["t003"]
    assert one["due"] == [
        "4 fragments of fewer than 1,000 rows can be joined; the bound is 3",
        "2 versions (up to 2) can be removed: older than 14 days and not among the newest 2; the bound is 2",
    ]
    assert (one["before"]["files"], one["after"]["files"], one["versions_removed"]) == (4, 1, 4)
    assert one["bytes_removed"] > 0
    for path in paths:
        head = Table.open(path)
        assert sorted(head.to_table()["id"].to_pylist()) == list(range(20))
        assert lance.dataset(str(path)).count_rows() == 20
        assert head.version == (4 if path == paths[2] else 6)
        assert len(head.fragments) == (4 if path == paths[2] else 1)
    assert head.fsck().is_sound
    assert Table.open(paths[3]).version_info().properties["dagster.run_id"] == ran.run_id
    assert (lake / "in shape" / "data" / "left.lance").exists()

    # The ledger of a table has all these versions immediately.
    assert [(run_id, event.partition) for run_id, event in events(instance, recorded.key)[4:]] == [
        (ran.run_id, "v0000000005"),
        (ran.run_id, "v0000000006"),
    ]
    assert partitions(instance, recorded) == ["v0000000005", "v0000000006"]
    # Failed tables are marked and named.
    (check,) = ran.get_asset_check_evaluations()
    assert not check.passed
    assert f"{lake}/no data: " in str(check.description)
    report = metadata["lance/report"]
    assert report.startswith(f"**{TABLES + 7} tables below `{lake}`**: 1 in shape, {TABLES} maintained, 1 deferred")
    assert f"| {escape_markdown(f'{lake}/raw/t003')} | maintained |" in report

    # A second run has nothing to do except for the failed tables.
    before = set(tracker.getJobIdsForGroup(None))
    instance.report_run_failed(working)
    run(fleet, instance, SparkSessionResource())
    metadata, tables = last_report(instance, fleet.key)
    assert {name for name, each in tables.items() if each.get("compacted")} == {"t002"}
    assert len(set(tracker.getJobIdsForGroup(None)) - before) == 1


def test_indices_of_a_fleet_follow_its_compactions(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    lake = tmp_path / "lake"
    paths = create_tables(lake, 4)
    with_both, with_lag, _without, damaged = map(Table.open, paths)
    with_both.create_index("id", "BTREE").table.append(pa.table({"id": range(20, 30)}), max_rows_per_file=2)
    with_lag.compact().table.create_index("id", "BTREE").table.append(pa.table({"id": range(20, 30)}))
    segment = damaged.compact().table.create_index("id", "BITMAP").table.append(pa.table({"id": range(20, 30)})).table
    foreign = segment.indices[0]
    table = lance_table("moved", uri=str(paths[0]))
    fleet = lance_fleet("lake", prefix=str(lake), policy=POLICY, tables=[table])

    def failing(where: TableRef, *arguments: Any, **named: Any) -> Committed:
        if where.uri == damaged.uri:
            raise Corrupt("is cut short", path=f"{foreign.uuid}/bitmap_page_lookup.lance", field="size")
        return optimize_indices(where, *arguments, **named)

    with without_spark() as resource, patch("lance_assets.fleet.fleet_run.optimize_indices", failing):
        ran = run(fleet, instance, resource)
    metadata, tables = last_report(instance, fleet.key)
    assert {name: each.get("indexed", False) for name, each in tables.items()} == {
        "t000": True, "t001": True, "t002": False, "t003": False,
    }  # fmt: skip
    assert tables["t000"]["due"][1:2] == [
        "the index 'id_idx' on id leaves 10 rows of 30 uncovered (33%); the bound is 10%"
    ]
    one = tables["t001"]
    assert one["due"][0] == "the index 'id_idx' on id leaves 10 rows of 30 uncovered (33%); the bound is 10%"
    assert (one["before"]["index_rows_uncovered"], one["after"]["index_rows_uncovered"]) == (10, 0)
    assert (tables["t003"]["fate"], "is cut short" in tables["t003"]["message"]) == ("failed", True)
    assert (metadata["lance/tables_compacted"], metadata["lance/tables_indexed"]) == (2, 2)
    assert (metadata["lance/spark_jobs"], metadata["lance/index_rows_uncovered_after"]) == (3, 10)
    for path in paths[:2]:
        head = Table.open(path)
        assert [each.coverage for each in head.index_statistics()] == [1.0]
        assert head.to_table(filter="id = 7")["id"].to_pylist() == [7]
    # It is the last version of the run, and on the ledger with the others.
    head = Table.open(paths[0])
    assert head.version_info().operation == "CreateIndex"
    assert head.version_info().properties["dagster.run_id"] == ran.run_id
    assert events(instance, table.key)[-1][1].partition == f"v{head.version:010}"


def test_run_resumes_a_killed_one(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    paths = create_tables(lake, 9)
    with instance_in(tmp_path) as instance:
        home = str(tmp_path / "dagster")
        command = [sys.executable, "-m", "tests.lance_assets.maintenance.fleet_harness", str(lake), home, "4"]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        done = [path for path in paths if len(Table.open(path).fragments) == 1]
        assert len(done) == 4
        lost = instance.get_run_by_id(RUN_ID)
        assert lost is not None
        instance.report_run_failed(lost)
        fleet, table = declare_fleet(lake)
        family = {"dagster/parent_run_id": RUN_ID, "dagster/root_run_id": RUN_ID}
        with without_spark() as resource:
            ran = run(fleet, instance, resource, tags=family)
        (check,) = ran.get_asset_check_evaluations()
        assert check.passed
        metadata, tables = last_report(instance, fleet.key)
        assert metadata["lance/tables_compacted"] == 5
        for path in paths:
            rewrites = [info for info in Table.open(path).versions() if info.operation == "Rewrite"]
            assert len(rewrites) == 1
            assert rewrites[0].properties["dagster.run_id"] == (RUN_ID if path in done else ran.run_id)
            assert sorted(Table.open(path).to_table()["id"].to_pylist()) == list(range(20))
        assert {Path(each).name for each in done} == {
            name for name, each in tables.items() if not each.get("compacted")
        }
        # The sensor records the version that the lost run made of a table with a ledger.
        (sensor,) = table.defs.sensors or ()
        assert isinstance(sensor, dg.SensorDefinition)
        tick(sensor, instance)
        assert partitions(instance, table) == [f"v{each:010}" for each in Table.open(paths[0]).version_numbers()]
        run_ids = [event.tags.get("lance/run_id") for _, event in events(instance, table.key) if event.tags]
        assert RUN_ID in run_ids


def test_versions_that_ledgers_and_policies_need_are_retained(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    lake = tmp_path / "lake"
    create_tables(lake, 3)
    made_of = {"lance_assets.inputs": json.dumps({str(lake / "t001"): 1, str(lake / "t002"): 9})}
    features = lance_table("features", uri=str(tmp_path / "features"))
    Table.create(features.uri, pa.table({"id": [1]}), properties=made_of, durable=False)
    (sensor,) = features.defs.sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    tick(sensor, instance)
    Table.open(lake / "t000").tags.create("golden", 2)
    pinning = Maintenance(compact_when_small_files=None, clean_when_versions=1, keep_versions=1, pins=[3])
    fleet = lance_fleet("lake", prefix=str(lake), policy=pinning)
    run(fleet, instance, object())  # Spark is not started if there is nothing to compact
    numbers = [Table.open(lake / f"t{n:03d}").version_numbers() for n in range(3)]
    assert numbers == [(2, 3, 4), (1, 3, 4), (3, 4)]
    metadata, tables = last_report(instance, fleet.key)
    assert metadata["lance/spark_jobs"] == 0
    assert tables["t001"]["kept"] == {"1": ["features 1 was made from it"], "3": ["pinned by the policy"]}


def test_versions_that_a_compaction_supersedes_are_retained_if_needed(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """At planning time no version is removable; only the versions of the run itself exceed the newest four."""
    lake = tmp_path / "lake"
    first = create_small_table(lake / "t000")
    features = lance_table("features", uri=str(tmp_path / "features"))
    made_of = {"lance_assets.inputs": json.dumps({first.uri: 1})}
    Table.create(features.uri, pa.table({"id": [1]}), properties=made_of, durable=False)
    (sensor,) = features.defs.sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    tick(sensor, instance)
    policy = Maintenance(compact_when_small_files=3, clean_when_versions=2, keep_versions=4, target_rows=1000)
    with without_spark() as resource:
        run(lance_fleet("lake", prefix=str(lake), policy=policy), instance, resource)
    assert Table.open(first.uri).version_numbers() == (1, 3, 4, 5, 6)
    assert Table.open(first.uri).at(1).to_table().num_rows == 5


class DeadlyRunner(LocalRunner):
    """Runner whose job dies when it reaches one of the tables."""

    poison = ""
    jobs: ClassVar[list[int]] = []

    def run(self, task: Task, parts: int) -> pa.Table:
        self.jobs.append(parts)
        if any(header.uri == self.poison for header in task.headers):  # type: ignore[attr-defined]
            raise PySparkException("Job aborted: the worker exited unexpectedly\nat an unknown location")
        return super().run(task, parts)


def test_table_that_kills_every_job_does_not_stop_the_others(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    paths = create_tables(tmp_path / "lake", 12)
    fleet, _ = declare_fleet(tmp_path / "lake")
    with (
        without_spark() as resource,
        patch("lance_assets.fleet.fleet.SparkRunner", lambda spark: DeadlyRunner(slots=2)),
        patch.object(DeadlyRunner, "poison", str(paths[7])),
    ):
        ran = run(fleet, instance, resource)
    metadata, tables = last_report(instance, fleet.key)
    assert metadata["lance/tables_compacted"] == 11
    assert metadata["lance/spark_jobs"] == len(DeadlyRunner.jobs) == 9  # of 12, 6, 6, 3, 1, 2, 1, 1 and 3 tables
    why = "the Spark job that compacted it was lost: Job aborted: the worker exited unexpectedly"
    assert (tables["t007"]["fate"], tables["t007"]["message"]) == ("failed", why)
    assert tables["t007"]["versions_removed"] == 2  # it is still cleaned up
    (check,) = ran.get_asset_check_evaluations()
    assert not check.passed
    assert {len(Table.open(path).fragments) for path in paths if path != paths[7]} == {1}


def test_empty_prefix_gives_an_empty_report(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    fleet = lance_fleet("lake", prefix=str(tmp_path / "nothing"), policy=POLICY)
    run(fleet, instance, object())
    metadata, tables = last_report(instance, fleet.key)
    assert (metadata["lance/tables"], tables) == (0, {})


def test_three_hundred_tables_are_planned_in_seconds(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    create_tables(tmp_path / "lake", 300)
    fleet = lance_fleet("lake", prefix=str(tmp_path / "lake"), policy=Maintenance(keep_versions=9), orphans=False)
    started = time.monotonic()
    run(fleet, instance, object())
    assert time.monotonic() - started < SECONDS_FOR_300
    metadata, _ = last_report(instance, fleet.key)
    assert metadata["lance/tables_in_shape"] == 300


def test_declaration(tmp_path: Path) -> None:
    every = Maintenance(every="0 4 * * *", timezone="Europe/Oslo")
    fleet = lance_fleet("lake", prefix="s3://lake/tables", key_prefix="ops", policy=every, policies={"raw/*": POLICY})
    (schedule,) = fleet.defs.schedules or ()
    assert (schedule.name, schedule.execution_timezone) == ("lance_fleet__ops_lake", "Europe/Oslo")  # type: ignore[union-attr]
    assert fleet.key == dg.AssetKey(["ops", "lake"])
    assert fleet.policy_of("raw/orders") is POLICY
    assert fleet.policy_of("orders") is every
    for prefix in ("/lake/tables", "/lake/tables/", "file:///lake/tables", "file:///lake/tables/"):
        assert lance_fleet("lake", prefix=prefix).path_of("/lake/tables/raw/orders") == "raw/orders"
    for prefix in ("s3://lake/tables", "s3://lake/tables/"):
        assert lance_fleet("lake", prefix=prefix).path_of("s3://lake/tables/raw/orders") == "raw/orders"
    dg.Definitions.validate_loadable(dg.Definitions.merge(fleet.defs, dg.Definitions(resources={"spark": object()})))
    for message, arguments in (
        ("contains credentials", {"prefix": "s3://a:b@lake/x"}),
        ("has no uri", {"prefix": ""}),
        ("exclude='raw' is a text", {"prefix": "x", "exclude": "raw"}),
        ("is not a valid name", {"prefix": "x", "key_prefix": "a-b"}),
    ):
        with pytest.raises(InvalidInput, match=message):
            lance_fleet("lake", **arguments)  # type: ignore[arg-type]
