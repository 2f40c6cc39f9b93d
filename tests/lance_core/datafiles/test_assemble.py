"""Assembling columns: parts of a column from several files are matched by field id at every depth."""

import pyarrow as pa
import pytest

from lance_core.datafiles.assemble import StoredColumn, assemble_column
from lance_core.datafiles.column_layout import Path
from lance_core.format.schema import Field, TableSchema


def field(arrow: pa.DataType) -> Field:
    """Return a field whose ids count from 0, parents before children."""
    return TableSchema.from_arrow(pa.schema([pa.field("c", arrow)])).fields[0]


def check(arrow: pa.DataType, expected: list[object], *parts: tuple[pa.Array, dict[int, Path]]) -> None:
    given = [StoredColumn(array, paths, f"{number}.lance") for number, (array, paths) in enumerate(parts)]
    assembled = assemble_column(field(arrow), arrow, given, len(expected))
    assembled.validate(full=True)
    assert assembled.type == arrow
    assert assembled.to_pylist() == expected


XY = pa.struct([("x", pa.int64()), ("y", pa.int64())])


def test_swapped_children_of_equal_types() -> None:
    stored = pa.array([{"x": 1, "y": 2}, None], XY)
    check(XY, [{"x": 2, "y": 1}, None], (stored, {2: ("c", "x"), 1: ("c", "y")}))


def test_fields_in_no_part_are_null() -> None:
    check(XY, [None, None])
    check(XY, [{"x": 1, "y": None}], (pa.array([{"x": 1, "y": 2}], XY), {1: ("c", "x")}))


@pytest.mark.parametrize(
    "make", [pa.list_, pa.large_list, lambda item: pa.list_(item, 1)], ids=["list", "large", "fixed"]
)
def test_list_items_in_two_files(make: object) -> None:
    whole, x, y = (make(pa.struct([(name, pa.int64()) for name in names])) for names in ("xy", "x", "y"))  # type: ignore[operator]
    one = pa.array([[{"x": 0}], [{"x": 1}], None, [{"x": 3}]], x).slice(1)
    two = pa.array([[{"y": 0}], [{"y": 4}], None, [{"y": 5}]], y).slice(1)
    expected: list[object] = [[{"x": 1, "y": 4}], None, [{"x": 3, "y": 5}]]
    check(whole, expected, (one, {2: ("c", "item", "x")}), (two, {3: ("c", "item", "y")}))


def test_map_values_in_two_files() -> None:
    def map_of(*names: str) -> pa.DataType:
        return pa.map_(pa.string(), pa.struct([(name, pa.int64()) for name in names]))

    one = pa.array([[], [("k", {"x": 1})], None, [("l", None), ("m", {"x": 2})]], map_of("x")).slice(1)
    two = pa.array([[], [("k", {"z": 3})], None, [("l", None), ("m", {"z": 4})]], map_of("z")).slice(1)
    check(
        map_of("x", "y"),
        [[("k", {"x": 1, "y": 3})], None, [("l", None), ("m", {"x": 2, "y": 4})]],
        (one, {2: ("c", "entries", "key"), 4: ("c", "entries", "value", "x")}),
        (two, {5: ("c", "entries", "value", "z")}),
    )


def test_lists_in_structs_in_lists() -> None:
    inner = pa.list_(pa.struct([("p", pa.int64()), ("q", pa.string())]))
    outer = pa.list_(pa.struct([("n", pa.int64()), ("in", inner)]))
    p_only = pa.list_(pa.struct([("in", pa.list_(pa.struct([("p", pa.int64())])))]))
    q_only = pa.list_(pa.struct([("n", pa.int64()), ("in", pa.list_(pa.struct([("q", pa.string())])))]))
    rows: list[object] = [[{"n": 1, "in": [{"p": 1, "q": "a"}, {"p": 2, "q": "b"}]}, {"n": 2, "in": None}], [], None]
    prefix = ("c", "item", "in", "item")
    check(
        outer,
        rows,
        (pa.array([[{"in": [{"p": 1}, {"p": 2}]}, {"in": None}], [], None], p_only), {5: (*prefix, "p")}),
        (
            pa.array([[{"n": 1, "in": [{"q": "a"}, {"q": "b"}]}, {"n": 2, "in": None}], [], None], q_only),
            {2: ("c", "item", "n"), 6: (*prefix, "q")},
        ),
    )
