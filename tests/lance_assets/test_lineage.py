"""Lineage in Dagster: the diagram on the write, the table on the ledger, and links between runs and versions."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lance_assets import SparkAppend, SparkSessionResource, SparkUpdate, SparkUpsert, WriteContext, lance_table
from lance_assets.cli.main import main
from lance_assets.common.text import escape_markdown
from lance_assets.discovery.sensor import discovery_sensor
from lance_assets.ledger.version_metadata import discovered_facts, metadata_of
from lance_assets.lineage import VersionName, ancestry_of
from lance_assets.lineage.dagster_events import recorded_versions
from lance_assets.provenance.properties import RUN_ID
from lance_core import Table
from lance_core.operations import Append
from tests.lance_assets.instances import events, instance_in, metadata_values, partitions, run, tick
from tests.lance_core.commit.test_detached import write_fragments

PICTURE = re.compile(r"!\[[^\]]*\]\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)")
PICTURE_BYTES_MAX = 10_000


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with instance_in(tmp_path) as each:
        yield each


def test_from_a_version_to_its_run_and_from_the_run_to_its_version(
    tmp_path: Path,
    instance: dg.DagsterInstance,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = Table.create(str(tmp_path / "raw.lance"), pa.table({"id": [1, 2]})).append(pa.table({"id": [3]})).table

    def doubled(_spark: SparkSession, ctx: WriteContext) -> DataFrame:
        return ctx.read(raw.uri, version=1).selectExpr("id * 2 AS id")

    days = dg.StaticPartitionsDefinition(["monday"])
    write = SparkAppend("features_append", fn=doubled, partitions=days, once_per="partition")
    features = lance_table("features", uri=str(tmp_path / "features.lance"), key_prefix="lake", writes=[write])
    Table.create(features.uri, pa.table({"id": [0]}))
    ended = run(features, "features_append", instance, SparkSessionResource(), partition="monday")

    # The event of the write has the diagram, that of the ledger only the table.
    ((_, on_write),) = events(instance, features.write_key("features_append"))
    _, (_, on_ledger) = events(instance, features.key)
    image = metadata_values(on_write)["lance/lineage"]
    table = f"| table | version | how |\n|---|---|---|\n| {escape_markdown(raw.uri)} | 1 | read |"
    assert metadata_values(on_ledger)["lance/lineage"] == table
    assert image.endswith(table)
    match = PICTURE.match(image)
    assert match is not None
    assert len(match[0]) <= PICTURE_BYTES_MAX
    svg = base64.b64decode(match[1]).decode()
    texts = ("raw.lance", "version 1", "features.lance", "version 2: append", "lake/features_append", ended.run_id[:8])
    assert all(each in svg for each in texts)

    # From the table alone, by the Python function and by the command line.
    found_in = ancestry_of(Table.open(features.uri))
    first, source = found_in.origins.values()
    assert (first.name, source.name) == (VersionName(features.uri, 2), VersionName(raw.uri, 1))
    assert metadata_values(on_ledger)["lance/run"] == ended.run_id
    assert main(["lineage", features.uri]) == 0
    assert f"run {ended.run_id}  asset lake/features_append" in capsys.readouterr().out

    # From the run.
    (version,) = recorded_versions(instance, ended.run_id).versions
    assert (version.name, version.operation, version.recorded_on) == (
        VersionName(features.uri, 2), "Append", "lake/features v0000000002",
    )  # fmt: skip
    assert (version.written_by, version.inputs) == ("lake/features_append", (VersionName(raw.uri, 1),))
    monkeypatch.setenv("DAGSTER_HOME", instance.root_directory)
    assert main(["run", ended.run_id]) == 0
    assert capsys.readouterr().out == (
        f"run {ended.run_id}  SUCCESS  job job\n"
        "  planned to write lake/features_append\n"
        f"  committed {features.uri}@2  Append  asset lake/features_append  partition monday  "
        "recorded on lake/features v0000000002\n"
        f"    read {raw.uri}@1\n"
    )

    # From a run that found it already committed.
    again = run(features, "features_append", instance, SparkSessionResource(), partition="monday")
    (found_landed,) = recorded_versions(instance, again.run_id).versions
    assert (found_landed.name, found_landed.committed_by) == (version.name, ended.run_id)
    assert main(["run", again.run_id]) == 0
    printed = capsys.readouterr().out
    assert f"  found {features.uri}@2  Append" in printed
    assert f"  committed by run {ended.run_id}\n" in printed


def test_sources_of_columns_are_metadata_and_printed(
    tmp_path: Path, instance: dg.DagsterInstance, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = lance_table("orders", uri=str(tmp_path / "orders.lance"), key_prefix="lake")
    raw = str(tmp_path / "raw.lance")
    Table.create(orders.uri, pa.table({"id": [1, 2], "price": [2, 3], "city": ["a", "b"]}), durable=False)
    Table.create(raw, pa.table({"id": [1, 2], "amount": [5, 6]}), durable=False)

    def totals(spark: SparkSession, ctx: WriteContext) -> DataFrame:
        joined = ctx.read(orders).join(ctx.read(raw), "id")
        return joined.selectExpr("id", "price * amount as total", "'x' as note")

    writes = [
        SparkUpsert("upserted", totals, on="id"),
        SparkUpdate("corrected", {"note": "concat(note, :more)"}, "total > 3", {"more": "!"}),
    ]
    table = lance_table("totals", uri=str(tmp_path / "totals.lance"), key_prefix="lake", writes=writes)
    Table.create(table.uri, pa.schema([("id", pa.int64()), ("total", pa.int64()), ("note", pa.string())]))
    for write in writes:
        run(table, write.name, instance, SparkSessionResource())

    def dep(key: dg.AssetKey, column: str) -> dg.TableColumnDep:
        return dg.TableColumnDep(asset_key=key, column_name=column)

    # The table that is read by its location alone is no asset, so Dagster cannot name its columns.
    upserted = dg.TableColumnLineage({"id": [dep(orders.key, "id")], "total": [dep(orders.key, "price")]})
    corrected = dg.TableColumnLineage({"note": [dep(table.key, "note"), dep(table.key, "total")]})
    _, (_, of_upsert), (_, of_update) = events(instance, table.key)
    ((_, written),) = events(instance, table.write_key("corrected"))
    shown = [event.metadata["dagster/column_lineage"].value for event in (of_upsert, of_update, written)]
    assert shown == [upserted, corrected, corrected]
    tables: list[Any] = [event.metadata["lance/column_sources"].value for event in (of_upsert, of_update)]
    assert [{record.data["column"]: record.data["computed from"] for record in each.records} for each in tables] == [
        {"id": "lake/orders: id", "total": f"lake/orders: price, {raw}: amount"},
        {"note": "note, total"},
    ]
    assert main(["lineage", table.uri, "--columns", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["columns"]
    assert {column: (each["version"], len(each["sources"])) for column, each in printed.items()} == {
        "id": (2, 1), "total": (2, 2), "note": (3, 2),
    }  # fmt: skip
    assert printed["total"]["sources"] == [
        {"uri": orders.uri, "asset": "lake/orders", "column": "price"},
        {"uri": raw, "asset": None, "column": "amount"},
    ]
    # A writer outside of Dagster knows no asset, and the ledger knows its own.
    doubled = Table.open(table.uri).update({"total": "2 * total"}).table
    facts = discovered_facts(doubled, doubled.versions()[-1], 1)
    outside = metadata_of(facts, run_is_known=False, key=table.key)["dagster/column_lineage"]
    assert outside.value == dg.TableColumnLineage({"total": [dep(table.key, "total")]})


def test_version_of_a_killed_run_is_found_by_the_sensor_event(
    tmp_path: Path, instance: dg.DagsterInstance, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lance_table("orders", uri=str(tmp_path / "orders.lance"))

    @dg.op
    def committing(context: dg.OpExecutionContext) -> None:
        Table.create(table.uri, pa.table({"id": [1]}), properties={RUN_ID: context.run_id})
        raise RuntimeError("the machine is gone")

    @dg.job
    def fail_after_commit() -> None:
        committing()

    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    ended = fail_after_commit.execute_in_process(instance=instance, raise_on_error=False, run_config=quiet)
    assert recorded_versions(instance, ended.run_id).versions == ()
    Table.open(table.uri).append(pa.table({"id": [2]}))
    tick(discovery_sensor("s", [table.ledger]), instance)
    recorded = recorded_versions(instance, ended.run_id)
    assert (recorded.status, [version.name.version for version in recorded.versions]) == ("FAILURE", [1])
    monkeypatch.setenv("DAGSTER_HOME", instance.root_directory)
    assert main(["run", ended.run_id, "--json"]) == 0
    assert f'"recorded_on": "orders {partitions(instance, table)[0]}"' in capsys.readouterr().out


def test_ledger_describes_foreign_operations(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = lance_table("orders", uri=str(tmp_path / "orders.lance"))
    first = Table.create(table.uri, pa.table({"id": [1, 2, 3]}))
    first.delete("id = 1")
    first.append(pa.table({"id": [4]}))
    together = {"lance_assets.together": '[["one",1],["two",1]]'}
    restored_to = first.delete("id = 2").table.restore(2).table
    restored_to.commit(
        Append((*write_fragments(restored_to, 8), *write_fragments(restored_to, 9))), properties=together
    )
    tick(discovery_sensor("s", [table.ledger]), instance)
    metadata_by_partition = {event.partition: metadata_values(event) for _, event in events(instance, table.key)}
    joined, restored = metadata_by_partition["v0000000004"], metadata_by_partition["v0000000005"]
    assert (joined["lance/planned_on"], joined["lance/rebased_over"], joined["lance/parent"]) == (1, [2, 3], 3)
    assert restored["lance/lineage"].splitlines()[-1].endswith("orders\\.lance | 2 | restored |")
    assert "lance/lineage" not in joined
    assert metadata_by_partition["v0000000006"]["lance/together"] == ["one", "two"]
    assert "lance/rebased_over" not in metadata_by_partition["v0000000002"]


def test_first_version_of_a_clone_has_no_parent(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    source = Table.create(str(tmp_path / "source.lance"), pa.table({"id": [1]})).append(pa.table({"id": [2]})).table
    table = lance_table("copy", uri=str(tmp_path / "copy.lance"))
    source.clone(table.uri)
    tick(discovery_sensor("s", [table.ledger]), instance)
    ((_, event),) = events(instance, table.key)
    assert "lance/parent" not in metadata_values(event)
    assert metadata_values(event)["lance/lineage"].splitlines()[-1].endswith("source\\.lance | 2 | begins as |")


def test_passwords_in_inputs_are_removed(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = lance_table("orders", uri=str(tmp_path / "orders.lance"))
    inputs = '{"s3://me:s3cr3t@lake/t": 1, "s3://lake/u?key=s3cr3t": 2}'
    Table.create(table.uri, pa.table({"id": [1]}), properties={"lance_assets.inputs": inputs})
    tick(discovery_sensor("s", [table.ledger]), instance)
    ((_, event),) = events(instance, table.key)
    assert metadata_values(event)["lance/inputs"] == {"s3://lake/t": 1, "s3://lake/u": 2}
    assert "s3cr3t" not in str(event)
