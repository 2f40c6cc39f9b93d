"""Change reader: `read_changes` on tables that Spark made, compared with `Table.changes`."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lance_assets.spark import append, compact, delete, overwrite, read_changes, update, upsert
from lance_assets.spark.release import collect_arrow
from lance_core import InvalidInput, Table
from lance_core.tasks.scan import read as reading

FIRST_ROWS = 1000
LINEAGE = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]


def frame(spark: SparkSession, first: int, count: int, parts: int = 3) -> DataFrame:
    return spark.range(first, first + count, 1, parts).selectExpr("id", "concat('v', id % 7) as v", "cast(id as int) k")


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A table whose every version Spark made, in several fragments."""
    uri = str(tmp_path_factory.mktemp("changes") / "t")
    append(frame(spark, 0, FIRST_ROWS), uri, stable_row_ids=True, max_rows_per_file=200)
    update(spark, uri, {"v": "upper(v)"}, "id % 10 = 3")
    delete(spark, uri, "id % 10 = 4 OR id BETWEEN 300 AND 520")
    upsert(frame(spark, 950, 100).selectExpr("id", "'again' as v", "k"), uri, "id")
    compact(spark, uri, target_rows=400)
    append(frame(spark, 2000, 50, 2), uri)
    overwrite(frame(spark, 0, 5, 1), uri, where="id < 20")
    return Table.open(uri)


def as_arrow(changes: pa.Table) -> pa.Table:
    """Return changes with unsigned numbers as Spark's `bigint`."""
    return changes.cast(
        pa.schema([each.with_type(pa.int64()) if each.type == pa.uint64() else each for each in changes.schema])
    )


def test_changes_equal_those_of_one_process(spark: SparkSession, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is equal too. Partitions of a hundred rows cut fragments into pieces."""
    monkeypatch.setattr(reading, "PARTITION_ROWS_MIN", 100)
    for since, until in [(1, None), (1, 2), (2, 4), (3, 5), (table.version, table.version)]:
        actual = read_changes(spark, table.uri, since, until)
        assert actual.columns == ["_change", *table.schema.names, *LINEAGE]
        assert collect_arrow(actual).to_pylist() == as_arrow(table.changes(since, until)).to_pylist()
    kinds = {
        row["_change"]: row["count"] for row in read_changes(spark, table.uri, 1).groupBy("_change").count().collect()
    }
    assert kinds.keys() == {"insert", "update", "delete"}
    assert kinds["insert"] == 55 + 50 + 5  # the upsert inserts five deleted ids again


def test_columns_filter_and_pinned_versions(spark: SparkSession, table: Table) -> None:
    changes = read_changes(spark, table.uri, 1, 4, columns=["v"], filter="id % 2 = 1", with_row_id=False)
    expected = as_arrow(table.changes(1, 4, columns=["v"], filter="id % 2 = 1", with_row_id=False))
    assert changes.columns == ["_change", "v", *LINEAGE[1:]]
    assert collect_arrow(changes).to_pylist() == expected.to_pylist() != []
    moved_only = next(each.version for each in table.versions() if each.action == "compact")
    assert read_changes(spark, table.uri, moved_only - 1, moved_only).count() == 0


def test_refusals(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="since must not be later than until"):
        read_changes(spark, table.uri, 3, 2)
    append(frame(spark, 0, 3), str(tmp_path / "t"))
    with pytest.raises(InvalidInput, match="only a table that was created with stable_row_ids=True has them"):
        read_changes(spark, str(tmp_path / "t"), 1)
