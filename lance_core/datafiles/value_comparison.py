"""Value comparison: finds the rows in which two arrays of one type differ.

Values are compared by their bits: a NaN equals the same NaN, and the two zeros of floating point differ. A null equals
a null only. The result may name too many rows for types without a comparison by row, such as maps; it never misses one.
Start with `differing_rows`.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask = npt.NDArray[np.bool_]
_CHUNK_BYTES = 1 << 20
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def differing_rows(old: pa.Array, new: pa.Array) -> Mask:
    """Return a mask of the rows in which the arrays, which have one type and length, differ.

    >>> differing_rows(pa.array([1.0, None, 3.0]), pa.array([1.0, None, None])).tolist()
    [False, False, True]
    """
    old, new = _plain(old), _plain(new)
    old_valid, new_valid = _valid(old), _valid(new)
    differs = _differing_values(old, new)
    if old_valid is None and new_valid is None:
        return differs
    old_valid = np.ones(len(old), dtype=np.bool_) if old_valid is None else old_valid
    new_valid = np.ones(len(new), dtype=np.bool_) if new_valid is None else new_valid
    return np.asarray((old_valid != new_valid) | (differs & old_valid & new_valid))


def _differing_values(old: pa.Array, new: pa.Array) -> Mask:
    """Compare the values; the result is undefined for rows in which one of both is null."""
    arrow = old.type
    if pa.types.is_null(arrow) or not len(old):
        return np.zeros(len(old), dtype=np.bool_)
    if pa.types.is_boolean(arrow):
        return _as_mask(pc.not_equal(old, new))
    if pa.types.is_fixed_size_list(arrow) and arrow.list_size:
        return _differing_vectors(old, new)
    if (width := _byte_width(arrow)) is not None:
        return _differing_bytes(_bytes_of(old, width), _bytes_of(new, width), width)
    if pa.types.is_struct(arrow):
        children = [differing_rows(_child(old, n), _child(new, n)) for n in range(arrow.num_fields)]
        return np.logical_or.reduce(children) if children else np.zeros(len(old), dtype=np.bool_)
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return _differing_lists(old, new)
    try:
        return _as_mask(pc.not_equal(old, new))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return np.full(len(old), not old.equals(new))


def _differing_vectors(old: pa.Array, new: pa.Array) -> Mask:
    """Compare lists of one size. Items of null lists are compared too, which only makes undefined rows differ."""
    size = old.type.list_size
    items = [array.values.slice(array.offset * size, len(array) * size) for array in (old, new)]
    width = _byte_width(old.type.value_type)
    if width is not None and all(item.null_count == 0 for item in items):
        return _differing_bytes(_bytes_of(items[0], width), _bytes_of(items[1], width), width * size)
    return np.asarray(differing_rows(items[0], items[1]).reshape(len(old), size).any(axis=1))


def _differing_lists(old: pa.Array, new: pa.Array) -> Mask:
    lengths = [np.asarray(pc.list_value_length(array).fill_null(-1)) for array in (old, new)]
    differs: Mask = np.asarray(lengths[0] != lengths[1])
    comparable = np.flatnonzero(~differs & (lengths[0] > 0))
    if len(comparable):
        rows = pa.array(comparable)
        is_different = differing_rows(old.take(rows).flatten(), new.take(rows).flatten())
        differs[np.repeat(comparable, lengths[0][comparable])[is_different]] = True
    return differs


def _differing_bytes(old: npt.NDArray[np.uint8], new: npt.NDArray[np.uint8], row_bytes: int) -> Mask:
    word = next(width for width in (8, 4, 2, 1) if row_bytes % width == 0)
    shape = (len(old) // row_bytes, row_bytes // word)
    words = [array.view(_WORDS[word]).reshape(shape) for array in (old, new)]
    if shape[1] == 1:
        return np.asarray(words[0][:, 0] != words[1][:, 0])
    differs = np.empty(shape[0], dtype=np.bool_)
    step = max(1, _CHUNK_BYTES // row_bytes)
    for start in range(0, shape[0], step):  # the result of a comparison of all words would not fit in the cache
        rows = slice(start, start + step)
        differs[rows] = (words[0][rows] != words[1][rows]).any(axis=1)
    return differs


def _bytes_of(array: pa.Array, width: int) -> npt.NDArray[np.uint8]:
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array) * width, dtype=np.uint8)
    return np.frombuffer(buffer, dtype=np.uint8)[array.offset * width : (array.offset + len(array)) * width]


def _byte_width(arrow: pa.DataType) -> int | None:
    """Return the bytes of a value; `None` if they do not lie side by side in one buffer."""
    is_fixed = pa.types.is_primitive(arrow) or pa.types.is_decimal(arrow) or pa.types.is_fixed_size_binary(arrow)
    if not is_fixed or pa.types.is_boolean(arrow):
        return None
    return int(arrow.bit_width) // 8 or None


def _plain(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


def _child(array: pa.StructArray, number: int) -> pa.Array:
    return array.field(number)


def _valid(array: pa.Array) -> Mask | None:
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False)) if array.null_count else None


def _as_mask(result: pa.Array) -> Mask:
    return np.asarray(result.fill_null(True).to_numpy(zero_copy_only=False))
