"""Column operations: new columns, computed by real executors."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

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
from lance_core.progress import OperationProgress
from lance_core.tasks.columns import merge_columns as merging

DOUBLE = pa.schema([pa.field("twice", pa.int64())])


def create_table(folder: Path) -> str:
    uri = str(folder / "table")
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
def join_strategy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broadcast of few rows to every worker, or a sort-merge join by Spark."""
    if request.param == "shuffled":
        monkeypatch.setattr(merging, "BROADCAST_BYTES_MAX", -1)


def with_addresses(spark: SparkSession, uri: str) -> DataFrame:
    table = Table.open(uri).to_table(columns=["id"], with_row_address=True)
    rows = pa.table({"id": table["id"], "_rowaddr": table["_rowaddr"].cast(pa.int64())})
    return spark.createDataFrame(rows.take(np.random.default_rng(1).permutation(rows.num_rows)))


def test_column_function_resumes_after_an_interruption(spark: SparkSession, tmp_path: Path) -> None:
    uri = create_table(tmp_path)
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
    progress: list[tuple[int, int]] = []
    committed = map_columns(
        spark,
        uri,
        twice,
        read_columns=["id"],
        schema=DOUBLE,
        resume_key="k",
        progress=lambda done, of: progress.append((done, of)),
    )
    assert (committed.operation, committed.version, progress[-1]) == ("Merge", 3, (9, 9))
    assert progress[0][0] + len((tmp_path / "calls").read_text().splitlines()) - before == 9
    stored = lance.dataset(uri).to_table()
    assert stored["twice"] == pc.multiply(stored["id"], 2)


def test_a_receiver_of_one_argument_gets_reports_by_stage(spark: SparkSession, tmp_path: Path) -> None:
    """Both operations run longer than the interval between two reports."""
    uri, gate = create_table(tmp_path), tmp_path / "gate"
    os.mkfifo(gate)
    reports, opened = list[OperationProgress](), list[IO[str]]()

    def receive(state: OperationProgress) -> None:
        reports.append(state)
        if not opened:
            opened.append(gate.open("w"))

    def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
        with gate.open():
            return pa.record_batch({"twice": pc.multiply(batch["id"], 2)})

    map_columns(spark, uri, twice, read_columns=["id"], schema=DOUBLE, progress=receive)
    opened.pop().close()
    assert {(each.operation, each.unit) for each in reports} == {("map_columns", "tasks")}

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with gate.open():
            yield from batches

    reports.clear()
    source = spark.range(1000).selectExpr("id", "id as copy").mapInArrow(wait, "id long, copy long")
    merge_columns(source, uri, on="id", progress=receive)
    opened.pop().close()
    assert {each.operation for each in reports} == {"merge_columns"}


def test_invalid_results_of_a_function_are_errors_on_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    uri = create_table(tmp_path)
    with pytest.raises(SchemaMismatch, match=r"fragment \d, rows 0 to 99: .*'twice' is stored as int64"):
        map_columns(
            spark, uri, lambda batch: pa.record_batch({"twice": batch["ratio"]}), read_columns=["ratio"], schema=DOUBLE
        )
    assert Table.open(uri).version == 2


@pytest.mark.usefixtures("join_strategy")
def test_columns_are_joined_by_address_after_a_transformation(spark: SparkSession, tmp_path: Path) -> None:
    uri = create_table(tmp_path)
    df = with_addresses(spark, uri).repartition(7).withColumn("a b", F.col("id") * 10).drop("id")
    stored = merge_columns(df, uri).table.to_table()
    assert stored["a b"] == pc.multiply(stored["id"], 10)
    assert lance.dataset(uri).to_table()["a b"] == stored["a b"]
    assert Table.open(uri).fsck().is_sound


@pytest.mark.usefixtures("join_strategy")
def test_vectors_keep_their_size(spark: SparkSession, tmp_path: Path) -> None:
    uri = create_table(tmp_path)

    def packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            vectors = np.repeat(batch["id"].to_numpy(), 8).astype(np.float32).tobytes()
            values = pa.array([vectors[start : start + 32] for start in range(0, len(vectors), 32)], pa.binary())
            yield pa.record_batch([batch["_rowaddr"], values], names=["_rowaddr", "packed"])

    df = with_addresses(spark, uri)
    schema = pa.schema([pa.field("packed", pa.list_(pa.float32(), 8)), pa.field("listed", pa.list_(pa.float32(), 2))])
    joined = df.mapInArrow(packed, "_rowaddr bigint, packed binary").join(
        df.select("_rowaddr", F.array(F.col("id").cast("float"), F.lit(1.0).cast("float")).alias("listed")), "_rowaddr"
    )
    stored = merge_columns(joined, uri, schema=schema).table.to_table()
    assert [stored.schema.field(name).type for name in schema.names] == schema.types
    assert stored["packed"].to_pylist() == [[float(number)] * 8 for number in stored["id"].to_pylist()]
    assert stored["listed"].to_pylist() == [[float(number), 1.0] for number in stored["id"].to_pylist()]


