"""Conforming batches to the stored types: equal types pass, others are cast, and errors name the column."""

import datetime
import decimal
import math
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import InvalidInput, SchemaMismatch, Table
from lance_core.datafiles.conform import Conversion, columns_to_write, conform, copy_array
from lance_core.format.schema import TableSchema

EXACT, CAST = Conversion.EXACT, Conversion.CAST
POINT = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.string())])
NANOS = pa.map_(pa.string(), pa.duration("ns"))
STRICT_POINT = pa.struct([pa.field("x", pa.int32(), False), pa.field("y", pa.string())])


def conform_column(given: pa.Array, stored: pa.DataType, conversion: Conversion, *, nullable: bool = True) -> pa.Array:
    schema = TableSchema.from_arrow(pa.schema([pa.field("v", stored, nullable)]))
    batch = pa.RecordBatch.from_arrays([given], ["v"])
    columns = columns_to_write(batch.schema, schema, conversion=conversion, what="orders")
    return conform(batch, columns.arrow, conversion=conversion, what="orders").column(0)


def type_name(value: object) -> str:
    return str(value.type if isinstance(value, pa.Array) else value)


SAME_BUT_FOR_SPELLING = [
    (pa.array([[1], None], pa.list_(pa.field("element", pa.int8()))), pa.list_(pa.int8())),
    (pa.array([[1]], pa.list_(pa.field("item", pa.int8(), False))), pa.list_(pa.int8())),
    (pa.array(["a", None], pa.string_view()), pa.string()),
    (pa.array([b"a", None], pa.binary_view()), pa.binary()),
    (pa.array([b"0" * 16], pa.binary(16)), pa.uuid()),
    (pa.array(["{}"], pa.string()), pa.json_(pa.string())),
    (pa.array(["{}"], pa.large_string()), pa.json_(pa.string())),
    (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.field("items", pa.int8()))), pa.map_(pa.string(), pa.int8())),
    (pa.array([[1, 2]], pa.list_(pa.field("x", pa.int8()), 2)), pa.list_(pa.int8(), 2)),
    (pa.array([{"x": 1, "y": "a"}], POINT), STRICT_POINT),
]


@pytest.mark.parametrize("conversion", Conversion)
@pytest.mark.parametrize(("given", "stored"), SAME_BUT_FOR_SPELLING, ids=type_name)
def test_spelling_does_not_matter(given: pa.Array, stored: pa.DataType, conversion: Conversion) -> None:
    conformed = conform_column(given, stored, conversion)
    assert conformed.type == stored
    plain = conformed.storage if isinstance(conformed, pa.ExtensionArray) else conformed
    assert plain.to_pylist() == given.to_pylist()


DIFFERENT = [
    (pa.array([1], pa.int32()), pa.int64()),
    (pa.array([1.0], pa.float32()), pa.float64()),
    (pa.array(["a"], pa.large_string()), pa.string()),
    (pa.array([0], pa.timestamp("us", "UTC")), pa.timestamp("us", "+05:30")),
    (pa.array([[1.0, 2.0]], pa.list_(pa.float32())), pa.list_(pa.float32(), 2)),
    (pa.array([1], pa.int8()), pa.uint8()),
    (pa.array(["a"]), pa.dictionary(pa.int8(), pa.string())),
    (pa.array([1.5, float("nan"), float("inf")]), pa.float16()),
    (pa.array([[{"b": 1, "a": 2}]]), pa.list_(pa.struct([("a", pa.int64()), ("b", pa.int64()), ("c", pa.string())]))),
]


