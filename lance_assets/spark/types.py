"""Type conversion: maps Spark types to the Arrow types that a Lance table stores, and back.

Spark has fewer types: it lacks unsigned integers, half floats, fixed sizes and time zones of a column. `spark_schema`
returns the schema of a table in Spark, `transport_schema` the Arrow types that its batches are cast to on the way to
Spark, and `stored_schema` the types that a new table stores for a DataFrame. Rows that return to an existing table are
converted to the table's own schema. `TYPES.md` lists all conversions, and a test checks it.
"""

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyspark.sql.types as T

from lance_assets.spark.release import existing_types
from lance_core import InvalidInput, Unsupported

_SCALAR_TYPES: tuple[tuple[T.DataType, pa.DataType], ...] = (
    (T.NullType(), pa.null()),
    (T.BooleanType(), pa.bool_()),
    (T.ByteType(), pa.int8()),
    (T.ShortType(), pa.int16()),
    (T.IntegerType(), pa.int32()),
    (T.LongType(), pa.int64()),
    (T.FloatType(), pa.float32()),
    (T.DoubleType(), pa.float64()),
    (T.StringType(), pa.string()),
    (T.BinaryType(), pa.binary()),
    (T.DateType(), pa.date32()),
    (T.TimestampType(), pa.timestamp("us", "UTC")),
    (T.TimestampNTZType(), pa.timestamp("us")),
    (T.DayTimeIntervalType(), pa.duration("us")),
)
_UNSIGNED_TO_SIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
_DECIMAL_PRECISION_MAX = 38
FIXED_SIZE_KEY = "arrow.fixed-size-list.size"
"""Metadata key of a Spark array column: all arrays have this length, and a new table stores them as vectors."""
_STORAGE_KEY_PREFIXES = ("ARROW:", "SPARK::", "lance-schema:")
"""Prefixes of field metadata that describe the stored type or constraints of the table, and are not passed on."""
_BLOB_KEY_PREFIXES = ("lance-encoding:blob", "lance-encoding:packed")
"""Prefixes of field metadata that describe bytes. Spark receives the location of a stored blob, not its bytes."""
_CONVERSION_ADVICE = (
    (existing_types("VariantType"), "make it a text with to_json()"),
    (existing_types("TimeType"), "cast it to string"),
    (existing_types("YearMonthIntervalType"), "store its months as a number"),
    (existing_types("CalendarIntervalType"), "make it an interval day to second"),
    (existing_types("SpatialType"), "make it a binary with st_asbinary()"),
    (existing_types("UserDefinedType"), "select what it is made of"),
)


def spark_schema(arrow: pa.Schema) -> T.StructType:
    """Return the Spark schema of a table with this Arrow schema."""
    return T.StructType([_spark_field(field) for field in arrow])


def transport_schema(arrow: pa.Schema) -> pa.Schema:
    """Return the nearest Arrow schema that Spark accepts."""
    return pa.schema([pa.field(field.name, _transport_type(field.type, field.name), field.nullable) for field in arrow])


def stored_schema(spark: T.StructType) -> pa.Schema:
    """Return the Arrow schema that a new table stores for a DataFrame.

    All columns are nullable: in Spark "not null" is inferred for one DataFrame and guarantees nothing for the next.
    """
    return pa.schema([_stored_field(field, field.name) for field in spark])


def _spark_field(field: pa.Field) -> T.StructField:
    """Return the Spark field with its metadata, so that a table created from the same rows has the metadata too."""
    metadata: dict[str, object] = {}
    for name, value in (field.metadata or {}).items():
        if name.isascii() and not name.decode().startswith((*_STORAGE_KEY_PREFIXES, *_BLOB_KEY_PREFIXES)):
            metadata[name.decode()] = value.decode(errors="replace")
    if pa.types.is_fixed_size_list(field.type):
        metadata[FIXED_SIZE_KEY] = field.type.list_size
    return T.StructField(field.name, _spark_type(field.type, field.name), field.nullable, metadata)


def _stored_field(field: T.StructField, path: str) -> pa.Field:
    """Return the Arrow field. Text metadata of the column is stored; other values are internal to Spark."""
    metadata: Mapping[str, object] = field.metadata or {}
    arrow = _arrow_type(field.dataType, path)
    if FIXED_SIZE_KEY in metadata:
        arrow = _vector_type(arrow, metadata[FIXED_SIZE_KEY], path)
    kept = {
        name: value
        for name, value in metadata.items()
        if isinstance(value, str) and name != FIXED_SIZE_KEY and not name.startswith((*_STORAGE_KEY_PREFIXES, "__"))
    }
    return pa.field(field.name, arrow, metadata=kept or None)


def _vector_type(arrow: pa.DataType, size: object, path: str) -> pa.DataType:
    length = int(size) if isinstance(size, int | str) and str(size).isdecimal() else 0
    if not pa.types.is_list(arrow) or not length:
        raise InvalidInput(
            f"column {path!r} is marked as vectors in its metadata ({FIXED_SIZE_KEY} = {size!r}): that needs an array "
            f"column and a whole number above 0, and the column is {arrow}"
        )
    return pa.list_(arrow.value_field, length)


