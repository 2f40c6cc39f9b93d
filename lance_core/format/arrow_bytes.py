"""Arrow value buffers: the bytes of a string or binary array as numpy arrays."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Offsets = npt.NDArray[np.int64]


def offsets_and_data(array: pa.Array, *, padding: int = 0) -> tuple[Offsets, npt.NDArray[np.uint8]]:
    """Return the start of each value and the end of the last one, and all bytes followed by `padding` zero bytes. A
    null may have bytes too."""
    is_wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offset_buffer, values = array.buffers()
    offsets = np.zeros(len(array) + 1, dtype=np.int64)
    if offset_buffer is not None and len(array):
        width = np.dtype(np.int64 if is_wide else np.int32)
        offsets[:] = np.frombuffer(offset_buffer, width, len(array) + 1, array.offset * width.itemsize)
    first, last = int(offsets[0]), int(offsets[-1])
    offsets -= first
    if last == first:
        return offsets, np.zeros(padding, dtype=np.uint8)
    data = np.frombuffer(values, np.uint8, last - first, first)
    return offsets, np.concatenate([data, np.zeros(padding, dtype=np.uint8)]) if padding else data
