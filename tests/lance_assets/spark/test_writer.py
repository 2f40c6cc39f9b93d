"""Writer: DataFrames written by the Python workers of real executors, and read back by us and by pylance."""

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from lance_assets.spark import append, overwrite, read
from lance_assets.spark.types import stored_schema
from lance_core import AuditFailed, InvalidInput, SchemaMismatch, Table, Unsupported
from lance_core.tasks.rows.write import FileLimits, PlannedWrite, WriteTask, begin_append


def uri_in(folder: Path) -> str:
    return str(folder / "table")


def test_the_first_append_creates_the_table(spark: SparkSession, tmp_path: Path) -> None:
    committed = append(spark.range(0, 1000, 1, 4), uri_in(tmp_path), properties={"dagster.run_id": "r1"})
    assert (committed.version, committed.operation, committed.rows_added, committed.files) == (
        1,
        "Overwrite",
        1000,
        4,
    )
    theirs = lance.dataset(uri_in(tmp_path))
    assert sorted(theirs.to_table()["id"].to_pylist()) == list(range(1000))
    assert Table.open(uri_in(tmp_path)).versions()[0].properties["dagster.run_id"] == "r1"


def test_pylance_reads_every_spark_type(spark: SparkSession, tmp_path: Path) -> None:
    row = {
        "b": True,
        "i8": 1,
        "i16": 2,
        "i32": 3,
        "i64": 4,
        "f32": 1.5,
        "f64": 2.5,
        "s": "ä",
        "bin": b"\x00\x01",
        "d": dt.date(2026, 1, 2),
        "ts": dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
        "ntz": dt.datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001 - a timestamp without a zone is what is tested
        "dec": Decimal("1.23"),
        "interval": dt.timedelta(days=1, microseconds=5),
        "st": {"x": 1, "y": None},
        "l": [1, None],
        "m": {"k": 1},
        "ls": [{"x": 1}],
    }
    schema = (
        "b boolean, i8 tinyint, i16 smallint, i32 int, i64 bigint, f32 float, f64 double, s string, bin binary, "
        "d date, ts timestamp, ntz timestamp_ntz, dec decimal(10,2), interval interval day to second, "
        "st struct<x:int,y:string>, l array<int>, m map<string,int>, ls array<struct<x:int>>"
    )
    nothing = Row(**dict.fromkeys(row))
    append(spark.createDataFrame([Row(**row), nothing], schema).coalesce(1), uri_in(tmp_path))
    read = lance.dataset(uri_in(tmp_path)).to_table().to_pylist()
    assert read[0] == row | {"m": [("k", 1)]}
    assert read[1] == dict.fromkeys(row)