def _transport_type(arrow: pa.DataType, path: str) -> pa.DataType:
    """Return the nearest Arrow type that Spark accepts."""
    if isinstance(arrow, pa.BaseExtensionType):
        arrow = arrow.storage_type
    if arrow in _UNSIGNED_TO_SIGNED:
        return _UNSIGNED_TO_SIGNED[arrow]
    if pa.types.is_float16(arrow):
        return pa.float32()
    if pa.types.is_timestamp(arrow):
        return pa.timestamp("us", "UTC" if arrow.tz else None)
    if pa.types.is_duration(arrow):
        return pa.duration("us")
    if pa.types.is_date64(arrow):
        return pa.date32()
    if pa.types.is_large_string(arrow):
        return pa.string()
    if pa.types.is_large_binary(arrow) or pa.types.is_fixed_size_binary(arrow):
        return pa.binary()
    if pa.types.is_dictionary(arrow):
        return _transport_type(arrow.value_type, path)
    if pa.types.is_decimal(arrow) and arrow.precision - min(arrow.scale, 0) <= _DECIMAL_PRECISION_MAX:
        return pa.decimal128(arrow.precision - min(arrow.scale, 0), max(arrow.scale, 0))
    if pa.types.is_map(arrow):
        key = _transport_type(arrow.key_type, f"{path}.key")
        return pa.map_(key, _transport_type(arrow.item_type, f"{path}.value"))
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow):
        element = arrow.value_field
        inner = _transport_type(element.type, f"{path}.{element.name}")
        return pa.list_(pa.field("element", inner, element.nullable))
    if pa.types.is_struct(arrow):
        return pa.struct(
            [
                pa.field(child.name, _transport_type(child.type, f"{path}.{child.name}"), child.nullable)
                for child in arrow
            ]
        )
    if any(arrow == known for _, known in _SCALAR_TYPES):
        return arrow
    raise Unsupported(
        f"column {path!r} is stored as {arrow}, a type that Spark lacks; leave it out with columns=[...], or read it "
        "with lance_core.Table"
    )


def _spark_type(arrow: pa.DataType, path: str) -> T.DataType:
    arrow = _transport_type(arrow, path)
    if pa.types.is_decimal(arrow):
        return T.DecimalType(arrow.precision, arrow.scale)
    if pa.types.is_map(arrow):
        key, value = _spark_type(arrow.key_type, path), _spark_type(arrow.item_type, path)
        return T.MapType(key, value, arrow.item_field.nullable)
    if pa.types.is_list(arrow):
        return T.ArrayType(_spark_type(arrow.value_type, path), arrow.value_field.nullable)
    if pa.types.is_struct(arrow):
        return T.StructType(
            [
                T.StructField(child.name, _spark_type(child.type, f"{path}.{child.name}"), child.nullable)
                for child in arrow
            ]
        )
    return next(spark for spark, known in _SCALAR_TYPES if known == arrow)


def _arrow_type(spark: T.DataType, path: str) -> pa.DataType:
    for nested_type, convert in _NESTED_CONVERTERS.items():
        if isinstance(spark, nested_type):
            return convert(spark, path)
    for known, arrow in _SCALAR_TYPES:
        if type(known) is type(spark) or (isinstance(known, T.StringType) and isinstance(spark, T.StringType)):
            return arrow
    if isinstance(spark, T.CharType | T.VarcharType):
        return pa.string()
    conversion = next(
        (advice for known_types, advice in _CONVERSION_ADVICE if isinstance(spark, known_types)), "cast it"
    )
    raise Unsupported(
        f"column {path!r} has the Spark type {spark.simpleString()}, which a Lance table cannot store; {conversion}"
    )


def _arrow_decimal(spark: T.DataType, path: str) -> pa.DataType:
    assert isinstance(spark, T.DecimalType)
    return pa.decimal128(spark.precision, spark.scale)


def _arrow_list(spark: T.DataType, path: str) -> pa.DataType:
    assert isinstance(spark, T.ArrayType)
    element = _arrow_type(spark.elementType, f"{path}.element")
    return pa.list_(pa.field("item", element))


def _arrow_map(spark: T.DataType, path: str) -> pa.DataType:
    assert isinstance(spark, T.MapType)
    return pa.map_(_arrow_type(spark.keyType, f"{path}.key"), _arrow_type(spark.valueType, f"{path}.value"))


def _arrow_struct(spark: T.DataType, path: str) -> pa.DataType:
    assert isinstance(spark, T.StructType)
    return pa.struct([_stored_field(child, f"{path}.{child.name}") for child in spark])


_NESTED_CONVERTERS: dict[type[T.DataType], Callable[[T.DataType, str], pa.DataType]] = {
    T.DecimalType: _arrow_decimal,
    T.ArrayType: _arrow_list,
    T.MapType: _arrow_map,
    T.StructType: _arrow_struct,
}
