"""Declarations: writes declared by decorators, and the errors of contradictory declarations."""

import functools
import inspect
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

import lance_assets
from lance_assets import (
    LanceTable,
    Maintenance,
    Scrub,
    SparkAppend,
    SparkCompact,
    SparkComputedColumn,
    lance_table,
    lance_view,
    lance_write,
)
from lance_assets.definitions.uniqueness import normalized_uri
from lance_core import InvalidInput

DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01")


def orders(location: Path | str = "/lake/declared.lance", **options: Any) -> LanceTable:
    return lance_table("orders", uri=str(location), key_prefix="lake", **options)


def test_decorated_function_stays_callable() -> None:
    table = orders(writes=[SparkCompact("tidy")])

    def arrived(spark: Any, ctx: Any) -> str:
        """Orders that arrived,
        as they come.

        How they come is no matter.
        """
        return f"{spark} {ctx}"

    same = lance_write(table=table, op="append", partitions=DAYS, once_per="partition", deps=["queue"])(arrived)
    assert same is arrived
    assert same("a session", "a context") == "a session a context"

    @lance_write(table=table, op="upsert", name="corrections", on="order_id", description="By hand.")
    def corrected(spark: Any, ctx: Any) -> None: ...

    @lance_write(table=table, op="merge_columns")
    def scores(spark: Any, ctx: Any) -> None: ...

    @lance_write(table=table, op="map_columns", schema=pa.schema([("length", pa.int32())]), read_columns=["text"])
    def lengths(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    @lance_write(table=table, op="ingest", format="json")
    def landed(ctx: Any) -> str:
        return "landing"

    assert [write.name for write in table.writes] == ["tidy", "arrived", "corrections", "scores", "lengths", "landed"]
    defs = table.defs
    spark = dg.Definitions(resources={"spark": dg.ResourceDefinition.none_resource()})
    dg.Definitions.validate_loadable(dg.Definitions.merge(defs, spark))
    by_key = {asset.key: asset for asset in defs.assets or [] if isinstance(asset, dg.AssetsDefinition)}
    append = by_key[table.write_key("arrived")]
    assert append.key == dg.AssetKey(["lake", "arrived"])
    assert append.partitions_def == DAYS
    assert append.descriptions_by_key[append.key] == "Orders that arrived, as they come."
    assert append.asset_deps[append.key] == {dg.AssetKey("queue")}
    fixed = table.write_key("corrections")
    assert by_key[fixed].descriptions_by_key[fixed] == "By hand."
    (ledger,) = (asset for asset in defs.assets or [] if isinstance(asset, dg.AssetSpec))
    assert {dep.asset_key for dep in ledger.deps} == set(by_key) - {dg.AssetKey(["lake", "orders_profile"])}


@pytest.mark.parametrize("read", ["defs", "spec"])
def test_late_declarations_are_refused(read: str) -> None:
    table = orders()
    getattr(table, read)
    with pytest.raises(InvalidInput, match=r"'late' of the Lance table 'lake/orders' is declared after .* read \.defs"):

        @lance_write(table=table, op="append")
        def late(spark: Any, ctx: Any) -> None: ...

    assert not table.writes


def test_writes_to_a_branch_are_declared_with_the_table() -> None:
    table = orders(branches=["dev"])
    with pytest.raises(InvalidInput, match=r"'tried' of 'lake/orders@dev': declare a write to a branch on its table"):
        lance_write(table=table.branch("dev"), op="append", name="tried")(print)
    with pytest.raises(InvalidInput, match="follows no branch 'main2'"):
        lance_write(table=table, op="append", name="tried", branch="main2")(print)
    lance_write(table=table, op="append", name="tried", branch="dev")(print)
    assert [write.branch for write in table.writes] == ["dev"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"op": "apend"}, r"op='apend' is not a write; choose one of append, .* \(did you mean 'append'\?\)"),
        ({"op": "delete", "predicate": "true"}, r"op='delete' calls no function.* add SparkDelete\(...\) to writes="),
        ({"op": "append", "fn": print}, "fn= is the decorated function; leave it out"),
        (
            {"op": "append", "partition": DAYS},
            r"no option 'partition' \(did you mean 'partitions'\?\); its options are .*once_per",
        ),
        ({"op": "upsert"}, r"SparkUpsert\('rows'\): on= is missing"),
        ({"op": "append", "once_per": "partition"}, "once_per='partition' needs partitions="),
        ({"op": "append", "name": "orders"}, "the table itself and a write are called 'orders'"),
        ({"op": "append", "name": "tidy"}, "2 writes are called 'tidy'"),
        ({"op": "append", "name": "a b"}, "'a b' is not a valid name"),
        ({"op": "append", "table": "orders"}, r"table= must be the result of lance_table\(...\), not 'orders'"),
    ],
    ids=str,
)
def test_invalid_declarations(options: dict[str, Any], message: str) -> None:
    table = orders(writes=[SparkCompact("tidy")])
    with pytest.raises(InvalidInput, match=message):

        @lance_write(**{"table": table, **options})
        def rows(spark: Any, ctx: Any) -> None: ...

    assert len(table.writes) == 1


def test_only_functions_are_decorated() -> None:
    with pytest.raises(InvalidInput, match="decorates a function, not 'rows'"):
        lance_write(table=orders(), op="append")("rows")  # type: ignore[type-var]
    with pytest.raises(InvalidInput, match="'<lambda>' is not a valid name"):
        lance_write(table=orders(), op="append")(lambda spark, ctx: None)


