"""Row fingerprints: 64-bit hashes of the values of each row, by which a computed column knows from which inputs it was
computed.

Two rows have the same fingerprint if their values are equal bit by bit, whatever the batches, chunks and physical
layout in which they arrive (offsets, dictionaries, views, large offsets). Null differs from every value. The hash is
stored in tables, so that its definition must not change: `test_row_fingerprints.py` has values of every type.

    fingerprint_rows(batch, b"minilm-6")   one hash for each row, of all columns in order and of the version of the code
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from lance_core.errors import InvalidInput
from lance_core.format.xxh64 import xxh64, xxh64_of_each

Hashes = npt.NDArray[np.uint64]
_NULL = np.uint64(0x9E3779B97F4A7C15)
_SEQUENCE = np.uint64(0xBF58476D1CE4E5B9)
_POSITION = np.uint64(0x94D049BB133111EB)


def fingerprint_rows(batch: pa.RecordBatch, code_version: bytes) -> Hashes:
    """Return the fingerprint of each row of the batch under this version of the code.

    >>> rows = pa.record_batch({"title": ["a", "b", "a"]})
    >>> first, second, third = fingerprint_rows(rows, b"1")
    >>> [bool(first == other) for other in (third, second, fingerprint_rows(rows, b"2")[0])]
    [True, False, False]
    """
    hashes = np.full(batch.num_rows, xxhash.xxh64_intdigest(code_version), dtype=np.uint64)
    for field, column in zip(batch.schema, batch.columns, strict=True):
        hashes = _combine(hashes, _hash_values(column, field.name))
    return hashes


def _combine(hashes: Hashes, others: Hashes) -> Hashes:
    """Return hashes of pairs; the order of a pair matters."""
    return _mix(hashes * np.uint64(3) + others)


def _mix(values: Hashes) -> Hashes:
    """Return a permutation of 64-bit numbers in which each bit of the input changes half of the output (splitmix64)."""
    values = values + _NULL
    values = (values ^ (values >> np.uint64(30))) * _SEQUENCE
    values = (values ^ (values >> np.uint64(27))) * _POSITION
    return values ^ (values >> np.uint64(31))


def _hash_values(array: pa.Array, column: str) -> Hashes:
    """Return the hash of each value."""
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        distinct = _hash_values(array.dictionary, column)
        codes = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
        hashes = distinct[codes] if len(distinct) else np.zeros(len(array), dtype=np.uint64)
    elif _is_text_or_binary(array.type):
        hashes = xxh64_of_each(array.cast(pa.large_binary()) if array.offset else array)
    elif pa.types.is_nested(array.type):
        hashes = _hash_nested(array, column)
    elif pa.types.is_null(array.type):
        return np.full(len(array), _NULL)
    else:
        hashes = xxh64(_bytes_of_fixed_width(array, column))
    if array.null_count:
        is_null = array.is_null().to_numpy(zero_copy_only=False)
        hashes = np.where(is_null, _NULL, hashes)
    return hashes


def _hash_nested(array: pa.Array, column: str) -> Hashes:
    type_ = array.type
    if pa.types.is_struct(type_):
        hashes = np.full(len(array), _SEQUENCE)
        for number in range(type_.num_fields):
            hashes = _combine(hashes, _hash_values(array.field(number), column))
        return hashes
    if pa.types.is_fixed_size_list(type_):
        return _hash_fixed_size_lists(array, column)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_map(type_):
        starts = array.offsets.to_numpy().astype(np.int64)
        children = array.values if not pa.types.is_map(type_) else _entries_of(array)
        return _hash_lists(_hash_values(children.slice(starts[0], starts[-1] - starts[0]), column), starts - starts[0])
    raise InvalidInput(f"column {column!r} of type {type_} cannot be an input of a computed column")


def _hash_fixed_size_lists(array: pa.FixedSizeListArray, column: str) -> Hashes:
    """Return the hash of each list: of its bytes, or of its values if they are no plain numbers or one is null. The
    choice is made for each list, so that it does not depend on the other lists of a batch."""
    size = array.type.list_size
    values = array.values.slice(array.offset * size, len(array) * size)
    is_plain = bool(size) and _is_plain_number(array.type.value_type)
    width = size * array.type.value_type.bit_width // 8 if is_plain else 0
    if is_plain and not values.null_count:
        return xxh64(_bytes_of_fixed_width(values, column).reshape(len(array), width))
    hashes = _hash_lists(_hash_values(values, column), np.arange(len(array) + 1, dtype=np.int64) * size)
    if is_plain:
        has_null = values.is_null().to_numpy(zero_copy_only=False).reshape(len(array), size).any(axis=1)
        plain = xxh64(_bytes_of_fixed_width(values, column).reshape(len(array), width))
        hashes = np.where(has_null, hashes, plain)
    return hashes


def _entries_of(array: pa.MapArray) -> pa.Array:
    return pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])


def _hash_lists(values: Hashes, starts: npt.NDArray[np.int64]) -> Hashes:
    """Return the hash of each list, from the hashes of all values and the position at which each list starts."""
    lengths = np.diff(starts)
    position = np.arange(len(values), dtype=np.uint64) - np.repeat(starts[:-1], lengths).astype(np.uint64)
    sums = np.concatenate([[np.uint64(0)], np.cumsum(_mix(values + position * _POSITION), dtype=np.uint64)])
    return _mix((sums[starts[1:]] - sums[starts[:-1]]) + lengths.astype(np.uint64) * _SEQUENCE)


def _is_text_or_binary(type_: pa.DataType) -> bool:
    return any(
        check(type_)
        for check in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_string_view,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_binary_view,
        )
    )


def _is_plain_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_))


def _bytes_of_fixed_width(array: pa.Array, column: str) -> npt.NDArray[np.uint8]:
    """Return the bytes of each value as a row of a matrix. The bytes of nulls are zero."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    try:
        width = array.type.bit_width // 8
    except ValueError as error:
        raise InvalidInput(f"column {column!r} of type {array.type} cannot be an input of a computed column") from error
    data = array.buffers()[1]
    if not len(array) or data is None or not width:
        return np.zeros((len(array), width), dtype=np.uint8)
    rows = np.frombuffer(data, np.uint8, len(array) * width, array.offset * width).reshape(len(array), width)
    if array.null_count:
        rows = np.where(array.is_null().to_numpy(zero_copy_only=False)[:, None], np.uint8(0), rows)
    return rows
