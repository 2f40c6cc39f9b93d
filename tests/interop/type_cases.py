"""Type cases: one column for each logical type of the format, with the values that break codecs: nulls, empty values,
NaN, -0.0 and the ends of the range.

The module holds data only. `test_types.py` writes each case through both libraries.
"""

import datetime
import decimal
import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

StorageName = Literal["2.0", "2.1", "2.2", "2.3"]
STORAGE_VERSIONS: tuple[StorageName, ...] = ("2.0", "2.1", "2.2")
"""The stable versions. `test_types.py` writes all types in one table of version 2.3."""


@dataclass(frozen=True)
class TypeCase:
    name: str
    field: pa.Field
    logical_types: tuple[str, ...]
    """Logical types of the field and its descendants, depth first, as the manifest spells them."""
    values: pa.Array
    since: str = "2.0"
    """First storage version that can hold the type."""
    read_type: pa.DataType | None = None
    """Arrow type of a read if it differs from the written type."""

    @property
    def versions(self) -> tuple[StorageName, ...]:
        return tuple(version for version in STORAGE_VERSIONS if version >= self.since)

    def table(self, start: int = 0) -> pa.Table:
        """Return the values from `start` on with a key column. The result is a copy: pylance panics on slices of nested
        structs."""
        keys = pa.array(range(start, len(self.values)), pa.int64())
        values = pa.concat_arrays([self.values.slice(start), self.values.slice(0, 0)])
        return pa.Table.from_arrays([keys, values], schema=pa.schema([pa.field("k", pa.int64()), self.field]))


def _case(
    name: str,
    arrow: pa.DataType,
    logical: str | Sequence[str],
    values: Sequence[object] | pa.Array,
    *,
    since: str = "2.0",
    nullable: bool = True,
    metadata: dict[str, str] | None = None,
    read_type: pa.DataType | None = None,
) -> TypeCase:
    if isinstance(values, pa.Array):
        array = values
    elif isinstance(arrow, pa.BaseExtensionType):
        storage = pa.array(values, arrow.storage_type)
        array = pa.ExtensionArray.from_storage(arrow, storage)
    else:
        array = pa.array(values, arrow)
    types = (logical,) if isinstance(logical, str) else tuple(logical)
    return TypeCase(name, pa.field("v", arrow, nullable, metadata), types, array, since, read_type)


def _integers() -> list[TypeCase]:
    cases = []
    for bits in (8, 16, 32, 64):
        for sign, low, high in (("int", -(2 ** (bits - 1)), 2 ** (bits - 1) - 1), ("uint", 0, 2**bits - 1)):
            arrow = getattr(pa, f"{sign}{bits}")()
            cases.append(_case(f"{sign}{bits}", arrow, f"{sign}{bits}", [0, low, high, None, 1]))
    return cases


def _temporal() -> list[TypeCase]:
    cases = [
        _case("date32", pa.date32(), "date32:day", [datetime.date(1969, 12, 31), None, datetime.date(9999, 1, 1)]),
        _case("date64", pa.date64(), "date64:ms", [datetime.date(1969, 12, 31), None, datetime.date(2026, 2, 28)]),
    ]
    for unit in ("s", "ms"):
        cases.append(_case(f"time32-{unit}", pa.time32(unit), f"time32:{unit}", [0, None, 86_399]))
    for unit in ("us", "ns"):
        cases.append(_case(f"time64-{unit}", pa.time64(unit), f"time64:{unit}", [0, None, 86_399_000_001]))
    for unit in ("s", "ms", "us", "ns"):
        timestamps = [0, -1, None, 1_790_000_000]
        for zone in (None, "UTC", "Europe/Oslo", "+05:30"):
            logical = f"timestamp:{unit}:{zone or '-'}"
            cases.append(_case(f"timestamp-{unit}-{zone}", pa.timestamp(unit, zone), logical, timestamps))
        cases.append(_case(f"duration-{unit}", pa.duration(unit), f"duration:{unit}", timestamps))
    return cases


_D = decimal.Decimal
_POINT = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.string())])
_DEEP = pa.struct([pa.field("point", _POINT), pa.field("z", pa.float64(), nullable=False)])
_BFLOAT16 = {"ARROW:extension:name": "lance.bfloat16", "ARROW:extension:metadata": ""}
_UUIDS = [uuid.UUID(int=number).bytes for number in (0, 1, 2**128 - 1)]
_UUID_ARRAY = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([_UUIDS[1], None], pa.binary(16)))
_EXTENSIONS = pa.struct([pa.field("u", pa.uuid()), pa.field("b", pa.binary(2), metadata=_BFLOAT16)])
_JSON = ('{"a":1,"b":[true,null,{"c":"é\\n"}]}', "[]", "{}", '"text"', "-7", "18446744073709551615", "0.1")
_LONG = "long " * 20_000

