"""Every type that a Lance table stores, with values at its edges, in every shape that a column can have.

A cell is a type in a shape. What Spark calls it stands beside it, as does the Spark column that goes into it.
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
class Kind:
    name: str
    stored: pa.DataType
    spark: str
    """To Spark, as `simpleString` spells it."""
    values: tuple[object, ...]
    only_plain: bool = False
    """The codec has it as a column, and not below another type."""

    def column(self, shape: "Shape") -> pa.Array:
        arrow = shape.type(self.stored)
        storage = _without_extensions(arrow)
        array = pa.array(shape.rows(self._stored_values()), storage)
        return array if arrow == storage else _as_extension(array, arrow)

    def _stored_values(self) -> list[object]:
        return [each.bytes if isinstance(each, uuid.UUID) else each for each in self.values]


@dataclass(frozen=True)
class Shape:
    name: str
    type: Callable[[pa.DataType], pa.DataType]
    rows: Callable[[list[object]], list[object]]
    spark: str = "{}"
    nullable: bool = True


def _around(values: list[object]) -> list[object]:
    """So many rows, all values among them."""
    assert len(values) <= ROWS
    return [values[at % len(values)] for at in range(ROWS)]


SHAPES = (
    Shape("plain", lambda inner: inner, lambda values: _around([*values, None])),
    Shape("required", lambda inner: inner, _around, nullable=False),
    Shape("nothing", lambda inner: inner, lambda _values: [None] * ROWS),
    Shape(
        "in_struct",
        lambda inner: pa.struct([pa.field("a", inner), pa.field("b", pa.int32())]),
        lambda values: [{"a": each, "b": 1} for each in _around([*values, None])[: ROWS - 1]] + [None],
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
        lambda values: [[{"a": each} for each in values], [{"a": None}], [None], [], None, [{"a": values[0]}]],
        "array<struct<a:{}>>",
    ),
)

_SMALL, _LARGE = float.fromhex("0x1p-24"), 65504.0
_INSTANT = dt.datetime(2026, 3, 29, 1, 30, tzinfo=dt.UTC)  # when clocks go forward in Berlin
_BACK = dt.datetime(2025, 11, 2, 5, 30, tzinfo=dt.UTC)  # an hour that New York has twice
_OLD = dt.datetime(1582, 10, 4, 12, tzinfo=dt.UTC)  # a day before calendars were changed
_FIRST, _LAST = dt.datetime(1, 1, 2, tzinfo=dt.UTC), dt.datetime(9999, 12, 30, 23, 59, 59, tzinfo=dt.UTC)


def _wall(moment: dt.datetime) -> dt.datetime:
    return moment.replace(tzinfo=None)


def _integers(bits: int, *, signed: bool) -> tuple[int, ...]:
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return (least, most, 0 if signed else most // 2 + 1)


def _moments(unit: str, zone: str | None) -> tuple[dt.datetime, ...]:
    few: tuple[dt.datetime, ...]
    if unit == "ns":
        few = (_INSTANT, _BACK, dt.datetime(1677, 9, 22, tzinfo=dt.UTC), dt.datetime(2262, 4, 11, tzinfo=dt.UTC))
    elif unit == "us":
        few = (_INSTANT.replace(microsecond=1), _BACK, _OLD, _FIRST, _LAST.replace(microsecond=999_999))
    else:
        few = (_INSTANT, _BACK, _OLD, _FIRST, _LAST)
    return few if zone else tuple(map(_wall, few))


KINDS = (
    Kind("null", pa.null(), "void", (None,), only_plain=True),
    Kind("bool", pa.bool_(), "boolean", (True, False)),
    Kind("int8", pa.int8(), "tinyint", _integers(8, signed=True)),
    Kind("int16", pa.int16(), "smallint", _integers(16, signed=True)),
    Kind("int32", pa.int32(), "int", _integers(32, signed=True)),
    Kind("int64", pa.int64(), "bigint", _integers(64, signed=True)),
    Kind("uint8", pa.uint8(), "smallint", _integers(8, signed=False)),
    Kind("uint16", pa.uint16(), "int", _integers(16, signed=False)),
    Kind("uint32", pa.uint32(), "bigint", _integers(32, signed=False)),
    Kind("uint64", pa.uint64(), "decimal(20,0)", _integers(64, signed=False)),
    Kind("float16", pa.float16(), "float", (_LARGE, -_SMALL, -0.0, math.inf, math.nan)),
    Kind("float32", pa.float32(), "float", (float.fromhex("0x1.fffffep127"), -0.0, -math.inf, math.nan)),
    Kind("float64", pa.float64(), "double", (5e-324, -0.0, math.inf, math.nan, 0.1)),
    Kind("string", pa.string(), "string", ("", "ä\0😀", "x" * 300)),
    Kind("large_string", pa.large_string(), "string", ("", "ä\0😀")),
    Kind("binary", pa.binary(), "binary", (b"", b"\xff\x00")),
    Kind("large_binary", pa.large_binary(), "binary", (b"", b"\xff\x00")),
    Kind("fixed_binary", pa.binary(3), "binary", (b"\x00\x00\x00", b"\xff\x01\x02")),
    Kind("date32", pa.date32(), "date", (dt.date(1, 1, 1), dt.date(1582, 10, 4), dt.date(9999, 12, 31))),
    Kind("date64", pa.date64(), "date", (dt.date(1, 1, 1), dt.date(1582, 10, 4), dt.date(9999, 12, 31))),
    *(
        Kind(
            f"timestamp_{unit}_{name}",
            pa.timestamp(unit, zone),
            "timestamp" if zone else "timestamp_ntz",
            _moments(unit, zone),
        )
        for unit in ("s", "ms", "us", "ns")
        for name, zone in (("ntz", None), ("utc", "UTC"), ("berlin", "Europe/Berlin"), ("fixed", "+05:30"))
    ),
    *(
        Kind(
            f"duration_{unit}",
            pa.duration(unit),
            "interval day to second",
            (dt.timedelta(0), dt.timedelta(days=-1, seconds=1), dt.timedelta(days=10_000)),
        )
        for unit in ("s", "ms", "us", "ns")
    ),
    Kind("decimal_small", pa.decimal128(5, 2), "decimal(5,2)", (Decimal("999.99"), Decimal("-0.01"), Decimal("0.00"))),
    Kind(
        "decimal_large",
        pa.decimal128(38, 10),
        "decimal(38,10)",
        (Decimal(f"{'9' * 28}.{'9' * 10}"), Decimal("-0.0000000001")),
    ),
    Kind(
        "decimal256",
        pa.decimal256(38, 3),
        "decimal(38,3)",
        (Decimal(f"{'9' * 35}.999"), Decimal("-1.001")),
    ),
    Kind("vector", pa.list_(pa.float32(), 3), "array<float>", ([1.5, -0.0, math.inf], [0.0, 1.0, 2.0])),
    Kind("half_vector", pa.list_(pa.float16(), 2), "array<float>", ([_LARGE, _SMALL], [0.0, 1.0])),
    Kind("int8_vector", pa.list_(pa.int8(), 2), "array<tinyint>", ([-128, 127], [0, 1])),
    Kind("uint8_vector", pa.list_(pa.uint8(), 2), "array<smallint>", ([255, 0], [0, 1])),
    Kind("dictionary", pa.dictionary(pa.int8(), pa.string()), "string", ("a", "", "a"), only_plain=True),
    Kind("uuid", pa.uuid(), "binary", (uuid.UUID(int=0), uuid.UUID(int=(1 << 128) - 1))),
)


@dataclass(frozen=True)
class Cell:
    kind: Kind
    shape: Shape

    @property
    def name(self) -> str:
        return f"{self.kind.name}__{self.shape.name}"

    @property
    def field(self) -> pa.Field:
        return pa.field(
            self.name,
            self.shape.type(self.kind.stored),
            self.shape.nullable,
            metadata={"cell": self.name},
        )

    @property
    def spark(self) -> str:
        return self.shape.spark.format(self.kind.spark)

    def array(self) -> pa.Array:
        return self.kind.column(self.shape)


def cells() -> tuple[Cell, ...]:
    return tuple(
        Cell(kind, shape)
        for kind in KINDS
        for shape in SHAPES
        if not (kind.only_plain and shape.spark != "{}") and not (kind.name == "null" and not shape.nullable)
    )


def table_of(some: tuple[Cell, ...]) -> pa.Table:
    return pa.table([each.array() for each in some], pa.schema([each.field for each in some]))


def plain(value: object) -> object:
    """Comparable, whatever type it came in: bytes for UUIDs, one NaN, signs of zeros."""
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def _without_extensions(arrow: pa.DataType) -> pa.DataType:
    if isinstance(arrow, pa.BaseExtensionType):
        return arrow.storage_type
    if pa.types.is_struct(arrow):
        return pa.struct([each.with_type(_without_extensions(each.type)) for each in arrow])
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
