"""Column type predicates: decide which Arrow types an index can be built on. All index types share them."""

import pyarrow as pa

_EXTENSION = b"ARROW:extension:name"
_BLOB = b"lance-encoding:blob"


def is_plain(column: pa.Field) -> bool:
    """Return whether the values are stored as their Arrow type says: not as JSON, a blob or another extension type."""
    metadata = column.metadata or {}
    return not (isinstance(column.type, pa.BaseExtensionType) or _EXTENSION in metadata or _BLOB in metadata)


def is_number(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_integer(arrow) or pa.types.is_floating(arrow))


def is_temporal(arrow: pa.DataType) -> bool:
    """Return whether the type is a date, a time of day, a timestamp or a duration."""
    return bool(pa.types.is_temporal(arrow) and not pa.types.is_interval(arrow))


def is_text(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_string(arrow) or pa.types.is_large_string(arrow))


def is_json(arrow: pa.DataType) -> bool:
    return getattr(arrow, "extension_name", None) == "arrow.json"


def is_list(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow))


def is_bytes(arrow: pa.DataType) -> bool:
    """Return whether the type is binary of variable length."""
    return bool(pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow))


def is_decimal(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_decimal128(arrow) or pa.types.is_decimal256(arrow))


def is_ordered(arrow: pa.DataType) -> bool:
    """Return whether the values of the type are scalars that an index can sort."""
    return (
        is_number(arrow)
        or is_temporal(arrow)
        or is_text(arrow)
        or is_bytes(arrow)
        or is_decimal(arrow)
        or pa.types.is_boolean(arrow)
        or pa.types.is_fixed_size_binary(arrow)
    )


ORDERED_TYPES = "numbers, booleans, decimals, dates and times, text, and binary values"
