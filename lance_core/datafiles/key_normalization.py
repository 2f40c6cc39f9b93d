"""Key values made comparable: two are the same key where their plain values here are equal.

A NaN is every other NaN, and the two zeros of floating point are two keys.
"""

import numpy as np
import pyarrow as pa


def normalized_key(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Plain values that are equal where keys are: floats as their bits."""
    storage = storage_of(column.type)
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if column.type != storage:
        column = column.cast(storage)
    if pa.types.is_float16(storage):
        column = column.cast(pa.float32())
    if not pa.types.is_floating(column.type):
        return column
    bits = pa.uint32() if pa.types.is_float32(column.type) else pa.uint64()
    return pa.chunked_array([_bits(chunk, bits) for chunk in column.chunks], bits)


def storage_of(arrow: pa.DataType) -> pa.DataType:
    if isinstance(arrow, pa.BaseExtensionType):
        arrow = arrow.storage_type
    return arrow.value_type if pa.types.is_dictionary(arrow) else arrow


def _bits(floats: pa.Array, bits: pa.DataType) -> pa.Array:
    values = floats.fill_null(0).to_numpy(zero_copy_only=False)
    alike = np.where(np.isnan(values), values.dtype.type(np.nan), values)
    return pa.array(alike.view(bits.to_pandas_dtype()), bits, mask=floats.is_null().to_numpy(zero_copy_only=False))
