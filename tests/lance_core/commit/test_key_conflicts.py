"""Key conflicts: an upsert is replanned only if a concurrently appended row has a key that the upsert inserts."""

import datetime as dt
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import RetryableConflict, Table

Rows = list[object]
KEYS: dict[str, tuple[pa.DataType, Rows, Rows, Rows]] = {
    "int64": (pa.int64(), [1, 2], [2, 30], [50, 60, None]),
    "int8": (pa.int8(), [1, 2], [2, 30], [50, 60, None]),
    "text": (pa.string(), ["a", "b"], ["b", "new"], ["x", "", None]),
    "float": (pa.float64(), [1.5, float("nan")], [float("nan"), -0.0], [0.0, 7.5, None]),
    "bool": (pa.bool_(), [True], [True, False], [None]),
    "date": (pa.date32(), [dt.date(2026, 1, 1)], [dt.date(2026, 1, 1), dt.date(2026, 1, 2)], [dt.date(2026, 1, 3)]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b"], ["b", "new"], ["x", "y"]),
}
"""The type, the existing keys, the upserted keys (the last one is new), and the keys that are appended concurrently."""


def rows_with_keys(arrow: pa.DataType, keys: Rows) -> pa.Table:
    return pa.table({"id": pa.array(keys, arrow), "v": pa.array(range(len(keys)), pa.int64())})


def create_table(directory: Path, arrow: pa.DataType, keys: Rows, *, declared: bool = False) -> Table:
    uri = str(directory / "t")
    schema = rows_with_keys(arrow, keys).schema
    if declared:
        key = pa.field("id", arrow, False, {"lance-schema:unenforced-primary-key": "true"})
        schema = pa.schema([key, schema.field("v")])
    return Table.create(uri, pa.Table.from_arrays(rows_with_keys(arrow, keys).columns, schema=schema), durable=False)


@pytest.mark.parametrize("key_type", KEYS)
def test_an_upsert_is_rebased_over_rows_with_other_keys(tmp_path: Path, key_type: str) -> None:
    arrow, existing, upserted, appended = KEYS[key_type]
    table = create_table(tmp_path, arrow, existing)
    table.append(rows_with_keys(arrow, appended))
    committed = table.upsert(rows_with_keys(arrow, upserted), on="id", retries=1)
    assert (committed.attempts, committed.rebased_over) == (1, (2,))
    assert committed.table.count_rows() == len(existing) + len(appended) + 1
    assert lance.dataset(table.uri).count_rows() == committed.table.count_rows()


@pytest.mark.parametrize("key_type", KEYS)
def test_a_row_with_an_inserted_key_replans_the_upsert(tmp_path: Path, key_type: str) -> None:
    arrow, existing, upserted, appended = KEYS[key_type]
    table = create_table(tmp_path, arrow, existing)
    table.append(rows_with_keys(arrow, [*appended[:1], upserted[-1]]))
    with pytest.raises(RetryableConflict) as refused:
        table.upsert(rows_with_keys(arrow, upserted), on="id", retries=1)
    assert refused.value.rule == "new_keys"
    committed = table.upsert(rows_with_keys(arrow, upserted), on="id")
    assert committed.table.count_rows() == len(existing) + 2


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("count", [10, 5000])
def test_many_keys_conflict_only_with_equal_keys(tmp_path: Path, declared: bool, count: int) -> None:
    """The filter may be a Bloom filter: Lance writes one for declared keys, this library for many keys."""
    table = create_table(tmp_path, pa.int64(), [1, 2, 3], declared=declared)
    upserted = rows_with_keys(pa.int64(), [2, *range(100, 100 + count)])
    table.append(rows_with_keys(pa.int64(), [10**9]))
    assert table.upsert(upserted, on="id").rebased_over == (2,)
    table.append(rows_with_keys(pa.int64(), [10**9 + 1, 100 + count // 2]))
    again = table.upsert(upserted, on="id")
    assert again.attempts == 2
    ids = again.table.to_table()["id"].to_pylist()
    assert len(ids) - len(set(ids)) == 1  # the key that was appended concurrently with the first upsert


def test_keys_of_two_columns(tmp_path: Path) -> None:
    def rows(*keys: tuple[int, str]) -> pa.Table:
        return pa.table({"a": [a for a, _ in keys], "b": [b for _, b in keys], "v": [1] * len(keys)})

    table = Table.create(str(tmp_path / "t"), rows((1, "x")), durable=False)
    table.append(rows((2, "x"), (1, "y")))
    assert table.upsert(rows((1, "x"), (2, "y")), on=["a", "b"], retries=1).rebased_over == (2,)
    with pytest.raises(RetryableConflict):
        table.upsert(rows((1, "y")), on=["a", "b"], retries=1)


def test_an_unreadable_appended_file_replans_the_upsert(tmp_path: Path) -> None:
    """Its rows may have any key."""
    table = create_table(tmp_path, pa.int64(), [1])
    appended = table.append(rows_with_keys(pa.int64(), [5])).table
    (file,) = appended.fragments[-1].files
    (tmp_path / "t" / "data" / file.path).unlink()
    with pytest.raises(RetryableConflict) as refused:
        table.upsert(rows_with_keys(pa.int64(), [9]), on="id", retries=1)
    assert refused.value.rule == "new_keys"


def test_a_concurrently_dropped_column(tmp_path: Path) -> None:
    table = create_table(tmp_path, pa.int64(), [1])
    table.append(rows_with_keys(pa.int64(), [5]))
    table.refresh().drop_columns(["v"])
    committed = table.upsert(rows_with_keys(pa.int64(), [9]), on="id")
    assert (
        committed.table.to_table().to_pydict() == lance.dataset(table.uri).to_table().to_pydict() == {"id": [1, 5, 9]}
    )


def test_a_row_with_an_updated_key_replans_the_upsert(tmp_path: Path) -> None:
    """The upsert updates every row with that key."""
    table = create_table(tmp_path, pa.int64(), [1])
    table.append(rows_with_keys(pa.int64(), [1]))
    committed = table.upsert(rows_with_keys(pa.int64(), [1]), on="id")
    assert (committed.attempts, committed.table.to_table()["v"].to_pylist()) == (2, [0, 0])


@pytest.mark.parametrize("rows", [{"v": [1]}, {"id": pa.array([None, None], pa.int64()), "v": [1, 2]}])
def test_an_upsert_is_rebased_over_rows_without_keys(tmp_path: Path, rows: dict[str, object]) -> None:
    table = create_table(tmp_path, pa.int64(), [1])
    table.append(pa.table(rows))
    assert table.upsert(rows_with_keys(pa.int64(), [1, 2]), on="id").attempts == 1


def test_many_keys_do_not_conflict_with_many_other_rows(tmp_path: Path) -> None:
    table = create_table(tmp_path, pa.int64(), [1])
    table.append(rows_with_keys(pa.int64(), list(range(1_000_000, 1_100_000))))
    assert table.upsert(rows_with_keys(pa.int64(), list(range(200_000))), on="id").attempts == 1
