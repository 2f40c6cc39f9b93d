"""Type matrix: every type that a Lance table stores, with values at the ends of its range, in every shape of a column.

A cell is a type in a shape, with the name of its Spark type and the column that Spark writes.
"""

import datetime as dt
import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

ROWS = 6


@dataclass(frozen=True)
class ColumnType:
    name: str
    stored: pa.DataType
    spark: str
    """Spark type as `simpleString` spells it."""
    values: tuple[object, ...]
    only_plain: bool = False
    """True if the codec supports the type as a column only, not inside another type."""

    def column(self, shape: "Shape") -> pa.Array:
        arrow = shape.type(self.stored)
        storage = _without_extensions(arrow)
        array = pa.array(shape.rows(self._stored_values()), storage)
        return array if arrow == storage else _as_extension(array, arrow)

    def _stored_values(self) -> list[object]:
        return [value.bytes if isinstance(value, uuid.UUID) else value for value in self.values]


@dataclass(frozen=True)
class Shape:
    name: str
    type: Callable[[pa.DataType], pa.DataType]
    rows: Callable[[list[object]], list[object]]
    spark: str = "{}"
    nullable: bool = True


def _repeat_to_rows(values: list[object]) -> list[object]:
    """Repeat the values up to `ROWS` rows."""
    assert len(values) <= ROWS
    return [values[row % len(values)] for row in range(ROWS)]


SHAPES = (
    Shape("plain", lambda inner: inner, lambda values: _repeat_to_rows([*values, None])),
    Shape("required", lambda inner: inner, _repeat_to_rows, nullable=False),
    Shape("nothing", lambda inner: inner, lambda _values: [None] * ROWS),
    Shape(
        "in_struct",
        lambda inner: pa.struct([pa.field("a", inner), pa.field("b", pa.int32())]),
        lambda values: [{"a": value, "b": 1} for value in _repeat_to_rows([*values, None])[: ROWS - 1]] + [None],
        "struct<a:{},b:int>",
    ),
    Shape(
        "in_list",
        lambda inner: pa.list_(pa.field("item", inner)),
        lambda values: [[*values], [], None, [None], [values[0], None], [values[-1]]],
        "array<{}>",
    ),
    Shape(
        "in_large_list",
        lambda inner: pa.large_list(pa.field("item", inner)),
        lambda values: [[values[-1]], None, [], [*values], [None, None], [values[0]]],
        "array<{}>",
    ),
    Shape(
        "in_map",
        lambda inner: pa.map_(pa.string(), inner),
        lambda values: [[("k", values[0]), ("l", None)], [], None, [("k", values[-1])], [], [("m", values[0])]],
        "map<string,{}>",
    ),
    Shape(
        "in_structs_in_list",
        lambda inner: pa.list_(pa.field("item", pa.struct([pa.field("a", inner)]))),
        lambda values: [[{"a": value} for value in values], [{"a": None}], [None], [], None, [{"a": values[0]}]],
        "array<struct<a:{}>>",
    ),
)

_SMALL, _LARGE = float.fromhex("0x1p-24"), 65504.0
_INSTANT = dt.datetime(2026, 3, 29, 1, 30, tzinfo=dt.UTC)  # the clocks go forward in Berlin
_BACK = dt.datetime(2025, 11, 2, 5, 30, tzinfo=dt.UTC)  # an hour that occurs twice in New York
_OLD = dt.datetime(1582, 10, 4, 12, tzinfo=dt.UTC)  # the last day of the Julian calendar
_FIRST, _LAST = dt.datetime(1, 1, 2, tzinfo=dt.UTC), dt.datetime(9999, 12, 30, 23, 59, 59, tzinfo=dt.UTC)


def _without_zone(timestamp: dt.datetime) -> dt.datetime:
    return timestamp.replace(tzinfo=None)