@pytest.mark.parametrize(("given", "stored"), DIFFERENT, ids=type_name)
def test_another_type_is_rejected_or_cast(given: pa.Array, stored: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match=r"orders: column 'v' is stored as .*; cast it before writing") as caught:
        conform_column(given, stored, EXACT)
    assert (caught.value.column, caught.value.expected, caught.value.got) == ("v", str(stored), str(given.type))
    assert conform_column(given, stored, CAST).type == stored


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (pa.array([300], pa.int64()), pa.uint8()),
        (pa.array([-1], pa.int64()), pa.uint64()),
        (pa.array([0.1]), pa.float32()),
        (pa.array([[{"v": 1e300}]]), pa.list_(pa.struct([("v", pa.float32())]))),
        (pa.array([70000.0]), pa.float16()),
        (pa.array([2**53 + 1]), pa.float64()),
        (pa.array([[1.0]], pa.list_(pa.float32())), pa.list_(pa.float32(), 2)),
        (pa.array([1_500], pa.timestamp("ms")), pa.timestamp("s")),
        (pa.array([70_000], pa.int32()), pa.float16()),
        (pa.array([2_049], pa.uint16()), pa.float16()),
        (pa.array([[("k", 0.1)]], pa.map_(pa.string(), pa.float64())), pa.map_(pa.string(), pa.float32())),
        (pa.array([{"n": 1, "x": 0.1}]), pa.struct([("x", pa.float32()), ("n", pa.float64())])),
    ],
    ids=type_name,
)
def test_a_cast_loses_nothing(given: pa.Array, stored: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match=r"column 'v[.\w]*' of type .* does not convert to .* without loss"):
        conform_column(given, stored, CAST)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (pa.array([1.5]), pa.int64()),
        (pa.array(["12"]), pa.int64()),
        (pa.array([12]), pa.string()),
        (pa.array([True]), pa.int64()),
        (pa.array([1]), pa.bool_()),
        (pa.array(["2026-11-18"]), pa.date32()),
        (pa.array([0], pa.timestamp("us")), pa.timestamp("us", "UTC")),
        (pa.array([0], pa.timestamp("us", "UTC")), pa.timestamp("us")),
        (pa.array([0], pa.timestamp("us")), pa.date32()),
        (pa.array([0.126]), pa.decimal128(5, 2)),
        (pa.array([decimal.Decimal("1.25")]), pa.decimal128(5, 1)),
        (pa.array([decimal.Decimal("1.25")]), pa.float64()),
        (pa.array([{"x": 1}]), pa.int64()),
        (pa.array([{"z": 1}]), pa.struct([("a", pa.int64())])),
        (pa.array([{"a": 1, "z": 1}]), pa.struct([("a", pa.int64())])),
        (pa.array([[{"a": "x"}]]), pa.list_(pa.struct([("a", pa.int64())]))),
        (pa.array([{"b": 1}]), pa.struct([pa.field("a", pa.int64(), nullable=False), ("b", pa.int64())])),
    ],
    ids=type_name,
)
def test_incompatible_types_are_rejected_for_any_values(given: pa.Array, stored: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match=r"column 'v") as caught:
        conform_column(given, stored, CAST)
    assert caught.value.column == "v"


@pytest.mark.parametrize(
    ("given", "stored", "path", "types"),
    [
        (pa.array([{"a": [None, 300]}]), pa.struct([("a", pa.list_(pa.uint8()))]), "v.a.item", ("uint8", "int64")),
        (pa.array([None, {"a": 0.5, "b": 0.1}]), pa.struct([("b", pa.float16())]), "v", ()),
        (pa.array([None, {"b": 0.1}]), pa.struct([("b", pa.float16())]), "v.b", ("halffloat", "double")),
        (pa.array([[("k", 1_001)]], NANOS), pa.map_(pa.string(), pa.duration("us")), "v.value", ("duration[us]",)),
    ],
    ids=type_name,
)
def test_a_failed_cast_names_the_nested_field(
    given: pa.Array, stored: pa.DataType, path: str, types: tuple[str, ...]
) -> None:
    with pytest.raises(SchemaMismatch, match=f"column '{path}'") as caught:
        conform_column(given, stored, CAST)
    assert caught.value.column == path
    assert (caught.value.expected, caught.value.got)[: len(types)] == types


def test_values_that_differ_in_type_only_are_compared_by_name() -> None:
    given = pa.array([{"n": 1, "x": 0.5}, None, {"n": None, "x": math.nan}])
    stored = pa.struct([("x", pa.float32()), ("n", pa.float64())])
    assert [each and each["n"] for each in conform_column(given, stored, CAST).to_pylist()] == [1.0, None, None]


@pytest.mark.parametrize("rows", [[None, None], [[None], None], [[], []]])
def test_empty_vectors_from_ipc_are_cast(rows: list[object]) -> None:
    """After Arrow IPC an array without items has no buffer, and an unguarded cast of it crashes the process."""
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"v": pa.array(rows, pa.list_(pa.list_(pa.float32())))})
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    given = pa.ipc.open_stream(sink.getvalue()).read_next_batch().column(0)
    assert conform_column(given, pa.list_(pa.list_(pa.float32(), 2)), CAST).to_pylist() == rows


def test_an_instant_stays_an_instant() -> None:
    """A time zone affects the display of an instant only."""
    given = pa.array([datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)], pa.timestamp("us", "UTC"))
    assert conform_column(given, pa.timestamp("us", "+05:30"), CAST).cast(pa.int64()) == given.cast(pa.int64())


@pytest.mark.parametrize(
    ("given", "stored", "path"),
    [
        (pa.array([1, None]), pa.int64(), "v"),
        (pa.array([{"x": None, "y": "a"}], pa.struct(STRICT_POINT.fields)), STRICT_POINT, "v.x"),
        (pa.array([[1, None]]), pa.list_(pa.field("item", pa.int64(), False)), "v.item"),
        (
            pa.array([[("a", None)]], pa.map_(pa.string(), pa.int8())),
            pa.map_(pa.string(), pa.field("value", pa.int8(), False)),
            "v.value",
        ),
    ],
    ids=type_name,
)
def test_nulls_in_mandatory_fields_are_rejected(given: pa.Array, stored: pa.DataType, path: str) -> None:
    with pytest.raises(SchemaMismatch, match="is not nullable, but the data has") as caught:
        conform_column(given, stored, EXACT, nullable=False)
    assert caught.value.column == path


