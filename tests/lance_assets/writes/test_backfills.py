"""Backfills in one run: partitions become a version each, or one version, and a retry writes what is missing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lance_assets import LanceTable, RowCount, SparkOverwrite, SparkSessionResource, WriteContext, lance_table
from lance_core import Table
from tests.lance_assets.instances import events, metadata_values, partitions
from tests.lance_assets.writes.arrow_writes import ArrowAppend

DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-10")
SINGLE = dg.BackfillPolicy.single_run()
KEYS = ["2026-01-02", "2026-01-03", "2026-01-04"]
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as each:
        yield each


def row_of_each_day(ctx: WriteContext) -> pa.Table:
    return pa.table({"id": range(len(ctx.partition_keys)), "day": list(ctx.partition_keys)}, SCHEMA)


def declare(folder: Path, **options: Any) -> LanceTable:
    Table.create(str(folder / "t.lance"), SCHEMA, durable=False)
    return lance_table(
        "t",
        uri=str(folder / "t.lance"),
        writes=[ArrowAppend("w", **{"fn": row_of_each_day, "partitions": DAYS, "backfill_policy": SINGLE, **options})],
        checks=[RowCount(max=100)],
    )


def backfill(table: LanceTable, instance: dg.DagsterInstance, **options: Any) -> dg.ExecuteInProcessResult:
    ends = {"dagster/asset_partition_range_start": KEYS[0], "dagster/asset_partition_range_end": KEYS[-1]}
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    assets: Any = list(table.defs.assets or ())
    key = table.write_key("w")
    return dg.materialize(assets, selection=[key], instance=instance, tags=ends, run_config=quiet, **options)


def rows_by_version(table: LanceTable) -> list[list[str]]:
    opened = Table.open(table.uri)
    return [sorted(opened.at(each).to_table()["day"].to_pylist()) for each in opened.version_numbers()[1:]]


def test_each_partition_becomes_a_version(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declare(tmp_path, audit=[RowCount(min=2, max=2)])
    ran = backfill(table, instance, raise_on_error=False)
    assert not ran.success  # the first partition leaves one row, and the audit refuses it
    assert rows_by_version(table) == []
    options: Any = {"partitions": DAYS, "backfill_policy": SINGLE, "audit": [RowCount(max=9)]}
    table = lance_table("t", uri=table.uri, writes=[ArrowAppend("w", row_of_each_day, **options)])
    ran = backfill(table, instance)
    assert rows_by_version(table) == [KEYS[:1], KEYS[:2], KEYS]
    assert [event.partition for _, event in events(instance, table.key)] == [
        f"v{number:010}" for number in (1, 2, 3, 4)
    ]
    written = {event.partition: metadata_values(event) for _, event in events(instance, table.write_key("w"))}
    assert {key: values["lance/version"] for key, values in written.items()} == dict(zip(KEYS, (2, 3, 4), strict=True))
    properties = [Table.open(table.uri).at(number).version_info().properties for number in (2, 3, 4)]
    assert [each["dagster.partition"] for each in properties] == KEYS
    assert {each["dagster.run_id"] for each in properties} == {ran.run_id}
    (evaluation,) = ran.get_asset_check_evaluations()
    assert evaluation.passed
    assert evaluation.description is not None
    assert evaluation.description.startswith("passed for all 3 partitions")


def test_all_partitions_become_one_version(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declare(tmp_path, commit_per="run")
    backfill(table, instance)
    assert rows_by_version(table) == [KEYS]
    properties = Table.open(table.uri).version_info().properties
    assert properties["dagster.partition"] == f"{KEYS[0]}...{KEYS[-1]}"
    written = events(instance, table.write_key("w"))
    assert [event.partition for _, event in written] == KEYS
    assert {metadata_values(event)["lance/version"] for _, event in written} == {2}


@pytest.mark.parametrize("once_per", ["run", "partition"])
def test_retry_writes_the_partitions_that_are_missing(
    tmp_path: Path, instance: dg.DagsterInstance, once_per: Any
) -> None:
    attempts: list[str] = []

    def failing_once(ctx: WriteContext) -> pa.Table:
        attempts.append(str(ctx.partition_key))
        if attempts == KEYS[:2]:
            raise OSError("the source is away")
        return row_of_each_day(ctx)

    table = declare(tmp_path, fn=failing_once, once_per=once_per)
    first = backfill(table, instance, raise_on_error=False)
    assert not first.success
    assert [event.partition for _, event in events(instance, table.write_key("w"))] == KEYS[:1]
    assert partitions(instance, table) == ["v0000000001", "v0000000002"]
    retried = dg.RetryPolicy(max_retries=1)
    attempts.clear()
    other = tmp_path / "other"
    other.mkdir()
    table = declare(other, fn=failing_once, retry_policy=retried, once_per=once_per)
    assert backfill(table, instance).success
    assert attempts == [*KEYS[:2], *KEYS]
    assert rows_by_version(table) == [KEYS[:1], KEYS[:2], KEYS]


def test_one_key_of_several_is_refused(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declare(tmp_path, commit_per="run", fn=lambda ctx: row_of_each_day(ctx) if ctx.partition_key else None)
    failed = backfill(table, instance, raise_on_error=False)
    (event,) = [each for each in failed.all_events if each.is_step_failure]
    assert "for 3 partitions, from 2026-01-02 to 2026-01-04; use ctx.partition_keys" in str(event.step_failure_data)


def test_a_policy_is_needed_for_several_partitions(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declare(tmp_path, backfill_policy=None)
    failed = backfill(table, instance, raise_on_error=False)
    (event,) = [each for each in failed.all_events if each.is_step_failure]
    assert "backfill_policy=dagster.BackfillPolicy.single_run()" in str(event.step_failure_data)
    assert Table.open(table.uri).version == 1


def test_spark_replaces_the_rows_of_all_partitions(
    tmp_path: Path, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    """The rows come from a table among the inputs, which needs no I/O manager and is recorded as an input."""
    Table.create(str(tmp_path / "source.lance"), pa.table({"id": [8, 9]}), durable=False)
    source = lance_table("source", uri=str(tmp_path / "source.lance"))

    def days(spark: SparkSession, ctx: WriteContext, newest: DataFrame) -> DataFrame:
        keys = ", ".join(f"'{key}'" for key in ctx.partition_keys)
        return newest.where("id = 9").selectExpr("id", f"explode(array({keys})) as day")

    Table.create(str(tmp_path / "t.lance"), SCHEMA, durable=False).append(
        pa.table({"id": [1, 2], "day": ["2026-01-01", KEYS[1]]}, SCHEMA)
    )
    write = SparkOverwrite(
        "w",
        days,
        ins={"newest": source},
        partitions=DAYS,
        partition_expr="day",
        commit_per="run",
        backfill_policy=SINGLE,
    )
    table = lance_table("t", uri=str(tmp_path / "t.lance"), writes=[write])
    backfill(table, instance, resources={"spark": SparkSessionResource()})
    stored = Table.open(table.uri)
    assert stored.version == 3
    assert json.loads(stored.version_info().properties["lance_assets.inputs"]) == {source.uri: 1}
    (asset,) = (each for each in table.defs.assets or () if getattr(each, "key", None) == table.write_key("w"))
    assert isinstance(asset, dg.AssetsDefinition)
    assert list(asset.get_asset_spec().deps) == [source.dep]
    assert sorted(zip(*stored.to_table().to_pydict().values(), strict=True)) == [
        (1, "2026-01-01"),
        *((9, key) for key in KEYS),
    ]


def test_inputs_resources_and_config_reach_the_function(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    class Limits(dg.Config):
        rows: int = 2

    class Clock(dg.ConfigurableResource[Any]):
        day: str

    class Numbers(dg.IOManager):
        def handle_output(self, context: dg.OutputContext, obj: object) -> None: ...

        def load_input(self, context: dg.InputContext) -> object:
            loaded[context.asset_key.to_user_string()] = context.dagster_type.typing_type
            return context.dagster_type.typing_type(5)

    seen: list[object] = []
    loaded: dict[str, object] = {}

    @dg.asset
    def raw() -> None: ...

    def load(ctx: WriteContext, raw: int, named: str, clock: Clock, config: Limits, unused: int = 5) -> pa.Table:
        seen.extend([raw, named, clock.day, config.rows, unused, sorted(ctx.input_values)])
        return pa.table({"id": [1], "day": [clock.day]}, SCHEMA)

    Table.create(str(tmp_path / "t.lance"), SCHEMA, durable=False)
    after = {"after": dg.AssetIn("ordered", dagster_type=dg.Nothing), "named": dg.AssetIn(["x", "raw"])}
    table = lance_table("t", uri=str(tmp_path / "t.lance"), writes=[ArrowAppend("w", load, ins=after)])
    resources: Any = {"io_manager": Numbers(), "clock": Clock(day="today")}
    assert dg.materialize(
        [*(table.defs.assets or ()), raw, dg.AssetSpec("ordered"), dg.AssetSpec(["x", "raw"])],  # type: ignore[list-item]
        selection=[table.write_key("w")],
        instance=instance,
        resources=resources,
        run_config={"ops": {"w": {"config": {"rows": 7}}}},
    ).success
    names = ["clock", "config", "named", "raw"]
    assert loaded == {"raw": int, "x/raw": str}
    assert seen == [5, "5", "today", 7, 5, names]
