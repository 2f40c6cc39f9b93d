"""Streaming: Lance tables as sources and sinks of streaming queries of a real Spark.

`make test` runs a stream between tables and one that upserts, `make clusters` runs all. The tests of
`tests/lance_core/tasks/test_stream_*.py` cover the source and the sink without Spark.
"""

import json
import os
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

EVERYTHING = os.environ.get("CLUSTERS") == "all"


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


def run_available(writer: DataStreamWriter, checkpoint: Path, uri: str | None = None) -> StreamingQuery:
    """Run the query over all available rows."""
    ready = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = ready.start() if uri is None else ready.start(uri)
    query.awaitTermination(120)
    assert not query.isActive
    return query


def copied(frame: DataFrame, checkpoint: Path, uri: str, mode: str = "append") -> StreamingQuery:
    return run_available(frame.writeStream.format("lance").outputMode(mode), checkpoint, uri)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "from"), rows(0, 10), max_rows_per_file=4, durable=False)


def test_stream_from_one_table_into_another(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    """The stream has a rate limit, stops and restarts, has types that Spark lacks, and overlaps with maintenance."""
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


def rewind_last_batch(checkpoint: Path, last: int) -> None:
    """Remove the record of the last batch, as if the driver crashed between the commit of the batch and its record."""
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink()


def test_batches_are_upserted(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    sink, checkpoint = str(tmp_path / "to"), tmp_path / "checkpoint"
    Table.create(sink, rows(5, 6), durable=False)
    bring = upsert_batches(sink, "id", properties={"a": "b"})
    query = run_available(source(spark, table.uri).writeStream.foreachBatch(bring), checkpoint)
    rewind_last_batch(checkpoint, 0)
    run_available(source(spark, table.uri).writeStream.foreachBatch(bring), checkpoint)
    target = Table.open(sink)
    assert (target.version, target.count_rows(), ids(sink)) == (2, 10, list(range(10)))
    properties = target.versions()[-1].properties
    assert (properties["a"], properties[QUERY], properties[BATCH]) == ("b", query.id, "0")


if EVERYTHING:

    def test_committed_batch_is_not_written_again(spark: SparkSession, table: Table, tmp_path: Path) -> None:
        sink, checkpoint = str(tmp_path / "to"), tmp_path / "checkpoint"
        copied(source(spark, table.uri, maxFilesPerTrigger=2), checkpoint, sink)
        assert Table.open(sink).version == 2
        rewind_last_batch(checkpoint, 1)
        table.append(rows(20, 22))
        copied(source(spark, table.uri), checkpoint, sink)
        assert [version.properties[BATCH] for version in Table.open(sink).versions()] == ["0", "1", "2"]
        assert ids(sink) == [*range(10), 20, 21]
        first = json.loads((checkpoint / "offsets" / "0").read_text().splitlines()[-1])
        assert (first["version"], first["row"], first["begins"]) == (1, 8, 1)

    def test_complete_mode_replaces_the_rows(spark: SparkSession, table: Table, tmp_path: Path) -> None:
        sink, checkpoint = str(tmp_path / "to"), tmp_path / "checkpoint"
        counted = source(spark, table.uri, columns="id").groupBy((F.col("id") % 3).alias("third")).count()
        copied(counted, checkpoint, sink, "complete")
        table.append(rows(10, 30))
        copied(counted, checkpoint, sink, "complete")
        assert sorted(Table.open(sink).to_table()["count"].to_pylist()) == [10, 10, 10]
        with pytest.raises(StreamingQueryException, match="does not support Update mode"):
            copied(counted, tmp_path / "other", sink, "update")

    def test_audit_precedes_the_commit_of_a_batch(spark: SparkSession, table: Table, tmp_path: Path) -> None:
        """A refused batch ends the query and is audited again after a restart. A batch that was published by hand is
        committed."""
        sink, checkpoint = str(tmp_path / "to"), tmp_path / "checkpoint"
        Table.create(sink, rows(5, 6), durable=False)
        audited: list[tuple[int, int | None]] = []

        def collected_batches(most: int) -> None:
            def audit(target: Table, base: Table | None) -> None:
                audited.append((target.count_rows(), base.version if base else None))
                if target.count_rows() > most:
                    raise ValueError(f"{target.count_rows()} rows are too many")

            bring = upsert_batches(sink, "id", audit=audit)
            run_available(source(spark, table.uri).writeStream.foreachBatch(bring), checkpoint)

        with pytest.raises(StreamingQueryException, match="10 rows are too many"):
            collected_batches(9)
        assert (audited, Table.open(sink).version) == ([(10, 1)], 1)
        collected_batches(10)
        assert (audited, ids(sink)) == ([(10, 1)] * 2, list(range(10)))
        table.append(rows(10, 13))
        with pytest.raises(StreamingQueryException, match="13 rows are too many") as refused:
            collected_batches(12)
        (number,) = set(re.findall(r"as the detached version (\d+)", str(refused.value)))
        Table.open(sink).publish(int(number))
        collected_batches(0)
        assert (len(audited), ids(sink), Table.open(sink).version) == (3, list(range(13)), 3)
        with pytest.raises(StreamingQueryException, match=r"(?s)no option audit.*upsert_batches\(\.\.\., audit=\)"):
            run_available(
                source(spark, table.uri).writeStream.format("lance").option("audit", "looks"), tmp_path / "c", sink
            )

    def test_value_that_does_not_fit_ends_the_query(spark: SparkSession, table: Table, tmp_path: Path) -> None:
        sink, checkpoint = str(tmp_path / "to"), tmp_path / "checkpoint"
        Table.create(sink, pa.table({"id": pa.array([7], pa.int8())}), durable=False)
        table.append(rows(300, 301))
        with pytest.raises(StreamingQueryException, match="'id'"):
            copied(source(spark, table.uri, maxVersionsPerTrigger=1, startingVersion=1, columns="id"), checkpoint, sink)
        assert ids(sink) == [0, 1, 2, 3, 4, 5, 6, 7, 7, 8, 9]

    def test_errors(spark: SparkSession, table: Table, tmp_path: Path) -> None:
        table.delete("id = 3")
        message = r"version 2 changed or removed rows: it is the Delete.*on_change='skip'"
        with pytest.raises(StreamingQueryException, match=message):
            copied(source(spark, table.uri, startingVersion=1), tmp_path / "checkpoint", str(tmp_path / "to"))
        with pytest.raises(PySparkException, match="does not parse"):
            source(spark, table.uri, filter="id = = 1")
