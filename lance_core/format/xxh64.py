"""XXH64 hash with seed 0 of many values at once, as Lance's filters use it."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

Hashes = npt.NDArray[np.uint64]
_BATCH_VALUES = 65_536


def xxh64(rows: npt.NDArray[np.uint8]) -> Hashes:
    """Return the hash of each row of a byte matrix."""
    count, width = rows.shape
    data, digest = rows.tobytes(), xxhash.xxh64_intdigest
    return np.fromiter((digest(data[row * width : (row + 1) * width]) for row in range(count)), np.uint64, count)


def xxh64_of_each(array: pa.Array) -> Hashes:
    """Return the hash of each string or binary value. Null has the hash of the empty string.

    >>> hex(xxh64_of_each(pa.array(["a"]))[0])
    '0xd24ec4f1a98c6e5b'
    """
    digest = xxhash.xxh64_intdigest
    return np.fromiter((digest(value or b"") for value in _values(array)), np.uint64, len(array))


def _values(array: pa.Array) -> Iterator[bytes | None]:
    """Yield the bytes of each value, from small batches, since each becomes an object of its own."""
    for start in range(0, len(array), _BATCH_VALUES):
        yield from array.slice(start, _BATCH_VALUES).cast(pa.large_binary()).to_pylist()
