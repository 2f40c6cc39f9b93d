"""Which types of columns an index can be built on, in the words that kinds share. Nothing here knows a kind."""

import pyarrow as pa

_EXTENSION = b"ARROW:extension:name"
_BLOB = b"lance-encoding:blob"


def is_plain(column: pa.Field) -> bool:
    """Its values are what they look like: not JSON, a blob or another type in the dress of this one."""
    told = column.metadata or {}
    return not (isinstance(column.type, pa.BaseExtensionType) or _EXTENSION in told or _BLOB in told)


def is_number(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_integer(arrow) or pa.types.is_floating(arrow))


def is_temporal(arrow: pa.DataType) -> bool:
    """A day, a time of day, a point in time, or a length of it."""
    return bool(pa.types.is_temporal(arrow) and not pa.types.is_interval(arrow))


def is_text(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_string(arrow) or pa.types.is_large_string(arrow))


def is_bytes(arrow: pa.DataType) -> bool:
    """Of any length."""
    return bool(pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow))


def is_decimal(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_decimal128(arrow) or pa.types.is_decimal256(arrow))


def is_ordered(arrow: pa.DataType) -> bool:
    """Of one value, which is before, after or equal to another one."""
    return (
        is_number(arrow)
        or is_temporal(arrow)
        or is_text(arrow)
        or is_bytes(arrow)
        or is_decimal(arrow)
        or pa.types.is_boolean(arrow)
        or pa.types.is_fixed_size_binary(arrow)
    )


ORDERED = "numbers, booleans, decimals, dates and times, text, and binary values"
