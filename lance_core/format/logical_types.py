"""Logical types: converts between Lance's type strings and Arrow types, for types without children of their own.

Both directions use one table, plus a grammar for strings with parameters. Nested types (`struct`, `list`, `map`, a
fixed-size list of structs) get their children from the field tree in `schema.py`.
"""

import pyarrow as pa

EXTENSION_NAME = b"ARROW:extension:name"
EXTENSION_METADATA = b"ARROW:extension:metadata"
JSON_EXTENSION = "lance.json"
BFLOAT16_EXTENSION = "lance.bfloat16"

_PLAIN: dict[str, pa.DataType] = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "halffloat": pa.float16(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "date32:day": pa.date32(),
    "date64:ms": pa.date64(),
    "time32:s": pa.time32("s"),
    "time32:ms": pa.time32("ms"),
    "time64:us": pa.time64("us"),
    "time64:ns": pa.time64("ns"),
    "duration:s": pa.duration("s"),
    "duration:ms": pa.duration("ms"),
    "duration:us": pa.duration("us"),
    "duration:ns": pa.duration("ns"),
    "json": pa.json_(pa.string()),
}
_NAMES = {arrow: name for name, arrow in _PLAIN.items() if name != "json"}
_VIEWS = {pa.string_view(): "string", pa.binary_view(): "binary"}
# The element of `fixed_size_list:lance.bfloat16:N`. Pyarrow has no such type, so two raw bytes represent it.
_BFLOAT16_ITEM = pa.field(
    "item",
    pa.binary(2),
    metadata={EXTENSION_NAME: BFLOAT16_EXTENSION, EXTENSION_METADATA: ""},
)
_NOT_IN_FIXED_LISTS = ("null", "string", "large_string", "binary", "large_binary", "json")
_UNITS = ("s", "ms", "us", "ns")
_CHARACTERS_MAX = 1024
"""Far longer than any type needs. Parsing a longer string could exhaust the stack, since types nest."""


class UnknownLogicalType(ValueError):
    """The string or the Arrow type has no counterpart. The caller adds the name of the field."""


def is_json(arrow: pa.DataType) -> bool:
    return isinstance(arrow, pa.BaseExtensionType) and arrow.extension_name == "arrow.json"


def to_arrow(logical: str) -> pa.DataType:
    """Return the Arrow type of a leaf's logical type.

    >>> to_arrow("fixed_size_list:float:4")
    FixedSizeListType(fixed_size_list<item: float>[4])
    """
    if plain := _PLAIN.get(logical):
        return plain
    if len(logical) > _CHARACTERS_MAX:
        raise UnknownLogicalType(logical)
    kind, _, rest = logical.partition(":")
    try:
        match kind:
            case "timestamp":
                unit, _, zone = rest.partition(":")
                if unit not in _UNITS:
                    raise UnknownLogicalType(logical)
                return pa.timestamp(unit, tz=None if zone in ("", "-") else zone)
            case "decimal":
                bits, precision, scale = rest.split(":")
                make = {"128": pa.decimal128, "256": pa.decimal256}[bits]
                return make(int(precision), int(scale))
            case "fixed_size_binary":
                return pa.binary(0 if rest == "0" else _parse_positive(rest))
            case "fixed_size_list":
                inner, _, size = rest.rpartition(":")
                return pa.list_(
                    _BFLOAT16_ITEM if inner == BFLOAT16_EXTENSION else to_arrow(inner), _parse_positive(size)
                )
            case "dict":
                value, index, _ordered = rest.rsplit(":", 2)
                return pa.dictionary(to_arrow(index), to_arrow(value))
    except (ValueError, KeyError, TypeError, OverflowError, pa.ArrowException) as error:
        raise UnknownLogicalType(logical) from error
    raise UnknownLogicalType(logical)


def from_arrow(arrow: pa.DataType) -> str:
    """Return the logical type of a leaf's Arrow type. Callers pass the storage type of extension types, except for
    JSON."""
    if name := _NAMES.get(arrow) or _VIEWS.get(arrow):
        return name
    if is_json(arrow):
        return "json"
    if pa.types.is_timestamp(arrow):
        return f"timestamp:{arrow.unit}:{arrow.tz or '-'}"
    if pa.types.is_decimal128(arrow):
        return f"decimal:128:{arrow.precision}:{arrow.scale}"
    if pa.types.is_decimal256(arrow):
        return f"decimal:256:{arrow.precision}:{arrow.scale}"
    if pa.types.is_fixed_size_binary(arrow):
        return f"fixed_size_binary:{arrow.byte_width}"
    if pa.types.is_fixed_size_list(arrow):
        return f"fixed_size_list:{_element_type(arrow.value_field)}:{arrow.list_size}"
    if pa.types.is_dictionary(arrow):
        return f"dict:{from_arrow(arrow.value_type)}:{from_arrow(arrow.index_type)}:false"
    raise UnknownLogicalType(str(arrow))


def _element_type(field: pa.Field) -> str:
    metadata = field.metadata or {}
    if metadata.get(EXTENSION_NAME) == BFLOAT16_EXTENSION.encode():
        return BFLOAT16_EXTENSION
    name = from_arrow(field.type)
    if name in _NOT_IN_FIXED_LISTS:
        raise UnknownLogicalType(f"fixed-size list of {field.type}")
    return name


def _parse_positive(text: str) -> int:
    number = int(text)
    if number <= 0:
        raise UnknownLogicalType(text)
    return number
