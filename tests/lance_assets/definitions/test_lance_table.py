"""Declaration of a table: its assets in a project, and the errors of an invalid declaration."""

import copy
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession

from lance_assets import LanceTable, Profile, RowCount, SparkAppend, SparkSessionResource, WriteContext, lance_table
from lance_core import InvalidInput

CANARY = "canary-7d21"
DAYS = dg.StaticPartitionsDefinition(["a", "b"])


def rows(spark: SparkSession, ctx: WriteContext) -> DataFrame:
    return spark.range(1)


def declared() -> LanceTable:
    return lance_table(
        "orders",
        uri="s3://bucket/lake/orders.lance",
        key_prefix=["lake"],
        storage_options={"aws_secret_access_key": dg.EnvVar("TEST_KEY"), "aws_region": "eu-west-1"},
        writes=[SparkAppend("orders_append", fn=rows, deps=["raw_orders"], partitions=DAYS)],
    )


def test_ledger_is_downstream_of_the_writes() -> None:
    table = declared()
    resolved = dg.Definitions.merge(table.defs, dg.Definitions(resources={"spark": SparkSessionResource()}))
    graph = resolved.resolve_asset_graph()
    ledger, write = (graph.get(key) for key in (table.key, table.write_key("orders_append")))
    assert (ledger.key.path, write.key.path) == (["lake", "orders"], ["lake", "orders_append"])
    assert ledger.parent_keys == {write.key}
    assert write.parent_keys == {dg.AssetKey("raw_orders")}
    assert not ledger.is_executable
    assert isinstance(ledger.partitions_def, dg.DynamicPartitionsDefinition)
    assert ledger.partitions_def.name == "lance/lake/orders"
    assert write.partitions_def == DAYS
    assert (ledger.kinds, write.kinds) == ({"lance"}, {"spark", "lance"})
    assert ledger.group_name == write.group_name == "orders"
    assert ledger.metadata["dagster/uri"] == "s3://bucket/lake/orders.lance"
    assert ledger.metadata["dagster/table_name"] == "lake.orders"
    assert ledger.metadata["dagster/storage_kind"] == "lance"
    (sensor,) = table.defs.sensors or ()
    assert sensor.name == "lance_discover__lake_orders"


def test_two_tables_and_a_consumer_in_one_project() -> None:
    orders, clicks = declared(), lance_table("clicks", uri="clicks.lance", discover=False)

    @dg.asset(deps=[orders, clicks.dep])
    def report() -> None: ...

    newest = dg.LastPartitionMapping()
    (definition,) = report.specs
    assert [(dep.asset_key, dep.partition_mapping) for dep in definition.deps] == [
        (orders.key, newest),
        (clicks.key, newest),
    ]

    spark = SparkSessionResource()
    project = dg.Definitions.merge(orders.defs, clicks.defs, dg.Definitions([report], resources={"spark": spark}))
    dg.Definitions.validate_loadable(project)


def test_a_table_is_a_dependency_that_can_be_copied() -> None:
    table = declared()
    copied = copy.copy(table)
    assert (copied, copied.asset_key, copied.writes) == (table, table.key, table.writes)
    assert table == table.dep
    writes = [SparkAppend("w", rows, deps=[table])]
    other = lance_table("other", uri="o.lance", deps=[table], writes=writes)
    assert {dep.asset_key for dep in other.spec.deps} == {table.key, other.write_key("w")}


def test_storage_options_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", CANARY)
    table = declared()
    project = dg.Definitions.merge(table.defs, dg.Definitions(resources={"spark": SparkSessionResource()}))
    specs = project.resolve_all_asset_specs()
    assert len(specs) == 4
    assert CANARY not in f"{table!r}{table.ledger!r}{specs!r}"
    assert table.access()["storage_options"] == {"aws_secret_access_key": CANARY, "aws_region": "eu-west-1"}
    referring = lance_table("orders", uri="o.lance", storage_options={"token": dg.EnvVar("TEST_TOKEN")})
    with pytest.raises(InvalidInput, match="TEST_TOKEN, which is not set"):
        referring.access()
    monkeypatch.setenv("TEST_TOKEN", CANARY)
    assert referring.access()["storage_options"] == {"token": CANARY}


def append(name: str = "w", **options: object) -> SparkAppend:
    return SparkAppend(name, **{"fn": rows, **options})  # type: ignore[arg-type]


