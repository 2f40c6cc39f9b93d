"""Write assets: each kind of write from its materialization to the ledger, and the errors of invalid declarations."""

import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import dagster as dg
import lance
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from dagster_pyspark import LazyPySparkResource, PySparkResource
from pyspark.sql import DataFrame, SparkSession

from lance_assets import (
    LanceTable,
    SparkAppend,
    SparkBuildIndex,
    SparkCompact,
    SparkDelete,
    SparkIngest,
    SparkMapColumns,
    SparkMergeColumns,
    SparkOverwrite,
    SparkSessionResource,
    SparkUpdate,
    SparkUpsert,
    WriteContext,
    lance_table,
)
from lance_assets.common.sql_literals import sql_literal
from lance_assets.writes import Write
from lance_core import InvalidInput, Table
from tests.lance_assets.instances import events, metadata_values, partitions, run, tags

DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-05")
TWICE = pa.schema([pa.field("twice", pa.int64())])
DAY_OF = "cast(id % 3 + 1 as int)"


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as each:
        yield each


@pytest.fixture
def resource(spark: SparkSession) -> SparkSessionResource:
    return SparkSessionResource()


ALL_RESOURCES = (LazyPySparkResource, PySparkResource, SparkSessionResource)


@pytest.fixture(params=ALL_RESOURCES if os.environ.get("PROOFS") == "all" else ALL_RESOURCES[:1])
def any_resource(spark: SparkSession, request: pytest.FixtureRequest) -> object:
    return request.param(spark_config={"spark.sql.shuffle.partitions": "2"})


def numbers(spark: SparkSession, ctx: WriteContext) -> DataFrame:
    return spark.range(0, 10, 1, 1).selectExpr("id", "concat('2026-01-0', id % 3 + 1) as day")


def later_rows(spark: SparkSession, ctx: WriteContext) -> DataFrame:
    return spark.range(8, 12, 1, 1).selectExpr("id", "'2026-01-04' as day")


def on_the_day(spark: SparkSession, ctx: WriteContext) -> DataFrame:
    return spark.range(0, 4, 1, 1).selectExpr("id", f"'{ctx.partition_key}' as day")


def by_address(spark: SparkSession, ctx: WriteContext) -> DataFrame:
    return ctx.read(columns=["id"], with_row_address=True).selectExpr("_rowaddr", "id * 3 as thrice")


def by_key(spark: SparkSession, ctx: WriteContext) -> DataFrame:
    return spark.range(0, 100).selectExpr("id", "id * 4 as fourfold")


def by_other_key(spark: SparkSession, ctx: WriteContext) -> DataFrame:
    return spark.range(6, 8).selectExpr("id", "-id as fourfold")


def whole_table(spark: SparkSession, ctx: WriteContext) -> DataFrame:
    return ctx.read()


def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"twice": pc.multiply(batch["id"], 2)})


def minus(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"twice": pc.negate(batch["id"])})


def declare_table(folder: Path, *writes: Write) -> LanceTable:
    return lance_table("t", uri=str(folder / "t.lance"), writes=writes)