CASES: tuple[TypeCase, ...] = (
    _case("null", pa.null(), "null", [None, None, None]),
    _case("bool", pa.bool_(), "bool", [True, False, None]),
    *_integers(),
    _case("halffloat", pa.float16(), "halffloat", [0.0, -0.0, math.nan, math.inf, None, 65504.0]),
    _case("float", pa.float32(), "float", [0.0, -0.0, math.nan, -math.inf, None, 1.5e-45]),
    _case("double", pa.float64(), "double", [0.0, -0.0, math.nan, math.inf, None, 5e-324]),
    _case("double-not-null", pa.float64(), "double", [0.0, -0.0, math.nan], nullable=False),
    _case("string", pa.string(), "string", ["", "a", None, "zażółć 🐟", "nul\0", _LONG]),
    _case("large_string", pa.large_string(), "large_string", ["", None, "b", _LONG]),
    _case("string-not-null", pa.string(), "string", ["", "x"], nullable=False),
    _case("binary", pa.binary(), "binary", [b"", b"\0\xff", None]),
    _case("large_binary", pa.large_binary(), "large_binary", [b"", None, b"\xff" * 70_000]),
    _case(
        "string_view", pa.string_view(), "string", ["", None, "a view longer than twelve bytes"], read_type=pa.string()
    ),
    _case("binary_view", pa.binary_view(), "binary", [b"", None, b"x" * 40], read_type=pa.binary()),
    *_temporal(),
    _case("decimal128", pa.decimal128(38, 10), "decimal:128:38:10", [_D("0"), None, _D("-1.0000000001")]),
    _case("decimal256", pa.decimal256(76, 3), "decimal:256:76:3", [_D("0.001"), None, _D("9" * 73)]),
    _case("fixed_size_binary-0", pa.binary(0), "fixed_size_binary:0", [b"", None, b""], since="2.2"),
    _case("fixed_size_binary", pa.binary(5), "fixed_size_binary:5", [b"12345", None, b"\0\0\0\0\0"]),
    _case(
        "struct", _POINT, ("struct", "int32", "string"), [{"x": 1, "y": "a"}, {"x": None, "y": ""}, {"x": 3, "y": None}]
    ),
    _case(
        "struct-null",
        _POINT,
        ("struct", "int32", "string"),
        [{"x": 1, "y": "a"}, None, {"x": None, "y": None}],
        since="2.1",
    ),
    _case(
        "struct-nested",
        _DEEP,
        ("struct", "struct", "int32", "string", "double"),
        [{"point": {"x": 1, "y": "a"}, "z": -0.0}, {"point": {"x": None, "y": None}, "z": math.nan}],
    ),
    _case(
        "struct-empty-list",
        pa.struct([pa.field("l", pa.list_(pa.int8()))]),
        ("struct", "list", "int8"),
        [{"l": []}, {"l": [1]}, {"l": None}],
    ),
    _case("list", pa.list_(pa.int32()), ("list", "int32"), [[1, None], [], None, [3]]),
    _case(
        "list-not-null-element", pa.list_(pa.field("element", pa.int32(), False)), ("list", "int32"), [[1, 2], [], None]
    ),
    _case("list-string", pa.list_(pa.string()), ("list", "string"), [["", None], [], None, ["a"]]),
    _case("large_list", pa.large_list(pa.float64()), ("large_list", "double"), [[math.nan], [], None, [-0.0, None]]),
    _case(
        "list-of-struct",
        pa.list_(_POINT),
        ("list.struct", "struct", "int32", "string"),
        [[{"x": 1, "y": "a"}], [], None],
    ),
    _case(
        "large_list-of-struct",
        pa.large_list(_POINT),
        ("large_list.struct", "struct", "int32", "string"),
        [[{"x": 1, "y": "a"}], [], None],
    ),
    _case(
        "list-of-list",
        pa.list_(pa.list_(pa.int16())),
        ("list", "list", "int16"),
        [[[1], []], [], None, [None, [2, None]]],
    ),
    _case(
        "map",
        pa.map_(pa.string(), pa.int64()),
        ("map", "struct", "string", "int64"),
        [[("a", 1), ("b", None)], [], None],
        since="2.2",
    ),
    _case("fsl", pa.list_(pa.float32(), 3), "fixed_size_list:float:3", [[1, 2, 3], None, [math.nan, -0.0, math.inf]]),
    _case("fsl-uint8", pa.list_(pa.uint8(), 4), "fixed_size_list:uint8:4", [[0, 1, 2, 255], None]),
    _case("fsl-half", pa.list_(pa.float16(), 2), "fixed_size_list:halffloat:2", [[0.5, -0.0], None]),
    _case(
        "fsl-of-fsl",
        pa.list_(pa.list_(pa.float64(), 3), 2),
        "fixed_size_list:fixed_size_list:double:3:2",
        [[[1, 2, 3], [4, 5, 6]], None],
    ),
    _case(
        "fsl-of-struct",
        pa.list_(_POINT, 2),
        ("fixed_size_list:struct:2", "struct", "int32", "string"),
        [[{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]] * 2,
        since="2.2",
    ),
    _case(
        "list-of-fsl", pa.list_(pa.list_(pa.float32(), 2)), ("list", "fixed_size_list:float:2"), [[[1, 2]], [], None]
    ),
    _case("dictionary", pa.dictionary(pa.int32(), pa.string()), "dict:string:int32:false", ["a", "b", None, "a"]),
    _case("dictionary-large", pa.dictionary(pa.int8(), pa.large_string()), "dict:large_string:int8:false", ["a", None]),
    _case("dictionary-int64", pa.dictionary(pa.uint16(), pa.int64()), "dict:int64:uint16:false", [7, None, 7]),
    _case("json", pa.json_(pa.string()), "json", [*_JSON, None]),
    _case("bfloat16", pa.binary(2), "fixed_size_binary:2", [b"\x80\x3f", None, b"\0\0"], metadata=_BFLOAT16),
    _case(
        "bfloat16-fsl",
        pa.list_(pa.field("item", pa.binary(2), metadata=_BFLOAT16), 2),
        "fixed_size_list:lance.bfloat16:2",
        [[b"\x80\x3f", b"\0\0"], None],
    ),
    _case("uuid", pa.uuid(), "fixed_size_binary:16", [*_UUIDS, None]),
    _case("bool8", pa.bool8(), "int8", [0, 1, None]),
    _case(
        "list-of-uuid",
        pa.list_(pa.uuid()),
        ("list", "fixed_size_binary:16"),
        pa.ListArray.from_arrays([0, 2, 2], _UUID_ARRAY),
    ),
    _case(
        "struct-of-extensions",
        _EXTENSIONS,
        ("struct", "fixed_size_binary:16", "fixed_size_binary:2"),
        pa.StructArray.from_arrays([_UUID_ARRAY, pa.array([b"12", None], pa.binary(2))], fields=list(_EXTENSIONS)),
    ),
    _case("fsl-bool", pa.list_(pa.bool_(), 3), "fixed_size_list:bool:3", [[True, False, None], None]),
    _case("fsl-binary", pa.list_(pa.binary(2), 2), "fixed_size_list:fixed_size_binary:2:2", [[b"12", b"34"], None]),
    _case("struct-empty", pa.struct([]), "struct", [{}, {}]),
    _case(
        "struct-packed",
        pa.struct([pa.field("x", pa.int32(), False), pa.field("y", pa.float64(), False)]),
        ("struct", "int32", "double"),
        [{"x": 1, "y": -0.0}, {"x": 2, "y": math.nan}],
        metadata={"lance-encoding:packed": "true"},
    ),
    _case("list-null", pa.list_(pa.null()), ("list", "null"), [[None, None], [], None]),
    _case("opaque", pa.opaque(pa.binary(), 'a "name"', "vendor"), "binary", [b"", None]),
    _case("decimal-list", pa.list_(pa.decimal128(9, 2)), ("list", "decimal:128:9:2"), [[_D("1.25"), None], [], None]),
    _case("timestamp-list", pa.list_(pa.timestamp("ns", "+05:30")), ("list", "timestamp:ns:+05:30"), [[1, None], None]),
    _case(
        "tensor", pa.fixed_shape_tensor(pa.float32(), (2, 2)), "fixed_size_list:float:4", [[1.0, 2.0, 3.0, 4.0], None]
    ),
)
