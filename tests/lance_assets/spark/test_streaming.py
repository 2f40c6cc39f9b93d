"""Lance tables as sources and sinks of streaming queries of a real Spark."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lance_assets.spark import upsert_batches
from lance_core import Table
from lance_core.tasks.streaming.stream_sink import BATCH, QUERY, RUN


def rows(first: int, stop: int) -> pa.Table:
    numbers = range(first, stop)
    columns = {
        "id": pa.array(numbers, pa.int64()),
        "u": pa.array([n % 256 for n in numbers], pa.uint8()),
        "v": pa.array([[n, 1.0] for n in numbers], pa.list_(pa.float32(), 2)),
        "at": pa.array([n * 1000 for n in numbers], pa.timestamp("ms", "Europe/Paris")),
    }
    return pa.table(columns)


def ids(uri: str) -> list[int]:
    return sorted(int(n) for n in Table.open(uri).to_table(columns=["id"])["id"].to_pylist())


def source(spark: SparkSession, uri: str, **options: object) -> DataFrame:
    return spark.readStream.format("lance").options(**{name: str(value) for name, value in options.items()}).load(uri)


def finished(writer: DataStreamWriter, checkpoint: Path, uri: str | None = None) -> StreamingQuery:
    """All that there is now."""
    ready = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = ready.start() if uri is None else ready.start(uri)
    query.awaitTermination(120)
    assert not query.isActive
    return query


def copied(frame: DataFrame, checkpoint: Path, uri: str, mode: str = "append") -> StreamingQuery:
    return finished(frame.writeStream.format("lance").outputMode(mode), checkpoint, uri)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "from"), rows(0, 10), max_rows_per_file=4, durable=False)


def test_a_table_is_followed_into_another(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    """Rate-limited, stopped, started again; with the types that Spark does not have; upkeep in between."""
    sink, checkpoint = str(tmp_path / "to"), tmp_path / "checkpoint"
    Table.create(sink, rows(0, 0), durable=False)
    frame = source(spark, table.uri, maxRowsPerTrigger=3)
    query = copied(frame.select("v", "id", "u", "at"), checkpoint, sink)
    assert [version.rows_added for version in Table.open(sink).versions()] == [0, 3, 3, 3, 1]
    table.append(rows(10, 14))
    table.refresh().compact(target_rows=100)
    table.refresh().append(rows(14, 15))
    copied(source(spark, table.uri, max_rows_per_trigger=3).select("v", "id", "u", "at"), checkpoint, sink)
    copied(source(spark, table.uri), checkpoint, sink)
    target = Table.open(sink)
    assert target.to_table().sort_by("id").equals(rows(0, 15))
    properties = target.versions()[-1].properties
    assert properties[QUERY] == query.id
    assert properties[BATCH].isdigit()
    assert properties[RUN] not in (query.runId, "")
    assert target.fsck().is_sound


def repeated(checkpoint: Path, last: int) -> None:
    """As if the driver had died when the last batch had landed, and before it wrote that down."""
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink()


def test_a_batch_that_landed_is_not_written_again(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    sink, checkpoint = str(tmp_path / "to"), tmp_path / "checkpoint"
    copied(source(spark, table.uri, maxFilesPerTrigger=2), checkpoint, sink)
    assert Table.open(sink).version == 2
    repeated(checkpoint, 1)
    table.append(rows(20, 22))
    copied(source(spark, table.uri), checkpoint, sink)
    assert [version.properties[BATCH] for version in Table.open(sink).versions()] == ["0", "1", "2"]
    assert ids(sink) == [*range(10), 20, 21]
    first = json.loads((checkpoint / "offsets" / "0").read_text().splitlines()[-1])
    assert (first["version"], first["row"], first["begins"]) == (1, 8, 1)


def test_complete_mode_replaces_what_was_there(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    sink, checkpoint = str(tmp_path / "to"), tmp_path / "checkpoint"
    counted = source(spark, table.uri, columns="id").groupBy((F.col("id") % 3).alias("third")).count()
    copied(counted, checkpoint, sink, "complete")
    table.append(rows(10, 30))
    copied(counted, checkpoint, sink, "complete")
    assert sorted(Table.open(sink).to_table()["count"].to_pylist()) == [10, 10, 10]
    with pytest.raises(StreamingQueryException, match="does not support Update mode"):
        copied(counted, tmp_path / "other", sink, "update")


def test_batches_are_upserted(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    sink, checkpoint = str(tmp_path / "to"), tmp_path / "checkpoint"
    Table.create(sink, rows(5, 6), durable=False)
    bring = upsert_batches(sink, "id", properties={"a": "b"})
    query = finished(source(spark, table.uri).writeStream.foreachBatch(bring), checkpoint)
    repeated(checkpoint, 0)
    finished(source(spark, table.uri).writeStream.foreachBatch(bring), checkpoint)
    target = Table.open(sink)
    assert (target.version, target.count_rows(), ids(sink)) == (2, 10, list(range(10)))
    noted = target.versions()[-1].properties
    assert (noted["a"], noted[QUERY], noted[BATCH]) == ("b", query.id, "0")


def test_a_batch_is_looked_at_before_anybody_sees_it(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    """Refused it ends the query, and is shown again when that goes on; published by a person it has landed."""
    sink, checkpoint = str(tmp_path / "to"), tmp_path / "checkpoint"
    Table.create(sink, rows(5, 6), durable=False)
    shown: list[tuple[int, int | None]] = []

    def brought(most: int) -> None:
        def audit(target: Table, base: Table | None) -> None:
            shown.append((target.count_rows(), base.version if base else None))
            if target.count_rows() > most:
                raise ValueError(f"{target.count_rows()} rows are too many")

        bring = upsert_batches(sink, "id", audit=audit)
        finished(source(spark, table.uri).writeStream.foreachBatch(bring), checkpoint)

    with pytest.raises(StreamingQueryException, match="10 rows are too many"):
        brought(9)
    assert (shown, Table.open(sink).version) == ([(10, 1)], 1)
    brought(10)
    assert (shown, ids(sink)) == ([(10, 1)] * 2, list(range(10)))
    table.append(rows(10, 13))
    with pytest.raises(StreamingQueryException, match="13 rows are too many") as refused:
        brought(12)
    (number,) = set(re.findall(r"as the detached version (\d+)", str(refused.value)))
    Table.open(sink).publish(int(number))
    brought(0)
    assert (len(shown), ids(sink), Table.open(sink).version) == (3, list(range(13)), 3)
    with pytest.raises(StreamingQueryException, match=r"(?s)no option audit.*upsert_batches\(\.\.\., audit=\)"):
        finished(source(spark, table.uri).writeStream.format("lance").option("audit", "looks"), tmp_path / "c", sink)


def test_a_value_that_does_not_fit_ends_the_query(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    sink, checkpoint = str(tmp_path / "to"), tmp_path / "checkpoint"
    Table.create(sink, pa.table({"id": pa.array([7], pa.int8())}), durable=False)
    table.append(rows(300, 301))
    with pytest.raises(StreamingQueryException, match="'id'"):
        copied(source(spark, table.uri, maxVersionsPerTrigger=1, startingVersion=1, columns="id"), checkpoint, sink)
    assert ids(sink) == [0, 1, 2, 3, 4, 5, 6, 7, 7, 8, 9]


def test_what_is_in_the_way_is_told(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    table.delete("id = 3")
    told = r"version 2 changed or removed rows: it is the Delete.*on_change='skip'"
    with pytest.raises(StreamingQueryException, match=told):
        copied(source(spark, table.uri, startingVersion=1), tmp_path / "checkpoint", str(tmp_path / "to"))
    with pytest.raises(PySparkException, match="does not parse"):
        source(spark, table.uri, filter="id = = 1")
