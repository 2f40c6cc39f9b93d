"""Type refusals: values that do not fit, in both directions, by the conversions of the workers without Spark."""

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyspark.sql.types as T
import pytest

from lance_assets.spark.types import FIXED_SIZE_KEY, spark_schema, stored_schema, transport_schema
from lance_core import InvalidInput, LanceError, SchemaMismatch, Table, Unsupported
from lance_core.tasks.rows.write import FileLimits, PlannedWrite, WriteTask, begin_append
from lance_core.tasks.scan.read import ReadTask, VersionRef, plan_read
from tests.lance_assets.spark.types_document import DOCUMENT_PATH, render_document

FAR = 1 << 55
TO_SPARK: dict[str, tuple[pa.Array, type[LanceError], str]] = {
    "nanoseconds": (pa.array([0, 1_001], pa.timestamp("ns")), SchemaMismatch, "'v' of type timestamp.ns. .* lose"),
    "nanoseconds of an instant": (pa.array([1], pa.timestamp("ns", "UTC")), SchemaMismatch, "'v' of type timestamp"),
    "nanoseconds in a list": (
        pa.array([[1_001]], pa.list_(pa.timestamp("ns"))),
        SchemaMismatch,
        r"'v\.element' of type",
    ),
    "nanoseconds in a struct": (
        pa.array([{"a": 1_001}], pa.struct([("a", pa.timestamp("ns"))])),
        SchemaMismatch,
        r"'v\.a' of type timestamp\[ns\]",
    ),
    "a far second": (pa.array([FAR], pa.timestamp("s")), SchemaMismatch, "out of bounds"),
    "a far millisecond": (pa.array([1 << 62], pa.timestamp("ms", "UTC")), SchemaMismatch, "out of bounds"),
    "a long duration": (pa.array([FAR], pa.duration("s")), SchemaMismatch, "out of bounds"),
    "a fine duration": (pa.array([1], pa.duration("ns")), SchemaMismatch, "would lose data: 1"),
    "half a day": (pa.array([43_200_000], pa.int64()).view(pa.date64()), SchemaMismatch, "would lose data: 43200000"),
    "seconds of a day": (pa.array([1], pa.time32("s")), Unsupported, r"'v' is stored as time32\[s\]"),
    "milliseconds of a day": (pa.array([1], pa.time32("ms")), Unsupported, r"'v' is stored as time32\[ms\]"),
    "microseconds of a day": (pa.array([1], pa.time64("us")), Unsupported, r"'v' is stored as time64\[us\]"),
    "nanoseconds of a day": (pa.array([1], pa.time64("ns")), Unsupported, r"'v' is stored as time64\[ns\]"),
    "a time in a struct": (pa.array([{"a": 1}], pa.struct([("a", pa.time32("s"))])), Unsupported, r"'v\.a' is stored"),
    "a wide decimal": (pa.array([Decimal(1)], pa.decimal256(39, 2)), Unsupported, r"decimal256\(39, 2\)"),
    "tens": (pa.array([Decimal("1E+3")], pa.decimal128(37, -2)), Unsupported, r"decimal128\(37, -2\)"),
}


@pytest.mark.parametrize("name", TO_SPARK)
def test_values_that_spark_lacks_name_column_and_remedy(tmp_path: Path, name: str) -> None:
    array, kind, words = TO_SPARK[name]
    table = Table.create(str(tmp_path / "t"), pa.table({"n": [1] * len(array), "v": array}), durable=False)
    with pytest.raises(kind, match=f"column .*{words}.*columns=.*lance_core.Table"):
        rows(table.uri)
    assert rows(table.uri, ["n"]).num_rows == len(array)


def rows(uri: str, columns: list[str] | None = None) -> pa.Table:
    plan = plan_read(VersionRef(uri).snapshot(), transport=transport_schema, slots=1, columns=columns)
    return pa.Table.from_batches(ReadTask(plan)([pa.record_batch({"id": [0]})]))