def test_children_of_a_null_struct_do_not_count_as_null() -> None:
    assert conform_column(pa.array([None, {"x": 1, "y": None}], POINT), STRICT_POINT, EXACT).null_count == 1


TABLE = TableSchema.from_arrow(pa.schema([pa.field("id", pa.int64(), False), ("city", pa.string()), ("n", pa.int8())]))


@pytest.mark.parametrize(
    ("schema", "column", "message"),
    [
        (
            pa.schema([("id", pa.int64()), ("town", pa.string())]),
            "town",
            "has no column 'town'; its columns are id, city, n",
        ),
        (pa.schema([("ID", pa.int64())]), "ID", "has no column 'ID'"),
        (pa.schema([("id", pa.int64()), ("id", pa.int64())]), "id", "the data has two columns named 'id'"),
        (pa.schema([("city", pa.string())]), "id", "column 'id' is not nullable, but the data does not contain it"),
    ],
    ids=lambda value: "" if isinstance(value, pa.Schema) else value,
)
def test_columns_are_checked_by_name(schema: pa.Schema, column: str, message: str) -> None:
    with pytest.raises(SchemaMismatch, match=message) as caught:
        columns_to_write(schema, TABLE, conversion=EXACT, what="orders")
    assert caught.value.column == column


def test_absent_columns_stay_absent_and_the_table_defines_the_order() -> None:
    given = pa.schema([("n", pa.int8()), ("id", pa.int64())])
    assert columns_to_write(given, TABLE, conversion=EXACT, what="orders").arrow.names == ["id", "n"]


def test_no_columns_are_refused() -> None:
    nullable = TableSchema.from_arrow(pa.schema([("n", pa.int8())]))
    with pytest.raises(SchemaMismatch, match="the data has no columns"):
        columns_to_write(pa.schema([]), nullable, conversion=EXACT, what="orders")


def test_a_copy_has_the_rows_of_the_slice() -> None:
    """Slices of nested fixed-size lists are copied correctly; `take` returns the wrong rows for them."""
    whole = pa.array([[[row] * 2] * 2 for row in range(6)], pa.list_(pa.list_(pa.int8(), 2), 2))
    for array in (whole.slice(2), pa.StructArray.from_arrays([whole.slice(1)], ["f"]).slice(1)):
        copy = copy_array(array)
        assert copy.to_pylist() == array.to_pylist()
        assert copy.offset == 0


_X = pa.struct([("x", pa.int64())])


@pytest.mark.parametrize(
    ("column", "path"),
    [
        (pa.array([{"x": 1}, None], _X), "c"),
        (pa.array([{"a": {"x": 1}}, {"a": None}], pa.struct([("a", _X)])), r"c\.a"),
        (pa.array([[{"x": 1}, None]], pa.list_(_X)), r"c\.item"),
        (pa.array([[[None]]], pa.large_list(pa.list_(_X))), r"c\.item\.item"),
    ],
)
def test_null_structs_are_rejected_in_version_2_0(column: pa.Array, path: str, tmp_path: Path) -> None:
    data = pa.table({"c": column})
    message = f"column '{path}' has a null struct, which storage version 2.0 cannot store; 2.1 can"
    with pytest.raises(InvalidInput, match=message):
        Table.create(str(tmp_path / "old"), data, storage_version="2.0", durable=False)
    assert not Table.exists(str(tmp_path / "old"))
    table = Table.create(str(tmp_path / "old"), data.schema, storage_version="2.0", durable=False)
    with pytest.raises(InvalidInput, match=message):
        table.append(data)
    assert Table.create(str(tmp_path / "new"), data, storage_version="2.1", durable=False).to_table() == data


def test_null_structs_of_an_expression_are_rejected_too(tmp_path: Path) -> None:
    data = pa.table({"k": [1], "c": pa.array([{"x": 1}], _X)})
    table = Table.create(str(tmp_path / "t"), data, storage_version="2.0", durable=False)
    with pytest.raises(InvalidInput, match="column 'c' has a null struct"):
        table.update({"c": "NULL"})


def test_null_lists_and_null_fields_of_structs_are_stored(tmp_path: Path) -> None:
    lists = pa.array([[{"x": None}], None], pa.list_(_X))
    data = pa.table({"c": pa.array([{"x": 1}, {"x": None}], _X), "l": lists})
    assert Table.create(str(tmp_path / "t"), data, storage_version="2.0", durable=False).to_table() == data
