"""The life of a table: each verb once, by Spark and by one process, with the same rows after each of them.

Scenes for `driver.py`. What Spark does is done to a table wherever it lies; beside it, one on local disk goes through
the same by the methods of `Table`.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lance_assets.spark import (
    aggregate,
    append,
    build_index,
    compact,
    count_rows,
    delete,
    ingest,
    map_columns,
    merge_columns,
    optimize_indices,
    overwrite,
    read,
    update,
    upsert,
    upsert_batches,
)
from lance_core import Table
from lance_core.tasks.indices import index_build

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("k", pa.uint16(), metadata={"unit": "pieces"}),
        pa.field("name", pa.string()),
        pa.field("vec", pa.list_(pa.float32(), 4)),
        pa.field("at", pa.timestamp("ms", "UTC")),
    ]
)
TWICE = pa.schema([pa.field("twice", pa.int64())])
Options = Mapping[str, str] | None
_BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    columns = [
        pa.array(ids, pa.int64()),
        pa.array([each % 60_000 for each in ids], pa.uint16()),
        pa.array([None if each % 11 == 0 else f"n{each % 7}" for each in ids], pa.string()),
        pa.array([[float(each), 0.5, -1.0, float(each % 3)] for each in ids], pa.list_(pa.float32(), 4)),
        pa.array([_BEGAN + timedelta(minutes=each) for each in ids], pa.timestamp("ms", "UTC")),
    ]
    return pa.table(columns, schema=SCHEMA)


def frame(spark: SparkSession, first: int, count: int, parts: int = 3) -> DataFrame:
    """The same rows as `rows`, made by Spark."""
    return spark.range(first, first + count, 1, parts).selectExpr(
        "id",
        "cast(id % 60000 as int) as k",
        "case when id % 11 = 0 then null else concat('n', id % 7) end as name",
        "array(cast(id as float), 0.5f, -1.0f, cast(id % 3 as float)) as vec",
        "timestamp_micros(1767225600000000 + id * 60000000) as at",
    )


@dataclass(frozen=True)
class Stage:
    spark: SparkSession
    uri: str
    alone: str
    options: Options

    def table(self) -> Table:
        return Table.open(self.uri, storage_options=self.options)

    def one(self) -> Table:
        return Table.open(self.alone, durable=False)


Step = Callable[[Stage], None]


def appended(stage: Stage) -> None:
    committed = append(
        frame(stage.spark, 1000, 500), stage.uri, max_rows_per_file=100, intent="once", storage_options=stage.options
    )
    assert (
        append(frame(stage.spark, 1000, 500), stage.uri, intent="once", storage_options=stage.options).version
        == committed.version
    )
    assert committed.rows_added == 500
    stage.one().append(rows(1000, 500))


def reads(stage: Stage) -> None:
    found = read(
        stage.spark, stage.uri, columns=["id", "k"], filter="name = 'n3' and id > 100", storage_options=stage.options
    )
    theirs = stage.one().to_table(["id", "k"], filter="name = 'n3' and id > 100")
    assert sorted(found.toArrow()["id"].to_pylist()) == sorted(theirs["id"].to_pylist())
    whole = read(stage.spark, stage.uri, version=1, with_row_address=True, storage_options=stage.options)
    assert whole.count() == 1000
    assert read(stage.spark, stage.uri, filter="id < 0", storage_options=stage.options).toArrow().num_rows == 0


def counts(stage: Stage) -> None:
    for condition in (None, "name is null", "k > 700"):
        assert count_rows(stage.spark, stage.uri, condition, storage_options=stage.options) == stage.one().count_rows(
            condition
        )


def aggregates(stage: Stage) -> None:
    sql = "select name, count(*) as n, sum(id) as total, max(k) as most from dataset where id > 10 group by name"
    found = aggregate(stage.spark, stage.uri, sql, storage_options=stage.options).sort_by("name")
    own = stage.one().to_table(["id", "name", "k"], filter="id > 10")
    theirs = own.group_by("name").aggregate([("id", "count"), ("id", "sum"), ("k", "max")]).sort_by("name")
    assert found["n"].to_pylist() == theirs["id_count"].to_pylist()
    assert found["total"].to_pylist() == theirs["id_sum"].to_pylist()
    assert found["most"].to_pylist() == theirs["k_max"].to_pylist()


def deleted(stage: Stage) -> None:
    condition = "id % 10 = 3 or name = 'n5' or id between 200 and 299"
    committed = delete(stage.spark, stage.uri, condition, storage_options=stage.options)
    assert committed.rows_removed == stage.one().delete(condition).rows_removed > 0


def updated(stage: Stage) -> None:
    for values, condition in (({"name": "upper(name)"}, "id % 100 = 7"), ({"k": "k + 1"}, None)):
        update(stage.spark, stage.uri, values, condition, storage_options=stage.options)
        stage.one().update(values, condition)


def upserted(stage: Stage) -> None:
    upsert(frame(stage.spark, 1400, 300), stage.uri, "id", matched_if="target.k > 1420", storage_options=stage.options)
    stage.one().upsert(rows(1400, 300), "id", matched_if="target.k > 1420")


def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"twice": pc.multiply(batch["id"], 2)})


def mapped(stage: Stage) -> None:
    progress: list[tuple[int, int]] = []
    map_columns(
        stage.spark,
        stage.uri,
        twice,
        read_columns=["id"],
        schema=TWICE,
        resume_key="twice",
        progress=lambda done, of: progress.append((done, of)),
        storage_options=stage.options,
    )
    done, of = progress[-1]
    assert done == of > 0
    stage.one().add_columns(twice, schema=TWICE, read_columns=["id"])


def merged_by_address(stage: Stage) -> None:
    there = read(stage.spark, stage.uri, columns=["id"], with_row_address=True, storage_options=stage.options)
    values = there.repartition(3).select("_rowaddr", (F.col("id") % 5).alias("fifth"))
    merge_columns(values, stage.uri, storage_options=stage.options)
    stage.one().add_columns({"fifth": "id % 5"})


def merged_by_key(stage: Stage) -> None:
    partners = stage.spark.range(0, 3000, 2, 3).selectExpr("id", "concat('p', id) as partner")
    merge_columns(partners, stage.uri, on="id", storage_options=stage.options)
    keys = range(0, 3000, 2)
    own = pa.table({"id": pa.array(keys, pa.int64()), "partner": [f"p{each}" for each in keys]})
    stage.one().merge_columns(own, "id")


def compacted(stage: Stage) -> None:
    before = stage.table().fragments
    after = compact(stage.spark, stage.uri, target_rows=400, storage_options=stage.options).table.fragments
    assert len(after) < len(before) / 2, (before, after)
    assert all(each.live_rows == each.physical_rows < 800 for each in after), after
    stage.one().compact(target_rows=400)


def indexed(stage: Stage) -> None:
    """In pieces and ranges, as large ones are: what is too large for one worker is decided by the driver."""
    alone, index_build.SINGLE_WORKER_ROWS_MAX = index_build.SINGLE_WORKER_ROWS_MAX, 100
    try:
        for column, kind in (("id", "BTREE"), ("name", "BITMAP"), ("at", "ZONEMAP")):
            build_index(stage.spark, stage.uri, column, kind, intent=kind, storage_options=stage.options)
            stage.one().create_index(column, kind)
    finally:
        index_build.SINGLE_WORKER_ROWS_MAX = alone
    append(frame(stage.spark, 1900, 50), stage.uri, storage_options=stage.options)
    stage.one().append(rows(1900, 50))
    again = build_index(
        stage.spark, stage.uri, "id", "BTREE", only="uncovered", intent="more", storage_options=stage.options
    )
    done = optimize_indices(stage.spark, stage.uri, storage_options=stage.options)
    live = [each.id for each in done.table.fragments]
    assert done.version > again.version
    assert all(sorted(index.covers or ()) == live for index in done.table.indices)
    condition = "id in (250, 1910) or name = 'n3'"
    assert stage.table().count_rows(condition) == stage.one().count_rows(condition)


def through_the_source(stage: Stage) -> None:
    options = {f"storage.{name}": value for name, value in (stage.options or {}).items()}
    found = stage.spark.read.format("lance").options(**options).option("columns", "id, vec").load(stage.uri)
    theirs = stage.one().to_table(["id", "vec"])
    assert found.filter("id > 1500").count() == theirs.filter(pc.field("id") > 1500).num_rows
    wide = stage.one().schema.names[len(SCHEMA) :]
    more = frame(stage.spark, 5000, 40).withColumns({name: F.lit(None).cast(_spark_type(name)) for name in wide})
    more.write.format("lance").options(**options).mode("append").save(stage.uri)
    nulls = [pa.nulls(40, stage.one().schema.field(name).type) for name in wide]
    own = rows(5000, 40)
    stage.one().append(pa.table([*own.columns, *nulls], names=[*own.schema.names, *wide]))


def _spark_type(name: str) -> str:
    return "string" if name == "partner" else "bigint"


def overwritten(stage: Stage) -> None:
    there = read(stage.spark, stage.uri, filter="id % 2 = 0", storage_options=stage.options)
    overwrite(there, stage.uri, storage_options=stage.options)
    stage.one().overwrite(stage.one().to_table(filter="id % 2 = 0"))


def ingested(stage: Stage) -> None:
    """Files that every worker can reach, and only once."""
    place = Path(stage.alone).parent / "files"
    place.mkdir()
    for number in range(4):
        pq.write_table(rows(8000 + 50 * number, 50), place / f"{number}.parquet")
    for expected in (200, 0):
        assert ingest(stage.spark, str(place), stage.uri, storage_options=stage.options).rows_added == expected
    stage.one().append(rows(8000, 200))


def streamed(stage: Stage) -> None:
    """Out of the table and into another, which has been begun twice."""
    options = {f"storage.{name}": value for name, value in (stage.options or {}).items()}
    copy, checkpoint = f"{stage.uri}-copy", str(Path(stage.alone).parent / "checkpoint")
    for _ in range(2):
        source = stage.spark.readStream.format("lance").options(**options).option("max_files_per_trigger", "3")
        writer = source.load(stage.uri).writeStream.format("lance").options(**options)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(copy)
        query.awaitTermination()
    found = Table.open(copy, storage_options=stage.options).to_table()
    assert sorted(found["id"].to_pylist()) == sorted(stage.one().to_table(["id"])["id"].to_pylist())


def streamed_by_key(stage: Stage) -> None:
    """Batches that are brought to a table one after the other, by whoever calls the function for each of them."""
    options = {f"storage.{name}": value for name, value in (stage.options or {}).items()}
    copy, checkpoint = f"{stage.uri}-by-key", str(Path(stage.alone).parent / "checkpoint-by-key")
    Table.create(copy, stage.one().schema, storage_options=stage.options, durable=False)
    bring = upsert_batches(copy, "id", query_id="life", storage_options=stage.options)
    source = stage.spark.readStream.format("lance").options(**options).load(stage.uri)
    query = source.writeStream.foreachBatch(bring).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query.start().awaitTermination()
    found = Table.open(copy, storage_options=stage.options)
    assert found.count_rows() == stage.one().count_rows()
    assert found.versions()[-1].operation == "Update"


def made_anew(stage: Stage) -> None:
    """Another table in the place of one that workers have just read: they know nothing of that any more."""
    other = f"{stage.alone}-other"
    for name in ("a", "b"):
        append(stage.spark.range(0, 10, 1, 2).selectExpr("id", f"'{name}' as {name}"), other)
        assert read(stage.spark, other, filter=f"{name} is not null").toArrow()[name].to_pylist() == [name] * 10
        shutil.rmtree(other)


STEPS: tuple[Step, ...] = (
    appended,
    ingested,
    reads,
    counts,
    aggregates,
    deleted,
    updated,
    upserted,
    indexed,
    mapped,
    merged_by_address,
    merged_by_key,
    compacted,
    through_the_source,
    overwritten,
    streamed,
    streamed_by_key,
    made_anew,
)


def lived(
    spark: SparkSession, uri: str, alone: str, options: Options = None, only: list[str] | None = None
) -> dict[str, float]:
    """How long each step took."""
    stage = Stage(spark, uri, alone, options)
    Table.create(uri, rows(0, 1000), max_rows_per_file=100, storage_options=options, durable=False)
    Table.create(alone, rows(0, 1000), max_rows_per_file=100, durable=False)
    took = {}
    for step in STEPS:
        if only is not None and step.__name__ not in only:
            continue
        start = datetime.now(UTC)
        step(stage)
        took[step.__name__] = (datetime.now(UTC) - start).total_seconds()
        _check_same(stage, step.__name__)
    assert stage.table().fsck().is_sound
    return took


def _check_same(stage: Stage, step: str) -> None:
    ours, theirs = (each.to_table().sort_by("id") for each in (stage.table(), stage.one()))
    assert ours.schema == theirs.schema, step
    assert ours == theirs, step
    assert ours.schema.field("k").metadata == {b"unit": b"pieces"}, step