def test_each_write_makes_a_version_on_the_ledger(
    tmp_path: Path, instance: dg.DagsterInstance, any_resource: object
) -> None:
    resource = any_resource
    landing = tmp_path / "landing"
    landing.mkdir()
    pq.write_table(pa.table({"id": [20, 21], "day": ["2026-01-03", "2026-01-04"]}), landing / "a.parquet")
    writes: list[tuple[Write, str, int]] = [
        (SparkAppend("first", numbers), "Overwrite", 10),
        (SparkUpsert("late", later_rows, on="id"), "Update", 12),
        (SparkIngest("files", str(landing / "*.parquet")), "Append", 14),
        (SparkDelete("purge", "day = :day and id < :most", {"day": "2026-01-01", "most": lambda ctx: 5}), "Delete", 12),
        (SparkUpdate("correct", {"day": ":new"}, "id = 21", {"new": "it's"}), "Update", 12),
        (SparkMapColumns("computed", twice, TWICE, ["id"]), "Merge", 12),
        (SparkMergeColumns("addressed", by_address), "Merge", 12),
        (SparkMergeColumns("keyed", by_key, on="id"), "Merge", 12),
        (SparkMapColumns("again", minus, TWICE, ["id"], mode="recompute", where="id < 5 and day > ''"), "Update", 12),
        (SparkMergeColumns("corrected", by_other_key, on="id", replace=True), "Update", 12),
        (SparkBuildIndex("id", "BTREE", name="indexed"), "CreateIndex", 12),
        (SparkBuildIndex("day", "INVERTED", name="searched", params={"stem": False}), "CreateIndex", 12),
        (SparkOverwrite("replaced", whole_table), "Overwrite", 12),
    ]
    table = declare_table(tmp_path, *(write for write, _, _ in writes))
    for number, (write, operation, rows) in enumerate(writes, start=1):
        ran = run(table, write.name, instance, resource)
        head = Table.open(table.uri)
        assert (head.version, head.count_rows()) == (number, rows), write.name
        *_, (run_id, event) = events(instance, table.key)
        assert run_id == ran.run_id
        assert event.partition == f"v{number:010}"
        assert tags(event)["lance/op"] == operation, write.name
        assert metadata_values(event)["lance/written_by"] == write.name
        ((_, written),) = events(instance, table.write_key(write.name))
        assert metadata_values(written)["lance/version"] == number
        assert head.version_info().properties["dagster.run_id"] == ran.run_id
    assert len(partitions(instance, table)) == len(writes)
    rows = lance.dataset(table.uri).to_table().sort_by("id").to_pylist()
    assert [row["id"] for row in rows] == [1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 20, 21]
    assert rows[-1]["day"] == "it's"
    assert [row["day"] for row in rows if 8 <= row["id"] < 12] == ["2026-01-04"] * 4
    for row in rows:
        times = (-1 if row["id"] < 5 else 2, 3, -1 if row["id"] in (6, 7) else 4)
        assert [row["twice"], row["thrice"], row["fourfold"]] == [row["id"] * each for each in times]
    # Rows that a write reads from its own table are an input like any other.
    inputs = Table.open(table.uri, version=7).version_info().properties["lance_assets.inputs"]
    assert json.loads(inputs) == {table.uri: 6}
    # The columns of the condition determine which rows get a value, so they are sources, too.
    columns = json.loads(Table.open(table.uri, version=9).version_info().properties["lance_assets.columns"])["columns"]
    assert [name for _, name in columns["twice"]] == ["day", "id"]


