"""Branches: a declared branch has its own ledger for our writes and for those of other writers."""

from pathlib import Path

import dagster as dg
import lance
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lance_assets import LanceTable, SparkAppend, SparkSessionResource, WriteContext, lance_table
from lance_core import InvalidInput, Table
from tests.lance_assets.instances import events, metadata_values, partitions, run, tick

ROWS = pa.table({"id": [1, 2]})


NAMES = ("by_dep", "by_key", "by_spec", "by_path")


def more(spark: SparkSession, ctx: WriteContext) -> DataFrame:
    before = ctx.read().count()
    return spark.range(before, before + 3, 1, 1)


def declare_branch(folder: Path) -> LanceTable:
    return lance_table(
        "t",
        uri=str(folder / "t.lance"),
        key_prefix="lake",
        writes=[SparkAppend("main_append", more), SparkAppend("dev_append", more, branch="dev/x")],
        branches=["dev/x"],
    )


@pytest.fixture
def instance(tmp_path: Path) -> dg.DagsterInstance:
    return dg.DagsterInstance.ephemeral(tempdir=str(tmp_path))


def test_each_branch_has_its_ledger(tmp_path: Path, instance: dg.DagsterInstance, spark: SparkSession) -> None:
    table = declare_branch(tmp_path)
    dev = table.branch("dev/x")
    assert dev.key == dg.AssetKey(["lake", "t@dev.x"])
    graph = dg.Definitions.merge(table.defs, dg.Definitions(resources={"spark": SparkSessionResource()}))
    parents = {key: graph.resolve_asset_graph().get(key).parent_keys for key in (table.key, dev.key)}
    assert parents == {table.key: {table.write_key("main_append")}, dev.key: {table.write_key("dev_append")}}
    created = Table.create(table.uri, ROWS)
    (sensor,) = table.defs.sensors or ()
    cursor, _ = tick(sensor, instance)
    assert partitions(instance, dev) == []
    created.branches.create("dev/x")
    ran = run(table, "dev_append", instance, SparkSessionResource())
    head = Table.open(table.uri, branch="dev/x")
    assert (head.count_rows(), Table.open(table.uri).count_rows()) == (5, 2)
    *_, (run_id, event) = events(instance, dev.key)
    assert (run_id, event.partition) == (ran.run_id, f"v{head.version:010}")
    assert metadata_values(event)["lance/written_by"] == "lake/dev_append"
    assert instance.get_run_by_id(ran.run_id).tags["lance/lake.t_at_dev.x"] == event.partition  # type: ignore[union-attr]
    lance.dataset(table.uri).checkout_version(("dev/x", None)).insert(pa.table({"id": [9]}))
    cursor, _ = tick(sensor, instance, cursor)
    assert sorted(partitions(instance, dev)) == [f"v{number:010}" for number in (1, 2, 3)]
    assert partitions(instance, table) == ["v0000000001"]
    # Nothing is recorded twice, and a recreated branch starts a new incarnation.
    cursor, skip_message = tick(sensor, instance, cursor)
    assert skip_message == "no new versions"
    Table.open(table.uri).branches.delete("dev/x")
    Table.open(table.uri).branches.create("dev/x")
    tick(sensor, instance, cursor)
    assert [event.partition for _, event in events(instance, dev.key)][-1] == "w02.v0000000001"


def test_assets_depend_on_a_branch(tmp_path: Path) -> None:
    """Dagster refuses its key among `deps`, so the deps of a write become inputs, and other assets use `ins`."""
    table = declare_branch(tmp_path)
    dev = table.branch("dev/x")

    @dg.asset(ins=dev.ins)
    def report() -> None: ...

    other = lance_table(
        "other",
        uri=str(tmp_path / "other.lance"),
        writes=[
            SparkAppend("by_dep", more, deps=[dev.dep, "raw"]),
            SparkAppend("by_key", more, deps=[dev.key]),
            SparkAppend("by_spec", more, deps=[dev.spec]),
            SparkAppend("by_path", more, deps=[["lake", "t@dev.x"]]),
        ],
    )
    resources = {"spark": SparkSessionResource()}
    graph = dg.Definitions.merge(table.defs, other.defs, dg.Definitions([report], resources=resources))
    parents = {name: graph.resolve_asset_graph().get(dg.AssetKey(name)).parent_keys for name in NAMES}
    assert parents.pop("by_dep") == {dev.key, dg.AssetKey("raw")}
    assert set(map(frozenset, parents.values())) == {frozenset([dev.key])}
    assert graph.resolve_asset_graph().get(report.key).parent_keys == {dev.key}


@pytest.mark.parametrize(
    ("branches", "message"),
    [(["a/b", "a.b"], "would declare 't@a.b' twice"), (["main"], "without the main branch"), ([], "'dev'")],
)
def test_invalid_declarations(branches: list[str], message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        lance_table("t", uri="t.lance", branches=branches, writes=[SparkAppend("w", more, branch="dev")])
    assert message in str(refused.value)