SECONDS = pa.timestamp("s", "UTC")
FROM_SPARK: dict[str, tuple[pa.DataType, pa.Array, str]] = {
    "above a byte": (pa.uint8(), pa.array([255, 256], pa.int16()), "'v' of type int16 .* to uint8 .* 256"),
    "below nothing": (pa.uint64(), pa.array([-1]), "'v' of type int64 .* to uint64"),
    "above 64 bits": (pa.uint64(), pa.array([Decimal(1 << 64)], pa.decimal128(20, 0)), "to uint64"),
    "below nothing, of decimals": (pa.uint64(), pa.array([Decimal(-1)], pa.decimal128(20, 0)), "to uint64"),
    "above a half": (pa.float16(), pa.array([65_520.0], pa.float32()), "to halffloat .* rounded"),
    "a whole number above a half": (pa.float16(), pa.array([70_000], pa.int32()), "to halffloat .* rounded"),
    "between two halves": (pa.float16(), pa.array([2_049], pa.int16()), "to halffloat .* rounded"),
    "between two floats": (pa.float32(), pa.array([0.1]), "to float .* rounded"),
    "above a double": (pa.float64(), pa.array([(1 << 53) + 1]), "to double"),
    "a short vector": (pa.list_(pa.float32(), 2), pa.array([[1.0]], pa.list_(pa.float32())), "'v' of type list"),
    "no vector": (pa.list_(pa.float32(), 2), pa.array([[]], pa.list_(pa.float32())), "'v' of type list"),
    "a vector of other halves": (
        pa.list_(pa.float16(), 1),
        pa.array([[1e6]], pa.list_(pa.float32())),
        r"'v\.item' of type float .* to halffloat",
    ),
    "another width": (pa.binary(3), pa.array([b"abcd"]), "to fixed_size_binary"),
    "no UUID": (pa.uuid(), pa.array([b"abcd"]), "'v' of type binary"),
    "finer than stored": (SECONDS, pa.array([1], pa.timestamp("us", "UTC")), "would lose data: 1"),
    "later than nanoseconds": (
        pa.timestamp("ns"),
        pa.array([dt.datetime(9999, 1, 1)], pa.timestamp("us")),  # noqa: DTZ001 - without a zone
        "out of bounds",
    ),
    "another kind of time": (SECONDS, pa.array([0], pa.timestamp("us")), "'v' is stored as timestamp.* the data has"),
    "a duration between": (pa.duration("s"), pa.array([1], pa.duration("us")), "would lose data: 1"),
    "digits before": (
        pa.decimal128(5, 1),
        pa.array([Decimal("12345.0")], pa.decimal128(38, 1)),
        "does not fit in precision 5",
    ),
    "digits after": (pa.decimal128(5, 1), pa.array([Decimal("1.25")]), "'v' is stored as decimal128"),
    "a text": (pa.int32(), pa.array(["1"]), "'v' is stored as int32, but the data has string"),
    "nested": (
        pa.struct([("a", pa.list_(pa.uint8()))]),
        pa.array([{"a": [1, 300]}]),
        r"'v\.a\.item' of type int64 .* to uint8",
    ),
    "in a map": (
        pa.map_(pa.string(), pa.uint8()),
        pa.array([[("k", 300)]], pa.map_(pa.string(), pa.int64())),
        r"'v\.value' of type int64 .* to uint8",
    ),
}


@pytest.mark.parametrize("name", FROM_SPARK)
def test_values_that_do_not_fit_name_the_column(tmp_path: Path, name: str) -> None:
    stored, array, words = FROM_SPARK[name]
    schema = pa.schema([pa.field("v", stored)])
    table = Table.create(str(tmp_path / "t"), schema, storage_version="2.2", durable=False)
    rows_of_spark = pa.table({"v": array})
    with pytest.raises(SchemaMismatch, match=f"column .*{words}"):
        write(table.uri, rows_of_spark)
    assert table.refresh().version == 1


def write(uri: str, data: pa.Table) -> None:
    planned = begin_append(uri, data.schema, create=True, intent=None, limits=FileLimits(), durable=False)
    assert isinstance(planned, PlannedWrite)
    planned.finish(pa.Table.from_batches(list(WriteTask(planned.plan)(data.to_batches()))))


def test_null_items_of_vectors(tmp_path: Path) -> None:
    """Lance stores them as nulls."""
    vectors = [[1.0, None], None, [2.0, 3.0]]
    table = Table.create(str(tmp_path / "t"), pa.schema([("v", pa.list_(pa.float32(), 2))]), durable=False)
    write(table.uri, pa.table({"v": pa.array(vectors, pa.list_(pa.float32()))}))
    assert table.refresh().to_table()["v"].to_pylist() == vectors == rows(table.uri)["v"].to_pylist()