def test_partition_is_a_sql_parameter(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    purge = SparkDelete("purge", "day = :partition_key", partitions=DAYS, once_per="partition")
    files = SparkIngest("files", lambda ctx: str(tmp_path / f"{ctx.partition_key}.parquet"), partitions=DAYS)
    table = declare_table(tmp_path, purge, files)
    for day in ("2026-01-01", "2026-01-02"):
        pq.write_table(pa.table({"day": [day] * 3}), tmp_path / f"{day}.parquet")
        run(table, "files", instance, resource, partition=day)
    for _ in range(2):
        run(table, "purge", instance, resource, partition="2026-01-01")
    head = Table.open(table.uri)
    assert head.to_table()["day"].to_pylist() == ["2026-01-02"] * 3
    assert [info.operation for info in head.versions()] == ["Overwrite", "Append", "Delete"]
    assert len(events(instance, table.key)) == 3


def test_partition_replaces_its_rows(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    daily = SparkOverwrite("daily", on_the_day, "day = :partition_key", partitions=DAYS)
    table = declare_table(tmp_path, daily, SparkOverwrite("all", numbers))
    for day in ("2026-01-01", "2026-01-02", "2026-01-01"):
        run(table, "daily", instance, resource, partition=day)
    head = Table.open(table.uri)
    assert (head.version, head.count_rows("day = '2026-01-01'"), head.count_rows()) == (3, 4, 8)
    assert [tags(event)["lance/op"] for _, event in events(instance, table.key)] == ["Overwrite", "Update", "Update"]
    *_, (_, last) = events(instance, table.write_key("daily"))
    assert (metadata_values(last)["lance/rows_added"], metadata_values(last)["lance/rows_removed"]) == (4, 4)
    run(table, "all", instance, resource)
    assert lance.dataset(table.uri).count_rows() == 10


def test_a_partition_overwrites_the_rows_of_its_window(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    """The zone of the column does not matter. Keys that are one value are refused."""
    days = dg.DailyPartitionsDefinition("2025-11-01", end_date="2025-11-04", timezone="America/New_York")
    shops = dg.StaticPartitionsDefinition(["1", "01"])

    def on_the_day(spark: SparkSession, ctx: WriteContext) -> DataFrame:
        window = days.time_window_for_partition_key(str(ctx.partition_key))
        return spark.createDataFrame([(window.start, 0)], "at timestamp, shop int")

    daily = SparkOverwrite("daily", on_the_day, partitions=days, partition_expr="at")
    of_shop = SparkOverwrite("of_shop", on_the_day, partitions=shops, partition_expr="shop")
    table = declare_table(tmp_path, daily, of_shop)
    hours = [datetime(2025, 11, 1, 4, tzinfo=UTC) + timedelta(hours=n) for n in range(73)]
    written = pa.table({"at": pa.array(hours, pa.timestamp("us", "America/New_York"))}).append_column(
        pa.field("shop", pa.int32()), pa.array([1] * len(hours), pa.int32())
    )
    Table.create(table.uri, written)
    run(table, "daily", instance, resource, partition="2025-11-02")
    left = [at.astimezone(UTC) for at in Table.open(table.uri).to_table()["at"].to_pylist()]
    assert sorted(left) == [*hours[:24], hours[24], *hours[49:]]
    failed = run(table, "of_shop", instance, resource, partition="01", raise_on_error=False)
    assert not failed.success
    assert Table.open(table.uri).version == 2


def test_write_without_rows_makes_no_version(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    table = declare_table(
        tmp_path,
        SparkAppend("none", lambda spark, ctx: spark.range(0)),
        SparkCompact("compact"),
        SparkIngest("files", str(tmp_path / "*.parquet")),
    )
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    for write in ("files", "files", "none", "compact"):
        run(table, write, instance, resource)
    assert [info.operation for info in Table.open(table.uri).versions()] == ["Overwrite"]
    assert len(events(instance, table.key)) == 1
    for write in ("none", "compact"):
        ((_, written),) = events(instance, table.write_key(write))
        assert metadata_values(written) == {"lance/version": 1, "lance/rows_added": 0}


def test_all_versions_of_a_compaction_are_recorded(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    table = declare_table(tmp_path, SparkCompact("compact", target_rows=100))
    lance.write_dataset(pa.table({"id": range(300)}), table.uri, max_rows_per_file=10)
    ran = run(table, "compact", instance, resource)
    head = Table.open(table.uri)
    versions_of_run = [info.version for info in head.versions() if info.properties.get("dagster.run_id") == ran.run_id]
    recorded = events(instance, table.key)
    assert [int(str(event.partition)[1:]) for _, event in recorded] == [1, *versions_of_run]
    assert [run_id for run_id, _ in recorded] == ["", *([ran.run_id] * len(versions_of_run))]
    assert versions_of_run[-1] == head.version
    assert len(head.fragments) == 3


def test_rerun_computes_the_remaining_fragments(
    tmp_path: Path, instance: dg.DagsterInstance, resource: SparkSessionResource
) -> None:
    calls = tmp_path / "calls"
    poison = tmp_path / "poison"
    poison.touch()

    def computed(batch: pa.RecordBatch) -> pa.RecordBatch:
        first = batch["id"][0].as_py()
        if first == 30 and poison.exists():
            raise ValueError("the model is not there")
        with calls.open("a") as file:
            file.write(f"{first}\n")
        return twice(batch)

    table = declare_table(tmp_path, SparkMapColumns("computed", computed, TWICE, ["id"]))
    Table.create(table.uri, pa.table({"id": range(40)}), max_rows_per_file=10)
    failed = run(table, "computed", instance, resource, raise_on_error=False)
    assert not failed.success
    assert Table.open(table.uri).version == 1
    done = set(calls.read_text().split())
    calls.write_text("")
    poison.unlink()
    family = {"dagster/parent_run_id": failed.run_id, "dagster/root_run_id": failed.run_id}
    run(table, "computed", instance, resource, tags=family)
    again = set(calls.read_text().split())
    assert "30" in again
    assert not again & done
    assert Table.open(table.uri).to_table()["twice"].to_pylist() == [2 * each for each in range(40)]


@pytest.mark.parametrize(
    ("value", "literal"),
    [
        ("it's", "'it''s'"),
        (True, "true"),
        (-3, "-3"),
        (Decimal("1.50"), "1.50"),
        (0.1, "cast('0.1' as double)"),
        (float("nan"), "cast('nan' as double)"),
        (date(2026, 1, 2), "date '2026-01-02'"),
        (datetime(2026, 1, 2, 3, 4, 5, 6), "timestamp '2026-01-02 03:04:05.000006'"),  # noqa: DTZ001 - one without a zone
        (
            datetime(2026, 1, 2, 3, tzinfo=UTC),
            "arrow_cast('2026-01-02T03:00:00Z', 'Timestamp(Microsecond, Some(\"UTC\"))')",
        ),
        (None, "null"),
    ],
)
def test_literals_round_trip(tmp_path: Path, value: object, literal: str) -> None:
    assert sql_literal(value, "x") == literal  # type: ignore[arg-type]
    if value is None or value != value:
        return
    table = Table.create(str(tmp_path / "t"), pa.table({"x": [value]}))
    assert table.count_rows(f"x = {literal}") == 1


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo", "-05:00"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_moment_is_the_same_in_the_zone_of_every_column(tmp_path: Path, unit: str, zone: str) -> None:
    """In conditions and in values, for this evaluator and pylance's, in the hour that occurs twice."""
    moment = datetime(2026, 11, 1, 1, 30, tzinfo=ZoneInfo("America/New_York"), fold=1)
    column = pa.array([moment - timedelta(seconds=1), moment, moment + timedelta(hours=1)], pa.timestamp("us", "UTC"))
    table = Table.create(str(tmp_path / "t"), pa.table({"n": range(3), "at": column.cast(pa.timestamp(unit, zone))}))
    literal = sql_literal(moment, "at")
    for condition, found in ((f"at = {literal}", [1]), (f"at >= {literal}", [1, 2]), (f"at < {literal}", [0])):
        assert table.to_table(filter=condition)["n"].to_pylist() == found
        assert lance.dataset(table.uri).to_table(filter=condition)["n"].to_pylist() == found
    updated = table.update({"at": literal}, where="n = 2").table
    assert updated.to_table(filter=f"at = {literal}")["n"].to_pylist() == [1, 2]


BAD: list[tuple[str, Callable[[], object]]] = [
    ("SparkDelete('d'): there is no parameter :day", lambda: SparkDelete("d", "day = :day")),
    ("SparkDelete('d'): the parameter 'days' is not used", lambda: SparkDelete("d", "a = ':day'", {"days": 1})),
    ("SparkDelete('d'): ':days' is a literal text", lambda: SparkDelete("d", "a = ':days'", {"days": 1})),
    ("write :partition_key without quotes", lambda: SparkDelete("d", "day = ':partition_key'", partitions=DAYS)),
    ("'day ' || :partition_key", lambda: SparkUpdate("u", {"a": '"day :partition_key"'}, partitions=DAYS)),
    ("SparkDelete('d'): :partition_key needs partitions=", lambda: SparkDelete("d", "day = :partition_key")),
    ("SparkDelete('d'): predicate= is empty", lambda: SparkDelete("d", "")),
    ("SparkUpdate('u'): set= is empty", lambda: SparkUpdate("u", {})),
    ("SparkUpdate('u'): there is no parameter :x", lambda: SparkUpdate("u", {"a": "b::int + :x"})),
    ("SparkUpsert('u'): on= is empty; name the key columns", lambda: SparkUpsert("u", later_rows, on=[])),
    ("SparkUpsert('u'): fn must be a function", lambda: SparkUpsert("u", 3, on="id")),  # type: ignore[arg-type]
    ("SparkOverwrite('o'): fn must be a function", lambda: SparkOverwrite("o", 3)),  # type: ignore[arg-type]
    ("SparkOverwrite('o'): where= is empty", lambda: SparkOverwrite("o", later_rows, "")),
    ("SparkOverwrite('o'): there is no parameter :day", lambda: SparkOverwrite("o", later_rows, "day = :day")),
    ("SparkOverwrite('o'): each partition would", lambda: SparkOverwrite("o", later_rows, partitions=DAYS)),
    (
        "SparkOverwrite('o'): every partition would",
        lambda: SparkOverwrite("o", later_rows, "a = 1", partitions=DAYS),
    ),
    (
        "SparkOverwrite('o'): replace_schema=True",
        lambda: SparkOverwrite("o", later_rows, "a = 1", replace_schema=True),
    ),
    ("SparkOverwrite('o'): partition_expr= needs", lambda: SparkOverwrite("o", later_rows, partition_expr="day")),
    (
        "SparkOverwrite('o'): partition_expr= selects",
        lambda: SparkOverwrite("o", later_rows, "a = 1", partitions=DAYS, partition_expr="day"),
    ),
    ("SparkIngest('i'): files= is empty; name at least one", lambda: SparkIngest("i", [])),
    ("SparkMapColumns('m'): schema= is missing", lambda: SparkMapColumns("m", twice, pa.schema([]))),
    ("SparkMapColumns('m'): mode='all' is unknown", lambda: SparkMapColumns("m", twice, TWICE, mode="all")),  # type: ignore[arg-type]
    ("SparkMergeColumns('m'): fn must be a function", lambda: SparkMergeColumns("m", None)),  # type: ignore[arg-type]
    ("SparkCompact('c'): target_rows=0", lambda: SparkCompact("c", 0)),
    ("SparkCompact('c'): once_per='partition' needs", lambda: SparkCompact("c", once_per="partition")),
    ("'a-b' is not a valid name", lambda: SparkCompact("a-b")),
]


@pytest.mark.parametrize(("message", "declare"), BAD, ids=[message for message, _ in BAD])
def test_invalid_declarations(message: str, declare: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput) as refused:
        declare()
    assert message in str(refused.value)


def test_quoted_text_is_no_parameter(tmp_path: Path) -> None:
    write = SparkDelete("d", """a = ':no' and "b:no" = c::int and `d:no` = :yes""", {"yes": "x"})
    assert write.parameters == {"yes": "x"}