def test_rows_are_converted_to_the_types_of_the_table(spark: SparkSession, tmp_path: Path) -> None:
    stored = pa.schema(
        [
            pa.field("u8", pa.uint8()),
            pa.field("u64", pa.uint64()),
            pa.field("half", pa.float16()),
            pa.field("vector", pa.list_(pa.float32(), 2), metadata={"kind": "embedding"}),
            pa.field("nanos", pa.timestamp("ns", "Europe/Berlin")),
            pa.field("fixed", pa.binary(2)),
            pa.field("text", pa.large_string(), nullable=False),
            pa.field("items", pa.large_list(pa.int32())),
        ]
    )
    lance.write_dataset(stored.empty_table(), uri_in(tmp_path))
    frame = spark.sql(
        "select 'x' as text, cast(7 as smallint) u8, cast('18446744073709551615' as decimal(20,0)) u64, "
        "cast(1.5 as float) half, array(cast(1 as float), cast(2 as float)) vector, "
        "timestamp'2026-01-01 00:00:00.000001Z' nanos, unhex('0102') fixed, array(1, 2) items"
    )
    append(frame, uri_in(tmp_path))
    theirs = lance.dataset(uri_in(tmp_path))
    assert theirs.schema == stored
    assert theirs.schema.field("vector").metadata == {b"kind": b"embedding"}
    (row,) = theirs.to_table().to_pylist()
    assert row.pop("nanos").value == 1767225600000001000
    assert row == {
        "u8": 7,
        "u64": 2**64 - 1,
        "half": 1.5,
        "vector": [1.0, 2.0],
        "fixed": b"\x01\x02",
        "text": "x",
        "items": [1, 2],
    }


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("300 as u8", "column 'u8' .* does not convert to uint8 without loss"),
        ("array(1.5f) as vector", "column 'vector' .* does not convert"),
        ("cast(0.1 as double) as half", "column 'half' .* would be rounded"),
        ("cast(null as string) as text", "column 'text' is not nullable"),
    ],
)
def test_value_that_does_not_fit_names_its_column(
    spark: SparkSession, tmp_path: Path, expression: str, words: str
) -> None:
    stored = pa.schema(
        [
            ("u8", pa.uint8()),
            ("half", pa.float16()),
            ("vector", pa.list_(pa.float32(), 2)),
            pa.field("text", pa.string(), nullable=False),
        ]
    )
    Table.create(uri_in(tmp_path), stored)
    spark_type = expression.rpartition(" as ")[2]
    frame = spark.range(1).selectExpr(expression, *(["'x' as text"] if spark_type != "text" else []))
    with pytest.raises(SchemaMismatch, match=words):
        append(frame, uri_in(tmp_path))
    assert Table.open(uri_in(tmp_path)).version == 1


def test_mismatched_columns_are_refused_on_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    append(spark.range(3), uri_in(tmp_path))
    with pytest.raises(SchemaMismatch, match="has no column 'idd'"):
        append(spark.range(3).withColumnRenamed("id", "idd"), uri_in(tmp_path))
    with pytest.raises(Unsupported, match="column 'v' has the Spark type variant"):
        append(spark.sql("select parse_json('1') as v"), str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("'12' as n", "column 'n' is stored as int64, but the data has string"),
        ("true as n", "column 'n' is stored as int64, but the data has bool"),
        ("named_struct('z', 5) as p", "column 'p' has no child 'z'; its children are a, b"),
        ("named_struct('a', 5L, 'z', 'important') as p", "column 'p' has no child 'z'"),
        ("named_struct('a', 'x') as p", "column 'p.a' is stored as int64, but the data has string"),
        ("current_timestamp() as d", "column 'd' is stored as date32"),
    ],
)
def test_mismatched_types_are_refused_before_a_job(
    spark: SparkSession, tmp_path: Path, expression: str, words: str
) -> None:
    nested = pa.struct([("a", pa.int64()), ("b", pa.string())])
    Table.create(uri_in(tmp_path), pa.schema([("n", pa.int64()), ("p", nested), ("d", pa.date32())]))
    with pytest.raises(SchemaMismatch, match=words):
        append(spark.range(1).selectExpr(expression), uri_in(tmp_path))
    assert not (tmp_path / "table" / "data").exists()


def test_struct_fields_are_matched_by_name(spark: SparkSession, tmp_path: Path) -> None:
    nested = pa.struct([("a", pa.int64()), ("b", pa.string()), ("c", pa.bool_())])
    Table.create(uri_in(tmp_path), pa.schema([("p", nested), ("l", pa.list_(nested))]))
    expression = "named_struct('b', 'x', 'a', 5L)"
    append(spark.range(1).selectExpr(f"{expression} as p", f"array({expression}) as l"), uri_in(tmp_path))
    row = {"a": 5, "b": "x", "c": None}
    assert lance.dataset(uri_in(tmp_path)).to_table().to_pylist() == [{"p": row, "l": [row]}]


def test_empty_partitions_write_no_file(spark: SparkSession, tmp_path: Path) -> None:
    append(spark.range(0, 10, 1, 4).where("id = 3"), uri_in(tmp_path))
    assert len(list((tmp_path / "table" / "data").iterdir())) == 1
    nothing = append(spark.range(0, 10, 1, 4).where("id < 0"), uri_in(tmp_path))
    assert (nothing.version, nothing.rows_added) == (1, 0)


