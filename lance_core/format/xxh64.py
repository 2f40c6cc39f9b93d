"""XXH64 hash with seed 0, as Lance's filters use it, vectorised over many values of equal or different lengths.

Numpy performs each step of the hash for all values together, and the number of steps depends on the length of the
values. So a million values of ten bytes take hardly longer than one, and a thousand values of a million bytes take as
long as their many steps.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.format.arrow_bytes import offsets_and_data

Hashes = npt.NDArray[np.uint64]
_Bytes = npt.NDArray[np.uint8]
_Places = npt.NDArray[np.int64]
_STRIPE = 32
_LANE = 8
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


def xxh64(rows: _Bytes) -> Hashes:
    """Return the hash of each row of a byte matrix."""
    count, length = rows.shape
    position = 0
    with np.errstate(over="ignore"):
        if length >= 32:
            zero = np.zeros(count, dtype=np.uint64)
            lanes = [zero + _P1 + _P2, zero + _P2, zero, zero - _P1]
            while position + 32 <= length:
                lanes = [_round(lane, _column_words(rows, position + 8 * index, 8)) for index, lane in enumerate(lanes)]
                position += 32
            hashes = _merge_lanes(lanes)
        else:
            hashes = np.full(count, _P5, dtype=np.uint64)
        hashes = hashes + np.uint64(length)
        for _ in range((length - position) // 8):
            hashes = _rotate_left(hashes ^ _round(np.uint64(0), _column_words(rows, position, 8)), 27) * _P1 + _P4
            position += 8
        if position + 4 <= length:
            hashes = _rotate_left(hashes ^ (_column_words(rows, position, 4) * _P1), 23) * _P2 + _P3
            position += 4
        for column in range(position, length):
            hashes = _rotate_left(hashes ^ (rows[:, column].astype(np.uint64) * _P5), 11) * _P1
        return _avalanche(hashes)


def xxh64_of_each(array: pa.Array) -> Hashes:
    """Return the hash of each string or binary value. Null has the hash of the empty string.

    >>> hex(xxh64_of_each(pa.array(["a"]))[0])
    '0xd24ec4f1a98c6e5b'
    """
    offsets, data = offsets_and_data(array, padding=_LANE)
    lengths = np.diff(offsets)
    if array.null_count:  # a null may have bytes in the buffer
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = 0
    order = np.argsort(-(lengths // _STRIPE), kind="stable")
    positions, lengths = offsets[:-1][order], lengths[order]
    states = np.empty(len(positions), dtype=np.uint64)
    with np.errstate(over="ignore"):
        long = int(np.count_nonzero(lengths >= _STRIPE))
        states[:long] = _hash_stripes(data, positions[:long], lengths[:long] // _STRIPE)
        states[long:] = _P5
        states += lengths.astype(np.uint64)
        positions += lengths // _STRIPE * _STRIPE
        remaining = lengths % _STRIPE
        for _ in range(_STRIPE // _LANE - 1):
            active = np.flatnonzero(remaining >= _LANE)
            word = _round(np.uint64(0), _words_at(data, positions[active], 8))
            states[active] = _rotate_left(states[active] ^ word, 27) * _P1 + _P4
            positions[active] += _LANE
            remaining[active] -= _LANE
        active = np.flatnonzero(remaining >= 4)
        states[active] = _rotate_left(states[active] ^ (_words_at(data, positions[active], 4) * _P1), 23) * _P2 + _P3
        positions[active] += 4
        remaining[active] -= 4
        for _ in range(3):
            active = np.flatnonzero(remaining)
            states[active] = _rotate_left(states[active] ^ (data[positions[active]].astype(np.uint64) * _P5), 11) * _P1
            positions[active] += 1
            remaining[active] -= 1
        hashes = np.empty_like(states)
        hashes[order] = _avalanche(states)
        return hashes


def _hash_stripes(data: _Bytes, starts: _Places, stripes: _Places) -> Hashes:
    """Return the hash state after all whole stripes. The values are sorted by their number of stripes, descending."""
    zero = np.zeros(len(starts), dtype=np.uint64)
    lanes = [zero + _P1 + _P2, zero + _P2, zero.copy(), zero - _P1]
    for number in range(int(stripes[0]) if len(stripes) else 0):
        active = len(stripes) - int(np.searchsorted(stripes[::-1], number, side="right"))
        for index, lane in enumerate(lanes):
            word_positions = starts[:active] + (number * _STRIPE + index * _LANE)
            lane[:active] = _round(lane[:active], _words_at(data, word_positions, 8))
    return _merge_lanes(lanes)


def _merge_lanes(lanes: list[Hashes]) -> Hashes:
    hashes = sum(
        (_rotate_left(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)), np.zeros_like(lanes[0])
    )
    for lane in lanes:
        hashes = (hashes ^ _round(np.uint64(0), lane)) * _P1 + _P4
    return hashes


def _words_at(data: _Bytes, positions: _Places, width: int) -> Hashes:
    """Return the words that begin at these byte positions, aligned or not."""
    words: npt.NDArray[np.unsignedinteger] = np.ndarray(
        (len(data) - width + 1,), dtype=f"<u{width}", buffer=data.data, strides=(1,)
    )
    return words[positions].astype(np.uint64, copy=False)


def _avalanche(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    return hashes ^ (hashes >> np.uint64(32))


def _round(lane: Hashes | np.uint64, word: Hashes) -> Hashes:
    return _rotate_left(lane + word * _P2, 31) * _P1


def _rotate_left(value: Hashes, by: int) -> Hashes:
    return (value << np.uint64(by)) | (value >> np.uint64(64 - by))


def _column_words(rows: _Bytes, start: int, width: int) -> Hashes:
    words = np.ascontiguousarray(rows[:, start : start + width]).view(f"<u{width}")
    return words.reshape(len(rows)).astype(np.uint64)
