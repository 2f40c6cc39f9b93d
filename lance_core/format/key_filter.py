"""Which keys an upsert inserted, as the format records them: a split-block Bloom filter of a fixed size, so that two
writers of one new key see each other. Sizes and hashing are those of the reference writer, bit for bit.

What never lives here: whether two filters that meet are a conflict (`transactions/conflicts.py`).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.format._pb import transaction_pb2

Hashes = npt.NDArray[np.uint64]
_Bytes = npt.NDArray[np.uint8]
_BLOCKS = 1024
_WORDS_PER_BLOCK = 8
_ITEMS = 8192
_PROBABILITY = 0.00057
_SALTS = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)
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


def can_filter(arrow: pa.DataType) -> bool:
    """Whether values of this type have agreed bytes to hash."""
    return _is_text(arrow) or pa.types.is_integer(arrow)


def key_filter(field_ids: Sequence[int], columns: Sequence[pa.Array]) -> bytes:
    """The encoded filter of these keys, one array a key column and no nulls."""
    words = np.zeros((_BLOCKS, _WORDS_PER_BLOCK), dtype=np.uint32)
    hashes = _hashes(columns)
    block = ((hashes >> np.uint64(32)) * np.uint64(_BLOCKS)) >> np.uint64(32)
    low = hashes.astype(np.uint32)
    for number, salt in enumerate(_SALTS):
        bits = np.left_shift(np.uint32(1), (low * np.uint32(salt)) >> np.uint32(27))
        np.bitwise_or.at(words[:, number], block, bits)
    message = transaction_pb2.Transaction.KeyExistenceFilter(field_ids=field_ids)
    message.bloom.bitmap = words.astype("<u4").tobytes()
    message.bloom.num_bits = words.nbytes * 8
    message.bloom.number_of_items = _ITEMS
    message.bloom.probability = _PROBABILITY
    return message.SerializeToString()


def _hashes(columns: Sequence[pa.Array]) -> Hashes:
    """Of one column its bytes; of several each one's bytes and a zero, one after another."""
    parts = [_fixed(column) if pa.types.is_integer(column.type) else _texts(column) for column in columns]
    keys = parts[0] if len(parts) == 1 else [b"".join(part + b"\0" for part in row) for row in zip(*parts, strict=True)]
    found = np.zeros(len(keys), dtype=np.uint64)
    lengths = np.fromiter(map(len, keys), dtype=np.int64, count=len(keys))
    for length in np.unique(lengths):
        places = np.flatnonzero(lengths == length)
        joined = b"".join(keys[place] for place in places)
        found[places] = xxh64(np.frombuffer(joined, dtype=np.uint8).reshape(len(places), length))
    return found


def _fixed(column: pa.Array) -> list[bytes]:
    wide = pa.uint64() if pa.types.is_unsigned_integer(column.type) else pa.int64()
    data = column.cast(wide).to_numpy(zero_copy_only=False).astype("<u8").tobytes()
    return [data[at : at + 8] for at in range(0, len(data), 8)]


def _texts(column: pa.Array) -> list[bytes]:
    found: list[bytes] = column.cast(pa.large_binary()).to_pylist()
    return found


def _is_text(arrow: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(arrow)
        or pa.types.is_large_string(arrow)
        or pa.types.is_binary(arrow)
        or pa.types.is_large_binary(arrow)
    )


def xxh64(rows: _Bytes) -> Hashes:
    """XXH64 with seed 0 of each row of a matrix of bytes."""
    count, length = rows.shape
    at = 0
    with np.errstate(over="ignore"):
        if length >= 32:
            zero = np.zeros(count, dtype=np.uint64)
            lanes = [zero + _P1 + _P2, zero + _P2, zero, zero - _P1]
            while at + 32 <= length:
                lanes = [_round(lane, _word(rows, at + 8 * index, 8)) for index, lane in enumerate(lanes)]
                at += 32
            found = sum((_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)), zero)
            for lane in lanes:
                found = (found ^ _round(zero, lane)) * _P1 + _P4
        else:
            found = np.full(count, _P5, dtype=np.uint64)
        found = found + np.uint64(length)
        for _ in range((length - at) // 8):
            found = _rotated(found ^ _round(np.zeros_like(found), _word(rows, at, 8)), 27) * _P1 + _P4
            at += 8
        if at + 4 <= length:
            found = _rotated(found ^ (_word(rows, at, 4) * _P1), 23) * _P2 + _P3
            at += 4
        for place in range(at, length):
            found = _rotated(found ^ (rows[:, place].astype(np.uint64) * _P5), 11) * _P1
        found = (found ^ (found >> np.uint64(33))) * _P2
        found = (found ^ (found >> np.uint64(29))) * _P3
        return found ^ (found >> np.uint64(32))


def _round(lane: Hashes, word: Hashes) -> Hashes:
    return _rotated(lane + word * _P2, 31) * _P1


def _rotated(value: Hashes, by: int) -> Hashes:
    return (value << np.uint64(by)) | (value >> np.uint64(64 - by))


def _word(rows: _Bytes, at: int, width: int) -> Hashes:
    words = np.ascontiguousarray(rows[:, at : at + width]).view(f"<u{width}")
    return words.reshape(len(rows)).astype(np.uint64)