def test_files_are_rolled_by_rows(spark: SparkSession, tmp_path: Path) -> None:
    committed = append(spark.range(0, 1000, 1, 1), uri_in(tmp_path), max_rows_per_file=300)
    assert [fragment.physical_rows for fragment in committed.table.fragments] == [300, 300, 300, 100]


def test_retried_task_adds_its_rows_once(spark: SparkSession, tmp_path: Path) -> None:
    """The session retries tasks. The first attempt of each crashes after it wrote its files, now orphan files."""

    def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        results = list(batches)
        try:
            open(tmp_path / "died", "x").close()
        except FileExistsError:
            yield from results
            return
        raise OSError("the executor was lost")

    frame = spark.range(0, 100, 1, 2)
    planned = begin_append(
        uri_in(tmp_path),
        stored_schema(frame.schema),
        create=True,
        intent=None,
        limits=FileLimits(rows_max=20),
    )
    assert isinstance(planned, PlannedWrite)
    result = "fragment binary, refusal string"
    results = frame.mapInArrow(WriteTask(planned.plan), result).mapInArrow(die_once, result)
    committed = planned.finish(results.toArrow())
    assert sorted(committed.table.to_table()["id"].to_pylist()) == list(range(100))
    assert committed.files == 6
    assert len(list((tmp_path / "table" / "data").iterdir())) == 9


def test_same_intent_commits_once(spark: SparkSession, tmp_path: Path) -> None:
    first = append(spark.range(10), uri_in(tmp_path), intent="2026-01-01")
    again = append(spark.range(10), uri_in(tmp_path), intent="2026-01-01")
    assert (again.version, again.already_committed) == (first.version, True)
    assert Table.open(uri_in(tmp_path)).count_rows() == 10


def test_overwrite_reads_the_rows_it_replaces(spark: SparkSession, tmp_path: Path) -> None:
    append(spark.range(10), uri_in(tmp_path))
    doubled = read(spark, uri_in(tmp_path)).select((F.col("id") * 2).alias("id"))
    committed = overwrite(doubled, uri_in(tmp_path))
    assert (committed.version, committed.rows_removed) == (2, 10)
    assert sorted(committed.table.to_table()["id"].to_pylist()) == list(range(0, 20, 2))


def test_overwrite_with_another_schema_needs_an_option(spark: SparkSession, tmp_path: Path) -> None:
    append(spark.range(10), uri_in(tmp_path))
    frame = spark.sql("select 'x' as name")
    with pytest.raises(SchemaMismatch, match="no column 'name'"):
        overwrite(frame, uri_in(tmp_path))
    assert overwrite(frame, uri_in(tmp_path), replace_schema=True).table.schema == pa.schema([("name", pa.string())])


def test_workers_import_neither_dagster_nor_dataset_modules(spark: SparkSession, tmp_path: Path) -> None:
    """The worker itself reports its modules after a write."""
    append(spark.range(10), uri_in(tmp_path))

    def loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys

        import lance_assets.spark.writer  # noqa: F401 - what a task may need at most

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"modules": [json.dumps(sorted(sys.modules))]})

    (row,) = spark.range(0, 1, 1, 1).mapInArrow(loaded, "modules string").collect()
    modules = json.loads(row.modules)
    assert not [name for name in modules if name.split(".")[0] in ("dagster", "dagster_pyspark")]
    assert "lance_assets.spark.writer" in modules


