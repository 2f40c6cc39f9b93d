"""The bytes of an Arrow array of texts or binary values, as numpy has them."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Offsets = npt.NDArray[np.int64]


def offsets_and_data(array: pa.Array, *, padding: int = 0) -> tuple[Offsets, npt.NDArray[np.uint8]]:
    """Where each value begins, and where the last one ends; all bytes, and as many zeros behind them as are asked for.
    There may be bytes behind a NULL."""
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, places, values = array.buffers()
    offsets = np.zeros(len(array) + 1, dtype=np.int64)
    if places is not None and len(array):
        width = np.dtype(np.int64 if wide else np.int32)
        offsets[:] = np.frombuffer(places, width, len(array) + 1, array.offset * width.itemsize)
    first, last = int(offsets[0]), int(offsets[-1])
    offsets -= first
    if last == first:
        return offsets, np.zeros(padding, dtype=np.uint8)
    data = np.frombuffer(values, np.uint8, last - first, first)
    return offsets, np.concatenate([data, np.zeros(padding, dtype=np.uint8)]) if padding else data
