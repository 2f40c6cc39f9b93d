"""Pinned versions: the readers of one run get the same version of a table, whatever other writers commit meanwhile."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lance_assets import LanceIOManager, LanceResource, SparkAppend, SparkSessionResource, WriteContext, lance_table
from lance_assets.provenance.run_provenance import table_tag_name
from lance_core import Table

ROW = pa.table({"id": [1]})


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as each:
        yield each


def execute(
    assets: list[dg.AssetsDefinition],
    instance: dg.DagsterInstance,
    resources: Mapping[str, object],
    tags: dict[str, str] | None = None,
    specs: Sequence[dg.AssetSpec] = (),
) -> dg.DagsterRun:
    keys = [key for each in assets for key in each.keys]
    job = dg.define_asset_job("job", keys, executor_def=dg.in_process_executor)
    definitions = dg.Definitions([*assets, *specs], jobs=[job], resources=resources)
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    result = definitions.resolve_job_def("job").execute_in_process(instance=instance, run_config=quiet, tags=tags)
    stored = instance.get_run_by_id(result.run_id)
    assert stored is not None
    return stored


def committed_inputs(uri: str | Path) -> object:
    return json.loads(Table.open(uri).version_info().properties["lance_assets.inputs"])


@pytest.mark.parametrize("first", ["resource", "loaded", "write"])
def test_all_readers_of_a_run_get_one_version(
    first: str, tmp_path: Path, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    """The resource, an input of the I/O manager and `ctx.read` share the version that the first of them chose."""
    source = lance_table("source", uri=str(tmp_path / "source.lance"), discover=False, profile=False)
    Table.create(source.uri, ROW, durable=False)
    counts: dict[str, int] = {}

    def commit() -> None:
        Table.open(source.uri).append(ROW)

    def by_resource(deps: Sequence[dg.AssetKey] = ()) -> dg.AssetsDefinition:
        @dg.asset(deps=deps)
        def resource(lance: LanceResource) -> pa.Table:
            counts["resource"] = lance.open("source.lance").count_rows()
            assert lance.open("source.lance", version=1).count_rows() == 1
            commit()
            return ROW

        return resource

    def by_input(deps: Sequence[dg.AssetKey]) -> dg.AssetsDefinition:
        @dg.asset(deps=deps, ins={"source": dg.AssetIn(partition_mapping=dg.LastPartitionMapping())})
        def loaded(source: pa.Table) -> None:
            counts["loaded"] = source.num_rows
            commit()

        return loaded

    def copy(spark: SparkSession, ctx: WriteContext) -> DataFrame:
        rows = ctx.read(source)
        counts["write"] = rows.count()
        commit()
        return rows

    def by_write(deps: Sequence[dg.AssetKey]) -> dg.AssetsDefinition:
        target = lance_table("target", uri=target_uri, writes=[SparkAppend("write", copy, deps=deps)])
        definitions = [each for each in target.defs.assets or () if isinstance(each, dg.AssetsDefinition)]
        return next(each for each in definitions if target.write_key("write") in each.keys)

    target_uri = str(tmp_path / "target.lance")
    readers = {"resource": by_resource, "loaded": by_input, "write": by_write}
    assets: list[dg.AssetsDefinition] = []
    for name in [first, *(name for name in readers if name != first)]:
        assets.append(readers[name]([each.key for each in assets]))
    resources = {
        "lance": LanceResource(root=str(tmp_path)),
        "io_manager": LanceIOManager(storage=LanceResource(root=str(tmp_path))),
        "spark": SparkSessionResource(),
    }
    stored = execute(assets, instance, resources, specs=[source.spec])
    assert counts == dict.fromkeys(readers, 1)
    assert stored.tags["lance.read/" + table_tag_name(source.uri, None)] == "1"
    assert committed_inputs(target_uri) == {source.uri: 1}
    assert committed_inputs(tmp_path / "resource.lance") == {source.uri: 1}
    # Another run gets the newest version, also if it inherits the tags.
    inherited = {name: value for name, value in stored.tags.items() if name.startswith("lance")}
    execute([by_resource()], instance, resources, inherited)
    assert counts["resource"] == 4


def test_versions_that_the_run_commits_are_read(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """The I/O manager and tables of the resource note what they commit; after other commits, code opens with
    `refresh=True`."""
    counts: list[int] = []

    def count(lance: LanceResource, *, refresh: bool = False) -> None:
        counts.append(lance.open("stored.lance", refresh=refresh).count_rows())

    @dg.asset
    def before(lance: LanceResource) -> dg.MaterializeResult[None]:
        count(lance)
        return dg.MaterializeResult()

    @dg.asset(deps=[before], metadata={"mode": "append"})
    def stored() -> pa.Table:
        return ROW

    @dg.asset(deps=[stored])
    def after(lance: LanceResource) -> dg.MaterializeResult[None]:
        count(lance)
        Table.open(tmp_path / "stored.lance").append(ROW)
        count(lance)
        count(lance, refresh=True)
        count(lance)
        return dg.MaterializeResult()

    @dg.asset(deps=[after])
    def through(lance: LanceResource) -> dg.MaterializeResult[None]:
        opened = lance.open("stored.lance")
        committed = opened.append(ROW)
        count(lance)
        committed.table.append(ROW)
        count(lance)
        opened.branches.create("dev").append(ROW)
        Table.open(tmp_path / "stored.lance").append(ROW)
        return dg.MaterializeResult()

    @dg.asset(deps=[through])
    def last(lance: LanceResource) -> dg.MaterializeResult[None]:
        count(lance)
        lance.open("stored.lance", version=1).append(ROW)
        count(lance)
        return dg.MaterializeResult()

    Table.create(tmp_path / "stored.lance", ROW, durable=False)
    storage = LanceResource(root=str(tmp_path))
    assets: list[dg.AssetsDefinition] = [before, stored, after, through, last]
    execute(assets, instance, {"lance": storage, "io_manager": LanceIOManager(storage=storage)})
    assert counts == [1, 2, 2, 3, 3, 4, 5, 5, 7]
    assert storage.open("stored.lance").count_rows() == 7  # outside of a run


@pytest.mark.parametrize("branch", [None, "dev"])
def test_each_branch_has_its_own_pin(branch: str | None, tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = Table.create(tmp_path / "t.lance", ROW, durable=False)
    table.branches.create("dev")
    counts: list[int] = []
    commits: list[Callable[[], object]] = [
        lambda: Table.open(table.uri).append(ROW),
        lambda: Table.open(table.uri, branch="dev").append(ROW),
    ]

    @dg.asset
    def reads(lance: LanceResource) -> None:
        lance.open("t.lance", branch="dev" if branch is None else None)
        for commit in commits:
            commit()
        for _ in range(2):
            counts.append(lance.open("t.lance", branch=branch).count_rows())
            commits[branch is not None]()

    execute([reads], instance, {"lance": LanceResource(root=str(tmp_path))})
    assert counts == [2, 2]
