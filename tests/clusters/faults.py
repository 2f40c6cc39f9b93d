"""Fault tolerance: if tasks fail, run twice or lose their executor, every row is in the table once, in one version.

`driver.py` calls these functions. Failed tasks may leave files that no version references; cleanup removes them.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from lance_assets.spark import (
    append,
    build_index,
    compact,
    delete,
    ingest,
    map_columns,
    merge_columns,
    overwrite,
    read,
    update,
    upsert,
)
from lance_core import Committed, Table
from lance_core.tasks.indices import index_build
from tests.clusters import lifecycle
from tests.clusters.task_faults import FaultKind, FaultPoint, TaskFault, through_faulty_task, with_fault

ROWS = 1000
_LONG_AGO = timedelta(hours=3)
Change = Callable[[SparkSession, str, TaskFault], Committed]


def _appends(spark: SparkSession, uri: str, fault: TaskFault) -> Committed:
    df = with_fault(lifecycle.frame(spark, ROWS, ROWS, 2), fault)
    return append(df, uri, max_rows_per_file=50, intent="it")


def _overwrites(spark: SparkSession, uri: str, fault: TaskFault) -> Committed:
    return overwrite(with_fault(lifecycle.frame(spark, 0, ROWS, 2), fault), uri, max_rows_per_file=50, intent="it")


def _upserts(spark: SparkSession, uri: str, fault: TaskFault) -> Committed:
    df = with_fault(lifecycle.frame(spark, ROWS // 2, ROWS, 2), fault)
    return upsert(df, uri, "id", max_rows_per_file=50, intent="it")


def _deletes(spark: SparkSession, uri: str, fault: TaskFault) -> Committed:
    return delete(with_fault(spark, fault), uri, "id % 10 = 3", intent="it")


def _updates(spark: SparkSession, uri: str, fault: TaskFault) -> Committed:
    return update(with_fault(spark, fault), uri, {"name": "'new'"}, "id % 10 = 3", intent="it")


def _maps(spark: SparkSession, uri: str, fault: TaskFault) -> Committed:
    return map_columns(
        with_fault(spark, fault), uri, lifecycle.twice, read_columns=["id"], schema=lifecycle.TWICE, resume_key="it"
    )


def _merges(spark: SparkSession, uri: str, fault: TaskFault) -> Committed:
    rows = read(spark, uri, columns=["id"], with_row_address=True).repartition(2)
    return merge_columns(through_faulty_task(rows.selectExpr("_rowaddr", "id * 2 as twice"), fault), uri, intent="it")


def _merges_by_key(spark: SparkSession, uri: str, fault: TaskFault) -> Committed:
    values = spark.range(0, ROWS, 1, 2).selectExpr("id", "id * 2 as twice")
    return merge_columns(through_faulty_task(values, fault), uri, on="id", intent="it")


def _ingests(spark: SparkSession, uri: str, fault: TaskFault) -> Committed:
    files = Path(f"{uri}-files")
    files.mkdir(exist_ok=True)
    for number in range(4):
        pq.write_table(lifecycle.rows(ROWS + 250 * number, 250), files / f"{number}.parquet")
    return ingest(with_fault(spark, fault), str(files), uri, intent="it")


def _writes(spark: SparkSession, uri: str, fault: TaskFault) -> Committed:
    df = through_faulty_task(lifecycle.frame(spark, ROWS, ROWS, 2), fault)
    df.write.format("lance").option("intent", "it").mode("append").save(uri)
    return append(lifecycle.frame(spark, ROWS, ROWS, 2), uri, intent="it")


def _streams(spark: SparkSession, uri: str, fault: TaskFault) -> Committed:
    source, checkpoint = f"{uri}-source", f"{uri}-checkpoint"
    Table.create(source, lifecycle.rows(ROWS, ROWS), max_rows_per_file=250, durable=False)
    rows = through_faulty_task(spark.readStream.format("lance").load(source), fault)
    query = rows.writeStream.format("lance").option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query.start(uri).awaitTermination()
    return append(spark.range(0), uri)


def _compacts(spark: SparkSession, uri: str, fault: TaskFault) -> Committed:
    return compact(with_fault(spark, fault), uri, target_rows=300, intent="it")


def _indexes(spark: SparkSession, uri: str, fault: TaskFault) -> Committed:
    """Build the index from range partitions, as for a large table."""
    original, index_build.SINGLE_WORKER_ROWS_MAX = index_build.SINGLE_WORKER_ROWS_MAX, 100
    try:
        return build_index(with_fault(spark, fault), uri, "id", "BTREE", intent="it")
    finally:
        index_build.SINGLE_WORKER_ROWS_MAX = original


@dataclass(frozen=True, slots=True)
class Verb:
    change: Change
    expected: Callable[[pa.Table], pa.Table]
    """Function from the rows before to the rows after the operation."""
    writes: int = 0
    """Ordinal of the job that writes."""
    reserves: bool = False
    """`True` if it commits a version that reserves fragment ids before its own; a repetition reserves again."""


def _with_twice(rows: pa.Table) -> pa.Table:
    return rows.append_column(
        lifecycle.TWICE.field(0), pa.array([2 * each for each in rows["id"].to_pylist()], pa.int64())
    )


def _with_more(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, lifecycle.rows(ROWS, ROWS)])


def _with_new_names(rows: pa.Table) -> pa.Table:
    names = zip(rows["id"].to_pylist(), rows["name"].to_pylist(), strict=True)
    new = pa.array(["new" if each % 10 == 3 else name for each, name in names], pa.string())
    return rows.set_column(2, rows.schema.field(2), new)


def _without_deleted(rows: pa.Table) -> pa.Table:
    return rows.filter(pa.array([each % 10 != 3 for each in rows["id"].to_pylist()]))


VERBS: dict[str, Verb] = {
    "append": Verb(_appends, _with_more),
    "overwrite": Verb(_overwrites, lambda rows: lifecycle.rows(0, ROWS)),
    "upsert": Verb(_upserts, lambda rows: lifecycle.rows(0, ROWS + ROWS // 2)),
    "delete": Verb(_deletes, _without_deleted),
    "update": Verb(_updates, _with_new_names, writes=1),
    "map_columns": Verb(_maps, _with_twice),
    "merge_columns": Verb(_merges, _with_twice),
    "merge_columns by key": Verb(_merges_by_key, _with_twice),
    "ingest": Verb(_ingests, _with_more),
    "source": Verb(_writes, _with_more),
    "stream": Verb(_streams, _with_more),
    "build_index": Verb(_indexes, lambda rows: rows, writes=1),
    "compact": Verb(_compacts, lambda rows: rows, reserves=True),
}
FED_BY_SPARK = ("append", "overwrite", "upsert", "merge_columns", "merge_columns by key", "source", "stream")
"""Operations that read rows from Spark; the fault strikes while they read."""
STAGED = ("upsert", "merge_columns", "merge_columns by key", "build_index")
"""Operations that stage their source rows or index segments in files until the change is committed."""
TIDY = ("append", "overwrite", "upsert", "merge_columns", "merge_columns by key", "source", "stream")
"""Operations that may leave no file, because they join small batches before writing, or remove what they wrote."""


def create_table(spark: SparkSession, uri: str) -> None:
    Table.create(uri, lifecycle.rows(0, ROWS), max_rows_per_file=100, durable=False)


def run_verb_with_fault(
    spark: SparkSession, uri: str, verb: str, how: FaultKind, marker: str, leaves: bool | None
) -> dict[str, int]:
    """Run an operation with a fault in one task, and check the table. `leaves` states whether unreferenced files
    remain."""
    create_table(spark, uri)
    batch_size = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        when: FaultPoint = "reading" if verb in FED_BY_SPARK else "answering"
        committed = VERBS[verb].change(spark, uri, TaskFault(how, marker, when, job=VERBS[verb].writes))
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(batch_size))
    assert Path(marker).exists(), "the fault struck no task"
    assert committed.version == Table.open(uri).version
    return check_table(uri, verb, leaves=leaves)


def check_table(uri: str, verb: str, *, leaves: bool | None) -> dict[str, int]:
    """Check that every row is stored once, in one new version, and that cleanup removes only unreferenced files.
    `leaves` states whether there are such files; `None` if that depends on timing."""
    table = Table.open(uri)
    operations = [version.operation for version in table.versions()]
    assert len([name for name in operations if name != "ReserveFragments"]) == 2, operations
    expected = VERBS[verb].expected(lifecycle.rows(0, ROWS)).sort_by("id")
    assert table.to_table().sort_by("id") == expected
    _age(Path(uri))
    removed = table.cleanup(orphan_grace=timedelta(hours=1), force=True)
    assert leaves is None or bool(removed.orphans) == leaves, removed.orphans
    assert removed.versions == ()
    after = Table.open(uri)
    assert after.fsck().is_sound
    assert after.to_table().sort_by("id") == expected
    assert not after.cleanup(orphan_grace=timedelta(hours=1), force=True).orphans
    return {"orphans": len(removed.orphans)}


def _age(root: Path) -> None:
    """Set the modification times hours back; cleanup spares young files, which may belong to a running write."""
    modified = time.time() - _LONG_AGO.total_seconds()
    for path in root.rglob("*"):
        os.utime(path, (modified, modified))
