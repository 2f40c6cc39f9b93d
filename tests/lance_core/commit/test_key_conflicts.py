"""Upserts beside appends: planned again only where an appended row has a key that the upsert inserts."""

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
"""Type, keys that are there, keys that are brought (the last of them is new), keys that are appended meanwhile."""


def table_of(arrow: pa.DataType, keys: Rows) -> pa.Table:
    return pa.table({"id": pa.array(keys, arrow), "v": pa.array(range(len(keys)), pa.int64())})


def made(place: Path, arrow: pa.DataType, keys: Rows, *, declared: bool = False) -> Table:
    uri = str(place / "t")
    schema = table_of(arrow, keys).schema
    if declared:
        key = pa.field("id", arrow, False, {"lance-schema:unenforced-primary-key": "true"})
        schema = pa.schema([key, schema.field("v")])
    return Table.create(uri, pa.Table.from_arrays(table_of(arrow, keys).columns, schema=schema), durable=False)


@pytest.mark.parametrize("kind", KEYS)
def test_rows_with_other_keys_are_followed(tmp_path: Path, kind: str) -> None:
    arrow, there, brought, appended = KEYS[kind]
    table = made(tmp_path, arrow, there)
    table.append(table_of(arrow, appended))
    made_by = table.upsert(table_of(arrow, brought), on="id", retries=1)
    assert (made_by.attempts, made_by.rebased_over) == (1, (2,))
    assert made_by.table.count_rows() == len(there) + len(appended) + 1
    assert lance.dataset(table.uri).count_rows() == made_by.table.count_rows()


@pytest.mark.parametrize("kind", KEYS)
def test_a_row_with_a_new_key_has_it_planned_again(tmp_path: Path, kind: str) -> None:
    arrow, there, brought, appended = KEYS[kind]
    table = made(tmp_path, arrow, there)
    table.append(table_of(arrow, [*appended[:1], brought[-1]]))
    with pytest.raises(RetryableConflict) as refused:
        table.upsert(table_of(arrow, brought), on="id", retries=1)
    assert refused.value.rule == "new_keys"
    landed = table.upsert(table_of(arrow, brought), on="id")
    assert landed.table.count_rows() == len(there) + 2


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("count", [10, 5000])
def test_of_many_keys_few_or_none_are_met(tmp_path: Path, declared: bool, count: int) -> None:
    """Also where the filter is a Bloom filter, which Lance has of declared keys, and we of many."""
    table = made(tmp_path, pa.int64(), [1, 2, 3], declared=declared)
    brought = table_of(pa.int64(), [2, *range(100, 100 + count)])
    table.append(table_of(pa.int64(), [10**9]))
    assert table.upsert(brought, on="id").rebased_over == (2,)
    table.append(table_of(pa.int64(), [10**9 + 1, 100 + count // 2]))
    again = table.upsert(brought, on="id")
    assert again.attempts == 2
    ids = again.table.to_table()["id"].to_pylist()
    assert len(ids) - len(set(ids)) == 1  # the one that the append brought beside the first upsert


def test_of_two_columns(tmp_path: Path) -> None:
    def two(*keys: tuple[int, str]) -> pa.Table:
        return pa.table({"a": [a for a, _ in keys], "b": [b for _, b in keys], "v": [1] * len(keys)})

    table = Table.create(str(tmp_path / "t"), two((1, "x")), durable=False)
    table.append(two((2, "x"), (1, "y")))
    assert table.upsert(two((1, "x"), (2, "y")), on=["a", "b"], retries=1).rebased_over == (2,)
    with pytest.raises(RetryableConflict):
        table.upsert(two((1, "y")), on=["a", "b"], retries=1)


def test_a_file_that_is_gone_tells_nothing(tmp_path: Path) -> None:
    """The rows may have any key: planned again, on the newest version."""
    table = made(tmp_path, pa.int64(), [1])
    appended = table.append(table_of(pa.int64(), [5])).table
    (file,) = appended.fragments[-1].files
    (tmp_path / "t" / "data" / file.path).unlink()
    with pytest.raises(RetryableConflict) as refused:
        table.upsert(table_of(pa.int64(), [9]), on="id", retries=1)
    assert refused.value.rule == "new_keys"


def test_a_column_that_was_dropped_meanwhile(tmp_path: Path) -> None:
    table = made(tmp_path, pa.int64(), [1])
    table.append(table_of(pa.int64(), [5]))
    table.refresh().drop_columns(["v"])
    landed = table.upsert(table_of(pa.int64(), [9]), on="id")
    assert landed.table.to_table().to_pydict() == lance.dataset(table.uri).to_table().to_pydict() == {"id": [1, 5, 9]}


def test_a_row_with_a_key_that_it_changes_has_it_planned_again(tmp_path: Path) -> None:
    """It means every row with that key."""
    table = made(tmp_path, pa.int64(), [1])
    table.append(table_of(pa.int64(), [1]))
    landed = table.upsert(table_of(pa.int64(), [1]), on="id")
    assert (landed.attempts, landed.table.to_table()["v"].to_pylist()) == (2, [0, 0])


@pytest.mark.parametrize("rows", [{"v": [1]}, {"id": pa.array([None, None], pa.int64()), "v": [1, 2]}])
def test_rows_without_keys_are_followed(tmp_path: Path, rows: dict[str, object]) -> None:
    table = made(tmp_path, pa.int64(), [1])
    table.append(pa.table(rows))
    assert table.upsert(table_of(pa.int64(), [1, 2]), on="id").attempts == 1


def test_many_keys_are_told_from_many_rows(tmp_path: Path) -> None:
    table = made(tmp_path, pa.int64(), [1])
    table.append(table_of(pa.int64(), list(range(1_000_000, 1_100_000))))
    assert table.upsert(table_of(pa.int64(), list(range(200_000))), on="id").attempts == 1
