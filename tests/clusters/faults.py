"""What must hold when tasks fail, are run twice or lose their executor: every row once, in one version.

Scenes for `driver.py`. What is left behind is what no version names, and cleanup removes it.
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
from tests.clusters import life
from tests.clusters.blows import Blow, How, When, struck, through

ROWS = 1000
_LONG_AGO = timedelta(hours=3)
Change = Callable[[SparkSession, str, Blow], Committed]


def _appends(spark: SparkSession, uri: str, blow: Blow) -> Committed:
    df = struck(life.frame(spark, ROWS, ROWS, 2), blow)
    return append(df, uri, max_rows_per_file=50, intent="it")


def _overwrites(spark: SparkSession, uri: str, blow: Blow) -> Committed:
    return overwrite(struck(life.frame(spark, 0, ROWS, 2), blow), uri, max_rows_per_file=50, intent="it")


def _upserts(spark: SparkSession, uri: str, blow: Blow) -> Committed:
    df = struck(life.frame(spark, ROWS // 2, ROWS, 2), blow)
    return upsert(df, uri, "id", max_rows_per_file=50, intent="it")


def _deletes(spark: SparkSession, uri: str, blow: Blow) -> Committed:
    return delete(struck(spark, blow), uri, "id % 10 = 3", intent="it")


def _updates(spark: SparkSession, uri: str, blow: Blow) -> Committed:
    return update(struck(spark, blow), uri, {"name": "'new'"}, "id % 10 = 3", intent="it")


def _maps(spark: SparkSession, uri: str, blow: Blow) -> Committed:
    return map_columns(struck(spark, blow), uri, life.twice, read_columns=["id"], schema=life.TWICE, resume_key="it")


def _merges(spark: SparkSession, uri: str, blow: Blow) -> Committed:
    there = read(spark, uri, columns=["id"], with_row_address=True).repartition(2)
    return merge_columns(through(there.selectExpr("_rowaddr", "id * 2 as twice"), blow), uri, intent="it")


def _merges_by_key(spark: SparkSession, uri: str, blow: Blow) -> Committed:
    values = spark.range(0, ROWS, 1, 2).selectExpr("id", "id * 2 as twice")
    return merge_columns(through(values, blow), uri, on="id", intent="it")


def _ingests(spark: SparkSession, uri: str, blow: Blow) -> Committed:
    files = Path(f"{uri}-files")
    files.mkdir(exist_ok=True)
    for number in range(4):
        pq.write_table(life.rows(ROWS + 250 * number, 250), files / f"{number}.parquet")
    return ingest(struck(spark, blow), str(files), uri, intent="it")


def _writes(spark: SparkSession, uri: str, blow: Blow) -> Committed:
    df = through(life.frame(spark, ROWS, ROWS, 2), blow)
    df.write.format("lance").option("intent", "it").mode("append").save(uri)
    return append(life.frame(spark, ROWS, ROWS, 2), uri, intent="it")


def _streams(spark: SparkSession, uri: str, blow: Blow) -> Committed:
    source, checkpoint = f"{uri}-source", f"{uri}-checkpoint"
    Table.create(source, life.rows(ROWS, ROWS), max_rows_per_file=250, durable=False)
    rows = through(spark.readStream.format("lance").load(source), blow)
    query = rows.writeStream.format("lance").option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query.start(uri).awaitTermination()
    return append(spark.range(0), uri)


def _compacts(spark: SparkSession, uri: str, blow: Blow) -> Committed:
    return compact(struck(spark, blow), uri, target_rows=300, intent="it")


def _indexes(spark: SparkSession, uri: str, blow: Blow) -> Committed:
    """In pieces and ranges, as a large one is."""
    alone, index_build.SINGLE_WORKER_ROWS_MAX = index_build.SINGLE_WORKER_ROWS_MAX, 100
    try:
        return build_index(struck(spark, blow), uri, "id", "BTREE", intent="it")
    finally:
        index_build.SINGLE_WORKER_ROWS_MAX = alone


@dataclass(frozen=True, slots=True)
class Verb:
    change: Change
    expected: Callable[[pa.Table], pa.Table]
    """What becomes of the rows of the table."""
    writes: int = 0
    """The job that does."""
    reserves: bool = False
    """A version before its own, of the ids of new fragments; once more if it has to begin again."""


def _with_twice(rows: pa.Table) -> pa.Table:
    return rows.append_column(life.TWICE.field(0), pa.array([2 * each for each in rows["id"].to_pylist()], pa.int64()))


def _with_more(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, life.rows(ROWS, ROWS)])


def _renamed(rows: pa.Table) -> pa.Table:
    names = zip(rows["id"].to_pylist(), rows["name"].to_pylist(), strict=True)
    new = pa.array(["new" if each % 10 == 3 else name for each, name in names], pa.string())
    return rows.set_column(2, rows.schema.field(2), new)


def _without(rows: pa.Table) -> pa.Table:
    return rows.filter(pa.array([each % 10 != 3 for each in rows["id"].to_pylist()]))


VERBS: dict[str, Verb] = {
    "append": Verb(_appends, _with_more),
    "overwrite": Verb(_overwrites, lambda rows: life.rows(0, ROWS)),
    "upsert": Verb(_upserts, lambda rows: life.rows(0, ROWS + ROWS // 2)),
    "delete": Verb(_deletes, _without),
    "update": Verb(_updates, _renamed, writes=1),
    "map_columns": Verb(_maps, _with_twice),
    "merge_columns": Verb(_merges, _with_twice),
    "merge_columns by key": Verb(_merges_by_key, _with_twice),
    "ingest": Verb(_ingests, _with_more),
    "source": Verb(_writes, _with_more),
    "stream": Verb(_streams, _with_more),
    "build_index": Verb(_indexes, lambda rows: rows, writes=1),
    "compact": Verb(_compacts, lambda rows: rows, reserves=True),
}
FED = ("append", "overwrite", "upsert", "merge_columns", "merge_columns by key", "source", "stream")
"""Rows come to them from Spark: the blow finds them in the middle of those."""
ASIDE = ("upsert", "merge_columns", "merge_columns by key", "build_index")
"""Rows that come, or pieces of an index, are put aside until the change has landed."""
TIDY = ("append", "overwrite", "upsert", "merge_columns", "merge_columns by key", "source", "stream")
"""They may have written nothing yet, since small batches are joined first, or take back what they wrote."""


def made(spark: SparkSession, uri: str) -> None:
    Table.create(uri, life.rows(0, ROWS), max_rows_per_file=100, durable=False)


def met(spark: SparkSession, uri: str, verb: str, how: How, mark: str, leaves: bool | None) -> dict[str, int]:
    """A verb, one of whose tasks meets this. `leaves`: files that no version names are there afterwards."""
    made(spark, uri)
    parallel = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        when: When = "reading" if verb in FED else "answering"
        committed = VERBS[verb].change(spark, uri, Blow(how, mark, when, job=VERBS[verb].writes))
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(parallel))
    assert Path(mark).exists(), "nothing has happened to any task"
    assert committed.version == Table.open(uri).version
    return holds(uri, verb, leaves=leaves)


def holds(uri: str, verb: str, *, leaves: bool | None) -> dict[str, int]:
    """Every row once, in one new version; what no version names goes, and nothing else. `leaves`: whether there is
    something of the kind; None where it depends."""
    table = Table.open(uri)
    made_by = [each.operation for each in table.versions()]
    assert len([each for each in made_by if each != "ReserveFragments"]) == 2, made_by
    expected = VERBS[verb].expected(life.rows(0, ROWS)).sort_by("id")
    assert table.to_table().sort_by("id") == expected
    _age(Path(uri))
    went = table.cleanup(orphan_grace=timedelta(hours=1), force=True)
    assert leaves is None or bool(went.orphans) == leaves, went.orphans
    assert went.versions == ()
    after = Table.open(uri)
    assert after.fsck().is_sound
    assert after.to_table().sort_by("id") == expected
    assert not after.cleanup(orphan_grace=timedelta(hours=1), force=True).orphans
    return {"orphans": len(went.orphans)}


def _age(root: Path) -> None:
    """As if hours had gone by since: what is young may belong to a write that is under way."""
    then = time.time() - _LONG_AGO.total_seconds()
    for path in root.rglob("*"):
        os.utime(path, (then, then))
