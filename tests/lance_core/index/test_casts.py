"""Conditions that cast a column or a literal: an index on the column gives the rows of a scan."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lance_core import Table

_COLUMNS = {
    "f": pa.array(
        [[np.float32(0.1), 1.0], [16777216.0], [None, 2.0], [1.5], None, [0.0], [-0.0]], pa.list_(pa.float32())
    ),
    "g": pa.array([[0.1], [0.5], [1.5], [], None, [0.0], [-0.0]], pa.list_(pa.float64())),
    "i": pa.array([[5], [(1 << 53) + 1], [44], [], None, [-1], [0]], pa.list_(pa.int64())),
    "b": pa.array([[5], [100], [44], [], None, [-1], [0]], pa.list_(pa.int8())),
    "s": pa.array([["5"], ["05"], ["7"], [], None, ["12"], ["0"]], pa.list_(pa.string())),
    "t": pa.array([[999_999], [1_000_000], [0], [], None, [1], [2]], pa.list_(pa.int64())).cast(
        pa.list_(pa.timestamp("us"))
    ),
}
_INDEXED_CONDITIONS = [
    "array_has(f, 0.1)",
    "array_has(f, CAST(0.1 AS FLOAT))",
    "array_has(f, 1.5)",
    "array_has_any(f, [0.1, 1.5])",
    "array_has_all(f, [0.1, 1.0])",
    "array_has(b, 300)",
    "array_has_any(b, [5, 300])",
    "array_has_all(b, [5, 300])",
    "array_has(b, 5.0)",
    "array_has(t, TIMESTAMP '1970-01-01T00:00:01')",
]
_SCANNED_CONDITIONS = [
    "array_has(i, 9007199254740992.0)",
    "array_has(s, 5)",
    "array_has(arrow_cast(i, 'List(Boolean)'), true)",
    "array_has(arrow_cast(g, 'List(Float32)'), 0.1)",
    "array_has(arrow_cast(g, 'List(Float32)'), CAST(0.1 AS FLOAT))",
    "array_has(arrow_cast(t, 'List(Timestamp(Second, None))'), TIMESTAMP '1970-01-01')",
]


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Table:
    rows = {"id": pa.array(range(7)), **_COLUMNS}
    table = Table.create(str(tmp_path_factory.mktemp("casts") / "t"), pa.table(rows))
    for name in _COLUMNS:
        table.create_index(name, "LABEL_LIST")
    return Table.open(table.uri)


@pytest.mark.parametrize("condition", [*_INDEXED_CONDITIONS, *_SCANNED_CONDITIONS])
def test_an_index_on_lists_finds_the_rows_of_a_scan(lists: Table, condition: str) -> None:
    expected = lists.to_table(["id"], filter=condition, use_indices=False)
    assert lists.to_table(["id"], filter=condition).equals(expected)
    is_index_used = "(LABEL_LIST) answers" in str(lists.explain(filter=condition))
    assert is_index_used is (condition in _INDEXED_CONDITIONS)


def test_text_cast_to_a_number_may_be_nan(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"id": range(3), "s": ["1", "NaN", None]}))
    table.create_index("s", "ZONEMAP")
    found = Table.open(table.uri).to_table(["id"], filter="isnan(CAST(s AS DOUBLE))")
    assert found["id"].to_pylist() == [1]
