"""Zone keys: values in a form that numpy compares in the same order as filters do, except NaN, which every caller
handles.

-0.0 and 0.0 are equal, and text is compared by its bytes. Decimals, text and bytes become Python objects, which is
suitable for hundreds of thousands of values but not for a column.
"""

import decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.index.supported_types import is_bytes, is_decimal, is_temporal, is_text

Keys = npt.NDArray[Any]


def keys_of(array: pa.Array) -> Keys:
    """Return one key per value; an arbitrary one for NULL."""
    arrow = array.type
    if pa.types.is_dictionary(arrow):
        array, arrow = array.cast(arrow.value_type), arrow.value_type
    if is_text(arrow) or is_bytes(arrow) or pa.types.is_fixed_size_binary(arrow):
        return _object_array([b"" if value is None else value for value in _as_bytes(array).to_pylist()])
    if is_decimal(arrow):
        return _object_array([decimal.Decimal(0) if value is None else value for value in array.to_pylist()])
    if is_temporal(arrow):
        array = array.view(pa.int32() if arrow.bit_width == 32 else pa.int64())
    elif pa.types.is_boolean(arrow):
        array = array.cast(pa.uint8())
    elif pa.types.is_float16(arrow):
        array = array.cast(pa.float32())
    filled: Keys = (array.fill_null(0) if array.null_count else array).to_numpy()
    return filled


def key_of(value: pa.Scalar) -> Keys:
    """Return the key of a value as an array of one: numpy would convert single bytes to its own string type and strip
    trailing zeros."""
    return keys_of(pa.array([value], value.type))


def _as_bytes(array: pa.Array) -> pa.Array:
    return array if pa.types.is_fixed_size_binary(array.type) else array.cast(pa.large_binary())


def _object_array(values: list[bytes] | list[decimal.Decimal]) -> Keys:
    keys = np.empty(len(values), dtype=np.object_)
    keys[:] = values
    return keys
