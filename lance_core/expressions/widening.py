"""Widening: which casts map distinct values to distinct values, so that equality is preserved.

A condition on a column that was cast to a wider type can then be answered by an index on the column itself. This
module only compares types; it casts nothing.
"""

from collections.abc import Callable

import pyarrow as pa

_FAMILIES: tuple[tuple[Callable[[pa.DataType], bool], ...], ...] = (
    (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
)
_WHOLE_BITS = {16: 11, 32: 24, 64: 53}
"""Bits of a float type, and the bits of the integers that it represents exactly."""
_UNITS = ("s", "ms", "us", "ns")


def is_widening(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Return whether the wide type represents every value of the narrow type exactly.

    >>> is_widening(pa.int8(), pa.int64()), is_widening(pa.int64(), pa.int8())
    (True, False)
    >>> is_widening(pa.int32(), pa.float64()), is_widening(pa.int64(), pa.float64())
    (True, False)
    """
    if narrow == wide:
        return True
    for family in _FAMILIES:
        if all(any(is_member(arrow) for is_member in family) for arrow in (narrow, wide)):
            return True
    if pa.types.is_integer(narrow):
        bits = narrow.bit_width - pa.types.is_signed_integer(narrow)
        if pa.types.is_floating(wide):
            return bool(bits <= _WHOLE_BITS[wide.bit_width])
        if pa.types.is_unsigned_integer(wide):
            return bool(pa.types.is_unsigned_integer(narrow) and bits <= wide.bit_width)
        return bool(pa.types.is_integer(wide) and bits < wide.bit_width)
    if pa.types.is_floating(narrow):
        return bool(pa.types.is_floating(wide) and narrow.bit_width <= wide.bit_width)
    if pa.types.is_timestamp(narrow) and pa.types.is_timestamp(wide):
        return narrow.tz == wide.tz and _UNITS.index(narrow.unit) <= _UNITS.index(wide.unit)
    return bool(pa.types.is_date32(narrow) and pa.types.is_timestamp(wide) and wide.tz is None)
