"""XXH64 hash: computes it with seed 0 for many values at once, as Lance's filters need it.

For short rows of equal length, numpy performs each step of the hash for all rows together. That is up to ten times as
fast as one call of the library for each row, which is used for long rows and for values of different lengths.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

Hashes = npt.NDArray[np.uint64]
_BATCH_VALUES = 65_536
_STRIPE_BYTES = 32
"""Length from which the hash has additional steps, and the library is at least as fast."""
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        11400714785074694791,
        14029467366897019727,
        1609587929392839161,
        9650029242287828579,
        2870177450012600261,
    )
)


def xxh64(rows: npt.NDArray[np.uint8]) -> Hashes:
    """Return the hash of each row of a byte matrix."""
    count, width = rows.shape
    if width < _STRIPE_BYTES and count > 1:
        return _hash_short_rows(rows)
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


def _hash_short_rows(rows: npt.NDArray[np.uint8]) -> Hashes:
    """Return the hash of each row of less than 32 bytes."""
    count, width = rows.shape
    position = 0
    with np.errstate(over="ignore"):
        hashes = np.full(count, _P5 + np.uint64(width), dtype=np.uint64)
        for _ in range(width // 8):
            word = _rotate_left(_column_words(rows, position, 8) * _P2, 31) * _P1
            hashes = _rotate_left(hashes ^ word, 27) * _P1 + _P4
            position += 8
        if position + 4 <= width:
            hashes = _rotate_left(hashes ^ (_column_words(rows, position, 4) * _P1), 23) * _P2 + _P3
            position += 4
        for column in range(position, width):
            hashes = _rotate_left(hashes ^ (rows[:, column].astype(np.uint64) * _P5), 11) * _P1
        hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
        hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
        return hashes ^ (hashes >> np.uint64(32))


def _rotate_left(value: Hashes, by: int) -> Hashes:
    return (value << np.uint64(by)) | (value >> np.uint64(64 - by))


def _column_words(rows: npt.NDArray[np.uint8], start: int, width: int) -> Hashes:
    words = np.ascontiguousarray(rows[:, start : start + width]).view(f"<u{width}")
    return words.reshape(len(rows)).astype(np.uint64)