def _integers(bits: int, *, signed: bool) -> tuple[int, ...]:
    minimum, maximum = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return (minimum, maximum, 0 if signed else maximum // 2 + 1)


def _timestamps(unit: str, zone: str | None) -> tuple[dt.datetime, ...]:
    timestamps: tuple[dt.datetime, ...]
    if unit == "ns":
        timestamps = (_INSTANT, _BACK, dt.datetime(1677, 9, 22, tzinfo=dt.UTC), dt.datetime(2262, 4, 11, tzinfo=dt.UTC))
    elif unit == "us":
        timestamps = (_INSTANT.replace(microsecond=1), _BACK, _OLD, _FIRST, _LAST.replace(microsecond=999_999))
    else:
        timestamps = (_INSTANT, _BACK, _OLD, _FIRST, _LAST)
    return timestamps if zone else tuple(map(_without_zone, timestamps))


COLUMN_TYPES = (
    ColumnType("null", pa.null(), "void", (None,), only_plain=True),
    ColumnType("bool", pa.bool_(), "boolean", (True, False)),
    ColumnType("int8", pa.int8(), "tinyint", _integers(8, signed=True)),
    ColumnType("int16", pa.int16(), "smallint", _integers(16, signed=True)),
    ColumnType("int32", pa.int32(), "int", _integers(32, signed=True)),
    ColumnType("int64", pa.int64(), "bigint", _integers(64, signed=True)),
    ColumnType("uint8", pa.uint8(), "smallint", _integers(8, signed=False)),
    ColumnType("uint16", pa.uint16(), "int", _integers(16, signed=False)),
    ColumnType("uint32", pa.uint32(), "bigint", _integers(32, signed=False)),
    ColumnType("uint64", pa.uint64(), "decimal(20,0)", _integers(64, signed=False)),
    ColumnType("float16", pa.float16(), "float", (_LARGE, -_SMALL, -0.0, math.inf, math.nan)),
    ColumnType("float32", pa.float32(), "float", (float.fromhex("0x1.fffffep127"), -0.0, -math.inf, math.nan)),
    ColumnType("float64", pa.float64(), "double", (5e-324, -0.0, math.inf, math.nan, 0.1)),
    ColumnType("string", pa.string(), "string", ("", "ä\0😀", "x" * 300)),
    ColumnType("large_string", pa.large_string(), "string", ("", "ä\0😀")),
    ColumnType("binary", pa.binary(), "binary", (b"", b"\xff\x00")),
    ColumnType("large_binary", pa.large_binary(), "binary", (b"", b"\xff\x00")),
    ColumnType("fixed_binary", pa.binary(3), "binary", (b"\x00\x00\x00", b"\xff\x01\x02")),
    ColumnType("date32", pa.date32(), "date", (dt.date(1, 1, 1), dt.date(1582, 10, 4), dt.date(9999, 12, 31))),
    ColumnType("date64", pa.date64(), "date", (dt.date(1, 1, 1), dt.date(1582, 10, 4), dt.date(9999, 12, 31))),
    *(
        ColumnType(
            f"timestamp_{unit}_{name}",
            pa.timestamp(unit, zone),
            "timestamp" if zone else "timestamp_ntz",
            _timestamps(unit, zone),
        )
        for unit in ("s", "ms", "us", "ns")
        for name, zone in (("ntz", None), ("utc", "UTC"), ("berlin", "Europe/Berlin"), ("fixed", "+05:30"))
    ),
    *(
        ColumnType(
            f"duration_{unit}",
            pa.duration(unit),
            "interval day to second",
            (dt.timedelta(0), dt.timedelta(days=-1, seconds=1), dt.timedelta(days=10_000)),
        )
        for unit in ("s", "ms", "us", "ns")
    ),
    ColumnType(
        "decimal_small", pa.decimal128(5, 2), "decimal(5,2)", (Decimal("999.99"), Decimal("-0.01"), Decimal("0.00"))
    ),
    ColumnType(
        "decimal_large",
        pa.decimal128(38, 10),
        "decimal(38,10)",
        (Decimal(f"{'9' * 28}.{'9' * 10}"), Decimal("-0.0000000001")),
    ),
    ColumnType(
        "decimal256",
        pa.decimal256(38, 3),
        "decimal(38,3)",
        (Decimal(f"{'9' * 35}.999"), Decimal("-1.001")),
    ),
    ColumnType("vector", pa.list_(pa.float32(), 3), "array<float>", ([1.5, -0.0, math.inf], [0.0, 1.0, 2.0])),
    ColumnType("half_vector", pa.list_(pa.float16(), 2), "array<float>", ([_LARGE, _SMALL], [0.0, 1.0])),
    ColumnType("int8_vector", pa.list_(pa.int8(), 2), "array<tinyint>", ([-128, 127], [0, 1])),
    ColumnType("uint8_vector", pa.list_(pa.uint8(), 2), "array<smallint>", ([255, 0], [0, 1])),
    ColumnType("dictionary", pa.dictionary(pa.int8(), pa.string()), "string", ("a", "", "a"), only_plain=True),
    ColumnType("uuid", pa.uuid(), "binary", (uuid.UUID(int=0), uuid.UUID(int=(1 << 128) - 1))),
)


@dataclass(frozen=True)
class Cell:
    column_type: ColumnType
    shape: Shape

    @property
    def name(self) -> str:
        return f"{self.column_type.name}__{self.shape.name}"

    @property
    def field(self) -> pa.Field:
        return pa.field(
            self.name,
            self.shape.type(self.column_type.stored),
            self.shape.nullable,
            metadata={"cell": self.name},
        )

    @property
    def spark(self) -> str:
        return self.shape.spark.format(self.column_type.spark)

    def array(self) -> pa.Array:
        return self.column_type.column(self.shape)


def all_cells() -> tuple[Cell, ...]:
    return tuple(
        Cell(column_type, shape)
        for column_type in COLUMN_TYPES
        for shape in SHAPES
        if not (column_type.only_plain and shape.spark != "{}")
        and not (column_type.name == "null" and not shape.nullable)
    )


def make_table(selected: tuple[Cell, ...]) -> pa.Table:
    return pa.table([value.array() for value in selected], pa.schema([value.field for value in selected]))


def comparable_value(value: object) -> object:
    """Return a value that compares independently of its type: bytes for UUIDs, one NaN, signed zeros."""
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, Mapping):
        return {name: comparable_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [comparable_value(item) for item in value]
    return value


def _without_extensions(arrow: pa.DataType) -> pa.DataType:
    if isinstance(arrow, pa.BaseExtensionType):
        return arrow.storage_type
    if pa.types.is_struct(arrow):
        return pa.struct([value.with_type(_without_extensions(value.type)) for value in arrow])
    if pa.types.is_map(arrow):
        return pa.map_(arrow.key_type, _without_extensions(arrow.item_type))
    if pa.types.is_large_list(arrow):
        return pa.large_list(arrow.value_field.with_type(_without_extensions(arrow.value_type)))
    if pa.types.is_list(arrow):
        return pa.list_(arrow.value_field.with_type(_without_extensions(arrow.value_type)))
    return arrow


def _as_extension(array: pa.Array, arrow: pa.DataType) -> pa.Array:
    if isinstance(arrow, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(arrow, array)
    return array.cast(arrow)
