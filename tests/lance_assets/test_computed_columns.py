"""Computed columns in Dagster with real Spark: declared once, filled by runs, and fresh again after new rows."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

from lance_assets import (
    ColumnFresh,
    LanceTable,
    SparkAppend,
    SparkComputedColumn,
    SparkSessionResource,
    WriteContext,
    lance_table,
    lance_write,
)
from lance_core import InvalidInput, Table
from tests.lance_assets.instances import metadata_values


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as each:
        yield each


@pytest.fixture
def resource(spark: SparkSession) -> SparkSessionResource:
    """Spark resource on the shared application of the tests."""
    return SparkSessionResource()


def pages(spark: SparkSession, ctx: WriteContext) -> DataFrame:
    day = int(ctx.partition_key or 0)
    return spark.range(100 * day, 100 * day + 100, 1, 2).selectExpr("id", "concat('page ', id) AS title")


def load_model() -> Callable[[pa.RecordBatch], pa.Array]:
    """Return the function of a model that remembers the process in which it was loaded."""
    loaded_in = os.getpid()

    def lengths(batch: pa.RecordBatch) -> pa.Array:
        assert os.getpid() == loaded_in
        return pc.utf8_length(batch.column("title"))

    return lengths


async def connect(is_down: Path) -> Callable[[dict[str, str]], Awaitable[str]]:
    """Return the function of a service, which fails for some rows while a file exists."""

    async def language(row: dict[str, str]) -> str:
        await asyncio.sleep(0)
        if row["title"].endswith("7") and is_down.exists():
            raise LookupError(f"no language for {row['title']}")
        return "en"

    return language


def table_of(folder: Path, code_version: str) -> LanceTable:
    days = dg.StaticPartitionsDefinition(["0", "1", "2"])
    return lance_table(
        "pages",
        uri=str(folder / "pages.lance"),
        writes=[SparkAppend("pages_append", pages, partitions=days)],
        computed=[
            SparkComputedColumn("is_long", type=pa.bool_(), sql="length > 7"),
            SparkComputedColumn(
                "length",
                type=pa.int32(),
                setup=load_model,
                inputs=["title"],
                code_version=code_version,
                automation="on_new_version",
            ),
            SparkComputedColumn(
                "language",
                type=pa.string(),
                setup=partial(connect, folder / "is_down"),
                inputs=["title"],
                per="row",
                concurrency=8,
                rate_limit=5000,
                timeout=60,
                retries=1,
                on_error="skip",
                resources={"cpus": 1},  # ignored by a local master
            ),
        ],
        checks=[ColumnFresh("length", at_least=0.9)],
        profile=False,
    )


def metadata_of(result: dg.ExecuteInProcessResult, key: dg.AssetKey) -> dict[str, object]:
    """Return the metadata of the materialization of a write."""
    events = result.asset_materializations_for_node(key.path[-1])
    return metadata_values(next(event for event in events if event.asset_key == key))


def test_a_declared_column_is_filled_again_after_new_rows(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    def materialize(
        table: LanceTable, *names: str, partition: str | None = None, config: dict[str, object] | None = None
    ) -> dict[str, object]:
        result = dg.materialize(
            list(table.defs.assets or ()),  # type: ignore[arg-type]
            selection=[table.write_key(name) for name in names],
            instance=instance,
            resources={"spark": resource},
            partition_key=partition,
            run_config={"ops": {names[-1]: {"config": config}}} if config else None,
        )
        assert result.success
        return metadata_of(result, table.write_key(names[-1]))

    is_down = tmp_path / "is_down"
    is_down.touch()
    table = table_of(tmp_path, "1")
    materialize(table, "pages_append", partition="0")
    filled = materialize(table, "pages_length")
    assert (filled["lance/rows_computed"], filled["lance/filled_share"]) == (100, 1.0)
    lineage = dg.TableColumnLineage({"length": [dg.TableColumnDep(dg.AssetKey("pages"), "title")]})
    assert filled["dagster/column_lineage"] == lineage
    materialize(table, "pages_append", partition="1")
    freshness = Table.open(table.uri).freshness("length")
    assert freshness is not None
    assert (freshness.rows, freshness.new) == (200, 100)
    result = dg.materialize(
        list(table.defs.assets or ()),  # type: ignore[arg-type]
        selection=[table.write_key("pages_is_long"), table.write_key("pages_length")],
        instance=instance,
        resources={"spark": resource},
    )
    assert result.success
    steps = [event.step_key for event in result.all_events if event.event_type_value == "STEP_SUCCESS"]
    assert steps == ["pages_length", "pages_is_long"]
    rows = Table.open(table.uri).to_table().to_pylist()
    assert all(row["length"] == len(row["title"]) and row["is_long"] == (row["length"] > 7) for row in rows)
    assert metadata_of(result, table.write_key("pages_length"))["lance/rows_new"] == 100
    newer = table_of(tmp_path, "2")
    again = materialize(newer, "pages_length")
    assert (again["lance/rows_computed"], again["lance/rows_of_older_code"]) == (200, 200)
    assert (again["lance/share_of_code 2"], again.get("lance/share_of_code 1")) == (1.0, None)
    assert materialize(newer, "pages_length")["lance/rows_computed"] == 0
    assert materialize(newer, "pages_length", config={"mode": "recompute"})["lance/rows_computed"] == 200
    failed = materialize(newer, "pages_language")
    assert (failed["lance/rows_computed"], failed["lance/rows_failed"], failed["lance/rows_stale"]) == (180, 20, 20)
    assert failed["lance/errors_table"] == str(tmp_path / "pages_errors.lance")
    records = cast(dg.TableMetadataValue, failed["lance/failed_rows"]).records
    assert records[0].data["message"] == "no language for page 7"
    is_down.unlink()
    repaired = materialize(newer, "pages_language")
    assert (repaired["lance/rows_computed"], repaired["lance/rows_stale"]) == (20, 0)
    assert Table.open(table.uri).failed_rows().num_rows == 0
    assert "lance/errors_table" not in repaired


def test_a_new_version_starts_a_fill(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    table = table_of(tmp_path, "1")
    defs = dg.Definitions.merge(table.defs, dg.Definitions(resources={"spark": resource}))
    keys = [table.write_key(name) for name in ("pages_length", "pages_is_long")]

    def requested(cursor: Any) -> tuple[list[int], Any]:
        result = dg.evaluate_automation_conditions(defs, instance, cursor=cursor)
        return [result.get_num_requested(key) for key in keys], result.cursor

    before, cursor = requested(None)
    instance.add_dynamic_partitions(table.ledger.partition_set, ["v0000000001"])
    instance.report_runless_asset_event(dg.AssetMaterialization(table.key, partition="v0000000001"))
    after, cursor = requested(cursor)
    idle, cursor = requested(cursor)
    assert (before, after, idle) == ([0, 0], [1, 0], [0, 0])


@pytest.mark.parametrize(
    ("sql", "columns", "others"),
    [
        ("length(title) + words", {"title", "words"}, {"length"}),
        ("cast(ts as date)", {"ts"}, {"date"}),
        ("s.total + `odd name`", {"s", "odd name"}, {"total"}),
        ("total || 'title' || \"words\"", {"total"}, {"title", "words"}),
    ],
)
def test_the_names_in_sql_are_columns(sql: str, columns: set[str], others: set[str]) -> None:
    names = set(SparkComputedColumn("length", type=pa.string(), sql=sql, name="n").names_read())
    assert columns <= names
    assert names.isdisjoint(others)


def test_computed_columns_cannot_read_each_other(tmp_path: Path) -> None:
    columns = [
        SparkComputedColumn("a", type=pa.int64(), sql="b + 1"),
        SparkComputedColumn("b", type=pa.int64(), sql="a - 1"),
    ]
    with pytest.raises(InvalidInput, match="a from b from a"):
        lance_table("loop", uri=str(tmp_path / "loop.lance"), computed=columns)


def test_a_decorated_function_computes_a_column(tmp_path: Path) -> None:
    is_long = SparkComputedColumn("is_long", type=pa.bool_(), sql="words > 2")
    table = lance_table("pages", uri=str(tmp_path / "pages.lance"), computed=[is_long], profile=False)

    @lance_write(table=table, op="compute_column", column="words", type=pa.int64(), inputs=["title"], per="row")
    async def pages_words(row: dict[str, str]) -> int:
        return len(row["title"].split())

    assets = {each.key: each for each in table.defs.assets or () if isinstance(each, dg.AssetsDefinition)}
    assert assets[table.write_key("pages_is_long")].asset_deps[table.write_key("pages_is_long")] == {
        table.write_key("pages_words")
    }
    written_of = "Computes the column is_long of the Lance table pages: `words > 2`"
    assert assets[table.write_key("pages_is_long")].descriptions_by_key == {
        table.write_key("pages_is_long"): written_of
    }
    model = SparkComputedColumn("length", type=pa.int32(), setup=load_model, inputs=["title"], name="pages_length")
    assert model.default_description("pages") == (
        "Computes the column length of the Lance table pages: Return the function of a model that remembers the "
        "process in which it was loaded."
    )
