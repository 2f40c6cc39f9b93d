"""Spark types and Arrow types, both ways, for what a Lance table stores.

Spark has fewer: it knows no unsigned integers, half floats, fixed sizes or time zones of a column. `spark_schema` says
what a table looks like to Spark; `transport_schema` what its batches are cast to on the way there; `stored_schema` what
a new table stores for a DataFrame. The way back into an existing table is decided by the table's own schema.
"""

from collections.abc import Callable

import pyarrow as pa
import pyspark.sql.types as T

from lance_core import Unsupported

_PLAIN: tuple[tuple[T.DataType, pa.DataType], ...] = (
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
_UNSIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
_DECIMAL_PRECISION_MAX = 38


def spark_schema(arrow: pa.Schema) -> T.StructType:
    return T.StructType(
        [T.StructField(field.name, _to_spark(field.type, field.name), field.nullable) for field in arrow]
    )


def transport_schema(arrow: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, _transport(field.type, field.name), field.nullable) for field in arrow])


def stored_schema(spark: T.StructType) -> pa.Schema:
    """Everything is nullable: to Spark "not null" is an inference about one DataFrame, not a promise about the next."""
    return pa.schema([pa.field(field.name, _to_arrow(field.dataType, field.name)) for field in spark])


def _transport(arrow: pa.DataType, path: str) -> pa.DataType:
    """The Arrow type nearest to `arrow` that Spark takes."""
    if isinstance(arrow, pa.BaseExtensionType):
        arrow = arrow.storage_type
    if arrow in _UNSIGNED:
        return _UNSIGNED[arrow]
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
        return _transport(arrow.value_type, path)
    if pa.types.is_decimal(arrow) and arrow.precision <= _DECIMAL_PRECISION_MAX:
        return pa.decimal128(arrow.precision, arrow.scale)
    if pa.types.is_map(arrow):
        key = _transport(arrow.key_type, f"{path}.key")
        return pa.map_(key, _transport(arrow.item_type, f"{path}.value"))
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow):
        element = arrow.value_field
        inner = _transport(element.type, f"{path}.{element.name}")
        return pa.list_(pa.field("element", inner, element.nullable))
    if pa.types.is_struct(arrow):
        return pa.struct(
            [pa.field(child.name, _transport(child.type, f"{path}.{child.name}"), child.nullable) for child in arrow]
        )
    if any(arrow == known for _, known in _PLAIN):
        return arrow
    raise Unsupported(
        f"column {path!r} is stored as {arrow}, which Spark cannot hold; leave it out with columns=[...], or read it "
        "with lance_core.Table"
    )


def _to_spark(arrow: pa.DataType, path: str) -> T.DataType:
    arrow = _transport(arrow, path)
    if pa.types.is_decimal(arrow):
        return T.DecimalType(arrow.precision, arrow.scale)
    if pa.types.is_map(arrow):
        key, value = _to_spark(arrow.key_type, path), _to_spark(arrow.item_type, path)
        return T.MapType(key, value, arrow.item_field.nullable)
    if pa.types.is_list(arrow):
        return T.ArrayType(_to_spark(arrow.value_type, path), arrow.value_field.nullable)
    if pa.types.is_struct(arrow):
        return T.StructType([T.StructField(child.name, _to_spark(child.type, path), child.nullable) for child in arrow])
    return next(spark for spark, known in _PLAIN if known == arrow)


def _to_arrow(spark: T.DataType, path: str) -> pa.DataType:
    for kind, convert in _NESTED.items():
        if isinstance(spark, kind):
            return convert(spark, path)
    for known, arrow in _PLAIN:
        if type(known) is type(spark) or (isinstance(known, T.StringType) and isinstance(spark, T.StringType)):
            return arrow
    raise Unsupported(
        f"column {path!r} has the Spark type {spark.simpleString()}, which a Lance table cannot store; cast it"
    )


def _decimal(spark: T.DataType, path: str) -> pa.DataType:
    assert isinstance(spark, T.DecimalType)
    return pa.decimal128(spark.precision, spark.scale)


def _list(spark: T.DataType, path: str) -> pa.DataType:
    assert isinstance(spark, T.ArrayType)
    element = _to_arrow(spark.elementType, f"{path}.element")
    return pa.list_(pa.field("item", element))


def _map(spark: T.DataType, path: str) -> pa.DataType:
    assert isinstance(spark, T.MapType)
    return pa.map_(_to_arrow(spark.keyType, f"{path}.key"), _to_arrow(spark.valueType, f"{path}.value"))


def _struct(spark: T.DataType, path: str) -> pa.DataType:
    assert isinstance(spark, T.StructType)
    return pa.struct([pa.field(child.name, _to_arrow(child.dataType, f"{path}.{child.name}")) for child in spark])


_NESTED: dict[type[T.DataType], Callable[[T.DataType, str], pa.DataType]] = {
    T.DecimalType: _decimal,
    T.ArrayType: _list,
    T.MapType: _map,
    T.StructType: _struct,
}
