"""Index operations: real executors build indices that pylance reads; tests/lance_core/tasks tests their content."""

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_assets.spark import build_index, compact, optimize_indices, upsert
from lance_core import AuditFailed, InvalidInput, Table
from lance_core.index.vector.vector_type import BUILT_TYPES
from lance_core.tasks.indices import index_build, vector_build
from tests.lance_core.index.index_differential import FILTER_BY_COLUMN, check_answers, covered_fragments, is_used, rows
from tests.lance_core.index.vector.test_vector_build import QUERIES, check_both, write_table
from tests.lance_core.tasks.indices.test_vector_build import more_rows

INDEX_TYPES = [
    ("id", "BTREE"),
    ("word", "btree"),
    ("word", "BITMAP"),
    ("tags", "LABEL_LIST"),
    ("id", "ZONEMAP"),
    ("id", "BLOOMFILTER"),
    ("word", "NGRAM"),
]


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
def test_pylance_uses_indices_built_by_workers(
    spark: SparkSession, tmp_path: Path, stable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_build, "SINGLE_WORKER_ROWS_MAX", 10)
    uri = str(tmp_path / "t")
    Table.create(uri, rows(0, 130), max_rows_per_file=30, stable_row_ids=stable, durable=False).delete("id % 10 = 4")
    for column, index_type in INDEX_TYPES:
        build_index(spark, uri, column, index_type, name=f"{column} {index_type}")
        assert is_used(Table.open(uri), FILTER_BY_COLUMN[column])
        check_answers(Table.open(uri), [FILTER_BY_COLUMN[column]])
    table = Table.open(uri)
    check_answers(table)
    assert {each.name for each in lance.dataset(uri).describe_indices()} == {f"{c} {k}" for c, k in INDEX_TYPES}
    assert {each.name for each in Path(uri, "_indices").iterdir()} == {str(each.uuid) for each in table.indices}
    table.append(rows(130, 20))
    more = build_index(spark, uri, "id", "BTREE", name="id BTREE", only="uncovered", intent="daily")
    assert covered_fragments(more.table, "id BTREE") == [[0, 1, 2, 3, 4], [5]]
    assert build_index(spark, uri, "id", "BTREE", name="id BTREE", only="uncovered", intent="daily").already_committed
    compact(spark, uri, target_rows=60, remap=None if stable else "reuse")
    table = optimize_indices(spark, uri, merge="all", properties={"why": "tidy"}).table
    live = [each.id for each in table.fragments]
    assert all(sorted(index.covers or ()) == live for index in table.indices if not index.is_system)
    assert any(each.properties.get("why") == "tidy" for each in table.versions())
    check_answers(table)
    assert table.fsck().is_sound


@pytest.mark.parametrize("kind", [each.name for each in BUILT_TYPES])
def test_workers_build_vector_indices(
    spark: SparkSession, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_build, "ONE_WORKER_VALUES_MAX", 0)
    monkeypatch.setattr(vector_build, "DRIVER_MERGE_BYTES_MAX", 0)
    table = write_table(tmp_path / "t", pa.float32()).append(more_rows(10_000, 200)).table
    parameters: dict[str, Any] = {"num_partitions": 6, **({"num_sub_vectors": 8} if kind.endswith("PQ") else {})}
    table = build_index(spark, table.uri, "v", kind, intent="first", **parameters).table
    check_both(table, QUERIES[0], recall=0.8)
    table = table.append(more_rows(20_000, 200)).table
    table = build_index(spark, table.uri, "v", kind, only="uncovered").table
    assert covered_fragments(table, "v_idx") == [[0, 1], [2]]
    check_both(table, QUERIES[1], recall=0.8)


def test_pylance_searches_texts_indexed_by_workers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_build, "SINGLE_WORKER_TEXTS_MAX", 10)
    uri = str(tmp_path / "t")
    Table.create(uri, rows(0, 130), max_rows_per_file=30, durable=False)
    table = build_index(spark, uri, "word", "INVERTED", with_position=True, language="French").table
    table = table.append(rows(130, 20)).table
    table = build_index(spark, uri, "word", "INVERTED", only="needed", with_position=True, language="French").table
    assert covered_fragments(table, "word_idx") == [[0, 1, 2, 3, 4, 5]]
    found = lance.dataset(uri).to_table(full_text_query="w3", columns=["word"])["word"].to_pylist()
    assert found == ["w3"] * table.count_rows("word = 'w3'") != []


def test_upsert_of_few_keys_does_not_scan_the_table(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, pa.table({"id": range(2000), "v": range(2000)}), max_rows_per_file=500, durable=False)
    frame = spark.createDataFrame([(5, -1), (1999, -2), (7000, -3)], "id long, v long")

    def jobs() -> int:
        before = set(spark.sparkContext.statusTracker().getJobIdsForGroup(None))
        assert upsert(frame, uri, "id").rows_added == 1
        Table.open(uri).delete("id >= 2000")
        return len(set(spark.sparkContext.statusTracker().getJobIdsForGroup(None)) - before)

    without = jobs()
    build_index(spark, uri, "id", "BTREE")
    assert jobs() == without - 1
    assert Table.open(uri).to_table(filter="id in (5, 1999)")["v"].to_pylist() == [-1, -2]


def test_errors_on_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, rows(0, 50), durable=False)
    with pytest.raises(InvalidInput, match="there is no column 'idd'"):
        build_index(spark, uri, "idd", "BTREE")
    with pytest.raises(InvalidInput, match="index types for this column are LABEL_LIST"):
        build_index(spark, uri, "tags", "BITMAP")
    with pytest.raises(InvalidInput, match="no option 'color'"):
        build_index(spark, uri, "id", "BTREE", color="red")

    def refuse(table: Table, base: Table | None) -> None:
        assert table.indices
        raise ValueError("not today")

    with pytest.raises(AuditFailed, match="not today"):
        build_index(spark, uri, "id", "BTREE", audit=refuse)
    assert Table.open(uri).version == 1
    build_index(spark, uri, "id", "BTREE", zone_size=16)
    with pytest.raises(InvalidInput, match="an index 'id_idx' exists already"):
        build_index(spark, uri, "id", "BTREE")
    assert build_index(spark, uri, "id", "BTREE", replace=True).version == 3