def test_bytes_become_blobs(spark: SparkSession, tmp_path: Path) -> None:
    """A read returns the locations of the blobs; the driver opens them by row."""
    film = pa.field("film", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    Table.create(str(tmp_path / "t"), pa.schema([pa.field("id", pa.int64()), film]))
    values = [b"x" * 100_000, None, b""]
    frame = spark.createDataFrame(list(enumerate(values)), "id long, film binary").coalesce(1)
    table = append(frame, str(tmp_path / "t")).table
    assert [None if blob is None else blob.read() for blob in table.blobs("film", range(3))] == values
    rows = read(spark, str(tmp_path / "t")).orderBy("id").collect()
    assert [row.film and (row.film.kind, int(row.film.size)) for row in rows] == [(1, 100_000), None, (0, 0)]


def test_rows_are_sorted_by_key(spark: SparkSession, tmp_path: Path) -> None:
    """Files hold consecutive ranges of the key, so that a filter on the key skips most of them."""
    shuffled = spark.range(0, 10_000, 1, 4).selectExpr("(id * 7919) % 10007 as key", "id % 3 as `a b`")
    spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
    try:
        append(shuffled, uri_in(tmp_path), cluster_by="key", max_rows_per_file=1000)
    finally:
        spark.conf.unset("spark.sql.adaptive.coalescePartitions.enabled")
    keys = lance.dataset(uri_in(tmp_path)).to_table(columns=["key"])["key"].to_pylist()
    assert len(lance.dataset(uri_in(tmp_path)).get_fragments()) >= 10
    assert keys == sorted(keys)
    overwrite(shuffled, uri_in(tmp_path), cluster_by=["a b", "key"])
    rows = lance.dataset(uri_in(tmp_path)).to_table().to_pylist()
    assert [(row["a b"], row["key"]) for row in rows] == sorted((row["a b"], row["key"]) for row in rows)


def test_unknown_sort_column_is_refused_before_a_job(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cluster_by=\['kye'\]: no column 'kye'; the columns are id"):
        append(spark.range(3), uri_in(tmp_path), cluster_by="kye")
    assert not Path(uri_in(tmp_path)).exists()


def test_workers_replace_where(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    days = spark.range(0, 300, 1, 3).selectExpr("id", "date_add(date'2026-01-01', cast(id % 3 as int)) as day")
    where = "day = date '2026-01-02'"
    with pytest.raises(InvalidInput, match="a row of the new rows does not match: day is 2026-01-0"):
        overwrite(days, uri, where=where)
    assert not Table.exists(uri)
    overwrite(days.where("day = date'2026-01-02'"), uri, where=where, intent="first")
    append(days.where("day != date'2026-01-02'"), uri)
    again = read(spark, uri, filter=where).selectExpr("id + 1000 as id", "day").where("id < 1200")
    done = overwrite(again, uri, where=where, intent="second", properties={"by": "me"}, cluster_by="id")
    rows = lance.dataset(uri).to_table(filter=where)
    assert sorted(rows["id"].to_pylist()) == [n + 1000 for n in range(200) if n % 3 == 1]
    assert (done.operation, done.rows_added, done.rows_removed) == ("Update", rows.num_rows, 100)
    assert lance.dataset(uri).count_rows() == 200 + rows.num_rows
    assert done.table.version_info().properties["by"] == "me"
    for intent, version in (("first", 1), ("second", 3)):
        result = overwrite(days, uri, where=where, intent=intent)
        assert (result.already_committed, result.version, Table.open(uri).version) == (True, version, 3)
    with pytest.raises(InvalidInput, match="replace_schema=True is for an overwrite of all rows"):
        overwrite(days, uri, where=where, replace_schema=True)
    assert done.table.fsck().is_sound


def test_audit_precedes_the_creation_of_a_table(spark: SparkSession, tmp_path: Path) -> None:
    uri = uri_in(tmp_path)

    def refuse(table: Table, base: Table | None) -> None:
        assert (table.count_rows(), base, Table.exists(uri)) == (100, None, False)
        raise ValueError("not today")

    with pytest.raises(AuditFailed, match="not today") as refused:
        append(spark.range(100), uri, audit=refuse, intent="first")
    assert not Table.exists(uri)
    assert lance.dataset(uri, version=refused.value.detached_version).count_rows() == 100
    done = append(spark.range(100), uri, audit=lambda table, base: None, intent="first")
    assert (done.version, lance.dataset(uri).count_rows()) == (1, 100)
    assert append(spark.range(100), uri, audit=refuse, intent="first").already_committed