@pytest.mark.parametrize("second", ["{}/orders.lance", "{}/orders.lance/", "file://{}/x/../orders.lance"])
def test_location_is_declared_once(tmp_path: Path, second: str) -> None:
    first, other = orders(tmp_path / "orders.lance"), lance_table("sales", uri=second.format(tmp_path))
    merged = dg.Definitions.merge(first.defs, orders(tmp_path / "orders.lance").defs)  # the same, loaded again
    with pytest.raises(
        InvalidInput, match="'lake/orders' and 'sales' of this project have the same location"
    ) as raised:
        dg.Definitions.merge(first.defs, other.defs)
    assert "Declare the table once" in str(raised.value)
    del merged, first, raised
    dg.Definitions.validate_loadable(other.defs)  # a declaration that is garbage-collected does not collide


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"discover": False},
        {"profile": False},
        {"maintenance": Maintenance(), "discover": False, "profile": False},
        {"discover": False, "profile": False},
    ],
    ids=lambda options: "-".join(options) or "usual",
)
def test_names_that_collide_in_dagster_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    first = lance_table("c", uri=str(tmp_path / "1"), key_prefix=["a", "b"], **options)
    second = lance_table("b_c", uri=str(tmp_path / "2"), key_prefix="a", **options)
    first_definitions = first.defs
    with pytest.raises(InvalidInput, match=r"'a/b/c' and 'a/b_c' of this project would both have a 'lance_.*__a_b_c'"):
        _ = second.defs
    # Without such names both declarations are compatible.
    plain = [
        lance_table(
            each.ledger.name,
            uri=each.uri,
            key_prefix=each.ledger.prefix,
            discover=False,
            profile=False,
            operator_job=False,
        )
        for each in (first, second)
    ]
    dg.Definitions.validate_loadable(dg.Definitions.merge(*(each.defs for each in plain)))
    del first_definitions
    _ = second.defs


def test_locations_in_buckets_are_distinguished() -> None:
    assert normalized_uri("s3://lake/a/") == normalized_uri("s3://lake/a")
    assert len({normalized_uri(each) for each in ("s3://lake/a", "s3://lake/b", "/lake/a", "gs://lake/a")}) == 4


def test_asset_key_is_declared_once(tmp_path: Path) -> None:
    """The error of Dagster names the key and both locations."""
    one, two = orders(tmp_path / "a"), orders(tmp_path / "b", writes=[SparkAppend("more", fn=print)])  # type: ignore[arg-type]
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="conflicting AssetSpecs with the same key") as raised:
        dg.Definitions.validate_loadable(dg.Definitions.merge(one.defs, two.defs))
    assert str(tmp_path / "a") in str(raised.value)
    assert str(tmp_path / "b") in str(raised.value)


def test_decorators_are_public() -> None:
    assert lance_assets.lance_write is lance_write


def read_orders(source: str, spark: Any, ctx: Any) -> Any: ...


def test_code_references_lead_to_functions_and_declarations() -> None:
    table = orders(
        writes=[
            SparkCompact("tidy"),
            SparkAppend("printed", fn=functools.partial(read_orders, "x")),
        ],
        computed=[SparkComputedColumn("twice", sql="2 * id", type=pa.int64())],
        maintenance=Maintenance(),
        scrub=Scrub(),
    )

    @lance_write(table=table, op="append")
    def arrived(spark: Any, ctx: Any) -> None: ...

    @lance_write(table=table, op="map_columns", schema=pa.schema([("length", pa.int32())]), read_columns=["text"])
    def lengths(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    @lance_write(table=table, op="ingest", format="json")
    def landed(ctx: Any) -> str:
        return "landing"

    view = lance_view("recent", of=table, select=["id"])
    found: dict[str, list[tuple[str, int | None]]] = {}
    declared: Any = [*(table.defs.assets or []), *(view.defs.assets or [])]
    twice: Any = dg.with_source_code_references(dg.with_source_code_references(declared))
    for each in (metadata for asset in twice for metadata in getattr(asset, "metadata_by_key", {}).values()):
        first, *appended = [reference.line_number for reference in each["dagster/code_references"].code_references]
        assert set(appended) <= {first, *([] if sys.version_info >= (3, 13) else [1])}
    assets: Any = dg.with_source_code_references(declared)
    for asset in assets:
        metadata = asset.metadata_by_key if isinstance(asset, dg.AssetsDefinition) else {asset.key: asset.metadata}
        for key, each in metadata.items():
            value = each["dagster/code_references"]
            found[key.path[-1]] = [(reference.file_path, reference.line_number) for reference in value.code_references]
    for name, function in (("printed", read_orders), ("arrived", arrived), ("lengths", lengths), ("landed", landed)):
        assert found.pop(name) == [(__file__, inspect.getsourcelines(function)[1])]
    lines = Path(__file__).read_text().splitlines()
    texts = {name: lines[(references[0][1] or 0) - 1].strip() for name, references in found.items()}
    assert {file for references in found.values() for file, _ in references} == {__file__}
    of_table = 'return lance_table("orders", uri=str(location), key_prefix="lake", **options)'
    of_view = 'view = lance_view("recent", of=table, select=["id"])'
    assert texts == {
        "tidy": 'SparkCompact("tidy"),',
        "orders_twice": 'computed=[SparkComputedColumn("twice", sql="2 * id", type=pa.int64())],',
        **dict.fromkeys(("recent", "recent_refresh", "recent_profile"), of_view),
        **dict.fromkeys(("orders", "orders_profile", "orders_maintenance", "orders_scrub"), of_table),
    }
