"""Key filter: the keys that an upsert inserted, in the form that the format records them, so that two writers of the
same new key detect each other.

Few keys are stored as exact hashes, many as a split-block Bloom filter of fixed size. For the keys that the reference
writer records too, those of a declared primary key of strings or integers, the encoded filter is identical bit for
bit. `transactions/rules.py` decides whether two overlapping filters are a conflict.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.message import DecodeError

from lance_core.format._pb import transaction_pb2
from lance_core.format.sorted_unique import sorted_unique
from lance_core.format.xxh64 import Hashes, xxh64

_Bytes = npt.NDArray[np.uint8]
_BLOCKS = 1024
_WORDS_PER_BLOCK = 8
_ITEMS = 8192
_EXACT_MAX = 1024
_EXACT_BELIEVED_MAX = 65_536
"""Longer lists of hashes are not compared: no writer produces them, and each hash becomes a Python object."""
_PROBABILITY = 0.00057
_SALTS = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)


def is_recorded_by_all(arrow: pa.DataType) -> bool:
    """Return whether every writer encodes values of this type as the same bytes."""
    return _is_text(arrow) or pa.types.is_integer(arrow)


def may_share_keys(one: bytes, other: bytes) -> bool:
    """Return false only if the two filters certainly have no key in common: they are over the same columns, have the
    same form and do not intersect."""
    try:
        first, second = map(transaction_pb2.Transaction.KeyExistenceFilter.FromString, (one, other))
    except DecodeError:
        return True
    if list(first.field_ids) != list(second.field_ids):
        return True
    if max(len(first.exact.key_hashes), len(second.exact.key_hashes)) > _EXACT_BELIEVED_MAX:
        return True
    kinds = [first.WhichOneof("data"), second.WhichOneof("data")]
    if kinds == ["exact", "exact"]:
        return not set(first.exact.key_hashes).isdisjoint(second.exact.key_hashes)
    if kinds == ["exact", "bloom"]:
        first, second = second, first
    if not _has_known_size(first.bloom):
        return True
    words = _words(first.bloom)
    if second.WhichOneof("data") == "exact":
        block, bits = _blocks_and_bits(np.array(second.exact.key_hashes, dtype=np.uint64))
        return bool(((words[block] & bits) == bits).all(axis=1).any())
    if not _has_known_size(second.bloom):
        return True
    # A key sets one bit in each word of a block. If the filters share no bit in some word, no key is in both.
    return bool((words & _words(second.bloom)).all(axis=1).any())


def key_filter(field_ids: Sequence[int], columns: Sequence[pa.Array], *, exact: bool) -> bytes:
    """Return the encoded filter of these keys: one array for each key column, without nulls and without floats (their
    bits would be compared). `exact` stores the hashes themselves, if they are few."""
    message = transaction_pb2.Transaction.KeyExistenceFilter(field_ids=field_ids)
    hashes = sorted_unique(hashes_of(columns))
    if exact and len(hashes) <= _EXACT_MAX:
        message.exact.key_hashes.extend(hashes.tolist())
        message.exact.SetInParent()
        return message.SerializeToString()
    words = np.zeros((_BLOCKS, _WORDS_PER_BLOCK), dtype=np.uint32)
    _set_bits(words, hashes)
    return _bloom(message, words)


def merge_filters(field_ids: Sequence[int], filters: Sequence[bytes], *, exact: bool) -> bytes:
    """Return the filter of all keys, given the filters that `key_filter` made for separate portions."""
    message = transaction_pb2.Transaction.KeyExistenceFilter(field_ids=field_ids)
    parts = [transaction_pb2.Transaction.KeyExistenceFilter.FromString(encoded) for encoded in filters]
    hashes = sorted_unique(
        np.array([key_hash for part in parts for key_hash in part.exact.key_hashes], dtype=np.uint64)
    )
    blooms = [part.bloom for part in parts if part.WhichOneof("data") == "bloom"]
    if exact and not blooms and len(hashes) <= _EXACT_MAX:
        message.exact.key_hashes.extend(hashes.tolist())
        message.exact.SetInParent()
        return message.SerializeToString()
    words = np.zeros((_BLOCKS, _WORDS_PER_BLOCK), dtype=np.uint32)
    for bloom in blooms:
        words |= _words(bloom)
    _set_bits(words, hashes)
    return _bloom(message, words)


def _set_bits(words: npt.NDArray[np.uint32], hashes: Hashes) -> None:
    block, bits = _blocks_and_bits(hashes)
    for number in range(_WORDS_PER_BLOCK):
        np.bitwise_or.at(words[:, number], block, bits[:, number])


def _bloom(message: transaction_pb2.Transaction.KeyExistenceFilter, words: npt.NDArray[np.uint32]) -> bytes:
    message.bloom.bitmap = words.astype("<u4").tobytes()
    message.bloom.num_bits = words.nbytes * 8
    message.bloom.number_of_items = _ITEMS
    message.bloom.probability = _PROBABILITY
    return message.SerializeToString()


def _blocks_and_bits(hashes: Hashes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """Return the block of each key, and its bit in every word of that block."""
    block = (((hashes >> np.uint64(32)) * np.uint64(_BLOCKS)) >> np.uint64(32)).astype(np.int64)
    low = hashes.astype(np.uint32)[:, np.newaxis]
    return block, np.left_shift(np.uint32(1), (low * np.array(_SALTS, dtype=np.uint32)) >> np.uint32(27))


def _has_known_size(bloom: transaction_pb2.Transaction.BloomFilter) -> bool:
    """Return whether a Bloom filter has the size that this module writes. A filter of another size may contain any
    key."""
    return len(bloom.bitmap) == 4 * _WORDS_PER_BLOCK * _BLOCKS and bloom.num_bits == len(bloom.bitmap) * 8


def _words(bloom: transaction_pb2.Transaction.BloomFilter) -> npt.NDArray[np.uint32]:
    return np.frombuffer(bloom.bitmap, dtype="<u4").reshape(-1, _WORDS_PER_BLOCK)


def hashes_of(columns: Sequence[pa.Array]) -> Hashes:
    """Return the hash of each key; the columns are those of `key_filter`. A key of one column is hashed as its bytes, a
    key of several columns as the bytes of each value followed by a zero byte."""
    if len(columns) == 1 and not _is_text(columns[0].type):
        return xxh64(_byte_matrix(columns[0]))
    parts = [_text_bytes(column) if _is_text(column.type) else _fixed_width_bytes(column) for column in columns]
    if not parts:
        return np.empty(0, dtype=np.uint64)
    keys = parts[0] if len(parts) == 1 else [b"".join(part + b"\0" for part in row) for row in zip(*parts, strict=True)]
    hashes = np.zeros(len(keys), dtype=np.uint64)
    lengths = np.fromiter(map(len, keys), dtype=np.int64, count=len(keys))
    for length in np.unique(lengths):
        positions = np.flatnonzero(lengths == length)
        concatenated = b"".join(keys[position] for position in positions)
        hashes[positions] = xxh64(np.frombuffer(concatenated, dtype=np.uint8).reshape(len(positions), length))
    return hashes


def _fixed_width_bytes(column: pa.Array) -> list[bytes]:
    return [row.tobytes() for row in _byte_matrix(column)]


def _byte_matrix(column: pa.Array) -> _Bytes:
    """Return a row of bytes for each value of a fixed-width type."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if pa.types.is_integer(column.type):
        column = column.cast(pa.uint64() if pa.types.is_unsigned_integer(column.type) else pa.int64())
    width = column.type.bit_width // 8
    values = column.buffers()[1]
    if values is None or not len(column):
        return np.empty((0, width), dtype=np.uint8)
    start = column.offset * width
    return np.frombuffer(values, dtype=np.uint8)[start : start + len(column) * width].reshape(-1, width)


def _text_bytes(column: pa.Array) -> list[bytes]:
    values: list[bytes] = column.cast(pa.large_binary()).to_pylist()
    return values


def _is_text(arrow: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(arrow)
        or pa.types.is_large_string(arrow)
        or pa.types.is_binary(arrow)
        or pa.types.is_large_binary(arrow)
    )
