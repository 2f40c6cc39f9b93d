"""New columns, by real executors."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lance_assets.spark import map_columns, merge_columns
from lance_core import InvalidInput, SchemaMismatch, Table
from lance_core.tasks.columns import merge_columns as merging

DOUBLE = pa.schema([pa.field("twice", pa.int64())])


def made(place: Path) -> str:
    uri = str(place / "table")
    rows = pa.table(
        {
            "id": pa.array(range(1000), pa.int64()),
            "amount": pa.array(range(1000), pa.uint64()),
            "ratio": [0.0, -0.0, float("nan"), None] + [n / 2 for n in range(4, 1000)],
        }
    )
    table = Table.create(uri, rows, max_rows_per_file=100, durable=False)
    table.delete("id % 10 = 3 or id between 200 and 299")
    return uri


@pytest.fixture(params=["held", "shuffled"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are held by every worker, many are sorted and joined by Spark."""
    if request.param == "shuffled":
        monkeypatch.setattr(merging, "BROADCAST_BYTES_MAX", -1)


def addressed(spark: SparkSession, uri: str) -> DataFrame:
    table = Table.open(uri).to_table(columns=["id"], with_row_address=True)
    rows = pa.table({"id": table["id"], "_rowaddr": table["_rowaddr"].cast(pa.int64())})
    return spark.createDataFrame(rows.take(np.random.default_rng(1).permutation(rows.num_rows)))


def test_a_function_makes_columns_and_goes_on_where_it_stopped(spark: SparkSession, tmp_path: Path) -> None:
    uri = made(tmp_path)
    ready = tmp_path / "ready"

    def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
        if pc.max(batch["id"]).as_py() > 900 and not ready.exists():
            raise ArithmeticError("not yet")
        with (tmp_path / "calls").open("a") as calls:
            calls.write(f"{batch['id'][0]}\n")
        return pa.record_batch({"twice": pc.multiply(batch["id"], 2)})

    with pytest.raises(PythonException, match=r"(?s)not yet.*the function for new columns raised this on fragment 9"):
        map_columns(spark, uri, twice, read_columns=["id"], schema=DOUBLE, resume_key="k")
    assert Table.open(uri).version == 2
    before = len((tmp_path / "calls").read_text().splitlines())
    ready.touch()
    told: list[tuple[int, int]] = []
    committed = map_columns(
        spark,
        uri,
        twice,
        read_columns=["id"],
        schema=DOUBLE,
        resume_key="k",
        progress=lambda done, of: told.append((done, of)),
    )
    assert (committed.operation, committed.version, told[-1]) == ("Merge", 3, (9, 9))
    assert told[0][0] + len((tmp_path / "calls").read_text().splitlines()) - before == 9
    found = lance.dataset(uri).to_table()
    assert found["twice"] == pc.multiply(found["id"], 2)


def test_what_a_function_returns_wrongly_is_told_on_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    uri = made(tmp_path)
    with pytest.raises(SchemaMismatch, match=r"fragment \d, rows 0 to 99: .*'twice' is stored as int64"):
        map_columns(
            spark, uri, lambda batch: pa.record_batch({"twice": batch["ratio"]}), read_columns=["ratio"], schema=DOUBLE
        )
    assert Table.open(uri).version == 2


@pytest.mark.usefixtures("way")
def test_columns_come_by_address_through_any_transformation(spark: SparkSession, tmp_path: Path) -> None:
    uri = made(tmp_path)
    df = addressed(spark, uri).repartition(7).withColumn("a b", F.col("id") * 10).drop("id")
    found = merge_columns(df, uri).table.to_table()
    assert found["a b"] == pc.multiply(found["id"], 10)
    assert lance.dataset(uri).to_table()["a b"] == found["a b"]
    assert Table.open(uri).fsck().is_sound


@pytest.mark.usefixtures("way")
def test_vectors_keep_their_size(spark: SparkSession, tmp_path: Path) -> None:
    uri = made(tmp_path)

    def packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            vectors = np.repeat(batch["id"].to_numpy(), 8).astype(np.float32).tobytes()
            values = pa.array([vectors[place : place + 32] for place in range(0, len(vectors), 32)], pa.binary())
            yield pa.record_batch([batch["_rowaddr"], values], names=["_rowaddr", "packed"])

    df = addressed(spark, uri)
    schema = pa.schema([pa.field("packed", pa.list_(pa.float32(), 8)), pa.field("listed", pa.list_(pa.float32(), 2))])
    both = df.mapInArrow(packed, "_rowaddr bigint, packed binary").join(
        df.select("_rowaddr", F.array(F.col("id").cast("float"), F.lit(1.0).cast("float")).alias("listed")), "_rowaddr"
    )
    found = merge_columns(both, uri, schema=schema).table.to_table()
    assert [found.schema.field(name).type for name in schema.names] == schema.types
    assert found["packed"].to_pylist() == [[float(number)] * 8 for number in found["id"].to_pylist()]
    assert found["listed"].to_pylist() == [[float(number), 1.0] for number in found["id"].to_pylist()]


@pytest.mark.parametrize(
    ("condition", "message"), [("id != 1", "no value for row 1 of fragment 0"), ("true", "more than once")]
)
def test_bad_addresses_are_told_on_the_driver(
    spark: SparkSession, tmp_path: Path, condition: str, message: str
) -> None:
    uri = made(tmp_path)
    df = addressed(spark, uri).where(condition)
    df = df if condition != "true" else df.union(df.where("id = 500"))
    df = df.withColumnRenamed("id", "score")
    with pytest.raises(InvalidInput, match=message):
        merge_columns(df, uri)
    assert Table.open(uri).version == 2


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("key", ["id", "amount", "ratio"])
def test_columns_come_by_key(spark: SparkSession, tmp_path: Path, key: str) -> None:
    uri, alone = made(tmp_path), made(tmp_path / "alone")
    table = Table.open(uri).to_table()
    source = pa.table({key: table[key], "score": pc.multiply(table["id"], 10)}).slice(0, 500)
    held = source.set_column(0, key, source[key].cast(pa.int64())) if key == "amount" else source
    found = merge_columns(spark.createDataFrame(held), uri, on=[key]).table.to_table()
    expected = Table.open(alone, durable=False).merge_columns(source, key).table.to_table()
    assert found["score"] == expected["score"]
    assert lance.dataset(uri).to_table()["score"] == expected["score"]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("key", [5, 123_456])
def test_a_key_that_is_there_twice_is_named_on_the_driver(spark: SparkSession, tmp_path: Path, key: int) -> None:
    """Whether the table has it or not."""
    uri = made(tmp_path)
    df = spark.createDataFrame([(key, 1), (6, 2), (key, 3), (None, 1), (None, 2)], "id int, score int")
    with pytest.raises(InvalidInput, match=f"(key id = {key} more than once|more than once .*: id = {key})"):
        merge_columns(df, uri, on="id")