WRONG: list[tuple[str, Callable[[], object]]] = [
    ("2 writes are called 'w'", lambda: lance_table("t", uri="t", writes=[append(), append()])),
    ("the table itself and a write are called 't'", lambda: lance_table("t", uri="t", writes=[append("t")])),
    ("contains credentials", lambda: lance_table("t", uri=f"s3://id:{CANARY}@bucket/t")),
    ("contains credentials", lambda: lance_table("t", uri=f"https://host/t?sig={CANARY}")),
    (
        r"storage=LanceResource\(manifest_store='dynamodb://table'\)",
        lambda: lance_table("t", uri=f"s3+ddb://bucket/t?ddbTableName={CANARY}"),
    ),
    ("has no uri", lambda: lance_table("t", uri="")),
    ("letters, digits and underscores", lambda: lance_table("my table", uri="t")),
    ("letters, digits and underscores", lambda: lance_table("t", uri="t", key_prefix="a/b")),
    ("letters, digits and underscores", lambda: append("no-good")),
    ("fn must be a function", lambda: append(fn="module.function")),
    ("'run' or 'partition'", lambda: append(once_per="day")),
    ("needs partitions=", lambda: append(once_per="partition")),
    (
        "the asset of its profiles and a write are called 't_profile'",
        lambda: lance_table("t", uri="t", writes=[append("t_profile")]),
    ),
    ("2 checks .* have this name", lambda: lance_table("t", uri="t", checks=[RowCount(min=1), RowCount(max=2)])),
    ("checks= must be checks, such as", lambda: lance_table("t", uri="t", checks=[rows])),  # type: ignore[list-item]
    ("profile= must be True, False or", lambda: lance_table("t", uri="t", profile="yes")),  # type: ignore[arg-type]
    ("automation= must be 'on_missing'", lambda: lance_table("t", uri="t", automation="eager")),  # type: ignore[arg-type]
    ("automation= needs a profile", lambda: lance_table("t", uri="t", profile=False, automation="on_missing")),
    ("freshness= must be a minute", lambda: lance_table("t", uri="t", freshness=timedelta(seconds=9))),
    ("freshness= must be a timedelta", lambda: lance_table("t", uri="t", freshness=24)),  # type: ignore[arg-type]
    ("columns= must be a list of column names", lambda: Profile(columns="id")),
    ("a struct includes its fields", lambda: Profile(columns=["a.b"])),
    ("read_bytes_max= must be a whole number", lambda: Profile(read_bytes_max=0)),
    ("has no write 'x'; it has w", lambda: lance_table("t", uri="t", writes=[append()]).write_key("x")),
    (
        r"conf\['spark.hadoop.fs.s3a.secret.key'\].*EnvVar",
        lambda: SparkSessionResource(conf={"spark.hadoop.fs.s3a.secret.key": CANARY}),
    ),
    ("remote= of .*EnvVar", lambda: SparkSessionResource(remote=f"sc://host/;token={CANARY}")),
]


@pytest.mark.parametrize(("message", "declare"), WRONG)
def test_invalid_declarations(message: str, declare: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput, match=message) as refused:
        declare()
    assert CANARY not in str(refused.value)


WRITTEN_OUT = (
    ("spark.hadoop.javax.jdo.option.ConnectionURL", "jdbc:postgresql://u:canary@h/db"),
    ("spark.hadoop.fs.azure.account.key.a.dfs.core.windows.net", "canary"),
    ("spark.foo.accessKeyId", "canary"),
    ("spark.cosmos.accountKey", "canary"),
    ("spark.x.apikey", "canary"),
)


@pytest.mark.parametrize(("key", "value"), WRITTEN_OUT)
def test_literal_secrets_are_refused(key: str, value: str) -> None:
    with pytest.raises(InvalidInput, match="EnvVar") as refused:
        SparkSessionResource(conf={key: value})
    assert "canary" not in str(refused.value)


def test_settings_that_resemble_secrets_are_accepted() -> None:
    SparkSessionResource(
        conf={
            "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
            "spark.sql.sources.v2.bucketing.allowJoinKeysSubsetOfPartitionKeys.enabled": "true",
        }
    )


def test_spark_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_SECRET", CANARY)
    conf = {"spark.hadoop.fs.s3a.secret.key": dg.EnvVar("TEST_SECRET")}
    resource = SparkSessionResource(conf=conf)

    @dg.op
    def look(spark: SparkSessionResource) -> str:
        assert CANARY not in repr(spark)
        return spark.conf["spark.hadoop.fs.s3a.secret.key"]

    @dg.job(resource_defs={"spark": resource})
    def job() -> None:
        look()

    assert CANARY not in repr(resource)
    assert job.execute_in_process().output_for_node("look") == CANARY


def test_import_loads_neither_dagster_nor_spark() -> None:
    code = (
        "import sys, lance_assets, lance_assets.spark\n"
        "assert lance_assets.__all__ == sorted(lance_assets.__all__)\n"
        "assert not {'dagster', 'pyspark', 'dagster_pyspark'} & set(sys.modules), sorted(sys.modules)\n"
        "assert all(getattr(lance_assets, name) for name in lance_assets.__all__)\n"
        "assert set(lance_assets.__all__) <= set(dir(lance_assets))\n"
        "from dagster_shared.libraries import DagsterLibraryRegistry\n"
        "assert 'lance-assets' in DagsterLibraryRegistry.get()\n"
    )
    root = Path(__file__).parent.parent.parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
