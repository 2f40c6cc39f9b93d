"""Packing of integers as posting lists and positions store them: blocks of 128 values with equal bits, and varints.

A packed block has four lanes of 32 values; value j is in lane `j % 4`. The words of the lanes alternate.
"""

import numpy as np
import numpy.typing as npt

BLOCK = 128
_LANES = 4
_PER_LANE = BLOCK // _LANES
_WORD_BITS = 32
BYTES_PER_BIT = BLOCK // 8

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]


def bit_widths(blocks: Words) -> Ints:
    """Return for each row of values the number of bits of its largest one."""
    widths: Ints = np.frexp(blocks.max(axis=1).astype(np.float64))[1].astype(np.int64)
    return widths


def pack(blocks: Words, width: int) -> Bytes:
    """Return the packed bytes of each row of 128 values, none of which needs more than `width` bits.

    >>> pack(np.ones((1, 128), dtype=np.uint32), 1).tolist() == [[255] * 16]
    True
    """
    lanes = blocks.reshape(len(blocks), _PER_LANE, _LANES)
    words = np.zeros((len(blocks), width, _LANES), dtype=np.uint32)
    for number in range(_PER_LANE if width else 0):
        word, shift = divmod(number * width, _WORD_BITS)
        words[:, word] |= lanes[:, number] << np.uint32(shift)
        if shift + width > _WORD_BITS:
            words[:, word + 1] |= lanes[:, number] >> np.uint32(_WORD_BITS - shift)
    return words.view(np.uint8).reshape(len(blocks), width * BYTES_PER_BIT)


def put_packed(out: Bytes, at: Ints, blocks: Words, widths: Ints) -> None:
    """Write each row of values to `out`: a byte with its number of bits, followed by its packed values."""
    out[at] = widths
    for width in np.flatnonzero(np.bincount(widths)).tolist():
        chosen = np.flatnonzero(widths == width)
        if width:
            packed = pack(blocks[chosen], width)
            out[(at[chosen] + 1)[:, np.newaxis] + np.arange(packed.shape[1])] = packed


def varint_lengths(values: npt.NDArray[np.uint64]) -> Ints:
    """Return the number of bytes of each value."""
    lengths = np.ones(len(values), dtype=np.int64)
    for shift in range(7, 64, 7):
        is_longer = values >= np.uint64(1 << shift)
        if not is_longer.any():
            break
        lengths += is_longer
    return lengths


def put_varints(out: Bytes, at: Ints, values: npt.NDArray[np.uint64], lengths: Ints) -> None:
    """Write each value to `out` in groups of seven bits, the lowest first; the last byte has no high bit."""
    out[at] = values & np.uint64(0x7F)
    number = 0
    rows = np.flatnonzero(lengths > 1)
    while len(rows):
        out[at[rows] + number] |= 0x80
        number += 1
        out[at[rows] + number] = (values[rows] >> np.uint64(7 * number)) & np.uint64(0x7F)
        rows = rows[lengths[rows] > number + 1]


def starts_of(lengths: Ints) -> Ints:
    """Return where each of consecutive items begins, and where the last one ends.

    >>> starts_of(np.array([2, 0, 3])).tolist()
    [0, 2, 2, 5]
    """
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def ranges(starts: Ints, lengths: Ints) -> Ints:
    """Return the numbers of consecutive ranges, one after the other.

    >>> ranges(np.array([5, 9]), np.array([2, 1])).tolist()
    [5, 6, 9]
    """
    found: Ints = np.arange(int(lengths.sum())) + np.repeat(starts - starts_of(lengths)[:-1], lengths)
    return found
