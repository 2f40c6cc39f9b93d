"""XXH64 with seed 0, the hash of Lance's filters, over many values at once: of one length, or each of its own.

Numpy takes a step of the hash for all values together. So a thousand of a million bytes take as long as a thousand
times as many steps need, and a million of ten bytes hardly longer than one.
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
    """Of each row of a matrix of bytes."""
    count, length = rows.shape
    at = 0
    with np.errstate(over="ignore"):
        if length >= 32:
            zero = np.zeros(count, dtype=np.uint64)
            lanes = [zero + _P1 + _P2, zero + _P2, zero, zero - _P1]
            while at + 32 <= length:
                lanes = [_round(lane, _column_words(rows, at + 8 * index, 8)) for index, lane in enumerate(lanes)]
                at += 32
            found = _merge_lanes(lanes)
        else:
            found = np.full(count, _P5, dtype=np.uint64)
        found = found + np.uint64(length)
        for _ in range((length - at) // 8):
            found = _rotate_left(found ^ _round(np.uint64(0), _column_words(rows, at, 8)), 27) * _P1 + _P4
            at += 8
        if at + 4 <= length:
            found = _rotate_left(found ^ (_column_words(rows, at, 4) * _P1), 23) * _P2 + _P3
            at += 4
        for place in range(at, length):
            found = _rotate_left(found ^ (rows[:, place].astype(np.uint64) * _P5), 11) * _P1
        return _avalanche(found)


def xxh64_of_each(array: pa.Array) -> Hashes:
    """Of the bytes of each text or binary value; of NULL that of no bytes.

    >>> hex(xxh64_of_each(pa.array(["a"]))[0])
    '0xd24ec4f1a98c6e5b'
    """
    offsets, data = offsets_and_data(array, padding=_LANE)
    lengths = np.diff(offsets)
    if array.null_count:  # bytes may lie behind them all the same
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = 0
    order = np.argsort(-(lengths // _STRIPE), kind="stable")
    at, lengths = offsets[:-1][order], lengths[order]
    found = np.empty(len(at), dtype=np.uint64)
    with np.errstate(over="ignore"):
        long = int(np.count_nonzero(lengths >= _STRIPE))
        found[:long] = _hash_stripes(data, at[:long], lengths[:long] // _STRIPE)
        found[long:] = _P5
        found += lengths.astype(np.uint64)
        at += lengths // _STRIPE * _STRIPE
        left = lengths % _STRIPE
        for _ in range(_STRIPE // _LANE - 1):
            some = np.flatnonzero(left >= _LANE)
            word = _round(np.uint64(0), _words_at(data, at[some], 8))
            found[some] = _rotate_left(found[some] ^ word, 27) * _P1 + _P4
            at[some] += _LANE
            left[some] -= _LANE
        some = np.flatnonzero(left >= 4)
        found[some] = _rotate_left(found[some] ^ (_words_at(data, at[some], 4) * _P1), 23) * _P2 + _P3
        at[some] += 4
        left[some] -= 4
        for _ in range(3):
            some = np.flatnonzero(left)
            found[some] = _rotate_left(found[some] ^ (data[at[some]].astype(np.uint64) * _P5), 11) * _P1
            at[some] += 1
            left[some] -= 1
        hashes = np.empty_like(found)
        hashes[order] = _avalanche(found)
        return hashes


def _hash_stripes(data: _Bytes, at: _Places, stripes: _Places) -> Hashes:
    """What the whole stripes come to, of values of which the first have the most."""
    zero = np.zeros(len(at), dtype=np.uint64)
    lanes = [zero + _P1 + _P2, zero + _P2, zero.copy(), zero - _P1]
    for number in range(int(stripes[0]) if len(stripes) else 0):
        some = len(stripes) - int(np.searchsorted(stripes[::-1], number, side="right"))
        for index, lane in enumerate(lanes):
            place = at[:some] + (number * _STRIPE + index * _LANE)
            lane[:some] = _round(lane[:some], _words_at(data, place, 8))
    return _merge_lanes(lanes)


def _merge_lanes(lanes: list[Hashes]) -> Hashes:
    found = sum((_rotate_left(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)), np.zeros_like(lanes[0]))
    for lane in lanes:
        found = (found ^ _round(np.uint64(0), lane)) * _P1 + _P4
    return found


def _words_at(data: _Bytes, at: _Places, width: int) -> Hashes:
    """Those that begin at any byte."""
    every: npt.NDArray[np.unsignedinteger] = np.ndarray(
        (len(data) - width + 1,), dtype=f"<u{width}", buffer=data.data, strides=(1,)
    )
    return every[at].astype(np.uint64, copy=False)


def _avalanche(found: Hashes) -> Hashes:
    found = (found ^ (found >> np.uint64(33))) * _P2
    found = (found ^ (found >> np.uint64(29))) * _P3
    return found ^ (found >> np.uint64(32))


def _round(lane: Hashes | np.uint64, word: Hashes) -> Hashes:
    return _rotate_left(lane + word * _P2, 31) * _P1


def _rotate_left(value: Hashes, by: int) -> Hashes:
    return (value << np.uint64(by)) | (value >> np.uint64(64 - by))


def _column_words(rows: _Bytes, at: int, width: int) -> Hashes:
    words = np.ascontiguousarray(rows[:, at : at + width]).view(f"<u{width}")
    return words.reshape(len(rows)).astype(np.uint64)
