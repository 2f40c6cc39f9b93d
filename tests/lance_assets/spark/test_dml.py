"""DML: operations that change rows, run by real executors."""

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_assets.spark import compact, delete, read, update, upsert
from lance_core import AuditFailed, InvalidInput, Table
from lance_core.progress import OperationProgress


def create_table(folder: Path) -> str:
    uri = str(folder / "table")
    rows = pa.table({"id": pa.array(range(1000), pa.int64()), "name": [f"n{number % 7}" for number in range(1000)]})
    Table.create(uri, rows, max_rows_per_file=100, durable=False)
    return uri


def test_workers_delete_rows(spark: SparkSession, tmp_path: Path) -> None:
    uri = create_table(tmp_path)
    files = {file.path for part in Table.open(uri).fragments for file in part.files}
    committed = delete(spark, uri, "id % 10 = 3 or name = 'n5'", properties={"dagster.run_id": "r1"}, intent="monday")
    remaining = [number for number in range(1000) if number % 10 != 3 and number % 7 != 5]
    assert (committed.operation, committed.rows_removed) == ("Delete", 1000 - len(remaining))
    assert lance.dataset(uri).to_table()["id"].to_pylist() == remaining
    assert {file.path for part in committed.table.fragments for file in part.files} == files
    assert committed.table.versions()[-1].properties["dagster.run_id"] == "r1"
    assert delete(spark, uri, "id > 0", intent="monday").already_committed


def test_invalid_condition_is_an_error_on_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    uri = create_table(tmp_path)
    with pytest.raises(InvalidInput, match="character"):
        delete(spark, uri, "id = = 3")
    assert Table.open(uri).version == 1


def test_workers_update_rows(spark: SparkSession, tmp_path: Path) -> None:
    uri = create_table(tmp_path)
    moved = update(spark, uri, set={"name": "upper(name)"}, where="id % 100 = 7", intent="monday")
    assert (moved.operation, moved.table.count_rows("name >= 'N' and name < 'O'")) == ("Update", 10)
    assert update(spark, uri, {"name": "'x'"}, intent="monday").already_committed
    in_place = update(spark, uri, {"name": "concat(name, '!')"})
    rows = lance.dataset(uri).to_table().sort_by("id")
    assert rows["name"].to_pylist() == [f"{'N' if n % 100 == 7 else 'n'}{n % 7}!" for n in range(1000)]
    assert in_place.table.fsck().is_sound


def test_upsert(spark: SparkSession, tmp_path: Path) -> None:
    uri = create_table(tmp_path)
    df = spark.range(0, 1100, 10, 3).selectExpr("id", "concat('u', id) as name")
    committed = upsert(df, uri, "id", matched_if="target.name != 'n0'", delete_unmatched="id % 10 = 1", intent="x")
    expected = {n: f"n{n % 7}" for n in range(1000) if n % 10 != 1}
    expected |= {n: f"u{n}" for n in range(0, 1100, 10) if n % 7 or n >= 1000}
    rows = lance.dataset(uri).to_table()
    assert dict(zip(rows["id"].to_pylist(), rows["name"].to_pylist(), strict=True)) == expected
    assert rows.num_rows == len(expected)
    assert upsert(df, uri, "id", intent="x").already_committed
    assert committed.table.fsck().is_sound


def test_duplicate_source_key_is_an_error_on_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    uri = create_table(tmp_path)
    df = spark.range(0, 50, 1, 2).selectExpr("id % 49 as id", "'x' as name")
    with pytest.raises(InvalidInput, match=r"more than once.*id = 0"):
        upsert(df, uri, "id")
    assert Table.open(uri).version == 1


def test_table_rewritten_from_itself_reads_one_version(spark: SparkSession, tmp_path: Path) -> None:
    uri = create_table(tmp_path)
    df = read(spark, uri).selectExpr("id", "concat(name, '+') as name")
    upsert(df, uri, ["id"], insert=False)
    assert Table.open(uri).count_rows("name like '%+'") == 1000


def test_workers_compact_small_files(spark: SparkSession, tmp_path: Path) -> None:
    uri = create_table(tmp_path)
    before = Table.open(uri).to_table()
    reports: list[OperationProgress] = []
    committed = compact(spark, uri, target_rows=300, batch=2, progress=reports.append)
    assert {(each.operation, each.unit) for each in reports} <= {("compact", "tasks")}  # a short stage may be missed
    assert [each.physical_rows for each in committed.table.fragments] == [300, 300, 400]
    assert committed.files == 3
    assert lance.dataset(uri).to_table() == before


def test_audit_precedes_the_commit(spark: SparkSession, tmp_path: Path) -> None:
    uri = create_table(tmp_path)
    audited: list[tuple[int, int | None]] = []

    def at_most(rows: int) -> Callable[[Table, Table | None], None]:
        def audit(table: Table, base: Table | None) -> None:
            assert lance.dataset(uri, version=table.version).count_rows() == table.count_rows()
            audited.append((table.count_rows(), base.version if base else None))
            if len(audited) == 1:
                Table.open(uri, durable=False).append(pa.table({"id": [2000], "name": ["beside"]}))
            if table.count_rows() > rows:
                raise ValueError(f"{table.count_rows()} rows are too many")

        return audit

    df = spark.range(990, 2010, 10, 2).selectExpr("id", "'brought' as name")
    with pytest.raises(AuditFailed, match="1101 rows are too many") as refused:
        upsert(df, uri, "id", audit=at_most(1100), intent="daily")
    assert [base for _, base in audited] == [1], "refused, and planned again"
    assert Table.open(uri, version=refused.value.detached_version).count_rows("name = 'brought'") == 102
    audited.clear()
    done = upsert(df, uri, "id", audit=at_most(2000), intent="daily")
    # A concurrent append of one of its keys makes the upsert replan, so the audit runs again.
    assert [base for _, base in audited] == [2, 3]
    assert (done.version, done.table.count_rows("name = 'brought'")) == (4, 103)
    assert upsert(df, uri, "id", audit=at_most(0), intent="daily").already_committed
    with pytest.raises(AuditFailed):
        delete(spark, uri, "id < 10", audit=at_most(0))
    assert Table.open(uri).version == 4
    assert Table.open(uri).fsck().is_sound
