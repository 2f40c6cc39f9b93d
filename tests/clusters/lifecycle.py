"""Table life cycle: runs each operation once by Spark and once by one process, and compares the rows after each step.

`driver.py` calls these functions. Spark changes a table at any URI, and the methods of `Table` make the same changes to
a reference table on local disk.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

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
    read_changes,
    release,
    update,
    upsert,
    upsert_batches,
)
from lance_assets.spark.release import collect_arrow
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
WORKER_STARTS_MAX = 6
_FIRST_TIMESTAMP = datetime(2026, 1, 1, tzinfo=UTC)


def rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    columns = [
        pa.array(ids, pa.int64()),
        pa.array([each % 60_000 for each in ids], pa.uint16()),
        pa.array([None if each % 11 == 0 else f"n{each % 7}" for each in ids], pa.string()),
        pa.array([[float(each), 0.5, -1.0, float(each % 3)] for each in ids], pa.list_(pa.float32(), 4)),
        pa.array([_FIRST_TIMESTAMP + timedelta(minutes=each) for each in ids], pa.timestamp("ms", "UTC")),
    ]
    return pa.table(columns, schema=SCHEMA)


def frame(spark: SparkSession, first: int, count: int, parts: int = 3) -> DataFrame:
    """Return the rows of `rows` as a Spark DataFrame."""
    return spark.range(first, first + count, 1, parts).selectExpr(
        "id",
        "cast(id % 60000 as int) as k",
        "case when id % 11 = 0 then null else concat('n', id % 7) end as name",
        "array(cast(id as float), 0.5f, -1.0f, cast(id % 3 as float)) as vec",
        "timestamp_micros(1767225600000000 + id * 60000000) as at",
    )


@dataclass(frozen=True)
class TablePair:
    """Table that Spark changes, and the reference table that one process changes in the same way."""

    spark: SparkSession
    uri: str
    reference_uri: str
    options: Options

    def table(self) -> Table:
        return Table.open(self.uri, storage_options=self.options)

    def reference_table(self) -> Table:
        return Table.open(self.reference_uri, durable=False)


Step = Callable[[TablePair], None]


def check_append(tables: TablePair) -> None:
    committed = append(
        frame(tables.spark, 1000, 500), tables.uri, max_rows_per_file=100, intent="once", storage_options=tables.options
    )
    assert (
        append(frame(tables.spark, 1000, 500), tables.uri, intent="once", storage_options=tables.options).version
        == committed.version
    )
    assert committed.rows_added == 500
    tables.reference_table().append(rows(1000, 500))


def check_read(tables: TablePair) -> None:
    found = read(
        tables.spark, tables.uri, columns=["id", "k"], filter="name = 'n3' and id > 100", storage_options=tables.options
    )
    theirs = tables.reference_table().to_table(["id", "k"], filter="name = 'n3' and id > 100")
    assert sorted(collect_arrow(found)["id"].to_pylist()) == sorted(theirs["id"].to_pylist())
    whole = read(tables.spark, tables.uri, version=1, with_row_address=True, storage_options=tables.options)
    assert whole.count() == 1000
    none = read(tables.spark, tables.uri, filter="id < 0", storage_options=tables.options)
    assert collect_arrow(none).num_rows == 0


def check_count_rows(tables: TablePair) -> None:
    for condition in (None, "name is null", "k > 700"):
        assert count_rows(
            tables.spark, tables.uri, condition, storage_options=tables.options
        ) == tables.reference_table().count_rows(condition)


def check_aggregate(tables: TablePair) -> None:
    sql = "select name, count(*) as n, sum(id) as total, max(k) as most from dataset where id > 10 group by name"
    found = aggregate(tables.spark, tables.uri, sql, storage_options=tables.options).sort_by("name")
    own = tables.reference_table().to_table(["id", "name", "k"], filter="id > 10")
    theirs = own.group_by("name").aggregate([("id", "count"), ("id", "sum"), ("k", "max")]).sort_by("name")
    assert found["n"].to_pylist() == theirs["id_count"].to_pylist()
    assert found["total"].to_pylist() == theirs["id_sum"].to_pylist()
    assert found["most"].to_pylist() == theirs["k_max"].to_pylist()


def check_delete(tables: TablePair) -> None:
    condition = "id % 10 = 3 or name = 'n5' or id between 200 and 299"
    committed = delete(tables.spark, tables.uri, condition, storage_options=tables.options)
    assert committed.rows_removed == tables.reference_table().delete(condition).rows_removed > 0


def check_update(tables: TablePair) -> None:
    for values, condition in (({"name": "upper(name)"}, "id % 100 = 7"), ({"k": "k + 1"}, None)):
        update(tables.spark, tables.uri, values, condition, storage_options=tables.options)
        tables.reference_table().update(values, condition)


def check_upsert(tables: TablePair) -> None:
    upsert(
        frame(tables.spark, 1400, 300), tables.uri, "id", matched_if="target.k > 1420", storage_options=tables.options
    )
    tables.reference_table().upsert(rows(1400, 300), "id", matched_if="target.k > 1420")


def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"twice": pc.multiply(batch["id"], 2)})


def check_map_columns(tables: TablePair) -> None:
    progress: list[tuple[int, int]] = []
    map_columns(
        tables.spark,
        tables.uri,
        twice,
        read_columns=["id"],
        schema=TWICE,
        resume_key="twice",
        progress=lambda done, total: progress.append((done, total)),
        storage_options=tables.options,
    )
    done, total = progress[-1]
    assert done == total > 0
    tables.reference_table().add_columns(twice, schema=TWICE, read_columns=["id"])


def check_merge_by_address(tables: TablePair) -> None:
    rows_with_address = read(
        tables.spark, tables.uri, columns=["id"], with_row_address=True, storage_options=tables.options
    )
    values = rows_with_address.repartition(3).select("_rowaddr", (F.col("id") % 5).alias("fifth"))
    merge_columns(values, tables.uri, storage_options=tables.options)
    tables.reference_table().add_columns({"fifth": "id % 5"})


def check_merge_by_key(tables: TablePair) -> None:
    partners = tables.spark.range(0, 3000, 2, 3).selectExpr("id", "concat('p', id) as partner")
    merge_columns(partners, tables.uri, on="id", storage_options=tables.options)
    keys = range(0, 3000, 2)
    own = pa.table({"id": pa.array(keys, pa.int64()), "partner": [f"p{each}" for each in keys]})
    tables.reference_table().merge_columns(own, "id")


def check_compact(tables: TablePair) -> None:
    before = tables.table().fragments
    after = compact(tables.spark, tables.uri, target_rows=400, storage_options=tables.options).table.fragments
    assert len(after) < len(before) / 2, (before, after)
    assert all(each.live_rows == each.physical_rows < 800 for each in after), after
    tables.reference_table().compact(target_rows=400)


def check_build_index(tables: TablePair) -> None:
    """Build indices from range partitions, as for large tables: the driver decides which tables are too large for one
    worker."""
    original, index_build.SINGLE_WORKER_ROWS_MAX = index_build.SINGLE_WORKER_ROWS_MAX, 100
    try:
        for column, kind in (("id", "BTREE"), ("name", "BITMAP"), ("at", "ZONEMAP")):
            build_index(tables.spark, tables.uri, column, kind, intent=kind, storage_options=tables.options)
            tables.reference_table().create_index(column, kind)
    finally:
        index_build.SINGLE_WORKER_ROWS_MAX = original
    append(frame(tables.spark, 1900, 50), tables.uri, storage_options=tables.options)
    tables.reference_table().append(rows(1900, 50))
    rebuilt = build_index(
        tables.spark, tables.uri, "id", "BTREE", only="uncovered", intent="more", storage_options=tables.options
    )
    done = optimize_indices(tables.spark, tables.uri, storage_options=tables.options)
    live = [each.id for each in done.table.fragments]
    assert done.version > rebuilt.version
    assert all(sorted(index.covers or ()) == live for index in done.table.indices)
    condition = "id in (250, 1910) or name = 'n3'"
    assert tables.table().count_rows(condition) == tables.reference_table().count_rows(condition)


def check_data_source(tables: TablePair) -> None:
    options = {f"storage.{name}": value for name, value in (tables.options or {}).items()}
    found = tables.spark.read.format("lance").options(**options).option("columns", "id, vec").load(tables.uri)
    theirs = tables.reference_table().to_table(["id", "vec"])
    assert found.filter("id > 1500").count() == theirs.filter(pc.field("id") > 1500).num_rows
    wide = tables.reference_table().schema.names[len(SCHEMA) :]
    more = frame(tables.spark, 5000, 40).withColumns({name: F.lit(None).cast(_spark_type(name)) for name in wide})
    more.write.format("lance").options(**options).mode("append").save(tables.uri)
    nulls = [pa.nulls(40, tables.reference_table().schema.field(name).type) for name in wide]
    own = rows(5000, 40)
    tables.reference_table().append(pa.table([*own.columns, *nulls], names=[*own.schema.names, *wide]))


def _spark_type(name: str) -> str:
    return "string" if name == "partner" else "bigint"


def check_overwrite(tables: TablePair) -> None:
    even_rows = read(tables.spark, tables.uri, filter="id % 2 = 0", storage_options=tables.options)
    overwrite(even_rows, tables.uri, storage_options=tables.options)
    tables.reference_table().overwrite(tables.reference_table().to_table(filter="id % 2 = 0"))


def check_ingest(tables: TablePair) -> None:
    """Ingest files that every worker can reach; a second ingest adds nothing."""
    place = Path(tables.reference_uri).parent / "files"
    place.mkdir()
    for number in range(4):
        pq.write_table(rows(8000 + 50 * number, 50), place / f"{number}.parquet")
    for expected in (200, 0):
        assert ingest(tables.spark, str(place), tables.uri, storage_options=tables.options).rows_added == expected
    tables.reference_table().append(rows(8000, 200))


def check_stream(tables: TablePair) -> None:
    """Stream the table into another one, and restart the query once."""
    options = {f"storage.{name}": value for name, value in (tables.options or {}).items()}
    copy, checkpoint = f"{tables.uri}-copy", str(Path(tables.reference_uri).parent / "checkpoint")
    for _ in range(2):
        source = tables.spark.readStream.format("lance").options(**options).option("max_files_per_trigger", "3")
        writer = source.load(tables.uri).writeStream.format("lance").options(**options)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(copy)
        query.awaitTermination()
    found = Table.open(copy, storage_options=tables.options).to_table()
    assert sorted(found["id"].to_pylist()) == sorted(tables.reference_table().to_table(["id"])["id"].to_pylist())


def check_streaming_sink(tables: TablePair) -> None:
    """Stream Parquet files into a table, and restart the query once."""
    options = {f"storage.{name}": value for name, value in (tables.options or {}).items()}
    copy, checkpoint = f"{tables.uri}-from-files", str(Path(tables.reference_uri).parent / "checkpoint-of-files")
    for _ in range(2):
        writer = _file_stream(tables, "sink").writeStream.format("lance").options(**options)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(copy)
        query.awaitTermination()
    found = Table.open(copy, storage_options=tables.options)
    assert found.count_rows() == tables.reference_table().count_rows()


def check_refused_stream(tables: TablePair) -> None:
    """Stream with a release that lacks the interface: the error names the release that is needed."""
    source = tables.spark.readStream.format("lance").load(tables.uri).writeStream.format("noop")
    query = source.option("checkpointLocation", f"{tables.reference_uri}-refused").trigger(availableNow=True)
    with pytest.raises(PySparkException, match=r"needs Spark 4\.2"):
        query.start().awaitTermination()


def check_stream_upsert(tables: TablePair) -> None:
    """Upsert the batches of a stream into a table, by the function that Spark calls for each batch."""
    copy, checkpoint = f"{tables.uri}-by-key", str(Path(tables.reference_uri).parent / "checkpoint-by-key")
    Table.create(copy, tables.reference_table().schema, storage_options=tables.options, durable=False)
    upsert_batch = upsert_batches(copy, "id", query_id="lifecycle", storage_options=tables.options)
    query = (
        _file_stream(tables, "upsert")
        .writeStream.foreachBatch(upsert_batch)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
    )
    _start(query).awaitTermination()
    found = Table.open(copy, storage_options=tables.options)
    assert found.count_rows() == tables.reference_table().count_rows()
    assert found.versions()[-1].operation == "Update"


def _start(query: DataStreamWriter) -> StreamingQuery:
    """Start a query. The server of Spark Connect gives its Python worker ten seconds, which a busy machine exceeds."""
    for _ in range(WORKER_STARTS_MAX - 1):
        with _suppress_late_worker():
            return query.start()
    return query.start()


@contextmanager
def _suppress_late_worker() -> Iterator[None]:
    try:
        yield
    except PySparkException as error:
        if "failed to connect back" not in str(error):
            raise


def _file_stream(tables: TablePair, name: str) -> DataFrame:
    """Return the rows of the reference table as a stream of Parquet files, the source that every release has."""
    directory = Path(f"{tables.reference_uri}-{name}")
    directory.mkdir(exist_ok=True)
    pq.write_table(tables.reference_table().to_table(["id", "name"]), directory / "0.parquet")
    return tables.spark.readStream.schema("id bigint, name string").parquet(str(directory))


def check_changes(tables: TablePair) -> None:
    """Read the changes of a table with stable row ids, which Spark creates and changes."""
    uri, options = f"{tables.uri}-with-row-ids", tables.options
    append(frame(tables.spark, 0, 500), uri, stable_row_ids=True, max_rows_per_file=100, storage_options=options)
    delete(tables.spark, uri, "id % 10 = 3", storage_options=options)
    upsert(frame(tables.spark, 450, 100), uri, "id", storage_options=options)
    found = collect_arrow(read_changes(tables.spark, uri, 1, columns=["id"], storage_options=options))
    changes = Table.open(uri, storage_options=options).changes(1)
    assert found.num_rows > 100
    for name in found.column_names:
        assert found[name].to_pylist() == changes[name].to_pylist()


def check_recreated_table(tables: TablePair) -> None:
    """Recreate a table at a URI from which workers have just read: they must not use anything cached of the old one."""
    other = f"{tables.reference_uri}-other"
    for name in ("a", "b"):
        append(tables.spark.range(0, 10, 1, 2).selectExpr("id", f"'{name}' as {name}"), other)
        found = collect_arrow(read(tables.spark, other, filter=f"{name} is not null"))
        assert found[name].to_pylist() == [name] * 10
        shutil.rmtree(other)


STEPS: tuple[Step, ...] = (
    check_append,
    check_ingest,
    check_read,
    check_count_rows,
    check_aggregate,
    check_delete,
    check_update,
    check_upsert,
    check_build_index,
    check_map_columns,
    check_merge_by_address,
    check_merge_by_key,
    check_compact,
    check_data_source,
    check_overwrite,
    check_streaming_sink,
    check_stream,
    check_refused_stream,
    check_stream_upsert,
    check_changes,
    check_recreated_table,
)
_STEPS_FROM: Mapping[Step, tuple[int, ...]] = {
    check_data_source: release.DATA_SOURCE_RELEASE,
    check_streaming_sink: release.STREAMING_SINK_RELEASE,
    check_stream: release.STREAMING_SOURCE_RELEASE,
    check_refused_stream: release.DATA_SOURCE_RELEASE,  # before, Spark itself does not know the format
}
_STEPS_BEFORE: Mapping[Step, tuple[int, ...]] = {
    check_streaming_sink: release.STREAMING_SOURCE_RELEASE,  # `check_stream` covers the sink too
    check_refused_stream: release.STREAMING_SOURCE_RELEASE,
}


def is_supported(step: Step) -> bool:
    """Return whether the installed release of Spark has what a step needs."""
    return _STEPS_FROM.get(step, (0,)) <= release.RELEASE and _STEPS_BEFORE.get(step, (1 << 16,)) > release.RELEASE


def run_step(tables: TablePair, step: Step) -> None:
    """Run a step and compare the tables."""
    step(tables)
    _check_same(tables)


def run_lifecycle(spark: SparkSession, uri: str, reference_uri: str, options: Options = None) -> dict[str, float]:
    """Run the steps and return the seconds that each step took."""
    tables = TablePair(spark, uri, reference_uri, options)
    Table.create(uri, rows(0, 1000), max_rows_per_file=100, storage_options=options, durable=False)
    Table.create(reference_uri, rows(0, 1000), max_rows_per_file=100, durable=False)
    seconds = {}
    for step in filter(is_supported, STEPS):
        start = datetime.now(UTC)
        run_step(tables, step)
        seconds[step.__name__] = (datetime.now(UTC) - start).total_seconds()
    assert tables.table().fsck().is_sound
    return seconds


def _check_same(tables: TablePair) -> None:
    ours, theirs = (each.to_table().sort_by("id") for each in (tables.table(), tables.reference_table()))
    assert ours.schema == theirs.schema
    assert ours == theirs
    assert ours.schema.field("k").metadata == {b"unit": b"pieces"}