@pytest.mark.parametrize(
    ("condition", "message"), [("id != 1", "no value for row 1 of fragment 0"), ("true", "more than once")]
)
def test_invalid_addresses_are_errors_on_the_driver(
    spark: SparkSession, tmp_path: Path, condition: str, message: str
) -> None:
    uri = create_table(tmp_path)
    df = with_addresses(spark, uri).where(condition)
    df = df if condition != "true" else df.union(df.where("id = 500"))
    df = df.withColumnRenamed("id", "score")
    with pytest.raises(InvalidInput, match=message):
        merge_columns(df, uri)
    assert Table.open(uri).version == 2


@pytest.mark.usefixtures("join_strategy")
@pytest.mark.parametrize("key", ["id", "amount", "ratio"])
def test_columns_are_joined_by_key(spark: SparkSession, tmp_path: Path, key: str) -> None:
    uri, alone = create_table(tmp_path), create_table(tmp_path / "alone")
    table = Table.open(uri).to_table()
    source = pa.table({key: table[key], "score": pc.multiply(table["id"], 10)}).slice(0, 500)
    converted = source.set_column(0, key, source[key].cast(pa.int64())) if key == "amount" else source
    stored = merge_columns(spark.createDataFrame(converted), uri, on=[key]).table.to_table()
    expected = Table.open(alone, durable=False).merge_columns(source, key).table.to_table()
    assert stored["score"] == expected["score"]
    assert lance.dataset(uri).to_table()["score"] == expected["score"]


@pytest.mark.usefixtures("join_strategy")
@pytest.mark.parametrize("key", [5, 123_456])
def test_duplicate_keys_are_named_on_the_driver(spark: SparkSession, tmp_path: Path, key: int) -> None:
    """The key exists in the table, or it does not."""
    uri = create_table(tmp_path)
    df = spark.createDataFrame([(key, 1), (6, 2), (key, 3), (None, 1), (None, 2)], "id int, score int")
    with pytest.raises(InvalidInput, match=f"(key id = {key} more than once|more than once .*: id = {key})"):
        merge_columns(df, uri, on="id")


def test_existing_columns_get_new_values(spark: SparkSession, tmp_path: Path) -> None:
    uri = create_table(tmp_path)
    table = Table.open(uri, durable=False)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(2000, dtype=np.float32)), 2)
    data = pa.table({"id": pa.array(range(0, 2000, 2), pa.int64()), "vector": vectors})
    table.merge_columns(data, "id").table.create_index("amount", "BTREE")

    def constant(batch: pa.RecordBatch) -> pa.RecordBatch:
        values = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(2 * len(batch), dtype=np.float32)), 2)
        return pa.record_batch([values], names=["vector"])

    schema = pa.schema([pa.field("vector", pa.list_(pa.float32(), 2))])
    filled = map_columns(spark, uri, constant, read_columns=["id"], schema=schema, mode="fill", code_version="7")
    listed = spark.range(4, 8, 2).selectExpr(
        "id", "array(cast(5 as float), cast(6 as float)) as vector", "-id as amount"
    )
    with pytest.raises(SchemaMismatch, match="amount"):  # a negative number does not fit
        merge_columns(listed, uri, on="id", replace=True)
    merged = merge_columns(listed.withColumn("amount", F.lit(77)), uri, on="id", replace=True)
    assert (filled.operation, merged.operation, merged.files) == ("Update", "Update", 1)
    assert filled.table.version_info().properties["lance_assets.code_version"] == "7"
    stored = merged.table.to_table(["id", "amount", "vector"])
    expected = [
        [5.0, 6.0] if n in (4, 6) else [0.0, 0.0] if n % 2 == 0 else [1.0, 1.0] for n in stored["id"].to_pylist()
    ]
    assert stored["vector"].to_pylist() == expected
    assert lance.dataset(uri).to_table(columns=["id", "amount", "vector"]) == stored
    assert sorted(merged.table.indices[0].covers or ()) == [1, 3, 4, 5, 6, 7, 8, 9]
    assert merged.table.to_table(["id"], filter="amount = 77")["id"].to_pylist() == [4, 6, 77]
    again = map_columns(spark, uri, constant, read_columns=["id"], schema=schema, mode="recompute", where="id = 1")
    assert again.version == merged.version, "the value is that of the function already"
