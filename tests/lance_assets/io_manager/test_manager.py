"""I/O manager: frames of each library in both directions, partitions, versions and columns of a load, and metadata."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import lance
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

from lance_assets import LanceIOManager, LanceResource, SparkSessionResource, lance_table
from lance_assets.ledger.recording import record_in_run
from lance_assets.ledger.version_metadata import committed_facts
from lance_assets.lineage.model import sources_of
from lance_assets.maintenance import downstream_pins
from lance_assets.maintenance.downstream_pins import pins_from_ledgers
from lance_assets.provenance.run_provenance import table_tag_name
from lance_core import Table
from tests.lance_assets.instances import events, metadata_values, partitions

ROWS = pa.table({"id": [1, 2, 3], "city": ["Oslo", None, "Lima"]})
DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-05")
CITIES = dg.StaticPartitionsDefinition(["Oslo", "Lima"])


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as each:
        yield each


@pytest.fixture
def manager(tmp_path: Path) -> LanceIOManager:
    return LanceIOManager(storage=LanceResource(root=str(tmp_path)))


def run(
    assets: list[dg.AssetsDefinition], manager: object, instance: dg.DagsterInstance, **how: Any
) -> dg.ExecuteInProcessResult:
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    return dg.materialize(assets, resources={"io_manager": manager}, instance=instance, run_config=quiet, **how)


RETURNED: list[Callable[[], Any]] = [
    lambda: ROWS,
    lambda: ROWS.to_reader(max_chunksize=2),
    lambda: ROWS.combine_chunks().to_batches()[0],
    lambda: ROWS.to_pandas(),
    lambda: pl.from_arrow(ROWS),
    lambda: pl.from_arrow(ROWS).lazy(),  # type: ignore[union-attr]
]


@pytest.mark.parametrize("make_frame", RETURNED, ids=["Table", "Reader", "Batch", "pandas", "polars", "lazy"])
def test_frames_are_returned_and_replaced(
    tmp_path: Path, manager: LanceIOManager, instance: dg.DagsterInstance, make_frame: Callable[[], Any]
) -> None:
    @dg.asset(key_prefix="shop")
    def orders():
        return make_frame()

    for _ in range(2):
        run([orders], manager, instance)
    dataset = lance.dataset(str(tmp_path / "shop" / "orders.lance"))
    assert dataset.to_table().to_pylist() == ROWS.to_pylist()
    assert [version["version"] for version in dataset.versions()] == [1, 2]
    *_, (run_id, event) = events(instance, orders.key)
    assert metadata_values(event)["dagster/row_count"] == 3
    assert metadata_values(event)["lance/version"] == 2
    properties = Table.open(tmp_path / "shop" / "orders.lance").version_info().properties
    assert properties["dagster.run_id"] == run_id
    assert properties["dagster.asset_key"] == "shop/orders"


def test_frames_are_loaded_as_their_annotation(
    tmp_path: Path, manager: LanceIOManager, instance: dg.DagsterInstance
) -> None:
    Table.create(tmp_path / "orders.lance", ROWS)
    orders = dg.AssetSpec("orders")
    loaded: dict[str, Any] = {}

    @dg.asset
    def table(orders: pa.Table) -> None:
        loaded["table"] = orders.to_pylist()

    @dg.asset
    def plain(orders) -> None:
        loaded["plain"] = orders.to_pylist()

    @dg.asset
    def reader(orders: pa.RecordBatchReader) -> None:
        loaded["reader"] = orders.read_all().to_pylist()

    @dg.asset
    def batch(orders: pa.RecordBatch) -> None:
        loaded["batch"] = orders.to_pylist()

    @dg.asset
    def pandas(orders: pd.DataFrame) -> None:
        loaded["pandas"] = pa.Table.from_pandas(orders, preserve_index=False).to_pylist()

    @dg.asset
    def polars(orders: pl.DataFrame) -> None:
        loaded["polars"] = orders.to_dicts()

    @dg.asset
    def lazy(orders: pl.LazyFrame) -> None:
        loaded["lazy"] = orders.collect().to_dicts()

    @dg.asset
    def handle(orders: Table) -> None:
        loaded["handle"] = orders.to_table().to_pylist()

    assets = [table, plain, reader, batch, pandas, polars, lazy, handle]
    done = run([orders, *assets], manager, instance, selection=assets)  # type: ignore[list-item]
    assert done.success
    assert set(loaded) == {"table", "plain", "reader", "batch", "pandas", "polars", "lazy", "handle"}
    for kind, rows in loaded.items():
        assert rows == ROWS.to_pylist(), kind


def test_columns_version_tag_and_filter_of_a_load(
    tmp_path: Path, manager: LanceIOManager, instance: dg.DagsterInstance
) -> None:
    first = Table.create(tmp_path / "orders.lance", ROWS)
    first.tags.create("spring")
    first.append(pa.table({"id": [4], "city": ["Pune"]}))
    loaded: dict[str, Any] = {}

    @dg.asset(ins={"orders": dg.AssetIn(metadata={"columns": ["id"], "version": 1})})
    def old(orders: pa.Table) -> pa.Table:
        loaded["old"] = orders.to_pydict()
        return orders

    @dg.asset(ins={"orders": dg.AssetIn(metadata={"tag": "spring", "filter": "city is null"})})
    def tagged(orders: pa.Table) -> None:
        loaded["tagged"] = orders["id"].to_pylist()

    @dg.asset(ins={"orders": dg.AssetIn(metadata={"colums": ["id"]})})
    def misspelt(orders: pa.Table) -> None: ...

    specs = [dg.AssetSpec("orders")]
    run([*specs, old, tagged], manager, instance, selection=[old, tagged])  # type: ignore[list-item]
    assert loaded == {"old": {"id": [1, 2, 3]}, "tagged": [2]}
    old_info = Table.open(tmp_path / "old.lance").version_info()
    assert json.loads(old_info.properties["lance_assets.inputs"]) == {first.uri: 1}
    failed = run([*specs, misspelt], manager, instance, selection=[misspelt], raise_on_error=False)  # type: ignore[list-item]
    assert "'colums'" in reason(failed)


def test_partition_replaces_only_its_own_rows(
    tmp_path: Path, manager: LanceIOManager, instance: dg.DagsterInstance
) -> None:
    rows = {"n": 1}

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"}, backfill_policy=dg.BackfillPolicy.single_run())
    def orders(context: dg.AssetExecutionContext) -> pl.DataFrame:
        days = [day for day in context.partition_keys for _ in range(rows["n"])]
        return pl.DataFrame({"day": days, "n": [rows["n"]] * len(days)}).with_columns(pl.col("day").str.to_date())

    @dg.asset(partitions_def=DAYS)
    def counted(orders: pa.Table) -> pa.Table:
        return pa.table({"day": orders["day"], "n": orders["n"]})

    for day in ("2026-01-01", "2026-01-02"):
        run([orders], manager, instance, partition_key=day)
    rows["n"] = 2
    run([orders], manager, instance, partition_key="2026-01-01")
    table = Table.open(tmp_path / "orders.lance")
    assert counts(table) == {"2026-01-01": 2, "2026-01-02": 1}
    assert table.version == 3
    assert table.version_info().properties["dagster.partition"] == "2026-01-01"
    # Several partitions in one run are one replaced range and one version.
    rows["n"] = 3
    span = {"dagster/asset_partition_range_start": "2026-01-02", "dagster/asset_partition_range_end": "2026-01-04"}
    run([orders], manager, instance, tags=span)
    table = table.refresh()
    assert counts(table) == {"2026-01-01": 2, "2026-01-02": 3, "2026-01-03": 3, "2026-01-04": 3}
    assert table.version == 4
    assert table.version_info().properties["dagster.partition"] == "2026-01-02...2026-01-04"
    # A partition is loaded as its own rows. The downstream asset does not declare a partition column.
    failed = run(
        [orders, counted], manager, instance, partition_key="2026-01-03", selection=[counted], raise_on_error=False
    )
    assert "partition_expr" in reason(failed)
    unpartitioned = dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"}, name="kept")(
        lambda orders: orders
    )
    run([orders, unpartitioned], manager, instance, partition_key="2026-01-03", selection=[unpartitioned])
    assert counts(Table.open(tmp_path / "kept.lance")) == {"2026-01-03": 3}


def test_declared_table_is_loaded_at_the_mapped_version(
    tmp_path: Path, manager: LanceIOManager, instance: dg.DagsterInstance
) -> None:
    orders = lance_table("orders", uri=str(tmp_path / "elsewhere" / "o.lance"), discover=False, profile=False)
    table = Table.create(orders.uri, ROWS).append(pa.table({"id": [4], "city": ["Pune"]})).table
    instance.add_dynamic_partitions("lance/orders", ["v0000000001", "v0000000002"])
    table.append(pa.table({"id": [5], "city": ["Pune"]}))
    loaded_rows: dict[str, int] = {}

    @dg.asset(ins={"orders": dg.AssetIn(partition_mapping=dg.LastPartitionMapping())})
    def newest(orders: pa.Table) -> None:
        loaded_rows["newest"] = orders.num_rows

    @dg.asset
    def plain(orders: pa.Table) -> None:
        loaded_rows["plain"] = orders.num_rows

    @dg.asset(partitions_def=orders.partitions)
    def each(context: dg.AssetExecutionContext, orders: pa.Table) -> None:
        loaded_rows[context.partition_key] = orders.num_rows

    run([orders.spec, newest], manager, instance, selection=[newest])  # type: ignore[list-item]
    run([orders.spec, plain], manager, instance, selection=[plain])  # type: ignore[list-item]
    run([orders.spec, each], manager, instance, selection=[each], partition_key="v0000000001")  # type: ignore[list-item]
    # The third version is not on the ledger yet.
    assert loaded_rows == {"newest": 5, "plain": 5, "v0000000001": 3}


def test_run_reads_one_version_as_the_newest(
    tmp_path: Path, manager: LanceIOManager, instance: dg.DagsterInstance
) -> None:
    """The version stays the same until the run itself has committed one."""
    table = lance_table("orders", uri=str(tmp_path / "elsewhere" / "o.lance"), discover=False, profile=False)
    Table.create(table.uri, ROWS)
    instance.add_dynamic_partitions("lance/orders", ["v0000000001"])
    newest = dg.AssetIn("orders", partition_mapping=dg.LastPartitionMapping())
    loaded_rows: list[int] = []

    @dg.asset(ins={"orders": newest})
    def first(orders: pa.Table) -> pa.Table:
        loaded_rows.append(orders.num_rows)
        Table.open(table.uri).append(ROWS)
        return orders

    @dg.asset(ins={"orders": newest}, deps=[first])
    def second(context: dg.AssetExecutionContext, orders: pa.Table) -> None:
        loaded_rows.append(orders.num_rows)
        facts = committed_facts(Table.open(table.uri).append(ROWS), 1)
        record_in_run(context, table.ledger, facts, Table.open(table.uri))

    @dg.asset(ins={"orders": newest}, deps=[second])
    def third(orders: pa.Table) -> None:
        loaded_rows.append(orders.num_rows)

    assets = [first, second, third]
    result = run([table.spec, *assets], manager, instance, selection=assets)  # type: ignore[list-item]
    assert loaded_rows == [3, 3, 9]
    stored_run = instance.get_run_by_id(result.run_id)
    assert stored_run is not None
    name = table_tag_name(table.uri, None)
    pinned = [stored_run.tags[prefix + name] for prefix in ("lance.read/", "lance.committed/")]
    assert (pinned, stored_run.tags["lance/orders"]) == (["1", "3"], "v0000000003")
    # The output names the version that was read as its input.
    properties = Table.open(tmp_path / "first.lance").version_info().properties
    assert {(source.name.uri, source.name.version) for source in sources_of("", properties, None)} == {(table.uri, 1)}
    assert partitions(instance, table) == [f"v{number:010}" for number in range(1, 4)]
    # A re-execution of a successful run inherits its tags, and reads the newest version all the same.
    Table.open(table.uri).append(ROWS)
    inherited = {name: value for name, value in stored_run.tags.items() if name.startswith("lance")}
    run([table.spec, third], manager, instance, selection=[third], tags=inherited)  # type: ignore[list-item]
    assert loaded_rows[-1] == 12


def test_table_of_a_branch_is_loaded_from_the_branch(
    tmp_path: Path, manager: LanceIOManager, instance: dg.DagsterInstance
) -> None:
    orders = lance_table("orders", uri=str(tmp_path / "o.lance"), discover=False, profile=False, branches=["dev"])
    Table.create(orders.uri, ROWS).branches.create("dev")
    Table.open(orders.uri, branch="dev").append(ROWS)
    dev = orders.branch("dev")
    loaded_rows: list[int] = []

    @dg.asset(ins={"rows": dg.AssetIn(dev.key, partition_mapping=dg.LastPartitionMapping())})
    def newest(rows: pa.Table) -> None:
        loaded_rows.append(rows.num_rows)

    # The ledger has no partition in the first run and several in the second.
    run([orders.spec, dev.spec, newest], manager, instance, selection=[newest])  # type: ignore[list-item]
    instance.add_dynamic_partitions("lance/orders@dev", ["v0000000001", "v0000000002"])

    @dg.asset(ins={"rows": dg.AssetIn(dev.key, partition_mapping=dg.AllPartitionMapping())})
    def every(rows: pa.Table) -> None:
        loaded_rows.append(rows.num_rows)

    run([orders.spec, dev.spec, every], manager, instance, selection=[every])  # type: ignore[list-item]
    assert loaded_rows == [6, 6]


def test_version_that_is_an_input_is_retained(
    tmp_path: Path, manager: LanceIOManager, instance: dg.DagsterInstance
) -> None:
    """It is retained until each partition has a newer version of the downstream asset."""
    table = Table.create(tmp_path / "orders.lance", ROWS)

    @dg.asset(partitions_def=CITIES, metadata={"partition_expr": "city"})
    def kept(context: dg.AssetExecutionContext, orders: pa.Table) -> pa.Table:
        return orders.filter(pc.equal(orders["city"], context.partition_key))

    specs = [dg.AssetSpec("orders")]
    for city in ("Oslo", "Lima", "Oslo"):
        run([*specs, kept], manager, instance, selection=[kept], partition_key=city)  # type: ignore[list-item]
        table = table.append(ROWS).table
    assert set(pins_from_ledgers(instance)[table.uri]) == {2, 3}


def test_inputs_of_every_partition_are_retained(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    """An asset with more materializations than a page: rare partitions, an unpartitioned past, and a busy partition."""
    monkeypatch.setattr(downstream_pins, "PAGE_SIZE", 4)

    def materialize(asset: str, version: int, partition: str | None) -> None:
        metadata = {"lance/inputs": {"orders.lance": version}}
        instance.report_runless_asset_event(dg.AssetMaterialization(asset, partition=partition, metadata=metadata))

    for version in range(1, 11):
        materialize("kept", version, f"rare {version}")
    for version in range(11, 31):
        materialize("kept", version, "busy")
        materialize("whole", 100 + version, None)
    assert set(pins_from_ledgers(instance)["orders.lance"]) == {*range(1, 11), 30, 130}


def test_metadata_of_a_removed_version_is_not_that_of_the_newest(
    tmp_path: Path, manager: LanceIOManager, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dg.asset
    def kept() -> pa.Table:
        return ROWS

    with monkeypatch.context() as patch:  # the run ends between the commit and Dagster's event
        patch.setattr("lance_assets.io_manager.manager.metadata_of", lambda *_, **__: 1 / 0)
        failed = run([kept], manager, instance, raise_on_error=False)
    table = Table.open(tmp_path / "kept.lance")
    for _ in range(2):
        table = table.append(ROWS).table
    lance.dataset(table.uri).cleanup_old_versions(older_than=timedelta(0))
    again = {"dagster/parent_run_id": failed.run_id, "dagster/is_resume_retry": "true"}
    run([kept], manager, instance, tags=again)
    (_, event) = events(instance, kept.key)[-1]
    assert set(metadata_values(event)) == {"lance/version", "lance/operation", "lance/landed_before", "lance/gone"}
    assert metadata_values(event)["lance/version"] == 1
    assert "committed before, as version 1, which cleanup has removed since" in metadata_values(event)["lance/gone"]
    assert Table.open(table.uri).version == 3


def test_two_versions_of_one_table_are_both_recorded(
    tmp_path: Path, manager: LanceIOManager, instance: dg.DagsterInstance
) -> None:
    table = Table.create(tmp_path / "orders.lance", ROWS).append(ROWS).table

    earlier = dg.AssetSpec("earlier", metadata={"uri": table.uri})  # Dagster accepts one input per key

    @dg.asset(ins={"now": dg.AssetIn("orders"), "before": dg.AssetIn("earlier", metadata={"version": 1})})
    def arrived(now: pa.Table, before: pa.Table) -> pa.Table:
        return now.slice(before.num_rows)

    run([dg.AssetSpec("orders"), earlier, arrived], manager, instance, selection=[arrived])  # type: ignore[list-item]
    arrived_table = Table.open(tmp_path / "arrived.lance")
    (event,) = instance.fetch_materializations(arrived.key, limit=10).records
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["lance/inputs"].value == {table.uri: [1, 2]}
    assert {
        source.name.version for source in sources_of(arrived_table.uri, arrived_table.version_info().properties, None)
    } == {1, 2}
    assert set(pins_from_ledgers(instance)[table.uri]) == {1, 2}


def test_rows_of_another_partition_are_refused(
    tmp_path: Path, manager: LanceIOManager, instance: dg.DagsterInstance
) -> None:
    @dg.asset(partitions_def=CITIES, metadata={"partition_expr": "city"})
    def orders() -> pa.Table:
        return ROWS

    failed = run([orders], manager, instance, partition_key="Oslo", raise_on_error=False)
    assert "orders" in reason(failed)
    assert "Oslo" in reason(failed)
    assert not Table.exists(str(tmp_path / "orders.lance"))


def test_appending_and_a_retried_run(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    manager = LanceIOManager(storage=LanceResource(root=str(tmp_path)), mode="append")
    poison = {"left": 1}

    @dg.asset(metadata={"uri": "elsewhere.lance"})
    def orders() -> pd.DataFrame:
        return ROWS.to_pandas()

    @dg.asset(deps=[orders])
    def after() -> None:
        if poison["left"]:
            poison["left"] = 0
            raise ValueError("not yet")

    failed = run([orders, after], manager, instance, raise_on_error=False)
    family = {"dagster/parent_run_id": failed.run_id, "dagster/root_run_id": failed.run_id}
    run([orders, after], manager, instance, tags=family)
    assert Table.open(tmp_path / "elsewhere.lance").count_rows() == 3
    run([orders], manager, instance)
    table = Table.open(tmp_path / "elsewhere.lance")
    assert (table.version, table.count_rows()) == (2, 6)


def test_spark_frames_are_not_collected(tmp_path: Path, instance: dg.DagsterInstance, spark: SparkSession) -> None:
    manager = LanceIOManager(storage=LanceResource(root=str(tmp_path)), spark=SparkSessionResource())

    @dg.asset(partitions_def=CITIES, metadata={"partition_expr": "city"})
    def orders(context: dg.AssetExecutionContext) -> DataFrame:
        return spark.range(3).selectExpr("id", f"'{context.partition_key}' as city")

    @dg.asset(
        partitions_def=CITIES, metadata={"mode": "append"}, ins={"orders": dg.AssetIn(metadata={"columns": ["id"]})}
    )
    def ids(orders: DataFrame) -> DataFrame:
        return orders.where("id > 0")

    for city in ("Oslo", "Lima", "Oslo"):
        run([orders, ids], manager, instance, partition_key=city)
    table = Table.open(tmp_path / "orders.lance")
    assert sorted(table.to_table()["city"].to_pylist()) == ["Lima"] * 3 + ["Oslo"] * 3
    assert Table.open(tmp_path / "ids.lance").to_table().to_pydict() == {"id": [1, 2] * 3}
    assert json.loads(Table.open(tmp_path / "ids.lance").version_info().properties["lance_assets.inputs"]) == {
        table.uri: 3
    }


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda: 3, "returned a int; return a pyarrow.Table"),
        (lambda: None, "returned a NoneType"),
        (lambda: pa.table({"id": ["x"]}), "id"),
    ],
)
def test_errors_of_wrong_outputs(
    tmp_path: Path, instance: dg.DagsterInstance, returned: Callable[[], Any], message: str
) -> None:
    Table.create(tmp_path / "orders.lance", ROWS)

    @dg.asset(metadata={"mode": "append"})
    def orders():
        return returned()

    failed = run([orders], LanceIOManager(storage=LanceResource(root=str(tmp_path))), instance, raise_on_error=False)
    assert message in reason(failed)
    assert reason(failed).startswith("orders: ")
    assert Table.open(tmp_path / "orders.lance").version == 1


def test_unknown_modes_are_refused_at_declaration() -> None:
    with pytest.raises(Exception, match="mode is 'overwrite' or 'append', not 'replace'"):
        LanceIOManager(mode="replace")


def counts(table: Table) -> dict[str, int]:
    counts_by_name: dict[str, int] = {}
    for day in table.to_table(columns=["day"])["day"].to_pylist():
        counts_by_name[str(day)] = counts_by_name.get(str(day), 0) + 1
    return dict(sorted(counts_by_name.items()))


def reason(result: dg.ExecuteInProcessResult) -> str:
    (failure,) = (event.step_failure_data for event in result.all_events if event.is_step_failure)
    assert failure
    return (
        failure.user_failure_data.description if failure.user_failure_data else None
    ) or failure.error_display_string
