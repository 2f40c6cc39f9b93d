"""Key normalization: maps key values to plain values that are equal exactly if the keys are equal.

All NaN values are the same key, and the two zeros of floating point are different keys.
"""

import numpy as np
import pyarrow as pa


def normalized_key(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return plain values that are equal exactly if the keys are; floats are replaced by their bits."""
    storage = storage_type_of(column.type)
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if column.type != storage:
        column = column.cast(storage)
    if pa.types.is_float16(storage):
        column = column.cast(pa.float32())
    if not pa.types.is_floating(column.type):
        return column
    bits = pa.uint32() if pa.types.is_float32(column.type) else pa.uint64()
    return pa.chunked_array([_as_bits(chunk, bits) for chunk in column.chunks], bits)


def storage_type_of(arrow: pa.DataType) -> pa.DataType:
    """Return the type of the plain values of a column."""
    if isinstance(arrow, pa.BaseExtensionType):
        arrow = arrow.storage_type
    return arrow.value_type if pa.types.is_dictionary(arrow) else arrow


def _as_bits(floats: pa.Array, bits: pa.DataType) -> pa.Array:
    values = floats.fill_null(0).to_numpy(zero_copy_only=False)
    canonical = np.where(np.isnan(values), values.dtype.type(np.nan), values)
    return pa.array(canonical.view(bits.to_pandas_dtype()), bits, mask=floats.is_null().to_numpy(zero_copy_only=False))
