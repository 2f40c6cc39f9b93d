"""Take: rows by offset, id and address, compared with slices of the whole table and with pylance."""

from pathlib import Path
from typing import Literal

import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table

ROWS = 40
TYPES = {
    "number": pa.array(range(ROWS), pa.int64()),
    "text": pa.array([None if row % 7 == 3 else "x" * row for row in range(ROWS)]),
    "struct": pa.array(
        [None if row % 5 == 2 else {"x": row, "y": {"z": str(row)}} for row in range(ROWS)],
        pa.struct([("x", pa.int32()), ("y", pa.struct([("z", pa.string())]))]),
    ),
    "list": pa.array([None if row % 6 == 1 else list(range(row % 4)) for row in range(ROWS)], pa.list_(pa.int16())),
    "vector": pa.array([[row, row + 0.5] for row in range(ROWS)], pa.list_(pa.float32(), 2)),
    "matrix": pa.array(
        [[[row, 1.0], [2.0, 3.0], [4.0, row]] for row in range(ROWS)], pa.list_(pa.list_(pa.float64(), 2), 3)
    ),
    "json": pa.array([f'{{"row":{row}}}' for row in range(ROWS)], pa.json_()),
    "word": pa.array([f"word {row % 3}" for row in range(ROWS)]).dictionary_encode(),
    "pairs": pa.array([[(str(row), row)] for row in range(ROWS)], pa.map_(pa.string(), pa.int8())),
    "points": pa.array([[{"a": row}, {"a": 2}] for row in range(ROWS)], pa.list_(pa.struct([("a", pa.int64())]), 2)),
}


@pytest.fixture(scope="module", params=[False, True], ids=["addresses", "stable row ids"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Four fragments of ten rows, the second without its first five, the third without every second row."""
    path = str(tmp_path_factory.mktemp("take") / "t")
    table = Table.create(path, pa.table(TYPES), max_rows_per_file=10, stable_row_ids=request.param)
    return table.delete("number BETWEEN 10 AND 14 OR (number BETWEEN 20 AND 29 AND number % 2 = 0)").table


LIVE = [*range(10), *range(15, 20), 21, 23, 25, 27, 29, *range(30, 40)]


@pytest.mark.parametrize(
    "rows",
    [[], [0], [29], [3, 1, 2], [29, 0, 29, 15, 15, 11, 10, 9], list(range(30)), list(reversed(range(30)))],
    ids=str,
)
def test_offsets_count_live_rows_in_the_requested_order(table: Table, rows: list[int]) -> None:
    actual = table.take(rows)
    assert actual.schema == table.schema
    assert actual["number"].to_pylist() == [LIVE[row] for row in rows]
    assert actual.to_pylist() == [pa.table(TYPES).slice(LIVE[row], 1).to_pylist()[0] for row in rows]
    if rows:
        assert lance.dataset(table.uri).take(rows, columns=["number"])["number"].to_pylist() == [LIVE[r] for r in rows]


def test_every_row_is_found_by_the_id_and_address_of_a_scan(table: Table) -> None:
    scanned = table.to_table(columns=["number"], with_row_id=True, with_row_address=True)
    kinds: list[tuple[Literal["row_id", "row_address"], str]] = [("row_id", "_rowid"), ("row_address", "_rowaddr")]
    for by, name in kinds:
        numbers = scanned[name].combine_chunks().take(pa.array(np.random.default_rng(1).permutation(len(LIVE))))
        actual = table.take(numbers, ["number", name], by=by)
        assert actual[name].to_pylist() == numbers.to_pylist()
        both = dict(zip(scanned[name].to_pylist(), scanned["number"].to_pylist(), strict=True))
        assert actual["number"].to_pylist() == [both[number] for number in numbers.to_pylist()]


def test_columns_as_in_a_scan(table: Table) -> None:
    actual = table.take(np.array([11, 2]), ["struct.y.z", "_rowaddr", "number"])
    assert actual.column_names == ["struct.y.z", "_rowaddr", "number"]
    assert actual.to_pylist() == [
        {"struct.y.z": "16", "_rowaddr": (1 << 32) + 6, "number": 16},
        {"struct.y.z": None, "_rowaddr": 2, "number": 2},
    ]
    assert table.take([4, 5, 5], []).num_rows == 3


def test_an_address_of_a_moved_row_is_not_confused(tmp_path: Path) -> None:
    """An updated row keeps its id and gets another address; the old address is a deleted row."""
    table = Table.create(str(tmp_path / "t"), pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]}), stable_row_ids=True)
    table = table.update({"v": "'z'"}, "id = 2").table
    assert table.take([1], by="row_id").to_pylist() == [{"id": 2, "v": "z"}]
    with pytest.raises(InvalidInput, match="no live row with row address 1; it has 3 live rows"):
        table.take([1], by="row_address")


@pytest.mark.parametrize(
    ("rows", "by", "message"),
    [
        ([-1, 5], "offset", r"version 2 has no live row with offset -1; it has 30 live rows"),
        ([3, 30, 30, 99], "offset", r"offset 30, 99;"),
        (list(range(30, 40)), "offset", r"offset 30, 31, 32, 33, 34 and 5 more;"),
        ([12, 20], "row_id", r"row id 12"),
        ([7 << 32], "row_address", rf"row address {7 << 32};"),
        ([(1 << 32) + 4], "row_address", rf"row address {(1 << 32) + 4};"),
        ([(1 << 32) + 10], "row_address", rf"row address {(1 << 32) + 10};"),
        ([2**64 - 1], "row_address", r"row 18446744073709551615 does not exist"),
        ([1.5], "offset", r"must be a list of integers"),
        ([True], "offset", r"must be a list of integers"),
        ([1], "position", r"by='position' must be one of 'offset', 'row_id', 'row_address'"),
    ],
)
def test_missing_rows_are_reported(table: Table, rows: list, by: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        table.take(rows, by=by)  # type: ignore[arg-type]


def test_no_rows_of_an_empty_table(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.schema([("id", pa.int64())]), stable_row_ids=True)
    for by in ("offset", "row_id", "row_address"):
        assert table.take([], by=by).num_rows == 0
        with pytest.raises(InvalidInput, match="it has 0 live rows"):
            table.take([0], by=by)