def test_decimals_with_negative_scale(tmp_path: Path) -> None:
    tens = pa.array([Decimal("1E+3"), Decimal("-9.99E+4")], pa.decimal128(5, -2))
    table = Table.create(str(tmp_path / "t"), pa.table({"v": tens}), durable=False)
    assert spark_schema(table.schema)["v"].dataType == T.DecimalType(7, 0)
    assert rows(table.uri)["v"].to_pylist() == [Decimal(1000), Decimal(-99900)]


NOT_STORED = [
    (T.VariantType(), "variant, .* to_json"),
    (T.TimeType(), r"time\(6\), .* cast it to string"),
    (T.YearMonthIntervalType(), "interval year to month, .* months as a number"),
    (T.CalendarIntervalType(), "interval, .* day to second"),
    (T.GeometryType(4326), r"geometry.*st_asbinary"),
    (T.ArrayType(T.VariantType()), "'v.element' .* variant"),
    (T.StructType([T.StructField("a", T.TimeType())]), "'v.a' .* time"),
    (T.MapType(T.StringType(), T.VariantType()), "'v.value' .* variant"),
]


@pytest.mark.parametrize(("spark", "words"), NOT_STORED, ids=lambda value: str(value)[:20])
def test_unsupported_spark_types_name_the_remedy(spark: T.DataType, words: str) -> None:
    with pytest.raises(Unsupported, match=f"column .*{words}"):
        stored_schema(T.StructType([T.StructField("v", spark)]))


def test_char_varchar_and_collated_text() -> None:
    kinds = [T.CharType(3), T.VarcharType(5), T.StringType("UTF8_LCASE")]
    fields = [T.StructField(f"v{at}", kind, nullable=False) for at, kind in enumerate(kinds)]
    assert stored_schema(T.StructType(fields)).types == [pa.string()] * 3


def test_field_metadata() -> None:
    """Internal metadata keys of Spark are not stored."""
    metadata = {FIXED_SIZE_KEY: 2, "unit": "m", "__autoGeneratedAlias": "true", "SPARK::metadata::json": "{}", "n": 3}
    inner = T.StructField("v", T.ArrayType(T.FloatType()), metadata=metadata)
    schema = stored_schema(T.StructType([inner, T.StructField("s", T.StructType([inner]))]))
    vector = pa.list_(pa.field("item", pa.float32()), 2)
    assert schema.field("v").type == vector == schema.field("s").type[0].type
    assert schema.field("v").metadata == {b"unit": b"m"} == schema.field("s").type[0].metadata
    again = spark_schema(schema)["v"]
    assert (again.dataType.simpleString(), again.metadata) == ("array<float>", {FIXED_SIZE_KEY: 2, "unit": "m"})
    assert stored_schema(T.StructType([again])).field("v").equals(schema.field("v"), check_metadata=True)


@pytest.mark.parametrize(
    ("kind", "size"), [(T.FloatType(), 2), (T.ArrayType(T.FloatType()), 0), (T.ArrayType(T.FloatType()), "x")]
)
def test_invalid_vector_metadata(kind: T.DataType, size: object) -> None:
    with pytest.raises(InvalidInput, match="column 'v' is marked as vectors in its metadata"):
        stored_schema(T.StructType([T.StructField("v", kind, metadata={FIXED_SIZE_KEY: size})]))


def test_blobs_are_read_as_locations(tmp_path: Path) -> None:
    field = pa.field("v", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    for version in ("2.1", "2.2"):
        data = pa.table([pa.array([b"abc", None], pa.large_binary())], pa.schema([field]))
        table = Table.create(str(tmp_path / version), data, storage_version=version, durable=False)
        plan = plan_read(VersionRef(table.uri).snapshot(), transport=transport_schema, slots=1)
        locations = rows(table.uri)["v"].to_pylist()
        assert (locations[0]["size"], locations[1]) == (3, None)
        assert spark_schema(plan.arrow)["v"].metadata == {}
        names = {child.name for child in spark_schema(plan.arrow)["v"].dataType}  # type: ignore[attr-defined]
        assert {"position", "size"} <= names
        write(table.uri, pa.table({"v": pa.array([b"more"])}))
        assert table.refresh().count_rows() == 3


def test_types_document_is_current() -> None:
    """`python -m tests.lance_assets.spark.types_document` rewrites it."""
    assert DOCUMENT_PATH.read_text() == render_document()
